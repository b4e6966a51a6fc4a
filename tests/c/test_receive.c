/* The listening half of a call in simulated time: real Opus and G.711 through a network that we choose. */
#include "../../csrc/media/receive.h"

#include "check.h"
#include "sound.h"

#include <opus/opus.h>

#define MS 1000000ull
enum {
    RATE = 24000,
    BLOCK = RATE / 50,
    OPUS_PT = 111,
    PCMU_PT = 0,
    EVENT_PT = 110,
    HEARD_MAX = RATE * 70
};

struct call {
    struct vr_receiver r;
    OpusEncoder *encoder;
    uint64_t now_ns;
    uint16_t sequence;
    uint32_t timestamp;
    uint32_t ssrc;
    size_t spoken; /* samples at 48 kHz */
    unsigned channels;
    double tone_hz;
    size_t heard_samples;
    int16_t *heard;
};

static struct call *call_start(unsigned channels) {
    static struct call c;
    static int16_t heard[HEARD_MAX];
    struct vr_receive_config config = {RATE, OPUS_PT, PCMU_PT, VR_NO_PAYLOAD_TYPE, EVENT_PT};
    if (c.encoder != NULL) {
        opus_encoder_destroy(c.encoder);
        vr_receiver_free(&c.r);
    }
    memset(&c, 0, sizeof c);
    c.heard = heard;
    CHECK_EQ(vr_receiver_init(&c.r, &config), 0);
    c.encoder = opus_encoder_create(48000, (int)channels, OPUS_APPLICATION_VOIP, NULL);
    opus_encoder_ctl(c.encoder, OPUS_SET_BITRATE(32000));
    opus_encoder_ctl(c.encoder, OPUS_SET_INBAND_FEC(1));
    opus_encoder_ctl(c.encoder, OPUS_SET_PACKET_LOSS_PERC(20));
    c.now_ns = 1000 * MS;
    c.sequence = 65000;
    c.ssrc = 7;
    c.channels = channels;
    c.tone_hz = 440;
    return &c;
}

/* The next packet of `ms` milliseconds of tone; returns its bytes. */
static size_t speak(struct call *c, unsigned ms, uint8_t *out) {
    static int16_t mono[5760], pcm[2 * 5760];
    size_t samples = 48 * ms;
    sound_tone(mono, samples, c->tone_hz, 48000, 8000, c->spoken);
    for (size_t i = 0; i < samples; i++)
        for (unsigned k = 0; k < c->channels; k++)
            pcm[c->channels * i + k] = k == 0 ? mono[i] : 0;
    c->spoken += samples;
    struct vr_rtp rtp = {.ssrc = c->ssrc,
                         .sequence = c->sequence++,
                         .timestamp = c->timestamp,
                         .payload_type = OPUS_PT};
    c->timestamp += (uint32_t)samples;
    vr_rtp_write_header(out, &rtp);
    int bytes = opus_encode(c->encoder, pcm, (int)samples, out + 12, 1275);
    CHECK(bytes > 0);
    return 12 + (size_t)bytes;
}

static void listen(struct call *c) {
    int16_t pcm[VR_BLOCK_MAX_SAMPLES];
    if (!vr_receiver_tick(&c->r, c->now_ns, pcm))
        return;
    if (c->heard_samples + BLOCK <= HEARD_MAX)
        memcpy(c->heard + c->heard_samples, pcm, sizeof(int16_t) * BLOCK);
    c->heard_samples += BLOCK;
}

static void call_steady(struct call *c, unsigned packets, unsigned ms) {
    for (unsigned i = 0; i < packets; i++) {
        uint8_t packet[1400];
        size_t bytes = speak(c, ms, packet);
        vr_receiver_put(&c->r, packet, bytes, c->now_ns);
        /* ticks lie 7 ms after each multiple of 20 ms */
        for (unsigned t = 0; t < ms; t += 10) {
            if (c->now_ns / (10 * MS) % 2 == 0) {
                c->now_ns += 7 * MS;
                listen(c);
                c->now_ns += 3 * MS;
            } else {
                c->now_ns += 10 * MS;
            }
        }
    }
}

static double heard_frequency(const struct call *c, size_t from) {
    return sound_frequency(c->heard + from, c->heard_samples - from, RATE);
}

