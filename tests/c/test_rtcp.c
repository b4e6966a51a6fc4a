/* RTCP: compound packets read and written, reception statistics by RFC 3550's appendix. */
#include "../../csrc/media/rtcp.h"

#include "check.h"

static const uint64_t second_ns = 1000000000u;

static enum vr_rtcp_status read_hex(const char *hex, uint32_t about, struct vr_rtcp *out) {
    uint8_t bytes[2048];
    size_t n = from_hex(hex, bytes, sizeof bytes);
    uint8_t *data = guard_copy(bytes, n);
    enum vr_rtcp_status status = vr_rtcp_read(data, n, about, out);
    return status;
}

TEST(good_and_bad_packets) {
    static const struct {
        const char *what, *hex;
        enum vr_rtcp_status status;
    } cases[] = {
        {"empty RR", "80c9000100000001", VR_RTCP_OK},
        {"nothing", "", VR_RTCP_SHORT},
        {"7 bytes", "80c90001000000", VR_RTCP_SHORT},
        {"version 0", "00c9000100000001", VR_RTCP_VERSION},
        {"length past the end", "80c9000200000001", VR_RTCP_LENGTH},
        {"3 bytes left over", "80c9000100000001808080", VR_RTCP_LENGTH},
        {"one block announced, none there", "81c9000100000001", VR_RTCP_SHORT},
        {"SR without sender info", "80c8000100000001", VR_RTCP_SHORT},
        {"BYE with 31 sources in 8 bytes", "9fcb000100000001", VR_RTCP_SHORT},
        {"empty BYE", "80c900010000000180cb0000", VR_RTCP_OK},
        {"feedback is stepped over", "81cd00020000000100000002", VR_RTCP_OK},
        {"padding in the first part",
         "a0c900020000000100000004"
         "80c9000100000001",
         VR_RTCP_PADDING},
        {"padding of 0", "a0c900020000000100000000", VR_RTCP_PADDING},
        {"padding longer than its part", "a0c9000200000001000000fc", VR_RTCP_PADDING},
        {"padded RR", "a0c900020000000100000004", VR_RTCP_OK},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct vr_rtcp rtcp;
        enum vr_rtcp_status status = read_hex(cases[i].hex, 7, &rtcp);
        CASE(cases[i].what);
        CHECK_EQ(status, cases[i].status);
    }
}

TEST(written_report_reads_back) {
    uint8_t out[VR_RTCP_WRITE_BYTES];
    struct vr_rtcp_report report = {
        .ssrc = 0x11111111,
        .ntp = 0x0102030405060708,
        .rtp_timestamp = 9,
        .sent_packets = 10,
        .sent_bytes = 11,
        .has_block = true,
        .bye = true,
        .block = {.ssrc = 0x22222222,
                  .fraction_lost = 3,
                  .lost = -5,
                  .highest_sequence = 0x10002,
                  .jitter = 44,
                  .last_sr = 55,
                  .delay_since_sr = 66},
        .cname = "a-name-of-thirty-two-characters!and-more",
    };
    size_t bytes = vr_rtcp_write(out, &report);
    CHECK(bytes % 4 == 0 && bytes <= VR_RTCP_WRITE_BYTES);
    struct vr_rtcp in;
    CHECK(vr_rtcp_read(out, bytes, 0x22222222, &in) == VR_RTCP_OK);
    CHECK(in.has_sender_info && in.has_block && in.has_bye && in.bye_ssrc == 0x11111111);
    CHECK(in.ntp == report.ntp && in.rtp_timestamp == 9 && in.sender_ssrc == 0x11111111);
    CHECK(in.block.lost == -5 && in.block.fraction_lost == 3 && in.block.jitter == 44);
    CHECK(in.block.highest_sequence == 0x10002 && in.block.last_sr == 55);
    CHECK(vr_rtcp_read(out, bytes, 0x33333333, &in) == VR_RTCP_OK && !in.has_block);
    report.sent_packets = 0;
    report.has_block = report.bye = false;
    report.cname = "x";
    bytes = vr_rtcp_write(out, &report);
    CHECK(bytes == 8 + 4 + 4 + 4 && out[1] == 201); /* RR and SDES: 2 + 1 + 1 end byte = 4 */
    CHECK(vr_rtcp_read(out, bytes, 0, &in) == VR_RTCP_OK && !in.has_sender_info);
}

TEST(round_trip) {
    struct vr_rtcp_block block = {.last_sr = 0xb7052000, .delay_since_sr = 0x00054000};
    /* the example of RFC 3550 6.4.1: 6.125 s */
    CHECK(vr_rtcp_round_trip_ns(&block, 0xb7108000ull << 16) == 6125000000u);
    block.delay_since_sr = 0x000b8000;
    CHECK(vr_rtcp_round_trip_ns(&block, 0xb7108000ull << 16) == 0);
    block.last_sr = 0;
    CHECK(vr_rtcp_round_trip_ns(&block, 0xb7108000ull << 16) == 0);
    block.last_sr = 0x12345678; /* of no report of ours: hours */
    CHECK(vr_rtcp_round_trip_ns(&block, 0xb7108000ull << 16) == 0);
}

