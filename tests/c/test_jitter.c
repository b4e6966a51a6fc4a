/* The jitter buffer in simulated time: one behaviour a function. */
#include "../../csrc/media/jitter.h"

#include "check.h"

static uint64_t next_random(uint64_t *state) { /* xorshift64*: the same numbers everywhere */
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717u;
}

#define MS 1000000ull
enum { UNITS = 960, BLOCK_MS = 20 };

/* A sender, a network and a playout clock that asks for 20 ms every 20 ms. */
struct simulation {
    struct vr_jitter j;
    uint64_t now_ns;
    uint32_t ssrc;
    uint16_t sequence;
    uint32_t timestamp;
    uint32_t pending; /* decoded and not played */
    unsigned packets, lost, fec, empty;
    uint64_t worst_age_ns; /* arrival to handing out */
    uint16_t last_payload;
};

static struct simulation *start(void) {
    static struct simulation s;
    memset(&s, 0, sizeof s);
    vr_jitter_init(&s.j, 48000);
    s.now_ns = 1000 * MS;
    s.ssrc = 1;
    s.sequence = 65500; /* wraps soon */
    s.timestamp = 0xffffff00u - 30 * UNITS;
    return &s;
}

static enum vr_jitter_status arrive(struct simulation *s, uint16_t sequence, uint32_t timestamp,
                                    uint64_t at_ns) {
    uint8_t payload[2] = {(uint8_t)(sequence >> 8), (uint8_t)sequence};
    struct vr_rtp rtp = {.ssrc = s->ssrc,
                         .sequence = sequence,
                         .timestamp = timestamp,
                         .payload = payload,
                         .payload_bytes = 2,
                         .payload_type = 111};
    return vr_jitter_put(&s->j, &rtp, UNITS, at_ns);
}

static enum vr_jitter_status send_next(struct simulation *s) {
    uint16_t sequence = s->sequence++;
    uint32_t timestamp = s->timestamp;
    s->timestamp += UNITS;
    return arrive(s, sequence, timestamp, s->now_ns);
}

static void skip_next(struct simulation *s) {
    s->sequence++;
    s->timestamp += UNITS;
}

/* One 20 ms block at now_ns. */
static void play(struct simulation *s) {
    while (s->pending < UNITS) {
        struct vr_jitter_frame frame;
        vr_jitter_take(&s->j, s->now_ns, s->pending, UNITS - s->pending, &frame);
        CHECK(frame.units != 0 && frame.units <= 120 * 48);
        s->pending += frame.units;
        switch (frame.kind) {
        case VR_JITTER_EMPTY:
            s->empty++;
            break;
        case VR_JITTER_LOST:
            s->lost++;
            s->fec += frame.payload != NULL;
            break;
        case VR_JITTER_PACKET:
            s->packets++;
            s->last_payload = (uint16_t)(frame.payload[0] << 8 | frame.payload[1]);
            if (s->now_ns - frame.arrival_ns > s->worst_age_ns)
                s->worst_age_ns = s->now_ns - frame.arrival_ns;
            break;
        }
    }
    s->pending -= UNITS;
}

/* A steady network: a packet every 20 ms, played 7 ms after its arrival at the earliest. */
static void steady(struct simulation *s, unsigned blocks) {
    for (unsigned i = 0; i < blocks; i++) {
        send_next(s);
        s->now_ns += 7 * MS;
        play(s);
        s->now_ns += 13 * MS;
    }
}

static int64_t delay_ms(const struct simulation *s) {
    return vr_jitter_delay_ns(&s->j, s->now_ns, s->pending) / (int64_t)MS;
}

TEST(steady_stream_over_both_wraps) {
    struct simulation *s = start();
    steady(s, 500);
    CHECK(s->lost == 0 && s->packets >= 497);
    CHECK(s->j.target_ns == 25 * MS);
    CHECK(s->worst_age_ns <= 47 * MS);
}

/* C17: one lost packet takes its own 20 ms and leaves the delay as it was. */
TEST(one_loss_never_adds_delay) {
    struct simulation *s = start();
    steady(s, 250);
    int64_t before = delay_ms(s);
    skip_next(s);
    s->now_ns += 7 * MS;
    play(s);
    s->now_ns += 13 * MS;
    steady(s, 50);
    CHECK(s->lost == 1 && s->fec == 1 && delay_ms(s) == before);
    steady(s, 2700);
    CHECK(delay_ms(s) == before && s->j.counts.lost_frames == 1);
}