/* C15: the packet time changes, the sound does not. */
TEST(every_packet_time_gives_the_same_tone) {
    static const unsigned times[] = {10, 20, 40, 60, 120};
    for (size_t i = 0; i < 5; i++) {
        struct call *c = call_start(1);
        call_steady(c, 5000 / times[i], times[i]);
        CHECK(fabs(heard_frequency(c, RATE) - 440) < 4.4);
        CHECK(fabs((double)c->heard_samples / RATE - (double)c->spoken / 48000) <= 0.02);
        CHECK_EQ(c->r.jitter.counts.lost_frames, 0);
        CHECK(c->r.counts.concealed_samples <= RATE / 5);
        CHECK(sound_rms(c->heard + RATE, c->heard_samples - RATE) > 4500);
    }
    struct call *c = call_start(1); /* and all of them in one call */
    for (size_t i = 0; i < 10; i++)
        call_steady(c, 1000 / times[i % 5], times[i % 5]);
    CHECK(fabs(heard_frequency(c, RATE) - 440) < 4.4);
    CHECK_EQ(c->r.jitter.counts.lost_frames, 0);
}

TEST(stereo_left_only_is_heard_at_half) { /* C20 */
    struct call *c = call_start(2);
    opus_encoder_ctl(c->encoder, OPUS_SET_FORCE_CHANNELS(2));
    opus_encoder_ctl(c->encoder, OPUS_SET_BITRATE(96000));
    call_steady(c, 250, 20);
    double db = 20 * log10(sound_rms(c->heard + RATE, c->heard_samples - RATE) / (8000 / sqrt(2)));
    CHECK(db > -7.5 && db < -4.5);
    CHECK(fabs(heard_frequency(c, RATE) - 440) < 4.4);
}

TEST(a_lost_packet_is_recovered_and_the_delay_stays) { /* C17 */
    struct call *c = call_start(1);
    uint8_t packet[1400];
    call_steady(c, 250, 20);
    int64_t before = vr_jitter_delay_ns(&c->r.jitter, c->now_ns, 2 * (uint32_t)c->r.fifo_samples);
    speak(c, 20, packet);
    c->now_ns += 7 * MS;
    listen(c);
    c->now_ns += 13 * MS;
    call_steady(c, 50, 20);
    int64_t after = vr_jitter_delay_ns(&c->r.jitter, c->now_ns, 2 * (uint32_t)c->r.fifo_samples);
    CHECK(llabs(after - before) <= 5 * (int64_t)MS);
    CHECK_EQ(c->r.counts.recovered_samples, BLOCK);
    CHECK(fabs(heard_frequency(c, RATE) - 440) < 4.4);
}

TEST(damaged_packets_are_concealed_the_rest_is_normal) { /* C14 */
    struct call *c = call_start(1);
    uint64_t random = 9;
    for (int i = 0; i < 500; i++) {
        uint8_t packet[1400];
        size_t bytes = speak(c, 20, packet);
        if (i % 50 == 49) {
            static const size_t sizes[] = {1, 40, 1276};
            bytes = 12 + sizes[i / 50 % 3];
            for (size_t k = 12; k < bytes; k++)
                packet[k] = (uint8_t)(sound_random(&random) >> 20);
        }
        vr_receiver_put(&c->r, packet, bytes, c->now_ns);
        c->now_ns += 7 * MS;
        listen(c);
        c->now_ns += 13 * MS;
    }
    CHECK_EQ(c->heard_samples, 500 * BLOCK);
    /* 20 ms of noise each at most, and the tone again */
    CHECK(fabs(heard_frequency(c, c->heard_samples - RATE / 2) - 440) < 4.4);
}

TEST(payload_types_nobody_asked_for_are_not_heard) { /* C19 */
    struct call *c = call_start(1);
    static const uint8_t foreign[] = {13, 63, EVENT_PT, 126, 35, 71};
    for (int i = 0; i < 600; i++) {
        if (i % 5 == 0) {
            uint8_t noise[40] = {0};
            struct vr_rtp rtp = {.ssrc = c->ssrc,
                                 .sequence = c->sequence++,
                                 .timestamp = c->timestamp,
                                 .payload_type = foreign[i / 5 % 6]};
            vr_rtp_write_header(noise, &rtp);
            noise[12] = 99; /* no telephone event either */
            vr_receiver_put(&c->r, noise, sizeof noise, c->now_ns);
        }
        call_steady(c, 1, 20);
    }
    CHECK_EQ(c->r.counts.status[VR_RECEIVE_PAYLOAD_TYPE], 100);
    CHECK_EQ(c->r.jitter.counts.lost_frames, 0);
    CHECK(fabs(heard_frequency(c, RATE) - 440) < 4.4);
    CHECK(sound_largest_step(c->heard + RATE, c->heard_samples - RATE) < 1400);
}

