/* RTP packets good and bad, each behind a guard page. */
#include "../../csrc/media/rtp.h"

#include "check.h"

static enum vr_rtp_status read_hex(const char *hex, struct vr_rtp *out) {
    uint8_t bytes[2048];
    size_t n = from_hex(hex, bytes, sizeof bytes);
    uint8_t *data = guard_copy(bytes, n);
    enum vr_rtp_status status = vr_rtp_read(data, n, out);
    return status;
}

TEST(plain_packet) {
    struct vr_rtp rtp;
    CHECK(read_hex("80ef1234deadbeefcafebabe0102", &rtp) == VR_RTP_OK);
    CHECK(rtp.payload_type == 111 && rtp.marker && rtp.sequence == 0x1234);
    CHECK(rtp.timestamp == 0xdeadbeef && rtp.ssrc == 0xcafebabe);
    CHECK(rtp.header_bytes == 12 && rtp.payload_bytes == 2 && rtp.extension == NULL);
}

TEST(bad_packets) {
    static const struct {
        const char *what, *hex;
        enum vr_rtp_status status;
    } cases[] = {
        {"nothing", "", VR_RTP_SHORT},
        {"11 bytes", "80ef1234deadbeefcafeba", VR_RTP_SHORT},
        {"version 1", "40ef1234deadbeefcafebabe00", VR_RTP_VERSION},
        {"CSRC list past the end", "82ef1234deadbeefcafebabe00000001", VR_RTP_SHORT},
        {"no room for the extension header", "90ef1234deadbeefcafebabebede00", VR_RTP_EXTENSION},
        {"extension past the end", "90ef1234deadbeefcafebabebede000210000000", VR_RTP_EXTENSION},
        {"extension of 256 KiB", "90ef1234deadbeefcafebabebedeffff10000000", VR_RTP_EXTENSION},
        {"empty payload", "80ef1234deadbeefcafebabe", VR_RTP_EMPTY},
        {"padding flag without a byte", "a0ef1234deadbeefcafebabe", VR_RTP_PADDING},
        {"padding of 0", "a0ef1234deadbeefcafebabe0100", VR_RTP_PADDING},
        {"padding longer than the packet", "a0ef1234deadbeefcafebabe01ff", VR_RTP_PADDING},
        {"padding reaches into the header", "a0ef1234deadbeefcafebabe0103", VR_RTP_PADDING},
        {"only padding", "a0ef1234deadbeefcafebabe00000004", VR_RTP_EMPTY},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct vr_rtp rtp;
        enum vr_rtp_status status = read_hex(cases[i].hex, &rtp);
        CASE(cases[i].what);
        CHECK(status == cases[i].status);
    }
}

static const uint8_t *find(const char *hex, unsigned id, size_t *bytes) {
    static uint8_t kept[256];
    size_t n = from_hex(hex, kept, sizeof kept);
    struct vr_rtp rtp;
    CHECK(vr_rtp_read_header(kept, n, &rtp) == VR_RTP_OK);
    return vr_rtp_extension(&rtp, id, bytes);
}

TEST(extensions) {
    size_t n = 0;
    const uint8_t *p = find("90ef1234deadbeefcafebabebede0002"
                            "10aa00"
                            "22010203"
                            "00"
                            "55",
                            1, &n);
    CHECK(p != NULL && n == 1 && p[0] == 0xaa);
    p = find("90ef1234deadbeefcafebabebede000210aa002201020300", 2, &n);
    CHECK(p != NULL && n == 3 && p[2] == 3);
    CHECK(find("90ef1234deadbeefcafebabebede000210aa002201020300", 3, &n) == NULL);
    /* RFC 8285 4.2: id 15 stops, whatever follows */
    CHECK(find("90ef1234deadbeefcafebabebede0001f0aa10aa", 1, &n) == NULL);
    /* an element longer than the extension */
    CHECK(find("90ef1234deadbeefcafebabebede00011faaaaaa", 1, &n) == NULL);
    /* two-byte form, length 0 allowed */
    p = find("90ef1234deadbeefcafebabe1000000211000502aaaa0000", 5, &n);
    CHECK(p != NULL && n == 2);
    CHECK(find("90ef1234deadbeefcafebabe1000000211000502aaaa0000", 17, &n) != NULL && n == 0);
    CHECK(find("90ef1234deadbeefcafebabe1000000105ff0000", 5, &n) == NULL);
    CHECK(find("90ef1234deadbeefcafebabe1000000100000005", 5, &n) == NULL);
    /* unknown profile: skipped */
    CHECK(find("90ef1234deadbeefcafebabeabcd000110aa0000", 1, &n) == NULL);
}

TEST(written_header_reads_back) {
    uint8_t data[14] = {0};
    struct vr_rtp in = {
        .ssrc = 1, .timestamp = 2, .sequence = 3, .payload_type = 111, .marker = true};
    struct vr_rtp out;
    vr_rtp_write_header(data, &in);
    CHECK(vr_rtp_read(data, sizeof data, &out) == VR_RTP_OK);
    CHECK(out.ssrc == 1 && out.timestamp == 2 && out.sequence == 3 && out.payload_type == 111);
    CHECK(out.marker && out.payload_bytes == 2);
}

TEST(every_prefix_and_bit_flip_is_safe) {
    uint8_t good[64];
    size_t n = from_hex("b1ef1234deadbeefcafebabe00000001bede000210aa002201020300010203040503",
                        good, sizeof good);
    for (size_t length = 0; length <= n; length++)
        for (size_t bit = 0; bit <= 8 * length; bit++) {
            uint8_t *data = guard_copy(good, length);
            if (bit < 8 * length)
                data[bit / 8] ^= (uint8_t)(1 << bit % 8);
            struct vr_rtp rtp;
            size_t found;
            enum vr_rtp_status status = vr_rtp_read(data, length, &rtp);
            if (status == VR_RTP_OK) {
                CHECK(rtp.payload + rtp.payload_bytes <= data + length);
                for (unsigned id = 1; id < 16; id++)
                    vr_rtp_extension(&rtp, id, &found);
            }
        }
}