TEST(burst_loss_is_concealed_in_place) {
    struct simulation *s = start();
    steady(s, 250);
    int64_t before = delay_ms(s);
    for (int i = 0; i < 5; i++) {
        skip_next(s);
        s->now_ns += 7 * MS;
        play(s);
        s->now_ns += 13 * MS;
    }
    steady(s, 50);
    CHECK(s->lost + s->empty >= 5 && s->fec <= 1);
    CHECK(delay_ms(s) - before <= 1 && before - delay_ms(s) <= 1);
}

TEST(duplicates_and_late_packets_are_counted) {
    struct simulation *s = start();
    steady(s, 100);
    uint16_t sequence = s->sequence;
    uint32_t timestamp = s->timestamp;
    CHECK(send_next(s) == VR_JITTER_OK);
    CHECK(arrive(s, sequence, timestamp, s->now_ns) == VR_JITTER_DUPLICATE);
    CHECK(arrive(s, (uint16_t)(sequence - 50), timestamp - 50 * UNITS, s->now_ns) ==
          VR_JITTER_LATE);
    CHECK(s->j.counts.status[VR_JITTER_LATE] == 1 && s->j.counts.status[VR_JITTER_DUPLICATE] == 1);
}

TEST(reordered_packets_play_in_order) {
    struct simulation *s = start();
    steady(s, 100);
    unsigned lost = s->lost;
    for (int i = 0; i < 200; i++) { /* each pair changes places and comes with 20 ms of lateness */
        uint16_t sequence = s->sequence;
        uint32_t timestamp = s->timestamp;
        skip_next(s);
        if (i > 20)
            lost = i == 21 ? s->lost : lost;
        s->now_ns += 20 * MS;
        send_next(s);
        arrive(s, sequence, timestamp, s->now_ns);
        play(s);
        s->now_ns += 20 * MS;
        play(s);
    }
    CHECK(s->lost - lost <= 1);
    CHECK(s->j.target_ns >= 40 * MS && s->j.target_ns <= 60 * MS);
}

/* 30 s of packets that take 0..150 ms, and those that are still under way. */
static void jittery(struct simulation *s) {
    uint64_t random = 42;
    struct flying {
        uint64_t at_ns;
        uint16_t sequence;
        uint32_t timestamp;
    } flight[64];
    unsigned flying = 0;
    for (int i = 0; i < 1500; i++) {
        flight[flying++] = (struct flying){s->now_ns + next_random(&random) % (150 * MS),
                                           s->sequence, s->timestamp};
        skip_next(s);
        s->now_ns += 20 * MS;
        for (unsigned k = 0; k < flying;)
            if (flight[k].at_ns <= s->now_ns) {
                arrive(s, flight[k].sequence, flight[k].timestamp, flight[k].at_ns);
                flight[k] = flight[--flying];
            } else {
                k++;
            }
        play(s);
    }
    CHECK(s->j.target_ns >= 150 * MS && s->j.target_ns <= 185 * MS);
    for (unsigned k = 0; k < flying; k++)
        arrive(s, flight[k].sequence, flight[k].timestamp, s->now_ns);
}

TEST(target_follows_jitter_up_and_down) {
    struct simulation *s = start();
    steady(s, 100);
    jittery(s);
    steady(s, 2000); /* 40 s of quiet: it shrinks again */
    CHECK(s->j.target_ns <= 30 * MS);
    CHECK(vr_jitter_excess_ns(&s->j, s->now_ns, s->pending) >
          100 * (int64_t)MS); /* for time-scaling */
}

/* What waits for late packets waits at a sentence's end, too: nobody knows yet that it is the end. It is
 * never more than the target and the block in which it is due. */
TEST(after_jitter_a_sentence_ends_within_the_target) {
    struct simulation *s = start();
    steady(s, 100);
    jittery(s);
    s->worst_age_ns = 0;
    for (int spurt = 0; spurt < 10; spurt++) {
        uint16_t last = (uint16_t)(s->sequence - 1);
        for (int i = 0; i < 20; i++) {
            s->now_ns += 20 * MS;
            s->timestamp += UNITS;
            play(s);
        }
        CHECK(s->last_payload == last);
        CHECK(s->worst_age_ns <= s->j.target_ns + 20 * MS);
        steady(s, 10);
    }
    CHECK(s->j.target_ns >= 150 * MS); /* all the while */
}