TEST(malformed_packets_change_one_counter_each) {
    static const struct {
        const char *what, *hex;
        enum vr_receive_status status;
    } cases[] = {
        {"empty payload", "806f00010000000100000007", VR_RECEIVE_EMPTY},
        {"short", "806f0001", VR_RECEIVE_RTP},
        {"padding longer than the packet", "a06f0001000000010000000701ff", VR_RECEIVE_RTP},
        {"extension overrun", "906f00010000000100000007bede00ff00", VR_RECEIVE_RTP},
        {"RED", "803f0001000000010000000701", VR_RECEIVE_PAYLOAD_TYPE},
        {"RTX", "80610001000000010000000701", VR_RECEIVE_PAYLOAD_TYPE},
        {"Opus of 0 frames", "806f00010000000100000007ff00", VR_RECEIVE_PAYLOAD},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct call *c = call_start(1);
        uint8_t bytes[64];
        size_t n = from_hex(cases[i].hex, bytes, sizeof bytes);
        CASE(cases[i].what);
        CHECK_EQ(vr_receiver_put(&c->r, guard_copy(bytes, n), n, c->now_ns), cases[i].status);
        for (int s = 0; s < VR_RECEIVE_STATUS_COUNT; s++)
            CHECK_EQ(c->r.counts.status[s], s == (int)cases[i].status);
    }
}

TEST(telephone_events_come_once_each) {
    struct call *c = call_start(1);
    call_steady(c, 10, 20);
    static const uint8_t digits[] = {1, 2, 2, 11, 16};
    for (size_t d = 0; d < 5; d++) {
        for (int i = 0; i < 6; i++) { /* three while it lasts, the end three times */
            uint8_t packet[16];
            struct vr_rtp rtp = {.ssrc = c->ssrc,
                                 .sequence = c->sequence++,
                                 .timestamp = c->timestamp,
                                 .payload_type = EVENT_PT};
            vr_rtp_write_header(packet, &rtp);
            packet[12] = digits[d];
            packet[13] = (uint8_t)(i >= 3 ? 0x80 | 10 : 10);
            packet[14] = 0;
            packet[15] = (uint8_t)(i * 160);
            CHECK_EQ(vr_receiver_put(&c->r, packet, 16, c->now_ns), VR_RECEIVE_OK);
            c->now_ns += 20 * MS;
            listen(c);
        }
        c->timestamp += 6 * 960;
        call_steady(c, 5, 20);
    }
    for (size_t d = 0; d < 5; d++)
        CHECK_EQ(vr_events_take(&c->r.events), digits[d]);
    CHECK_EQ(vr_events_take(&c->r.events), -1);
    CHECK_EQ(c->r.jitter.counts.lost_frames, 0);
}

/* A client that makes a key of every packet keeps nobody busy; one whose network stalled loses none. */
TEST(telephone_events_come_no_faster_than_keys_are_pressed) {
    struct call *c = call_start(1);
    unsigned taken = 0;
    uint8_t packet[16] = {0};
    struct vr_rtp rtp = {.ssrc = c->ssrc, .payload_type = EVENT_PT};
    for (int i = 0; i < 10000; i++) { /* ten seconds, a thousand a second */
        rtp.timestamp += 160;
        vr_rtp_write_header(packet, &rtp);
        vr_receiver_put(&c->r, packet, sizeof packet, c->now_ns);
        c->now_ns += MS;
        while (vr_events_take(&c->r.events) >= 0)
            taken++;
        if (i == 0)
            CHECK_EQ(taken, 1);
    }
    CHECK(taken >= 250 && taken <= 250 + VR_EVENTS_WAITING);
    CHECK_EQ(c->r.events.dropped, 10000 - taken);
    c->now_ns += 1000 * MS;
    for (int i = 0; i < VR_EVENTS_WAITING; i++) {
        rtp.timestamp += 160;
        vr_rtp_write_header(packet, &rtp);
        vr_receiver_put(&c->r, packet, sizeof packet, c->now_ns);
        CHECK_EQ(vr_events_take(&c->r.events), 0);
    }
}

