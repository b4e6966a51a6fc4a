#include "allocations.h"
#include "check.h"
#include "vectors.h"
#include "wire/bytes.h"
#include "wire/crc32.h"
#include "wire/stun.h"

/* ---------------------------------------------------------------- building messages */

/* A Binding request without attributes, to which put() adds; length kept right. */
struct builder {
    uint8_t data[1200];
    size_t bytes;
};

static struct builder begin(uint16_t type) {
    struct builder b = {.bytes = VR_STUN_HEADER_BYTES};
    vr_store_be16(b.data, type);
    vr_store_be32(b.data + 4, 0x2112A442);
    memcpy(b.data + 8, "abcdefghijkl", VR_STUN_TID_BYTES);
    return b;
}

static void put(struct builder *b, uint16_t type, const void *value, size_t bytes) {
    vr_store_be16(b->data + b->bytes, type);
    vr_store_be16(b->data + b->bytes + 2, (uint16_t)bytes);
    if (bytes > 0)
        memcpy(b->data + b->bytes + 4, value, bytes);
    b->bytes += 4 + ((bytes + 3) & ~(size_t)3);
    vr_store_be16(b->data + 2, (uint16_t)(b->bytes - VR_STUN_HEADER_BYTES));
}

/* `after_bytes` more will follow it, so that the checksum is right all the same. */
static void put_fingerprint_before(struct builder *b, size_t after_bytes) {
    uint8_t value[4];
    vr_store_be16(b->data + 2, (uint16_t)(b->bytes - VR_STUN_HEADER_BYTES + 8 + after_bytes));
    vr_store_be32(value, vr_crc32(b->data, b->bytes) ^ 0x5354554E);
    put(b, 0x8028, value, 4);
}

static void put_fingerprint(struct builder *b) {
    put_fingerprint_before(b, 0);
}

static enum vr_stun_status read_bytes(const void *data, size_t bytes, struct vr_stun *out) {
    memset(out, 0xAA, sizeof *out);
    return vr_stun_read(guard_copy(data, bytes), bytes, out);
}

static enum vr_stun_status read_built(const struct builder *b, struct vr_stun *out) {
    return read_bytes(b->data, b->bytes, out);
}

static bool username_is(const struct vr_stun *m, const char *expected) {
    size_t bytes = strlen(expected);
    return m->username && m->username_bytes == bytes && memcmp(m->username, expected, bytes) == 0;
}

/* ---------------------------------------------------------------- published messages */

/* Case A01: USERNAME is the fourth attribute and padded with 0x20. */
TEST(a01_rfc5769_request) {
    struct vector v = vector_load("rfc5769_request");
    struct vr_stun m;
    CHECK_EQ(read_bytes(v.data, v.bytes, &m), VR_STUN_OK);
    CHECK_EQ(m.class_, VR_STUN_REQUEST);
    CHECK_EQ(m.method, VR_STUN_METHOD_BINDING);
    CHECK_MEM(m.tid, v.data + 8, VR_STUN_TID_BYTES);
    CHECK(username_is(&m, "evtj:h6vY"));
    CHECK_EQ(vr_stun_local_ufrag(&m), 4);
    CHECK(m.has_priority);
    CHECK_EQ(m.priority, 0x6E0001FF);
    CHECK(m.has_ice_controlled && !m.has_ice_controlling);
    CHECK(m.tie_breaker == 0x932FF9B151263B36);
    CHECK(!m.has_use_candidate);
    CHECK_EQ(m.integrity_offset, 76);
    CHECK(m.has_fingerprint);
}

TEST(rfc5769_responses) {
    static const char *const NAMES[] = {"rfc5769_ipv4_response", "rfc5769_ipv6_response"};
    static const size_t INTEGRITY[] = {48, 60};
    for (size_t i = 0; i < 2; i++) {
        struct vector v = vector_load(CASE(NAMES[i]));
        struct vr_stun m;
        CHECK_EQ(read_bytes(v.data, v.bytes, &m), VR_STUN_OK);
        CHECK_EQ(m.class_, VR_STUN_SUCCESS);
        CHECK_EQ(m.method, VR_STUN_METHOD_BINDING);
        CHECK(!m.username && vr_stun_local_ufrag(&m) == 0);
        CHECK_EQ(m.integrity_offset, INTEGRITY[i]);
        CHECK(m.has_fingerprint && !m.has_priority && m.tie_breaker == 0);
    }
}

