/* Which checks are answered, and with what (rule 2 of ice.h); who may have credentials. */
#include "ice_check.h"
#include "media/ice.h"
#include "vectors.h"

/* Reads the reply again, as a client would: its integrity and fingerprint hold. */
static void reply_is(struct bench *b, unsigned class_, const uint8_t *tid, struct vr_stun *m) {
    CHECK_EQ(vr_stun_read(guard_copy(b->out.reply, b->out.reply_bytes), b->out.reply_bytes, m),
             VR_STUN_OK);
    CHECK_EQ(m->class_, class_);
    CHECK(m->has_fingerprint && m->integrity_offset != 0);
    CHECK_MEM(m->tid, tid, VR_STUN_TID_BYTES);
    struct message covered = {.bytes = m->integrity_offset};
    uint8_t tag[VR_HMAC_BYTES];
    memcpy(covered.data, b->out.reply, covered.bytes);
    vr_store_be16(covered.data + 2, (uint16_t)(covered.bytes + 24 - VR_STUN_HEADER_BYTES));
    hmac_of(ice_password, &covered, tag);
    CHECK_MEM(tag, b->out.reply + m->integrity_offset + 4, sizeof tag);
}

TEST(a_good_check_is_answered_with_the_clients_own_address) {
    struct bench b = bench_open(1);
    struct message m = check_message((struct options){0});
    struct vr_stun reply;
    CHECK_EQ(bench_give(&b, m.data, m.bytes, 0, 0), VR_ICE_OK);
    reply_is(&b, VR_STUN_SUCCESS, m.data + 8, &reply);
    CHECK(b.out.reply_bytes <= m.bytes);
    /* XOR-MAPPED-ADDRESS of 203.0.113.7:5000 (RFC 8489 14.2) */
    static const uint8_t mapped[] = {
        0x00, 0x20, 0, 8, 0, 1, 0x13 ^ 0x21, 0x88 ^ 0x12, 0xEA, 0x00 ^ 0x12, 113 ^ 0xA4, 7 ^ 0x42};
    CHECK_MEM(b.out.reply + VR_STUN_HEADER_BYTES, mapped, sizeof mapped);
    bench_close(&b);
}

TEST(an_ipv6_client_learns_its_ipv6_address) {
    struct bench b = bench_open(1);
    struct message m = check_message((struct options){0});
    struct vr_flow_key key = flow(0);
    struct vr_source source = relay(0);
    struct vr_stun reply;
    for (unsigned i = 0; i < 16; i++)
        key.client.ip[i] = (uint8_t)(0x20 + i);
    CHECK_EQ(vr_ice_check(b.ice, m.data, m.bytes, &key, &source, b.now_ns, &b.out), VR_ICE_OK);
    reply_is(&b, VR_STUN_SUCCESS, m.data + 8, &reply);
    const uint8_t *value = b.out.reply + VR_STUN_HEADER_BYTES + 4;
    CHECK_EQ(value[1], 2);
    for (unsigned i = 0; i < 16; i++)
        CHECK_EQ(value[4 + i] ^ b.out.reply[4 + i], 0x20 + i);
    bench_close(&b);
}

TEST(a_username_that_is_not_ours_gets_silence) {
    static const struct {
        const char *username;
        enum vr_ice_status status;
    } cases[] = {
        {"cli:ufrag0", VR_ICE_UNKNOWN_UFRAG},      {"ufrag0:cli:x", VR_ICE_WRONG_USERNAME},
        {"ufrag0:cli2", VR_ICE_WRONG_USERNAME},    {"ufrag0:", VR_ICE_UNKNOWN_UFRAG},
        {"ufrag0:cl", VR_ICE_WRONG_USERNAME},      {":cli", VR_ICE_UNKNOWN_UFRAG},
        {"ufrag0", VR_ICE_UNKNOWN_UFRAG},          {" ufrag0:cli", VR_ICE_UNKNOWN_UFRAG},
        {"ufrag00:cli", VR_ICE_UNKNOWN_UFRAG},     {"ufrag:cli", VR_ICE_UNKNOWN_UFRAG},
        {"otherufrag0:cli", VR_ICE_UNKNOWN_UFRAG},
    };
    struct bench b = bench_open(1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CASE(cases[i].username);
        struct message m = check_message((struct options){.username = cases[i].username});
        CHECK_EQ(bench_give(&b, m.data, m.bytes, 0, 0), cases[i].status);
    }
    CHECK_EQ(bench_members(&b, 0), 0);
    bench_close(&b);
}