TEST(silence_goes_on_when_the_client_stops) {
    struct call *c = call_start(1);
    int16_t pcm[VR_BLOCK_MAX_SAMPLES];
    CHECK(!vr_receiver_tick(&c->r, c->now_ns, pcm));
    call_steady(c, 100, 20);
    size_t before = c->heard_samples;
    for (int i = 0; i < 250; i++) {
        c->now_ns += 20 * MS;
        listen(c);
    }
    CHECK_EQ(c->heard_samples - before, 250 * BLOCK);
    /* the sentence is over within 150 ms, its fade within 250 */
    CHECK(sound_rms(c->heard + before + RATE / 4, c->heard_samples - before - RATE / 4) < 1);
    CHECK(sound_largest_step(c->heard + before - RATE / 4, RATE / 2) < 1500);
    call_steady(c, 100, 20);
    CHECK(fabs(heard_frequency(c, c->heard_samples - RATE) - 440) < 4.4);
}

/* What a sender with DTX leaves out is silence; nothing of its sound is missing. */
TEST(dtx_is_no_concealment) {
    struct call *c = call_start(1);
    opus_encoder_ctl(c->encoder, OPUS_SET_DTX(1));
    call_steady(c, 100, 20);
    uint64_t concealed = c->r.counts.concealed_samples, silence = c->r.counts.silence_samples;
    c->tone_hz = 0; /* as browsers do, packets of no sound are not sent but for the first of them */
    bool was_sound = true;
    unsigned sent = 0;
    for (int i = 0; i < 500; i++) {
        uint8_t packet[1400];
        size_t bytes = speak(c, 20, packet);
        bool is_sound = bytes > 12 + 2;
        if (is_sound || was_sound) {
            vr_receiver_put(&c->r, packet, bytes, c->now_ns);
            sent++;
        } else {
            c->sequence--;
        }
        was_sound = is_sound;
        c->now_ns += 7 * MS;
        listen(c);
        c->now_ns += 13 * MS;
    }
    CHECK(sent >= 40 && sent <= 100);
    CHECK_EQ(c->r.counts.concealed_samples, concealed);
    CHECK(c->r.counts.silence_samples - silence >= (500 - 100) * BLOCK);
}

TEST(the_client_may_change_the_codec) {
    struct call *c = call_start(1);
    call_steady(c, 100, 20);
    uint8_t packet[12 + 160];
    for (int i = 0; i < 100; i++) {
        struct vr_rtp rtp = {.ssrc = c->ssrc,
                             .sequence = c->sequence++,
                             .timestamp = c->timestamp,
                             .payload_type = PCMU_PT};
        vr_rtp_write_header(packet, &rtp);
        struct vr_encoder_config config = {.codec = VR_CODEC_PCMU, .rate_hz = 8000};
        int16_t pcm[160];
        struct vr_encoder *e = vr_encoder_new(&config);
        sound_tone(pcm, 160, 440, 8000, 8000, 160 * (size_t)i);
        vr_encoder_encode(e, pcm, packet + 12, 160);
        vr_encoder_free(e);
        c->timestamp += 160;
        vr_receiver_put(&c->r, packet, sizeof packet, c->now_ns);
        c->now_ns += 20 * MS;
        listen(c);
    }
    CHECK(fabs(heard_frequency(c, c->heard_samples - RATE) - 440) < 4.4);
    c->now_ns += 13 * MS;
    call_steady(c, 100, 20);
    CHECK(fabs(heard_frequency(c, c->heard_samples - RATE) - 440) < 4.4);
}