TEST(dtx_gap_is_silence_and_speech_starts_on_target) {
    struct simulation *s = start();
    steady(s, 250);
    unsigned lost = s->lost;
    s->worst_age_ns = 0;
    for (int spurt = 0; spurt < 10; spurt++) {
        uint16_t last = (uint16_t)(s->sequence - 1);
        for (int i = 0; i < 20; i++) { /* 400 ms without a packet */
            s->now_ns += 20 * MS;
            s->timestamp += UNITS;
            play(s);
            if (i == 5) /* 140 ms after it came */
                CHECK(s->last_payload == last);
        }
        CHECK(s->worst_age_ns <= 150 * MS); /* the end of the sentence above all */
        steady(s, 25);
        CHECK(vr_jitter_excess_ns(&s->j, s->now_ns - 13 * MS, s->pending) <= 21 * (int64_t)MS);
    }
    CHECK(s->lost == lost);
}

TEST(a_spike_delays_and_the_excess_is_reported) {
    struct simulation *s = start();
    steady(s, 250);
    unsigned played = s->packets;
    for (int i = 0; i < 6; i++) { /* 120 ms of nothing, then all at once */
        s->now_ns += 20 * MS;
        play(s);
    }
    for (int i = 0; i < 6; i++)
        send_next(s);
    steady(s, 50);
    /* no speech is thrown away */
    CHECK(s->packets - played + vr_jitter_depth(&s->j) >= 55 && s->lost == 0);
    CHECK(vr_jitter_excess_ns(&s->j, s->now_ns, s->pending) > 60 * (int64_t)MS);
}

TEST(a_long_stall_drops_what_is_too_old) {
    struct simulation *s = start();
    steady(s, 250);
    for (int i = 0; i < 45; i++) {
        s->now_ns += 20 * MS;
        play(s);
    }
    for (int i = 0; i < 45; i++)
        send_next(s);
    steady(s, 10);
    CHECK(s->j.counts.stale >= 30 && s->j.counts.stale <= 40);
    CHECK(delay_ms(s) <= 260);
}

/* Nothing arrives for so long, as on a busy Wi-Fi, then all at once. */
static void stall(struct simulation *s, unsigned packets) {
    for (unsigned i = 0; i < packets; i++) {
        s->now_ns += 20 * MS;
        play(s);
    }
    for (unsigned i = 0; i < packets; i++)
        send_next(s);
}

/* What comes later than the longest delay would help has no say in the delay: else one such second would cost all
 * speech of the next twenty 180 ms. */
TEST(a_long_stall_leaves_no_delay_behind) {
    for (unsigned packets = 20; packets <= 100; packets += 20) {
        struct simulation *s = start();
        steady(s, 500);
        stall(s, packets);
        steady(s, 50);
        CHECK(s->j.target_ns <= 60 * MS);
        steady(s, 200);
        CHECK(s->j.target_ns == 25 * MS);
    }
}

TEST(stalls_that_come_again_and_again_are_waited_for) {
    struct simulation *s = start();
    steady(s, 500);
    for (int i = 0; i < 20; i++) {
        stall(s, 8);
        steady(s, 25);
    }
    CHECK(s->j.target_ns >= 140 * MS && s->j.target_ns <= 185 * MS);
}

/* A handover to a network that is 150 ms longer, and one back, on which seven packets overtake others. */
TEST(a_longer_route_is_no_jitter) {
    struct simulation *s = start();
    steady(s, 500);
    s->now_ns += 150 * MS;
    steady(s, 250);
    CHECK(s->j.target_ns == 25 * MS);
    steady(s, 500);
    for (int i = 0; i < 7; i++)
        send_next(s);
    steady(s, 250);
    CHECK(s->j.target_ns == 25 * MS);
}

/* 60 ms packets are a third as many: the time to forget is the same. */
TEST(long_packets_forget_as_fast_as_short_ones) {
    struct simulation *s = start();
    uint64_t random = 3;
    for (int i = 0; i < 2000; i++) {
        uint64_t at_ns = s->now_ns + (i < 500 ? next_random(&random) % (150 * MS) : 0);
        uint8_t payload[1] = {0};
        struct vr_rtp rtp = {
            .ssrc = 1, .sequence = s->sequence++, .payload = payload, .payload_bytes = 1};
        rtp.timestamp = s->timestamp;
        s->timestamp += 3 * UNITS;
        vr_jitter_put(&s->j, &rtp, 3 * UNITS, at_ns);
        s->now_ns += 60 * MS;
        if (i == 499)
            CHECK(s->j.target_ns >= 140 * MS);
        if (i == 500 + 45 * 1000 / 60)
            CHECK(s->j.target_ns == 25 * MS);
    }
}

