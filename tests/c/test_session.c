/* Two sessions talk over SRTP in simulated time: sound, echo, reports, forgery, and the ring at its end. */
#include "../../csrc/media/session.h"

#include "check.h"
#include "sound.h"

#define MS 1000000ull
enum { RATE = 24000, BLOCK = RATE / 50 };

static struct vr_session_config config_of(enum vr_session_mode mode, uint32_t ssrc) {
    return (struct vr_session_config){
        .mode = mode,
        .receive = {RATE, 111, VR_NO_PAYLOAD_TYPE, VR_NO_PAYLOAD_TYPE, 110},
        .pacer = {.rate_hz = RATE,
                  .start_ms = 0,
                  .capacity_samples = 60 * RATE,
                  .first_timestamp = ssrc * 1000},
        .encoder = {.codec = VR_CODEC_OPUS, .rate_hz = RATE, .bitrate = 24000},
        .payload_type = 111,
        .ssrc = ssrc,
        .first_sequence = (uint16_t)(ssrc * 7),
        .ntp_offset = 0xe000000000000000u,
        .cname = "somebody",
    };
}

static struct vr_srtp *key(uint8_t seed) {
    uint8_t bytes[32], salt[14];
    memset(bytes, seed, sizeof bytes);
    memset(salt, seed, sizeof salt);
    return vr_srtp_new(VR_SRTP_AEAD_AES_128_GCM, bytes, salt);
}

static struct vr_session *session(enum vr_session_mode mode, uint32_t ssrc, uint8_t in, uint8_t out,
                                  uint64_t now_ns) {
    struct vr_session_config config = config_of(mode, ssrc);
    struct vr_session *s = vr_session_new(&config, now_ns);
    vr_session_set_keys(s, key(in), key(out));
    return s;
}

/* What `from` makes at its tick goes to `to`; what that sends back goes to `from`. */
static void exchange(struct vr_session *from, struct vr_session *to, uint64_t now_ns) {
    struct vr_session_output out;
    uint8_t reply[VR_SESSION_PACKET_BYTES];
    size_t reply_bytes;
    vr_session_tick(from, now_ns, false, &out);
    if (out.rtp_bytes != 0) {
        CHECK_EQ(vr_session_packet(to, out.rtp, out.rtp_bytes, now_ns, reply, &reply_bytes),
                 VR_SESSION_OK);
        size_t none;
        uint8_t back[VR_SESSION_PACKET_BYTES];
        if (reply_bytes != 0)
            CHECK_EQ(vr_session_packet(from, reply, reply_bytes, now_ns, back, &none),
                     VR_SESSION_OK);
    }
    if (out.rtcp_bytes != 0)
        CHECK_EQ(vr_session_packet(to, out.rtcp, out.rtcp_bytes, now_ns, reply, &reply_bytes),
                 VR_SESSION_OK);
}

static void say(struct vr_session *s, unsigned blocks) {
    int16_t pcm[BLOCK];
    for (unsigned i = 0; i < blocks; i++) {
        sound_tone(pcm, BLOCK, 440, RATE, 8000, i * BLOCK);
        CHECK_EQ(vr_pacer_write(vr_session_pacer(s), 1, pcm, BLOCK), BLOCK);
    }
}

static void hears_a_tone(struct vr_session *s) {
    static int16_t heard[2 * RATE];
    size_t got = vr_session_read(s, heard, 2 * RATE);
    CHECK(got >= RATE / 2);
    size_t from = got - RATE / 2;
    CHECK(fabs(sound_frequency(heard + from, RATE / 2, RATE) - 440) < 4.4);
    CHECK(sound_rms(heard + from, RATE / 2) > 4000);
}

TEST(sound_and_reports_cross_both_ways) {
    uint64_t now = 1000 * MS;
    struct vr_session *a = session(VR_SESSION_PCM, 1, 10, 20, now);
    struct vr_session *b = session(VR_SESSION_PCM, 2, 20, 10, now);
    say(a, 200);
    say(b, 200);
    for (int i = 0; i < 150; i++, now += 20 * MS) {
        exchange(a, b, now);
        exchange(b, a, now + 5 * MS);
    }
    hears_a_tone(a);
    hears_a_tone(b);
    struct vr_session_counts counts;
    vr_session_read_counts(a, &counts);
    CHECK_EQ(counts.packets_out, 150);
    CHECK_EQ(counts.packets_in, 150);
    CHECK_EQ(counts.lost_in, 0);
    CHECK(counts.reports_in >= 2 && counts.reports_out >= 2);
    CHECK(counts.verdicts_in >= 2);
    CHECK_EQ(counts.fraction_lost_out, 0);
    vr_session_free(a);
    vr_session_free(b);
}