/* A spike of 300 ms: the delay is worked off within a second or two, and no tone is torn. */
TEST(a_spike_is_worked_off_by_time_scaling) {
    struct call *c = call_start(1);
    call_steady(c, 250, 20);
    static uint8_t packets[9][1400];
    size_t bytes[9];
    for (int i = 0; i < 9; i++) {
        bytes[i] = speak(c, 20, packets[i]);
        c->now_ns += 7 * MS;
        listen(c);
        c->now_ns += 13 * MS;
    }
    for (int i = 0; i < 9; i++)
        vr_receiver_put(&c->r, packets[i], bytes[i], c->now_ns);
    call_steady(c, 100, 20);
    int64_t excess = vr_jitter_excess_ns(&c->r.jitter, c->now_ns, 2 * (uint32_t)c->r.fifo_samples);
    CHECK(excess <= 27 * (int64_t)MS); /* 5 ms, and the clock stands 20 ms after the last tick */
    CHECK(c->r.counts.shortened_samples > RATE / 10);
    CHECK(c->r.jitter.counts.lost_frames == 0);
    CHECK(fabs(heard_frequency(c, c->heard_samples - RATE) - 440) < 4.4);
}

/* F07: 60 minutes at 100 ppm either way: the delay at the end is the delay at the start. G.711, for speed. */
TEST(an_hour_of_clock_drift_adds_no_delay) {
    for (int sign = -1; sign <= 1; sign += 2) {
        struct call *c = call_start(1);
        uint8_t packet[12 + 160];
        memset(packet, 0x55, sizeof packet);
        uint64_t next_send_ns = c->now_ns;
        int64_t worst_ns = 0, least_ns = INT64_MAX, first_ns = 0, last_ns = 0;
        /* ten minutes of it, over which the delay rises or falls by a block three times */
        const int hour = 60 * 60 * 50, part = hour / 6, settled = 500;
        for (int i = 0; i < hour; i++) {
            while (next_send_ns <= c->now_ns) {
                struct vr_rtp rtp = {.ssrc = 7,
                                     .sequence = c->sequence++,
                                     .timestamp = c->timestamp,
                                     .payload_type = PCMU_PT};
                vr_rtp_write_header(packet, &rtp);
                vr_receiver_put(&c->r, packet, sizeof packet, next_send_ns);
                c->timestamp += 160;
                next_send_ns += (uint64_t)(20 * (int64_t)MS - sign * 2000);
            }
            listen(c);
            c->now_ns += 20 * MS; /* the delay that the next block has */
            int64_t delay =
                vr_jitter_delay_ns(&c->r.jitter, c->now_ns, (uint32_t)c->r.fifo_samples / 3);
            if (i > settled && delay > worst_ns)
                worst_ns = delay;
            if (i > settled && delay < least_ns)
                least_ns = delay;
            if (i >= settled && i < settled + part)
                first_ns += delay / part;
            if (i >= hour - part)
                last_ns += delay / part;
        }
        CHECK(last_ns - first_ns <= 2 * (int64_t)MS);
        CHECK(worst_ns <= 60 * (int64_t)MS && worst_ns - least_ns <= 40 * (int64_t)MS);
        CHECK_EQ(c->r.jitter.counts.lost_frames, 0);
        CHECK_EQ(c->r.jitter.counts.stale, 0);
        CHECK(c->r.counts.concealed_samples + c->r.counts.silence_samples <= 3600 * RATE / 5000);
    }
}

/* Packets every 20 ms and a tick of its own phase, which moves as the engine's does: by a ms a round. */
struct followed {
    struct call *c;
    uint64_t tick_ns;
    uint64_t send_ns, arrive_ns; /* of the next packet */
    uint64_t seed;
};

static void follow(struct followed *f, unsigned packets, unsigned jitter_ms, int drift_ppm) {
    uint8_t packet[1400];
    while (packets != 0) {
        if (f->arrive_ns <= f->tick_ns) {
            size_t bytes = speak(f->c, 20, packet);
            vr_receiver_put(&f->c->r, packet, bytes, f->arrive_ns);
            f->send_ns += (uint64_t)(20 * (int64_t)MS + drift_ppm * 20);
            uint64_t late_ns = jitter_ms == 0 ? 0 : sound_random(&f->seed) % (jitter_ms * MS);
            if (f->send_ns + late_ns > f->arrive_ns)
                f->arrive_ns = f->send_ns + late_ns;
            packets--;
            continue;
        }
        f->c->now_ns = f->tick_ns;
        listen(f->c);
        int shift_ms = vr_receiver_shift_ms(&f->c->r, 0);
        int step_ms = shift_ms < 0 ? -1 : shift_ms > 0;
        f->tick_ns = (uint64_t)((int64_t)f->tick_ns + (20 + step_ms) * (int64_t)MS);
    }
}