TEST(what_is_no_check_of_ours_gets_silence) {
    struct bench b = bench_open(1);
    uint8_t tid[VR_STUN_TID_BYTES] = "abcdefghijkl";
    static const unsigned types[] = {0x0101, 0x0111, 0x0011, 0x0003}; /* answers, other methods */
    for (size_t i = 0; i < 4; i++) {
        struct message m = message_begin(types[i], tid);
        message_put(&m, 0x0006, "ufrag0:cli", 10);
        message_sign(&m, ice_password);
        message_finish(&m);
        CHECK_EQ(bench_give(&b, m.data, m.bytes, 0, 0), VR_ICE_NO_CHECK);
    }
    CASE("no username");
    struct message m = message_begin(BINDING, tid);
    message_sign(&m, ice_password);
    CHECK_EQ(bench_give(&b, m.data, m.bytes, 0, 0), VR_ICE_UNKNOWN_UFRAG);
    CASE("no integrity");
    m = message_begin(BINDING, tid);
    message_put(&m, 0x0006, "ufrag0:cli", 10);
    message_finish(&m);
    CHECK_EQ(bench_give(&b, m.data, m.bytes, 0, 0), VR_ICE_WRONG_INTEGRITY);
    CASE("the password of somebody else");
    m = check_message((struct options){.password = "passwordpassword12345679"});
    CHECK_EQ(bench_give(&b, m.data, m.bytes, 0, 0), VR_ICE_WRONG_INTEGRITY);
    CASE("a published request");
    struct vector published = vector_load("rfc5769_request");
    CHECK_EQ(bench_give(&b, published.data, published.bytes, 0, 0), VR_ICE_UNKNOWN_UFRAG);
    CHECK_EQ(bench_members(&b, 0), 0);
    bench_close(&b);
}

TEST(the_published_request_is_answered_with_its_credentials) {
    struct bench b = bench_open(0);
    struct vector published = vector_load("rfc5769_request");
    CHECK_EQ(vr_ice_open(b.ice, 0, "evtj", "VOkJxbRl1RmTxUk/WvJxBt", "h6vY", b.now_ns), 0);
    /* it says ICE-CONTROLLED */
    CHECK_EQ(bench_give(&b, published.data, published.bytes, 0, 0), VR_ICE_ROLE_CONFLICT);
    bench_close(&b);
}

TEST(a_part_of_a_check_or_one_with_a_tail_gets_silence) {
    struct bench b = bench_open(1);
    struct message m = check_message((struct options){0});
    for (size_t bytes = 0; bytes < m.bytes; bytes++)
        CHECK_EQ(bench_give(&b, m.data, bytes, 0, 0), VR_ICE_MALFORMED);
    CHECK_EQ(bench_give(&b, m.data, m.bytes + 1, 0, 0), VR_ICE_MALFORMED);
    CHECK_EQ(bench_members(&b, 0), 0);
    bench_close(&b);
}