TEST(echo_comes_back_without_a_codec) {
    uint64_t now = 1000 * MS;
    struct vr_session *client = session(VR_SESSION_PCM, 1, 10, 20, now);
    struct vr_session *server = session(VR_SESSION_ECHO, 2, 20, 10, now);
    say(client, 200);
    for (int i = 0; i < 150; i++, now += 20 * MS) {
        exchange(client, server, now);
        exchange(server, client, now + 5 * MS);
    }
    hears_a_tone(client);
    struct vr_session_counts counts;
    vr_session_read_counts(server, &counts);
    CHECK_EQ(counts.packets_out, 150);
    CHECK_EQ(counts.echo_dropped, 0);
    CHECK(vr_session_pacer(server) == NULL && vr_session_read(server, NULL, 0) == 0);
    vr_session_free(client);
    vr_session_free(server);
}

TEST(echo_keeps_losses_and_goes_on_after_jumps) {
    uint64_t now = 1000 * MS;
    struct vr_session *server = session(VR_SESSION_ECHO, 2, 20, 10, now);
    struct vr_srtp *tx = key(20), *rx = key(10);
    uint16_t last = 0;
    uint32_t last_timestamp = 0;
    static const struct {
        uint32_t ssrc;
        uint16_t sequence;
        uint32_t timestamp;
        int step; /* of our own sequence number */
    } packets[] = {{7, 65534, 100, 0},      {7, 65535, 1060, 1}, {7, 1, 2980, 2},
                   {7, 0, 2020, -1},        {7, 20000, 77, 2},   {8, 500, 0x80000000u, 1},
                   {8, 501, 0x800003c0u, 1}};
    for (size_t i = 0; i < sizeof packets / sizeof packets[0]; i++, now += 20 * MS) {
        uint8_t in[64] = {0}, out[VR_SESSION_PACKET_BYTES];
        struct vr_rtp rtp = {.ssrc = packets[i].ssrc,
                             .sequence = packets[i].sequence,
                             .timestamp = packets[i].timestamp,
                             .payload_type = 111};
        size_t bytes = 40, out_bytes;
        vr_rtp_write_header(in, &rtp);
        CHECK_EQ(vr_srtp_protect(tx, in, &bytes, sizeof in), VR_SRTP_OK);
        CHECK_EQ(vr_session_packet(server, in, bytes, now, out, &out_bytes), VR_SESSION_OK);
        CHECK_EQ(vr_srtp_unprotect(rx, out, &out_bytes), VR_SRTP_OK);
        CHECK_EQ(vr_rtp_read(out, out_bytes, &rtp), VR_RTP_OK);
        CHECK_EQ(rtp.ssrc, 2);
        if (i != 0)
            CHECK_EQ((int16_t)(rtp.sequence - last), packets[i].step);
        if (i >= 4)
            CHECK((int32_t)(rtp.timestamp - last_timestamp) > 0);
        last = rtp.sequence;
        last_timestamp = rtp.timestamp;
    }
    vr_srtp_free(tx);
    vr_srtp_free(rx);
    vr_session_free(server);
}

TEST(a_silent_call_reports_every_400_ms) {
    uint64_t now = 1000 * MS, last = now;
    struct vr_session *s = session(VR_SESSION_PCM, 1, 10, 20, now);
    struct vr_session_output out;
    for (int i = 0; i < 500; i++, now += 20 * MS) {
        vr_session_tick(s, now, false, &out);
        if (out.rtcp_bytes != 0) {
            CHECK(now - last <= 400 * MS);
            last = now;
        }
    }
    for (int i = 0; i < 50; i++) {
        vr_session_tick(s, now += 20 * MS, true, &out);
        CHECK(out.rtcp_bytes == 0 && out.rtp_bytes == 0); /* paused */
    }
    uint8_t bye[VR_RTCP_WRITE_BYTES + VR_SRTP_GROWTH_BYTES];
    CHECK(vr_session_bye(s, now, bye) > 30);
    vr_session_free(s);
}