/* Ten minutes without a packet: by 300 ppm the clocks are 180 ms apart afterwards. */
TEST(clocks_that_drift_in_a_long_silence_add_no_delay) {
    for (int sign = -1; sign <= 1; sign += 2) {
        struct simulation *s = start();
        steady(s, 500);
        s->timestamp += 600 * 48000u;
        for (uint64_t until_ns = s->now_ns + (uint64_t)(600000 + sign * 180) * MS;
             s->now_ns < until_ns; s->now_ns += 20 * MS)
            play(s);
        uint64_t worst_ns = 0;
        for (int i = 0; i < 500; i++) {
            steady(s, 1);
            worst_ns = s->j.target_ns > worst_ns ? s->j.target_ns : worst_ns;
        }
        CHECK(worst_ns == 25 * MS);
        CHECK(s->lost == 0 && delay_ms(s) <= 60);
    }
}

/* Few packets come while the sender is silent, so the least of them wavers: what was learnt must last. */
TEST(dtx_does_not_wear_the_target_away) {
    struct simulation *s = start();
    uint64_t random = 5;
    for (int i = 0; i < 1000; i++) {
        uint16_t sequence = s->sequence;
        uint32_t timestamp = s->timestamp;
        skip_next(s);
        s->now_ns += 20 * MS;
        arrive(s, sequence, timestamp, s->now_ns + next_random(&random) % (80 * MS));
    }
    uint64_t before_ns = s->j.target_ns;
    for (int i = 0; i < 75; i++) { /* 30 s of silence */
        s->now_ns += 400 * MS;
        s->timestamp += 19 * UNITS;
        uint32_t timestamp = s->timestamp;
        s->timestamp += UNITS;
        arrive(s, s->sequence++, timestamp, s->now_ns + next_random(&random) % (80 * MS));
    }
    CHECK(before_ns >= 90 * MS && s->j.target_ns >= before_ns - 25 * MS);
}

/* C12: new SSRC, jumps of +-20,000 with new timestamps: sound within 200 ms. */
TEST(new_sources_and_jumps) {
    static const struct {
        int ssrc_step, sequence_step;
        uint32_t timestamp_step;
    } cases[] = {{1, 0, 0},       {1, 20000, 12345678},  {0, 20000, 12345678},
                 {0, -20000, 99}, {0, 500, 0x90000000u}, {1, -20000, 0x80000000u}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct simulation *s = start();
        steady(s, 100);
        s->ssrc += (uint32_t)cases[i].ssrc_step;
        s->sequence = (uint16_t)(s->sequence + cases[i].sequence_step);
        s->timestamp += cases[i].timestamp_step;
        uint16_t first = s->sequence;
        steady(s, 10);
        CHECK(s->j.counts.restarts == 1);
        CHECK((uint16_t)(s->last_payload - first) < 10);
        unsigned packets = s->packets;
        steady(s, 100);
        CHECK(s->packets - packets >= 99);
    }
}

TEST(stragglers_of_the_old_source_do_not_switch_back) {
    struct simulation *s = start();
    steady(s, 100);
    uint16_t old_sequence = s->sequence;
    uint32_t old_timestamp = s->timestamp;
    s->ssrc = 2;
    steady(s, 3);
    s->ssrc = 1;
    CHECK(arrive(s, old_sequence, old_timestamp, s->now_ns) == VR_JITTER_OLD_SOURCE);
    s->ssrc = 2;
    steady(s, 20);
    CHECK(s->j.counts.restarts == 1);
}

TEST(what_a_new_source_finds_waiting_is_counted) {
    struct simulation *s = start();
    steady(s, 100);
    for (int i = 0; i < 5; i++)
        send_next(s);
    unsigned waiting = vr_jitter_depth(&s->j);
    s->ssrc = 2;
    send_next(s);
    CHECK(waiting >= 5 && vr_jitter_depth(&s->j) == 1);
    CHECK_EQ(s->j.counts.evicted, waiting);
    CHECK_EQ(s->packets + s->j.counts.evicted + 1, s->j.counts.status[VR_JITTER_OK]);
}

TEST(one_stray_sequence_number_is_ignored) {
    struct simulation *s = start();
    steady(s, 100);
    unsigned packets = s->packets;
    for (int i = 0; i < 50; i++) {
        CHECK(arrive(s, (uint16_t)(s->sequence + 5000 + 7 * i), 0, s->now_ns) == VR_JITTER_JUMP);
        steady(s, 2);
    }
    CHECK(s->j.counts.restarts == 0 && s->packets - packets == 100);
}