TEST(rfc5769_long_term_request) {
    struct vector v = vector_load("rfc5769_long_term");
    struct vr_stun m;
    CHECK_EQ(read_bytes(v.data, v.bytes, &m), VR_STUN_OK);
    CHECK_EQ(m.username_bytes, 18);
    CHECK_EQ(vr_stun_local_ufrag(&m), 0);
    CHECK_EQ(m.integrity_offset, 92);
    CHECK(!m.has_fingerprint);
}

/* Case A03: vendor attributes are skipped. */
TEST(a03_chromium_check_with_vendor_attribute) {
    struct vector v = vector_load("chromium_check");
    struct vr_stun m;
    CHECK_EQ(read_bytes(v.data, v.bytes, &m), VR_STUN_OK);
    CHECK(username_is(&m, "e86e31:eCx2"));
    CHECK_EQ(vr_stun_local_ufrag(&m), 6);
    CHECK(m.has_use_candidate && m.has_ice_controlling && !m.has_ice_controlled);
    CHECK_EQ(m.priority, 0x6E001EFF);
}

TEST(a03_unknown_attributes_are_skipped) {
    static const uint16_t TYPES[] = {0x0001, 0x0014, 0x7FFF, 0xC001, 0xC057, 0xC058, 0xC059,
                                     0xC05A, 0xC05B, 0xC05C, 0xC05D, 0xC060, 0xFFFF};
    struct builder b = begin(0x0001);
    struct vr_stun m;
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        put(&b, TYPES[i], "01234567", i % 9);
    put(&b, 0x0006, "a:b", 3);
    put_fingerprint(&b);
    CHECK_EQ(read_built(&b, &m), VR_STUN_OK);
    CHECK(username_is(&m, "a:b"));
    CASE("but one that must be understood is named");
    CHECK_EQ(m.unknown_count, 1);
    CHECK_EQ(m.unknown[0], 0x7FFF);
}

TEST(no_more_unknown_attributes_are_named_than_there_is_room_for) {
    struct builder b = begin(0x0001);
    struct vr_stun m;
    for (uint16_t i = 0; i < 3 * VR_STUN_UNKNOWN_MAX; i++)
        put(&b, (uint16_t)(0x7000 + i), "", 0);
    put_fingerprint(&b);
    CHECK_EQ(read_built(&b, &m), VR_STUN_OK);
    CHECK_EQ(m.unknown_count, VR_STUN_UNKNOWN_MAX);
    CHECK_EQ(m.unknown[VR_STUN_UNKNOWN_MAX - 1], 0x7000 + VR_STUN_UNKNOWN_MAX - 1);
}

/* ---------------------------------------------------------------- framing */

/* Case A05, and every other vector: a prefix is never a message, and nothing is read behind it. */
TEST(a05_every_prefix_of_every_vector_is_refused) {
    static const char *const NAMES[] = {"rfc5769_request", "rfc5769_ipv4_response",
                                        "rfc5769_ipv6_response", "rfc5769_long_term",
                                        "chromium_check"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        struct vector v = vector_load(CASE(NAMES[i]));
        struct vr_stun m;
        for (size_t bytes = 0; bytes < v.bytes; bytes++)
            CHECK_EQ(read_bytes(v.data, bytes, &m), VR_STUN_SHORT);
    }
}

/* As above with the length set to what is there, so that the attributes are looked at: a message
 * that ends between two attributes is good, any other cut is not. */
TEST(every_cut_with_a_fitting_length_is_read_within_bounds) {
    struct vector v = vector_load("rfc5769_request");
    struct vr_stun m;
    for (size_t bytes = VR_STUN_HEADER_BYTES; bytes < v.bytes; bytes++) {
        vr_store_be16(v.data + 2, (uint16_t)(bytes - VR_STUN_HEADER_BYTES));
        bool between =
            bytes == 20 || bytes == 40 || bytes == 48 || bytes == 60 || bytes == 76 || bytes == 100;
        enum vr_stun_status expected = bytes % 4 ? VR_STUN_LENGTH : VR_STUN_ATTRIBUTE;
        CHECK_EQ(read_bytes(v.data, bytes, &m), between ? VR_STUN_OK : expected);
    }
}