static unsigned beyond_target(const struct call *c, int more_than_ms) {
    unsigned count = 0;
    for (int ms = more_than_ms + 1; ms < VR_RECEIVE_BEYOND + VR_RECEIVE_BEYOND_LEAST_MS; ms++)
        count += (unsigned)c->r.counts.beyond_target[ms - VR_RECEIVE_BEYOND_LEAST_MS];
    return count;
}

/* Whatever the phase of a client's packets: all of a packet is out within the target, give or take 3 ms. */
TEST(no_packet_waits_for_the_next_tick) {
    for (unsigned phase_ms = 0; phase_ms < 20; phase_ms += 3) {
        struct call *c = call_start(1);
        struct followed f = {c, c->now_ns + phase_ms * MS, c->now_ns, c->now_ns, 5};
        follow(&f, 100, 0, 0);
        unsigned before = beyond_target(c, 3);
        uint64_t samples = c->r.counts.samples;
        follow(&f, 500, 0, 0);
        CHECK_EQ(beyond_target(c, 3), before);
        CHECK_EQ(c->r.counts.samples - samples, 500 * BLOCK);
        CHECK_EQ(c->r.jitter.counts.lost_frames, 0);
        CHECK_EQ(c->r.jitter.target_ns, 25 * MS);
        CHECK(fabs(heard_frequency(c, 2 * RATE) - 440) < 4.4);
    }
}

TEST(a_tick_follows_a_client_whose_clock_drifts) {
    for (int sign = -1; sign <= 1; sign += 2) {
        struct call *c = call_start(1);
        struct followed f = {c, c->now_ns + 7 * MS, c->now_ns, c->now_ns, 5};
        follow(&f, 200, 0, 0);
        unsigned before = beyond_target(c, 3);
        uint64_t changed = c->r.counts.shortened_samples + c->r.counts.lengthened_samples;
        follow(&f, 3000, 0, sign * 500); /* 30 ms in a minute */
        CHECK_EQ(beyond_target(c, 3), before);
        CHECK_EQ(c->r.counts.shortened_samples + c->r.counts.lengthened_samples, changed);
        CHECK_EQ(c->r.jitter.counts.lost_frames, 0);
    }
}

/* Jitter and a pause of the network: time-scaling leaves packets across blocks; they come together again. */
TEST(blocks_begin_with_packets_again_after_time_scaling) {
    struct call *c = call_start(1);
    struct followed f = {c, c->now_ns + 7 * MS, c->now_ns, c->now_ns, 5};
    follow(&f, 300, 0, 0);
    follow(&f, 300, 60, 0);
    CHECK(c->r.jitter.target_ns >= 60 * MS);
    f.arrive_ns += 170 * MS;
    follow(&f, 10, 0, 0);
    CHECK(c->r.counts.shortened_samples > 0);
    follow(&f, 900, 0, 0);
    CHECK_EQ(c->r.fifo_samples % BLOCK, 0);
    unsigned before = beyond_target(c, 5);
    follow(&f, 500, 0, 0);
    CHECK(beyond_target(c, 5) - before <= 5);
    CHECK(fabs(heard_frequency(c, c->heard_samples - RATE) - 440) < 4.4);
}

/* 20 ms of tone in G.711. */
static size_t speak_g711(struct call *c, bool alaw, uint8_t *out) {
    struct vr_encoder_config config = {.codec = alaw ? VR_CODEC_PCMA : VR_CODEC_PCMU,
                                       .rate_hz = 8000};
    struct vr_rtp rtp = {.ssrc = c->ssrc,
                         .sequence = c->sequence++,
                         .timestamp = c->timestamp,
                         .payload_type = alaw ? 8 : PCMU_PT};
    struct vr_encoder *e = vr_encoder_new(&config);
    int16_t pcm[160];
    sound_tone(pcm, 160, 440, 8000, 8000, c->spoken);
    c->spoken += 160;
    c->timestamp += 160;
    vr_rtp_write_header(out, &rtp);
    size_t bytes = vr_encoder_encode(e, pcm, out + 12, 160);
    vr_encoder_free(e);
    return 12 + bytes;
}