/* A client that only sends reports on nothing: that is no word of ours arriving whole. */
TEST(a_report_on_nothing_is_no_verdict) {
    uint64_t now = 1000 * MS;
    struct vr_session *a = session(VR_SESSION_PCM, 1, 10, 20, now);
    struct vr_session *b = session(VR_SESSION_PCM, 2, 20, 10, now);
    say(a, 200);
    for (int i = 0; i < 150; i++, now += 20 * MS)
        exchange(a, b, now);
    struct vr_session_counts counts;
    vr_session_read_counts(b, &counts);
    CHECK(counts.reports_in >= 2);
    CHECK_EQ(counts.verdicts_in, 0);
    vr_session_free(a);
    vr_session_free(b);
}

TEST(foreign_and_repeated_packets_say_so) {
    uint64_t now = 1000 * MS;
    struct vr_session *a = session(VR_SESSION_PCM, 1, 10, 20, now);
    struct vr_session *b = session(VR_SESSION_PCM, 2, 20, 10, now);
    struct vr_session *stranger = session(VR_SESSION_PCM, 3, 99, 99, now);
    struct vr_session_config config = config_of(VR_SESSION_PCM, 4);
    struct vr_session *early = vr_session_new(&config, now);
    struct vr_session_output out;
    uint8_t copy[VR_SESSION_PACKET_BYTES], reply[VR_SESSION_PACKET_BYTES];
    size_t none;
    say(a, 10);
    vr_session_tick(a, now, false, &out);
    memcpy(copy, out.rtp, out.rtp_bytes);
    CHECK_EQ(vr_session_packet(early, copy, out.rtp_bytes, now, reply, &none), VR_SESSION_NO_KEYS);
    CHECK_EQ(vr_session_packet(stranger, copy, out.rtp_bytes, now, reply, &none),
             VR_SESSION_NOT_AUTHENTIC);
    memcpy(copy, out.rtp, out.rtp_bytes);
    CHECK_EQ(vr_session_packet(b, copy, out.rtp_bytes, now, reply, &none), VR_SESSION_OK);
    memcpy(copy, out.rtp, out.rtp_bytes);
    CHECK_EQ(vr_session_packet(b, copy, out.rtp_bytes, now, reply, &none), VR_SESSION_REPLAYED);
    for (size_t n = 0; n < 20; n++)
        CHECK_EQ(vr_session_packet(b, guard_copy(copy, n), n, now, reply, &none),
                 VR_SESSION_NOT_AUTHENTIC);
    vr_session_free(a);
    vr_session_free(b);
    vr_session_free(stranger);
    vr_session_free(early);
}

TEST(a_sleeping_reader_loses_the_oldest) {
    uint64_t now = 1000 * MS;
    struct vr_session *a = session(VR_SESSION_PCM, 1, 10, 20, now);
    struct vr_session *b = session(VR_SESSION_PCM, 2, 20, 10, now);
    say(a, 400);
    for (int i = 0; i < 200; i++, now += 20 * MS) {
        exchange(a, b, now);
        exchange(b, a, now);
    }
    CHECK_EQ(vr_session_readable(b), RATE - BLOCK);
    hears_a_tone(b);
    struct vr_session_counts counts;
    vr_session_read_counts(b, &counts);
    CHECK(counts.blocks_lost >= 145 && counts.blocks_lost <= 152);
    CHECK_EQ(vr_session_readable(b), 0);
    vr_session_free(a);
    vr_session_free(b);
}