TEST(a05_header_without_attributes_is_a_message_without_username) {
    struct builder b = begin(0x0001);
    struct vr_stun m;
    CHECK_EQ(read_built(&b, &m), VR_STUN_OK);
    CHECK(!m.username && m.integrity_offset == 0 && !m.has_fingerprint && !m.has_priority);
    CHECK_EQ(vr_stun_local_ufrag(&m), 0);
}

TEST(a05_no_bytes_at_all) {
    struct vr_stun m;
    CHECK_EQ(vr_stun_read(NULL, 0, &m), VR_STUN_SHORT);
}

TEST(a07_length_13_without_padding) {
    struct builder b = begin(0x0001);
    struct vr_stun m;
    put(&b, 0x0006, "evtj:h6vY", 9);
    b.bytes -= 3;
    vr_store_be16(b.data + 2, 13);
    CHECK_EQ(read_built(&b, &m), VR_STUN_LENGTH);
}

TEST(a07_one_to_three_bytes_more_in_length_and_datagram) {
    struct vector v = vector_load("rfc5769_request");
    struct vr_stun m;
    for (size_t extra = 1; extra <= 3; extra++) {
        vr_store_be16(v.data + 2, (uint16_t)(v.bytes - VR_STUN_HEADER_BYTES + extra));
        CHECK_EQ(read_bytes(v.data, v.bytes + extra, &m), VR_STUN_LENGTH);
    }
}

TEST(bytes_after_the_message_are_refused) {
    struct vector v = vector_load("rfc5769_request");
    struct vr_stun m;
    for (size_t extra = 1; extra <= 64; extra++)
        CHECK_EQ(read_bytes(v.data, v.bytes + extra, &m), VR_STUN_LENGTH);
}

TEST(a11_no_magic_cookie) {
    struct builder b = begin(0x0001);
    struct vr_stun m;
    put(&b, 0x0006, "a:b", 3);
    vr_store_be32(b.data + 4, 0x12345678);
    CHECK_EQ(read_built(&b, &m), VR_STUN_NOT_STUN);
}

TEST(the_first_two_bits_are_zero) {
    struct vr_stun m;
    for (unsigned top = 1; top <= 3; top++) {
        struct builder b = begin((uint16_t)(top << 14 | 1));
        CHECK_EQ(read_built(&b, &m), VR_STUN_NOT_STUN);
    }
}

TEST(an_attribute_may_not_run_past_the_message) {
    struct vr_stun m;
    for (uint16_t claimed = 5; claimed < 0xFFFF; claimed = (uint16_t)(claimed + 251)) {
        struct builder b = begin(0x0001);
        put(&b, 0xC001, "abcd", 4);
        vr_store_be16(b.data + 22, claimed);
        CHECK_EQ(read_built(&b, &m), VR_STUN_ATTRIBUTE);
    }
}

TEST(the_longest_message_is_read) {
    static uint8_t data[VR_STUN_HEADER_BYTES + 0xFFFC];
    struct builder b = begin(0x0001);
    struct vr_stun m;
    memcpy(data, b.data, VR_STUN_HEADER_BYTES);
    vr_store_be16(data + 2, 0xFFFC); /* 16,383 empty attributes of type 0 */
    CHECK_EQ(read_bytes(data, sizeof data, &m), VR_STUN_OK);
}

/* ---------------------------------------------------------------- type */

/* RFC 8489 5; case A24: TURN's methods are told from Binding. */
TEST(method_and_class_of_every_type) {
    for (unsigned type = 0; type < 0x4000; type++) {
        struct builder b = begin((uint16_t)type);
        struct vr_stun m;
        unsigned method = 0, bit = 0;
        for (unsigned i = 0; i < 14; i++)
            if (i != 4 && i != 8)
                method |= (type >> i & 1) << bit++;
        CHECK_EQ(read_built(&b, &m), VR_STUN_OK);
        CHECK_EQ(m.method, method);
        CHECK_EQ(m.class_, (type >> 8 & 1) << 1 | (type >> 4 & 1));
    }
}