TEST(a_check_with_any_bit_changed_gets_silence) {
    struct bench b = bench_open(1);
    struct message m = check_message((struct options){.nominates = true});
    /* what lies behind the fingerprint's header may turn it into something unknown */
    for (size_t bit = 0; bit < 8 * (m.bytes - 8); bit++) {
        m.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        enum vr_ice_status status = bench_give(&b, m.data, m.bytes, 0, 0);
        CHECK(status != VR_ICE_OK && status != VR_ICE_ROLE_CONFLICT);
        m.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    CHECK_EQ(bench_members(&b, 0), 0);
    CHECK_EQ(bench_give(&b, m.data, m.bytes, 0, 0), VR_ICE_OK);
    bench_close(&b);
}

TEST(a_check_without_fingerprint_is_answered_and_one_with_a_wrong_one_is_not) {
    struct bench b = bench_open(1);
    uint8_t tid[VR_STUN_TID_BYTES] = "abcdefghijkl";
    struct message m = message_begin(BINDING, tid);
    message_put(&m, 0x0006, "ufrag0:cli", 10);
    message_sign(&m, ice_password);
    CHECK_EQ(bench_give(&b, m.data, m.bytes, 0, 0), VR_ICE_OK);
    m = check_message((struct options){0});
    m.data[m.bytes - 1] ^= 1;
    CHECK_EQ(bench_give(&b, m.data, m.bytes, 1, 0), VR_ICE_MALFORMED);
    bench_close(&b);
}

TEST(a12_long_client_ufrags_are_answered) {
    static const unsigned chars[] = {4, 32, 33, 64, 255, 256};
    for (size_t i = 0; i < sizeof chars / sizeof *chars; i++) {
        struct bench b = bench_open(0);
        char remote[VR_ICE_UFRAG_BYTES + 1] = {0}, username[VR_ICE_UFRAG_BYTES + 8];
        memset(remote, 'r', chars[i]);
        CHECK_EQ(vr_ice_open(b.ice, 0, "ours", ice_password, remote, b.now_ns), 0);
        snprintf(username, sizeof username, "ours:%s", remote);
        struct message m = check_message((struct options){.username = username});
        CHECK_EQ(bench_give(&b, m.data, m.bytes, 0, 0), VR_ICE_OK);
        bench_close(&b);
    }
}

/* --- transactions ---------------------------------------------------------------------------- */

TEST(a_captured_check_from_another_flow_key_is_dropped_for_60_s) {
    struct bench b = bench_open(1);
    struct options captured = {.transaction = 7, .nominates = true};
    CHECK_EQ(bench_check(&b, 0, 0, captured), VR_ICE_OK);
    b.now_ns += 60 * SECOND - 1;
    CHECK_EQ(bench_check(&b, 0, 1, captured), VR_ICE_REPLAYED);
    CHECK(!bench_has_path(&b, 0, 1));
    b.now_ns += 1;
    CHECK_EQ(bench_check(&b, 0, 1, captured), VR_ICE_OK);
    b.now_ns += 1;
    CASE("seen a second time, it is remembered a second time");
    CHECK_EQ(bench_check(&b, 0, 0, captured), VR_ICE_REPLAYED);
    bench_close(&b);
}

TEST(a_repeat_from_its_own_flow_key_is_answered_but_proves_nothing) {
    struct bench b = bench_open(1);
    struct message m = check_message((struct options){0});
    CHECK_EQ(bench_give(&b, m.data, m.bytes, 0, 0), VR_ICE_OK);
    uint64_t proven_ns = b.now_ns;
    b.now_ns += 20 * SECOND;
    CHECK_EQ(bench_give(&b, m.data, m.bytes, 0, 1), VR_ICE_OK);
    CHECK_EQ(b.out.path->authenticated_ns, proven_ns);
    struct vr_source before = relay(0);
    CHECK(vr_addr_equal(&b.out.path->source.peer, &before.peer));
    CASE("once its flow key is left it is silence");
    b.now_ns += 10 * SECOND;
    CHECK_EQ(bench_give(&b, m.data, m.bytes, 0, 0), VR_ICE_REPLAYED);
    CHECK(!vr_ice_has_consent(b.ice, 0, b.now_ns));
    bench_close(&b);
}

TEST(transaction_ids_of_one_session_are_news_to_another) {
    struct bench b = bench_open(2);
    CHECK_EQ(bench_check(&b, 0, 0, (struct options){.transaction = 7}), VR_ICE_OK);
    CHECK_EQ(bench_check(&b, 1, 1, (struct options){.transaction = 7}), VR_ICE_OK);
    bench_close(&b);
}

TEST(a_session_remembers_the_newest_1024_transactions) {
    struct bench b = bench_open(1);
    for (uint32_t i = 1; i <= VR_ICE_TRANSACTIONS + 1; i++, b.now_ns += MS)
        CHECK_EQ(bench_check(&b, 0, 0, (struct options){.transaction = i}), VR_ICE_OK);
    CHECK_EQ(bench_check(&b, 0, 1, (struct options){.transaction = 2}), VR_ICE_REPLAYED);
    CHECK_EQ(bench_check(&b, 0, 1, (struct options){.transaction = VR_ICE_TRANSACTIONS + 1}),
             VR_ICE_REPLAYED);
    CASE("the oldest had to go");
    CHECK_EQ(bench_check(&b, 0, 1, (struct options){.transaction = 1}), VR_ICE_OK);
    bench_close(&b);
}

/* --- the number of flow keys ----------------------------------------------------------------- */

TEST(sixteen_live_flow_keys_are_answered_and_the_seventeenth_is_not) {
    struct bench b = bench_open(2);
    for (unsigned n = 0; n < VR_ICE_FLOW_KEYS; n++, b.now_ns += SECOND)
        CHECK_EQ(bench_check(&b, 0, n, (struct options){0}), VR_ICE_OK);
    CHECK_EQ(bench_check(&b, 0, 16, (struct options){.transaction = 7}), VR_ICE_FLOW_KEY_LIMIT);
    CHECK_EQ(bench_check(&b, 0, 16, (struct options){.controlled = true}), VR_ICE_FLOW_KEY_LIMIT);
    CHECK_EQ(bench_check(&b, 0, 3, (struct options){0}), VR_ICE_OK);
    CHECK_EQ(bench_check(&b, 1, 16, (struct options){0}), VR_ICE_OK);
    CHECK_EQ(bench_members(&b, 16), 2);
    CASE("30 s after the first there is a place");
    b.now_ns += 14 * SECOND;
    CHECK_EQ(bench_check(&b, 0, 16, (struct options){.transaction = 7}), VR_ICE_OK);
    CHECK(!bench_has_path(&b, 0, 0));
    CHECK_EQ(bench_check(&b, 0, 17, (struct options){0}), VR_ICE_FLOW_KEY_LIMIT);
    bench_close(&b);
}

/* --- the role -------------------------------------------------------------------------------- */

TEST(ice_controlled_gets_487_and_moves_nothing) {
    struct bench b = bench_open(1);
    struct message m = check_message((struct options){.controlled = true});
    struct vr_stun reply;
    CHECK_EQ(bench_give(&b, m.data, m.bytes, 0, 0), VR_ICE_ROLE_CONFLICT);
    reply_is(&b, VR_STUN_ERROR, m.data + 8, &reply);
    static const uint8_t code[] = {0x00, 0x09, 0, 4 + 13, 0, 0, 4, 87};
    CHECK_MEM(b.out.reply + VR_STUN_HEADER_BYTES, code, sizeof code);
    CHECK_EQ(bench_members(&b, 0), 0);
    b.now_ns += 30 * SECOND;
    CHECK(!vr_ice_has_consent(b.ice, 0, b.now_ns));
    CASE("with a wrong password: silence");
    m = check_message((struct options){.controlled = true, .password = "x"});
    CHECK_EQ(bench_give(&b, m.data, m.bytes, 0, 0), VR_ICE_WRONG_INTEGRITY);
    bench_close(&b);
}

TEST(a_captured_check_with_the_wrong_role_gets_one_answer_at_its_own_flow_key_only) {
    struct bench b = bench_open(1);
    struct options captured = {.controlled = true, .transaction = 7};
    CHECK_EQ(bench_check(&b, 0, 0, captured), VR_ICE_ROLE_CONFLICT);
    CHECK_EQ(bench_check(&b, 0, 1, captured), VR_ICE_REPLAYED);
    CHECK_EQ(bench_check(&b, 0, 0, captured), VR_ICE_ROLE_CONFLICT);
    bench_close(&b);
}

/* --- what must be understood ------------------------------------------------------------------ */

TEST(an_attribute_that_must_be_understood_gets_420_and_moves_nothing) {
    struct bench b = bench_open(1);
    struct message m = check_message((struct options){.also = 0x7ffe, .controlled = true});
    struct vr_stun reply;
    CHECK_EQ(bench_give(&b, m.data, m.bytes, 0, 0), VR_ICE_UNKNOWN_ATTRIBUTE);
    reply_is(&b, VR_STUN_ERROR, m.data + 8, &reply);
    static const uint8_t code[] = {0x00, 0x09, 0, 4 + 17, 0, 0, 4, 20};
    static const uint8_t named[] = {0x00, 0x0a, 0, 2, 0x7f, 0xfe, 0, 0};
    CHECK_MEM(b.out.reply + VR_STUN_HEADER_BYTES, code, sizeof code);
    CHECK_MEM(b.out.reply + VR_STUN_HEADER_BYTES + 4 + 24, named, sizeof named);
    CHECK_EQ(bench_members(&b, 0), 0);
    CASE("with a wrong password: silence");
    m = check_message((struct options){.also = 0x7ffe, .password = "x"});
    CHECK_EQ(bench_give(&b, m.data, m.bytes, 0, 0), VR_ICE_WRONG_INTEGRITY);
    CASE("what browsers send beside ICE's own, and what is no check's but STUN's");
    static const uint16_t TYPES[] = {0x0001, 0x0014, 0x0015, 0x0020, 0x8022,
                                     0xc001, 0xc057, 0xc05f, 0xc060, 0xffff};
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        CHECK_EQ(bench_check(&b, 0, 1, (struct options){.also = TYPES[i]}), VR_ICE_OK);
    bench_close(&b);
}

TEST(many_unknown_attributes_fit_a_reply) {
    struct bench b = bench_open(1);
    struct message m = message_begin(BINDING, (const uint8_t *)"transaction!");
    message_put(&m, 0x0006, "ufrag0:cli", 10);
    for (unsigned type = 0x7f00; type < 0x7f20; type++)
        message_put(&m, type, NULL, 0);
    message_sign(&m, ice_password);
    message_finish(&m);
    CHECK_EQ(bench_give(&b, m.data, m.bytes, 0, 0), VR_ICE_UNKNOWN_ATTRIBUTE);
    CHECK(b.out.reply_bytes <= VR_ICE_REPLY_BYTES);
    bench_close(&b);
}

/* --- credentials ----------------------------------------------------------------------------- */

TEST(two_sessions_never_share_a_ufrag) {
    struct bench b = bench_open(1);
    CHECK_EQ(vr_ice_open(b.ice, 1, "ufrag0", ice_password, "cli", b.now_ns), -EEXIST);
    CHECK_EQ(vr_ice_open(b.ice, 0, "other", ice_password, "cli", b.now_ns), -EINVAL);
    vr_ice_close(b.ice, 0);
    CHECK_EQ(vr_ice_open(b.ice, 1, "ufrag0", ice_password, "cli", b.now_ns), 0);
    bench_close(&b);
}

TEST(credentials_have_bounds) {
    struct bench b = bench_open(0);
    char longest[VR_ICE_UFRAG_BYTES + 2] = {0};
    memset(longest, 'x', VR_ICE_UFRAG_BYTES + 1);
    CHECK_EQ(vr_ice_open(b.ice, 0, longest, ice_password, "cli", 0), -EINVAL);
    CHECK_EQ(vr_ice_open(b.ice, 0, "u", ice_password, longest, 0), -EINVAL);
    CHECK_EQ(vr_ice_open(b.ice, 0, "", ice_password, "cli", 0), -EINVAL);
    CHECK_EQ(vr_ice_open(b.ice, 0, "u", ice_password, "", 0), -EINVAL);
    CHECK_EQ(vr_ice_open(b.ice, SESSIONS, "u", ice_password, "cli", 0), -EINVAL);
    longest[VR_ICE_PWD_BYTES + 1] = 0;
    CHECK_EQ(vr_ice_open(b.ice, 0, "u", longest, "cli", 0), -EINVAL);
    longest[VR_ICE_PWD_BYTES] = 0;
    CHECK_EQ(vr_ice_open(b.ice, 0, "u", longest, "cli", 0), 0);
    bench_close(&b);
}