TEST(a_key_pressed_in_an_echo_is_an_event_and_no_gap) {
    uint64_t now = 1000 * MS;
    struct vr_session *server = session(VR_SESSION_ECHO, 2, 20, 10, now);
    struct vr_srtp *tx = key(20), *rx = key(10);
    uint16_t last = 0;
    for (uint16_t i = 0; i < 20; i++, now += 20 * MS) {
        uint8_t in[64] = {0}, out[VR_SESSION_PACKET_BYTES];
        bool digit = i % 5 == 4;
        struct vr_rtp rtp = {
            .ssrc = 7, .sequence = i, .timestamp = 960u * i, .payload_type = digit ? 110 : 111};
        size_t bytes = 20, out_bytes;
        vr_rtp_write_header(in, &rtp);
        in[12] = (uint8_t)(i / 5);
        CHECK_EQ(vr_srtp_protect(tx, in, &bytes, sizeof in), VR_SRTP_OK);
        CHECK_EQ(vr_session_packet(server, in, bytes, now, out, &out_bytes), VR_SESSION_OK);
        CHECK_EQ(vr_session_event(server), digit ? i / 5 : -1);
        CHECK_EQ(out_bytes == 0, digit);
        if (digit)
            continue;
        CHECK_EQ(vr_srtp_unprotect(rx, out, &out_bytes), VR_SRTP_OK);
        CHECK_EQ(vr_rtp_read(out, out_bytes, &rtp), VR_RTP_OK);
        if (i != 0)
            CHECK_EQ((uint16_t)(rtp.sequence - last), 1);
        last = rtp.sequence;
    }
    vr_srtp_free(tx);
    vr_srtp_free(rx);
    vr_session_free(server);
}

/* What never came is lost, and nothing else: not what is no sound, not what another codec or source or a jump makes
 * of the numbers. */
TEST(only_what_never_came_is_lost) {
    static const enum vr_session_mode modes[] = {VR_SESSION_PCM, VR_SESSION_ECHO,
                                                 VR_SESSION_FRAMES};
    for (size_t m = 0; m < 3; m++) {
        uint64_t now = 1000 * MS;
        struct vr_session_config config = config_of(modes[m], 2);
        config.receive.pcmu_payload_type = 0;
        struct vr_session *server = vr_session_new(&config, now);
        vr_session_set_keys(server, key(20), key(10));
        struct vr_srtp *tx = key(20);
        struct vr_rtp rtp = {.ssrc = 7, .sequence = 100};
        unsigned sent = 0;
        for (int i = 0; i < 400; i++, now += 20 * MS) {
            uint8_t in[200] = {0}, out[VR_SESSION_PACKET_BYTES];
            /* Opus, a third of it PCMU, between them an event, comfort noise, RED, no payload */
            static const uint8_t types[] = {111, 110, 111, 13, 63, 111, 0, 0, 111, 111};
            rtp.payload_type = types[i % 10];
            size_t bytes = i % 10 == 9 ? 12 : rtp.payload_type == 0 ? 172 : 20, none;
            if (i == 200) { /* a sender that begins anew */
                rtp.sequence = (uint16_t)(rtp.sequence + 20000);
                rtp.timestamp += 123456789;
            }
            if (i == 300) { /* another source; of the old one something is under way still */
                rtp.ssrc = 8;
                rtp.sequence = 9;
            }
            vr_rtp_write_header(in, &rtp);
            bool straggler = i == 302 && modes[m] == VR_SESSION_PCM;
            if (straggler) {
                struct vr_rtp old = {.ssrc = 7, .sequence = 20500, .payload_type = 111};
                vr_rtp_write_header(in, &old);
            }
            if (i % 100 == 52) { /* lost */
                rtp.sequence++;
                continue;
            }
            CHECK_EQ(vr_srtp_protect(tx, in, &bytes, sizeof in), VR_SRTP_OK);
            vr_session_packet(server, in, bytes, now, out, &none);
            sent += !straggler;
            rtp.sequence += !straggler;
            rtp.timestamp += 960;
        }
        struct vr_session_counts counts;
        vr_session_read_counts(server, &counts);
        CHECK_EQ(counts.lost_in, 4);
        CHECK_EQ(counts.packets_in, sent);
        vr_srtp_free(tx);
        vr_session_free(server);
    }
}