TEST(a24_allocate_is_not_binding) {
    struct builder b = begin(0x0003);
    struct vr_stun m;
    put(&b, 0x0006, "a:b", 3);
    CHECK_EQ(read_built(&b, &m), VR_STUN_OK);
    CHECK_EQ(m.method, 3);
    CHECK_EQ(m.class_, VR_STUN_REQUEST);
}

/* Case A23: the class is what keeps a name in an answer from making a route. */
TEST(a23_username_in_a_success) {
    struct builder b = begin(0x0101);
    struct vr_stun m;
    put(&b, 0x0006, "a:b", 3);
    CHECK_EQ(read_built(&b, &m), VR_STUN_OK);
    CHECK_EQ(m.class_, VR_STUN_SUCCESS);
    CHECK(username_is(&m, "a:b"));
}

/* ---------------------------------------------------------------- USERNAME */

TEST(a12_username_lengths) {
    static const struct {
        size_t bytes;
        enum vr_stun_status status;
    } CASES[] = {
        {0, VR_STUN_USERNAME},   {1, VR_STUN_OK},         {33, VR_STUN_OK},
        {61, VR_STUN_OK},        {285, VR_STUN_OK},       {507, VR_STUN_OK},
        {508, VR_STUN_OK},       {509, VR_STUN_USERNAME}, {512, VR_STUN_USERNAME},
        {600, VR_STUN_USERNAME},
    };
    char name[600];
    memset(name, 'x', sizeof name);
    name[28] = ':';
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct builder b = begin(0x0001);
        struct vr_stun m;
        put(&b, 0x0006, name, CASES[i].bytes);
        CHECK_EQ(read_built(&b, &m), CASES[i].status);
        if (CASES[i].status == VR_STUN_OK) {
            CHECK_EQ(m.username_bytes, CASES[i].bytes);
            CHECK_EQ(vr_stun_local_ufrag(&m), CASES[i].bytes > 29 ? 28 : 0);
        }
    }
}

TEST(a16_the_part_before_the_first_colon) {
    static const struct {
        const char *name;
        size_t ufrag_bytes;
    } CASES[] = {
        {"SRV", 0},      {":cli", 0}, {"SRV:", 0}, {"cli:SRV", 3}, {"SRV:a:b", 3},
        {" SRV:cli", 4}, {":", 0},    {"::", 0},   {"a::", 1},     {"a:b", 1},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct builder b = begin(0x0001);
        struct vr_stun m;
        put(&b, 0x0006, CASE(CASES[i].name), strlen(CASES[i].name));
        CHECK_EQ(read_built(&b, &m), VR_STUN_OK);
        CHECK_EQ(vr_stun_local_ufrag(&m), CASES[i].ufrag_bytes);
    }
}

TEST(the_first_username_counts) {
    struct builder b = begin(0x0001);
    struct vr_stun m;
    put(&b, 0x0006, "one:x", 5);
    put(&b, 0x0006, "two:x", 5);
    put(&b, 0x0006, "", 0);
    CHECK_EQ(read_built(&b, &m), VR_STUN_OK);
    CHECK(username_is(&m, "one:x"));
}

/* ---------------------------------------------------------------- ICE's attributes */

TEST(fixed_sizes_are_required) {
    static const struct {
        const char *label;
        uint16_t type;
        size_t bytes;
    } ATTRIBUTES[] = {
        {"MESSAGE-INTEGRITY", 0x0008, 20}, {"PRIORITY", 0x0024, 4},
        {"USE-CANDIDATE", 0x0025, 0},      {"ICE-CONTROLLED", 0x8029, 8},
        {"ICE-CONTROLLING", 0x802A, 8},
    };
    static const uint8_t zero[24];
    for (size_t i = 0; i < sizeof ATTRIBUTES / sizeof *ATTRIBUTES; i++) {
        CASE(ATTRIBUTES[i].label);
        for (size_t bytes = 0; bytes <= sizeof zero; bytes++) {
            struct builder b = begin(0x0001);
            struct vr_stun m;
            put(&b, ATTRIBUTES[i].type, zero, bytes);
            CHECK_EQ(read_built(&b, &m),
                     bytes == ATTRIBUTES[i].bytes ? VR_STUN_OK : VR_STUN_ATTRIBUTE);
        }
    }
}