/* The part whose NTP time counts is the one whose SSRC does. */
TEST(the_first_report_of_a_compound_names_the_sender) {
    uint8_t out[2 * VR_RTCP_WRITE_BYTES];
    struct vr_rtcp_report first = {.ssrc = 7, .ntp = 77, .sent_packets = 1, .cname = "a"},
                          second = {.ssrc = 8, .ntp = 88, .sent_packets = 1, .cname = "b"};
    struct vr_rtcp in;
    for (int receiver = 0; receiver < 2; receiver++) {
        second.sent_packets = !receiver;
        size_t bytes = vr_rtcp_write(out, &first);
        bytes += vr_rtcp_write(out + bytes, &second);
        CHECK(vr_rtcp_read(out, bytes, 0, &in) == VR_RTCP_OK);
        CHECK(in.sender_ssrc == 7 && in.ntp == 77);
    }
}

TEST(reception_counts_loss_over_a_wrap) {
    struct vr_reception r;
    uint64_t now = 5 * second_ns;
    vr_reception_start(&r, 77, 65530, 48000);
    for (unsigned i = 0; i < 20; i++, now += 20000000)
        if (i != 3 && i != 10) /* one lost before the wrap, one after */
            vr_reception_add(&r, (uint16_t)(65530 + i), 960 * i, now);
    struct vr_rtcp_block block;
    vr_reception_sender_report(&r, 0x0000000a80000000, now);
    vr_reception_block(&r, now + second_ns / 2, &block);
    CHECK(block.ssrc == 77 && block.lost == 2 && block.fraction_lost == 2 * 256 / 20);
    CHECK(block.highest_sequence == 0x10000 + 65530 + 19 - 65536);
    CHECK(block.jitter == 0 && block.last_sr == 0x000a8000 && block.delay_since_sr == 0x8000);
    vr_reception_block(&r, now, &block);
    CHECK(block.fraction_lost == 0 && block.lost == 2);
}

TEST(reception_starts_at_zero_and_survives_duplicates) {
    struct vr_reception r;
    vr_reception_start(&r, 77, 0, 8000);
    for (unsigned i = 0; i < 10; i++) {
        vr_reception_add(&r, (uint16_t)i, 160 * i, i * 20000000u);
        vr_reception_add(&r, (uint16_t)i, 160 * i, i * 20000000u);
    }
    struct vr_rtcp_block block;
    vr_reception_block(&r, 0, &block);
    CHECK(block.highest_sequence == 9 && block.lost == 0 && block.fraction_lost == 0);
    CHECK(vr_reception_lost(&r) == 0);
}

/* RFC 3550 A.1: a sender that began anew did not lose 20,000 packets, and one stray number is nothing. */
TEST(a_jump_of_the_sequence_is_no_loss) {
    struct vr_reception r;
    struct vr_rtcp_block block;
    vr_reception_start(&r, 77, 100, 48000);
    uint16_t sequence = 100;
    uint64_t now = second_ns;
    for (int part = 0; part < 4; part++) {
        static const uint16_t jumps[] = {20000, 5000, 40000, 0};
        for (int i = 0; i < 100; i++, sequence++, now += second_ns / 50)
            if (i != 50)
                vr_reception_add(&r, sequence, 960u * sequence, now);
        vr_reception_add(&r, (uint16_t)(sequence + 9999), 0, now);
        vr_reception_block(&r, now, &block);
        /* the second packet confirms the jump: the first is not counted at all */
        CHECK(block.lost == part + 1 && block.fraction_lost == 256 / (part == 0 ? 100 : 99));
        CHECK((uint16_t)block.highest_sequence == (uint16_t)(sequence - 1));
        sequence = (uint16_t)(sequence + jumps[part]);
    }
}

TEST(an_event_is_received_and_has_no_jitter) {
    struct vr_reception r;
    vr_reception_start(&r, 77, 0, 48000);
    for (uint16_t i = 0; i < 200; i++)
        if (i % 10 < 3)
            vr_reception_add_untimed(&r, i);
        else
            vr_reception_add(&r, i, 960u * i, i * (second_ns / 50));
    CHECK(vr_reception_lost(&r) == 0 && r.jitter_16 == 0);
    vr_reception_change_clock(&r, 8000);
    for (uint16_t i = 200; i < 400; i++)
        vr_reception_add(&r, i, 12345 + 160u * i, i * (second_ns / 50));
    CHECK(vr_reception_lost(&r) == 0 && r.jitter_16 == 0);
}

TEST(jitter_follows_the_formula) {
    struct vr_reception r;
    vr_reception_start(&r, 1, 0, 48000);
    for (unsigned i = 0; i < 2000; i++) /* every other packet 10 ms late: |D| is 480 each time */
        vr_reception_add(&r, (uint16_t)i, 960 * i, i * 20000000ull + (i % 2) * 10000000ull);
    CHECK(r.jitter_16 >> 4 >= 470 && r.jitter_16 >> 4 <= 480);
    /* a new timestamp base moves it not at all */
    vr_reception_add(&r, 2000, 0x80000000u, 2000 * 20000000ull);
    CHECK(r.jitter_16 >> 4 <= 480);
}

TEST(every_prefix_and_bit_flip_is_safe) {
    uint8_t good[128];
    size_t n = from_hex("81c8000c0000000101020304050607080000000900000a000000000b"
                        "00000007ff00000500000001000000020000000300000004"
                        "81ca000200000001010161000081cb000100000001",
                        good, sizeof good);
    for (size_t length = 0; length <= n; length++)
        for (size_t bit = 0; bit <= 8 * length; bit++) {
            uint8_t *data = guard_copy(good, length);
            if (bit < 8 * length)
                data[bit / 8] ^= (uint8_t)(1 << bit % 8);
            struct vr_rtcp rtcp;
            vr_rtcp_read(data, length, 7, &rtcp);
        }
}