/* FRAMES: what a client encoded is what the reader gets, and what it writes is what the client decodes. */
TEST(frames_pass_through_the_reader_without_a_codec) {
    uint64_t now = 1000 * MS;
    struct vr_session *client = session(VR_SESSION_PCM, 1, 10, 20, now);
    struct vr_session_config config = config_of(VR_SESSION_FRAMES, 2);
    config.tap = true;
    struct vr_session *server = vr_session_new(&config, now);
    vr_session_set_keys(server, key(20), key(10));
    struct vr_frames *heard = vr_session_frames(server);
    uint32_t next_timestamp = 0;
    say(client, 200);
    for (int i = 0; i < 150; i++, now += 20 * MS) {
        exchange(client, server, now);
        CHECK(vr_session_is_readable(server, 20));
        const struct vr_frame *frame = vr_frames_peek(heard);
        CHECK(frame != NULL && frame->units == 960 && frame->at_ns == now);
        CHECK(i == 0 || frame->timestamp == next_timestamp);
        next_timestamp = frame->timestamp + 960;
        CHECK(vr_frame_pacer_write(vr_session_frame_pacer(server), frame->units, frame->payload,
                                   frame->payload_bytes));
        vr_frames_pop(heard);
        exchange(server, client, now + 5 * MS);
    }
    hears_a_tone(client);
    struct vr_session_counts counts;
    vr_session_read_counts(server, &counts);
    CHECK_EQ(counts.packets_out, 150);
    CHECK_EQ(counts.frames_lost + counts.tap_frames_lost, 0);
    unsigned sides[2] = {0};
    const struct vr_frame *frame;
    while ((frame = vr_frames_peek(vr_session_frame_tap(server))) != NULL) {
        sides[frame->side]++;
        vr_frames_pop(vr_session_frame_tap(server));
    }
    CHECK(sides[VR_FRAME_HEARD] == 150 && sides[VR_FRAME_SAID] == 150);
    CHECK(vr_session_pacer(server) == NULL);
    vr_session_free(client);
    vr_session_free(server);
}

TEST(a_sleeping_reader_of_frames_loses_the_newest) {
    uint64_t now = 1000 * MS;
    struct vr_session *client = session(VR_SESSION_PCM, 1, 10, 20, now);
    struct vr_session *server = session(VR_SESSION_FRAMES, 2, 20, 10, now);
    say(client, 1000);
    for (int i = 0; i < 1000; i++, now += 20 * MS)
        exchange(client, server, now);
    struct vr_session_counts counts;
    vr_session_read_counts(server, &counts);
    size_t waiting = vr_frames_waiting(vr_session_frames(server));
    CHECK(waiting >= 200 && waiting < 1000);
    CHECK_EQ(counts.frames_lost, 1000 - waiting);
    vr_session_free(client);
    vr_session_free(server);
}

/* The longest frame leaves in one packet; a longer one is counted, and takes its time all the same. */
TEST(a_frame_that_no_packet_takes_is_counted) {
    uint64_t now = 1000 * MS;
    struct vr_session *server = session(VR_SESSION_FRAMES, 2, 20, 10, now);
    struct vr_frame_pacer *pacer = vr_session_frame_pacer(server);
    static uint8_t payload[VR_SESSION_PAYLOAD_BYTES + 1];
    struct vr_session_output out;
    struct vr_session_counts counts;
    for (size_t over = 0; over <= 1; over++, now += 20 * MS) {
        CHECK(vr_frame_pacer_write(pacer, 960, payload, VR_SESSION_PAYLOAD_BYTES + over));
        vr_session_tick(server, now, false, &out);
        CHECK_EQ(out.rtp_bytes, over ? 0 : VR_RTP_HEADER_BYTES + VR_SESSION_PAYLOAD_BYTES + 16);
        vr_session_read_counts(server, &counts);
        CHECK_EQ(counts.echo_dropped, over);
        CHECK_EQ(counts.packets_out, 1);
        CHECK_EQ(vr_frame_pacer_waiting_ms(pacer), 0);
    }
    vr_session_free(server);
}

TEST(an_echo_is_tapped_on_both_sides) {
    uint64_t now = 1000 * MS;
    struct vr_session *client = session(VR_SESSION_PCM, 1, 10, 20, now);
    struct vr_session_config config = config_of(VR_SESSION_ECHO, 2);
    config.tap = true;
    struct vr_session *server = vr_session_new(&config, now);
    vr_session_set_keys(server, key(20), key(10));
    say(client, 20);
    for (int i = 0; i < 20; i++, now += 20 * MS)
        exchange(client, server, now);
    CHECK_EQ(vr_frames_waiting(vr_session_frame_tap(server)), 40);
    CHECK_EQ(vr_frames_waiting(vr_session_frames(server)), 0);
    vr_session_free(client);
    vr_session_free(server);
}