TEST(the_first_value_counts) {
    struct builder b = begin(0x0001);
    struct vr_stun m;
    put(&b, 0x0024, "\0\0\0\1", 4);
    put(&b, 0x0024, "\0\0\0\2", 4);
    put(&b, 0x8029, "\0\0\0\0\0\0\0\3", 8);
    put(&b, 0x802A, "\0\0\0\0\0\0\0\4", 8);
    CHECK_EQ(read_built(&b, &m), VR_STUN_OK);
    CHECK_EQ(m.priority, 1);
    CHECK(m.has_ice_controlled && m.has_ice_controlling);
    CHECK(m.tie_breaker == 3);
}

/* ---------------------------------------------------------------- what protects a message */

TEST(nothing_after_message_integrity_counts_but_fingerprint) {
    static const uint8_t hmac[20];
    static const uint16_t TYPES[] = {0x0008, 0x001C};
    for (size_t i = 0; i < 2; i++) {
        struct builder b = begin(0x0001);
        struct vr_stun m;
        put(&b, TYPES[i], hmac, sizeof hmac);
        put(&b, 0x0006, "a:b", 3);
        put(&b, 0x0006, "", 0); /* would be refused if it counted */
        put(&b, 0x0024, "12", 2);
        put(&b, 0x0025, NULL, 0);
        put(&b, 0x802A, "12345678", 8);
        put(&b, 0x0008, hmac, sizeof hmac);
        put_fingerprint(&b);
        CHECK_EQ(read_built(&b, &m), VR_STUN_OK);
        CHECK(!m.username && !m.has_priority && !m.has_use_candidate && !m.has_ice_controlling);
        CHECK_EQ(m.integrity_offset, TYPES[i] == 0x0008 ? 20 : 0);
        CHECK(m.has_fingerprint);
    }
}

/* Case A21, for every bit: no message with a flipped bit passes as one with a good FINGERPRINT.
 * (A bit in a type or length can turn FINGERPRINT into something else or swallow it.) */
TEST(a21_every_flipped_bit_is_noticed) {
    struct vector v = vector_load("rfc5769_request");
    struct vr_stun m;
    for (size_t bit = 0; bit < v.bytes * 8; bit++) {
        struct vector flipped = v;
        flipped.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(read_bytes(flipped.data, flipped.bytes, &m) != VR_STUN_OK || !m.has_fingerprint);
    }
    v.data[v.bytes - 1] ^= 0xFF;
    CHECK_EQ(read_bytes(v.data, v.bytes, &m), VR_STUN_FINGERPRINT);
}

TEST(fingerprint_is_last_and_of_four_bytes) {
    struct vr_stun m;
    struct builder b = begin(0x0001);
    put_fingerprint(&b);
    CHECK_EQ(read_built(&b, &m), VR_STUN_OK);

    b = begin(0x0001);
    put_fingerprint_before(&b, 8);
    put(&b, 0xC001, "x", 1);
    CHECK_EQ(read_built(&b, &m), VR_STUN_FINGERPRINT);

    b = begin(0x0001);
    put_fingerprint_before(&b, 8);
    put_fingerprint(&b);
    CHECK_EQ(read_built(&b, &m), VR_STUN_FINGERPRINT);

    for (uint16_t claimed = 1; claimed <= 3; claimed++) { /* the right four bytes, but not all */
        b = begin(0x0001);
        put_fingerprint(&b);
        vr_store_be16(b.data + 22, claimed);
        CHECK_EQ(read_built(&b, &m), VR_STUN_FINGERPRINT);
    }
    for (size_t bytes = 0; bytes <= 8; bytes++) {
        b = begin(0x0001);
        put(&b, 0x8028, "\0\0\0\0\0\0\0\0", bytes);
        CHECK_EQ(read_built(&b, &m), VR_STUN_FINGERPRINT);
    }
}

TEST(reading_does_not_allocate) {
    struct vector good = vector_load("rfc5769_request");
    struct vr_stun m;
    allocations_start();
    for (size_t bytes = 0; bytes <= good.bytes; bytes++)
        CHECK_EQ(vr_stun_read(good.data, bytes, &m),
                 bytes < good.bytes ? VR_STUN_SHORT : VR_STUN_OK);
    CHECK_EQ(vr_stun_local_ufrag(&m), 4);
    CHECK_EQ(allocations, 0);
}