/* What waits is decoded as what it is, whatever has come since. */
TEST(packets_of_two_codecs_wait_side_by_side) {
    struct call *c = call_start(1);
    c->r.config.pcma_payload_type = 8;
    uint8_t packets[4][1400];
    size_t bytes[4];
    for (int i = 0; i < 200; i++) { /* four at once, of which two are of the other law */
        for (int k = 0; k < 4; k++)
            bytes[k] = speak_g711(c, (4 * i + k) / 6 % 2 == 0, packets[k]);
        for (int k = 0; k < 4; k++)
            vr_receiver_put(&c->r, packets[k], bytes[k], c->now_ns);
        for (int k = 0; k < 4; k++) {
            c->now_ns += 7 * MS;
            listen(c);
            c->now_ns += 13 * MS;
        }
    }
    CHECK(fabs(heard_frequency(c, 2 * RATE) - 440) < 4.4);
    CHECK(sound_rms(c->heard + 2 * RATE, c->heard_samples - 2 * RATE) < 6500); /* no noise */
}

/* At a change of the codec two packets change places. */
TEST(a_straggler_of_the_codec_before_changes_nothing_back) {
    struct call *c = call_start(1);
    call_steady(c, 250, 20);
    uint8_t straggler[1400], packet[1400];
    size_t bytes = speak(c, 20, straggler);
    for (int i = 0; i < 100; i++) {
        size_t other_bytes = speak_g711(c, false, packet);
        CHECK_EQ(vr_receiver_put(&c->r, packet, other_bytes, c->now_ns), VR_RECEIVE_OK);
        if (i == 0)
            CHECK_EQ(vr_receiver_put(&c->r, straggler, bytes, c->now_ns), VR_RECEIVE_LATE);
        c->now_ns += 7 * MS;
        listen(c);
        c->now_ns += 13 * MS;
    }
    CHECK_EQ(c->r.jitter.counts.restarts, 0);
    CHECK(c->r.jitter.counts.evicted <= 1);
    CHECK_EQ(c->r.jitter.counts.lost_frames, 0);
}

/* The network is the same after the change: what was learnt of it holds. */
TEST(a_change_of_the_codec_keeps_the_delay) {
    struct call *c = call_start(1);
    struct followed f = {c, c->now_ns + 7 * MS, c->now_ns, c->now_ns, 5};
    follow(&f, 500, 60, 0);
    uint64_t before_ns = c->r.jitter.target_ns;
    CHECK(before_ns >= 60 * MS);
    uint8_t packet[12 + 160];
    memset(packet, 0xff, sizeof packet);
    struct vr_rtp rtp = {
        .ssrc = 7, .sequence = c->sequence++, .timestamp = c->timestamp, .payload_type = PCMU_PT};
    vr_rtp_write_header(packet, &rtp);
    unsigned waiting = vr_jitter_depth(&c->r.jitter);
    uint64_t evicted = c->r.jitter.counts.evicted;
    CHECK_EQ(vr_receiver_put(&c->r, packet, sizeof packet, f.tick_ns), VR_RECEIVE_OK);
    CHECK(waiting != 0);
    CHECK_EQ(c->r.jitter.counts.evicted - evicted, waiting);
    CHECK_EQ(c->r.jitter.target_ns, before_ns);
    follow(&f, 5, 60, 0);
    CHECK(c->r.jitter.target_ns >= before_ns - 10 * MS);
}

TEST(random_packets_and_ticks_stay_in_bounds) {
    uint64_t random = 11;
    struct call *c = call_start(1);
    for (int i = 0; i < 30000; i++) {
        uint64_t n = sound_random(&random);
        uint8_t packet[1500];
        size_t bytes = 12 + (n >> 50) % 200;
        for (size_t k = 12; k < bytes; k++)
            packet[k] = (uint8_t)sound_random(&random);
        struct vr_rtp rtp = {.ssrc = (uint32_t)(n >> 3 & 1),
                             .sequence = n & 4 ? c->sequence++ : (uint16_t)(n >> 7),
                             .timestamp = n & 2 ? c->timestamp += 960 : (uint32_t)(n >> 9),
                             .payload_type = n & 32   ? OPUS_PT
                                             : n & 64 ? PCMU_PT
                                                      : EVENT_PT};
        vr_rtp_write_header(packet, &rtp);
        vr_receiver_put(&c->r, packet, bytes, c->now_ns);
        c->now_ns += n % (25 * MS);
        listen(c);
        CHECK(c->r.fifo_samples <= c->r.fifo_capacity_samples);
        vr_events_take(&c->r.events);
    }
}