/* C19: what is not audio uses up sequence numbers and nothing else. */
TEST(fillers_are_not_losses) {
    struct simulation *s = start();
    steady(s, 100);
    for (int i = 0; i < 100; i++) {
        struct vr_rtp rtp = {.ssrc = s->ssrc,
                             .sequence = s->sequence++,
                             .timestamp = s->timestamp,
                             .payload_type = 110};
        CHECK(vr_jitter_put(&s->j, &rtp, 0, s->now_ns) == VR_JITTER_OK);
        rtp.ssrc = 99; /* RTX has an SSRC of its own: never a switch */
        CHECK(vr_jitter_put(&s->j, &rtp, 0, s->now_ns) == VR_JITTER_OLD_SOURCE);
        steady(s, 3);
    }
    CHECK(s->lost == 0 && s->j.counts.restarts == 0);
}

/* While a key is held its packets have the timestamp of its beginning, or of another clock; the sound beside them
 * goes on, and after a sender's jump they confirm nothing. */
TEST(a_key_that_is_held_disturbs_no_sound) {
    static const uint32_t beginnings[] = {0, 0x40000000u};
    for (size_t i = 0; i < 2; i++) {
        struct simulation *s = start();
        steady(s, 250);
        unsigned packets = s->packets;
        uint32_t began = s->timestamp + beginnings[i];
        for (int k = 0; k < 250; k++) { /* five seconds */
            struct vr_rtp rtp = {.ssrc = s->ssrc,
                                 .sequence = s->sequence++,
                                 .timestamp = began,
                                 .payload_type = 110};
            CHECK_EQ(vr_jitter_put(&s->j, &rtp, 0, s->now_ns), VR_JITTER_OK);
            steady(s, 1);
        }
        CHECK_EQ(s->packets - packets, 250);
        CHECK_EQ(s->lost + s->j.counts.restarts, 0);
        CHECK(delay_ms(s) <= 60);
        s->sequence += 20000;
        struct vr_rtp rtp = {
            .ssrc = s->ssrc, .sequence = s->sequence++, .timestamp = began, .payload_type = 110};
        CHECK_EQ(vr_jitter_put(&s->j, &rtp, 0, s->now_ns), VR_JITTER_JUMP);
        steady(s, 50);
        CHECK_EQ(s->j.counts.restarts, 1);
        CHECK(delay_ms(s) <= 60);
    }
}

TEST(clock_drift_shows_as_excess_not_as_loss) {
    for (int sign = -1; sign <= 1; sign += 2) {
        struct simulation *s = start();
        uint64_t next_send_ns = s->now_ns;
        for (int i = 0; i < 3000; i++) { /* one minute, 1000 ppm: 60 ms apart at its end */
            while (next_send_ns <= s->now_ns) {
                arrive(s, s->sequence, s->timestamp, next_send_ns);
                skip_next(s);
                next_send_ns += (uint64_t)(20 * (int64_t)MS - sign * 20000);
            }
            play(s);
            s->now_ns += 20 * MS;
        }
        int64_t excess_ms = vr_jitter_excess_ns(&s->j, s->now_ns, s->pending) / (int64_t)MS;
        if (sign > 0) /* fast sender: the buffer fills */
            CHECK(excess_ms > 20 && s->lost == 0);
        else /* slow sender: EMPTY blocks make up for it */
            CHECK(excess_ms < 30 && s->lost == 0 && s->empty <= 8);
    }
}

TEST(random_traffic_never_breaks_the_bounds) {
    struct simulation *s = start();
    uint64_t random = 7;
    for (int i = 0; i < 200000; i++) {
        uint64_t r = next_random(&random);
        s->now_ns += r % (3 * MS);
        if (r >> 60 == 0)
            s->ssrc = (uint32_t)(r >> 8) % 3;
        if ((r >> 40 & 1023) == 0)
            s->now_ns += 3000 * MS;
        struct vr_rtp rtp = {.ssrc = s->ssrc, .payload_type = 111};
        static uint8_t payload[VR_JITTER_PAYLOAD_MAX_BYTES + 1];
        rtp.payload = payload;
        rtp.payload_bytes = 2 + (r >> 20) % VR_JITTER_PAYLOAD_MAX_BYTES;
        rtp.sequence = (uint16_t)(r >> 4 & 1 ? s->sequence++ : r >> 33);
        rtp.timestamp = (uint32_t)(r >> 5 & 1 ? s->timestamp += UNITS : r >> 17);
        vr_jitter_put(&s->j, &rtp, (uint32_t)(r >> 6) % 3 * UNITS, s->now_ns);
        if (r >> 3 & 1)
            play(s);
        CHECK(vr_jitter_depth(&s->j) <= VR_JITTER_SLOTS);
        CHECK(s->j.target_ns >= 20 * MS && s->j.target_ns <= 200 * MS);
    }
}
