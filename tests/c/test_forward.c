/* Design rules 1, 2, 5 and 6: what is routed where, and what is dropped under which name. */
#include "forward_check.h"
#include "relay/forward.h"

/* From the sanitizers' runtime, whose header not every compiler installs. */
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));

static struct bench b;

TEST(a_check_is_routed_by_its_token) {
    bench_open(&b);
    struct message check = check_of(ufrag_of(&b, 1, 7, 0), 1);
    CHECK_EQ(send_public(&b, client(1), check), VR_VERDICT_SEND);
    CHANGED(&b, RX(PUBLIC, check.size), COUNT(flows_half_open, 1), COUNT(flows_created, 1));
    check_went_up(&b, transceiver(7), client(1), check.size);
    CHECK_MEM(b.out.data + VR_SPP_BYTES, check.bytes, check.size);
    CHECK(b.out.data == b.buffer + HEADROOM - VR_SPP_BYTES); /* in the headroom, nothing copied */
    bench_close(&b);
}

TEST(a_success_establishes_and_then_everything_passes) {
    bench_open(&b);
    struct message success = success_of(1);
    send_public(&b, client(1), check_of(ufrag_of(&b, 1, 7, 0), 1));
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), success), VR_VERDICT_SEND);
    CHANGED(&b, RX(INTERNAL, success.size + VR_SPP_BYTES), COUNT(flows_half_open, -1),
            COUNT(flows_established, 1), COUNT(flows_promoted, 1));
    check_went_down(&b, client(1), success.size);

    CHECK_EQ(send_public(&b, client(1), dtls()), VR_VERDICT_SEND);
    CHANGED(&b, RX(PUBLIC, 100));
    check_went_up(&b, transceiver(7), client(1), 100);
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_SEND);
    check_went_up(&b, transceiver(7), client(1), 172);
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), rtp()), VR_VERDICT_SEND);
    CHANGED(&b, RX(INTERNAL, 172 + VR_SPP_BYTES));
    check_went_down(&b, client(1), 172);
    bench_close(&b);
}

TEST(a_check_goes_by_its_token_though_the_flow_is_somebody_elses) { /* cases B03, B05 */
    bench_open(&b);
    establish(&b, 1, 7, ufrag_of(&b, 1, 7, 0));
    struct message check = check_of(ufrag_of(&b, 1, 8, 0), 2);
    CHECK_EQ(send_public(&b, client(1), check), VR_VERDICT_SEND);
    CHANGED(&b, RX(PUBLIC, check.size));
    check_went_up(&b, transceiver(8), client(1), check.size);
    bench_close(&b);
}

TEST(tokenless_binding_messages_follow_the_flow) { /* cases A23: a response sets no route */
    bench_open(&b);
    struct ufrag other = ufrag_of(&b, 1, 8, 0);
    establish(&b, 1, 7, ufrag_of(&b, 1, 7, 0));
    const struct message messages[] = {stun_of(0x0001, 5, NULL, 0),
                                       stun_of(0x0011, 5, NULL, 0),
                                       stun_of(0x0101, 5, NULL, 0),
                                       stun_of(0x0111, 5, NULL, 0),
                                       stun_of(0x0101, 5, other.chars, VR_TOKEN_CHARS),
                                       stun_of(0x0011, 5, other.chars, VR_TOKEN_CHARS)};
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        CHECK_EQ(send_public(&b, client(1), messages[i]), VR_VERDICT_SEND);
        CHANGED(&b, RX(PUBLIC, messages[i].size));
        check_went_up(&b, transceiver(7), client(1), messages[i].size);
        CHECK_EQ(send_public(&b, client(2), messages[i]), VR_VERDICT_DROP);
        CHANGED(&b, RX(PUBLIC, messages[i].size), DROP(NO_FLOW));
    }
    bench_close(&b);
}

TEST(without_a_flow_nothing_but_a_check_passes) {
    bench_open(&b);
    CHECK_EQ(send_public(&b, client(1), dtls()), VR_VERDICT_DROP);
    CHANGED(&b, RX(PUBLIC, 100), DROP(NO_FLOW));
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_DROP);
    CHANGED(&b, RX(PUBLIC, 172), DROP(NO_FLOW));
    bench_close(&b);
}

TEST(the_first_byte_decides) { /* rule 1; cases A25 */
    bench_open(&b);
    establish(&b, 1, 7, ufrag_of(&b, 1, 7, 0));
    for (unsigned first = 0; first < 256; first++) {
        bool passes = (first >= 20 && first <= 63) || (first >= 128 && first <= 191);
        for (unsigned up = 0; up < 2; up++) {
            struct message m = bytes_of((uint8_t)first, 50);
            CHECK_EQ(up ? send_public(&b, client(1), m)
                        : send_internal(&b, transceiver(7), client(1), m),
                     passes ? VR_VERDICT_SEND : VR_VERDICT_DROP);
            uint64_t malformed = first <= 3, other = !passes && first > 3;
            if (up)
                CHANGED(&b, RX(PUBLIC, 50), COUNT(drop[VR_DROP_STUN_MALFORMED], malformed),
                        COUNT(drop[VR_DROP_PROTOCOL], other));
            else
                CHANGED(&b, RX(INTERNAL, 50 + VR_SPP_BYTES),
                        COUNT(drop[VR_DROP_STUN_MALFORMED], malformed),
                        COUNT(drop[VR_DROP_PROTOCOL], other));
        }
    }
    bench_close(&b);
}

TEST(an_empty_datagram_is_dropped) {
    bench_open(&b);
    CHECK_EQ(send_public(&b, client(1), bytes_of(0, 0)), VR_VERDICT_DROP);
    CHANGED(&b, COUNT(side[VR_SIDE_PUBLIC].rx_packets, 1), DROP(EMPTY));
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), bytes_of(0, 0)), VR_VERDICT_DROP);
    CHANGED(&b, RX(INTERNAL, VR_SPP_BYTES), DROP(EMPTY));
    bench_close(&b);
}

TEST(a_client_that_no_answer_reaches_makes_no_flow) {
    bench_open(&b);
    struct vr_addr port_0 = client(1);
    port_0.port_be = 0;
    struct vr_addr near = {.ip = {0xfe, 0x80, [15] = 1}, .port_be = 7}, edge = near, beyond = near;
    edge.ip[1] = 0xbf; /* fe80::/10 */
    beyond.ip[1] = 0xc0;
    const struct vr_addr unreachable[] = {port_0, near, edge};
    struct message check = check_of(ufrag_of(&b, 1, 7, 0), 1);
    for (size_t i = 0; i < sizeof unreachable / sizeof *unreachable; i++) {
        CHECK_EQ(send_public(&b, unreachable[i], check), VR_VERDICT_DROP);
        CHANGED(&b, RX(PUBLIC, check.size), DROP(SOURCE_UNANSWERABLE));
        CHECK_EQ(send_public(&b, unreachable[i], rtp()), VR_VERDICT_DROP);
        CHANGED(&b, RX(PUBLIC, 172), DROP(SOURCE_UNANSWERABLE));
    }
    CHECK_EQ(send_backbone(&b, far_relay(1), port_0, check), VR_VERDICT_DROP);
    CHANGED(&b, RX(BACKBONE, check.size + VR_SPP_BYTES), DROP(SOURCE_UNANSWERABLE));
    CHECK_EQ(send_public(&b, beyond, check), VR_VERDICT_SEND);
    bench_close(&b);
}

/* --- what is wrong with a check --- */

static void check_refused(struct message m, enum vr_drop reason) {
    CHECK_EQ(send_public(&b, client(1), m), VR_VERDICT_DROP);
    CHANGED(&b, RX(PUBLIC, m.size), COUNT(drop[reason], 1));
}

TEST(malformed_stun_is_dropped) { /* cases A05, A07, A11 */
    bench_open(&b);
    struct message good = check_of(ufrag_of(&b, 1, 7, 0), 1);
    for (uint32_t size = 1; size < good.size; size++) {
        struct message cut = good;
        cut.size = size;
        check_refused(cut, VR_DROP_STUN_MALFORMED);
    }
    struct message no_cookie = good;
    no_cookie.bytes[4] = 0x12;
    check_refused(no_cookie, VR_DROP_STUN_MALFORMED);
    bench_close(&b);
}

TEST(a_wrong_fingerprint_is_dropped_and_an_absent_one_passes) { /* cases A21 */
    bench_open(&b);
    struct message m = check_of(ufrag_of(&b, 1, 7, 0), 1);
    CHECK_EQ(send_public(&b, client(2), m), VR_VERDICT_SEND);
    vr_store_be32(m.bytes + m.size, 0x80280004);
    vr_store_be32(m.bytes + m.size + 4, 0x12345678);
    m.size += 8;
    vr_store_be16(m.bytes + 2, (uint16_t)(m.size - VR_STUN_HEADER_BYTES));
    check_refused(m, VR_DROP_STUN_FINGERPRINT);
    bench_close(&b);
}

TEST(other_stun_methods_are_dropped) { /* cases A24 */
    bench_open(&b);
    struct ufrag ufrag = ufrag_of(&b, 1, 7, 0);
    establish(&b, 1, 7, ufrag);
    const uint16_t methods[] = {0x0003, 0x0004, 0x0008, 0x0200 /* GOOG-PING */};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        check_refused(stun_of(methods[i], 1, NULL, 0), VR_DROP_STUN_METHOD);
        check_refused(stun_of(methods[i], 1, ufrag.chars, VR_TOKEN_CHARS), VR_DROP_STUN_METHOD);
    }
    bench_close(&b);
}

TEST(usernames_without_two_parts_are_dropped) { /* cases A12, A16 */
    bench_open(&b);
    char name[256];
    struct ufrag ufrag = ufrag_of(&b, 1, 7, 0);
    memcpy(name, ufrag.chars, VR_TOKEN_CHARS);
    memcpy(name + VR_TOKEN_CHARS, ":abc", 4);
    check_refused(stun_of(1, 1, name, VR_TOKEN_CHARS), VR_DROP_STUN_USERNAME);
    check_refused(stun_of(1, 1, name, VR_TOKEN_CHARS + 1), VR_DROP_STUN_USERNAME);
    check_refused(stun_of(1, 1, ":abc", 4), VR_DROP_STUN_USERNAME);
    check_refused(stun_of(1, 1, ":", 1), VR_DROP_STUN_USERNAME);
    check_refused(stun_of(1, 1, "", 0), VR_DROP_STUN_USERNAME);
    check_refused(stun_of(1, 1, "abc:", 4), VR_DROP_STUN_USERNAME);
    memmove(name + 4, name, VR_TOKEN_CHARS);
    memcpy(name, "abc:", 4); /* reversed */
    check_refused(stun_of(1, 1, name, VR_TOKEN_CHARS + 4), VR_DROP_TOKEN_MALFORMED);
    bench_close(&b);
}

TEST(each_bad_token_has_its_name) {
    bench_open(&b);
    struct ufrag good = ufrag_of(&b, 1, 7, 0), bad = good;
    bad.chars[5] = '-';
    check_refused(check_of(bad, 1), VR_DROP_TOKEN_MALFORMED);
    check_refused(stun_of(1, 1, "evtj:h6vY", 9), VR_DROP_TOKEN_MALFORMED);
    bad = good;
    bad.chars[0] = '4'; /* key id 7 */
    check_refused(check_of(bad, 1), VR_DROP_TOKEN_NO_HINT);
    bad.chars[0] = 'A'; /* key id 0 */
    check_refused(check_of(bad, 1), VR_DROP_TOKEN_UNKNOWN_KEY);
    bad = good;
    bad.chars[9] = bad.chars[9] == 'A' ? 'B' : 'A';
    check_refused(check_of(bad, 1), VR_DROP_TOKEN_FORGED);
    bench_close(&b);
}

TEST(a_token_reaches_only_what_is_allowed) {
    bench_open(&b);
    struct vr_token token = {.kind = 4, .cluster_id = 1, .ipv4 = {10, 0, 0, 7}};
    struct ufrag ufrag;
    const struct {
        uint8_t third;
        uint16_t port;
    } refused[] = {{1, 40000}, {0, 39999}, {0, 40010}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        token.ipv4[2] = refused[i].third;
        vr_store_be16((uint8_t *)&token.port_be, refused[i].port);
        CHECK_EQ(vr_token_seal(b.keyring, &token, (const uint8_t[8]){0}, ufrag.chars), VR_TOKEN_OK);
        check_refused(check_of(ufrag, 1), VR_DROP_TRANSCEIVER_NOT_ALLOWED);
    }
    struct vr_token v6 = {.kind = 6, .prefix_index = 5, .cluster_id = 1, .port_be = 1};
    CHECK_EQ(vr_token_seal(b.keyring, &v6, (const uint8_t[8]){0}, ufrag.chars), VR_TOKEN_OK);
    CASE("no prefix of that index");
    check_refused(check_of(ufrag, 1), VR_DROP_TRANSCEIVER_NOT_ALLOWED);
    bench_close(&b);
}

TEST(an_ipv6_transceiver_is_reached_under_its_prefix) {
    bench_open(&b);
    struct vr_cidr networks[2] = {test_networks()[0],
                                  {.ip = {0xfd, 7}, .prefix_bits = 64, .port_max = 65535}};
    b.config.allow_transceiver = networks;
    b.config.allow_transceiver_count = 2;
    b.config.ipv6_prefixes.known_mask = 1 << 5;
    memcpy(b.config.ipv6_prefixes.prefix[5], networks[1].ip, 8);
    bench_configure(&b);
    struct vr_addr addr = {.ip = {0xfd, 7, [8] = 1, [15] = 9}, .port_be = 0x1234};
    struct vr_token token = {.kind = 6, .prefix_index = 5, .cluster_id = 1, .port_be = 0x1234};
    struct ufrag ufrag;
    memcpy(token.interface_id, addr.ip + 8, 8);
    CHECK_EQ(vr_token_seal(b.keyring, &token, (const uint8_t[8]){0}, ufrag.chars), VR_TOKEN_OK);
    struct message check = check_of(ufrag, 1);
    CHECK_EQ(send_public(&b, client(1), check), VR_VERDICT_SEND);
    check_went_up(&b, addr, client(1), check.size);
    bench_close(&b);
}

TEST(a_token_of_a_cluster_without_a_route_is_dropped) {
    bench_open(&b);
    check_refused(check_of(ufrag_of(&b, 3, 7, 0), 1), VR_DROP_CLUSTER_UNKNOWN);
    bench_close(&b);
}

/* --- rule 6 --- */

TEST(only_an_owner_sends_down) {
    bench_open(&b);
    establish(&b, 1, 7, ufrag_of(&b, 1, 7, 0));
    struct vr_addr other_port = transceiver(7);
    other_port.port_be ^= 0x0100;
    const struct vr_addr strangers[] = {transceiver(8), other_port, far_relay(1), client(1)};
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++) {
        CHECK_EQ(send_internal(&b, strangers[i], client(1), rtp()), VR_VERDICT_DROP);
        CHANGED(&b, RX(INTERNAL, 172 + VR_SPP_BYTES), DROP(SENDER_NOT_OWNER));
        CHECK_EQ(send_internal(&b, strangers[i], client(1), success_of(1000)), VR_VERDICT_DROP);
        CHANGED(&b, RX(INTERNAL, 20 + VR_SPP_BYTES), DROP(SENDER_NOT_OWNER));
    }
    bench_close(&b);
}

TEST(only_a_known_flow_is_sent_to) { /* no reflector */
    bench_open(&b);
    establish(&b, 1, 7, ufrag_of(&b, 1, 7, 0));
    CHECK_EQ(send_internal(&b, transceiver(7), client(2), rtp()), VR_VERDICT_DROP);
    CHANGED(&b, RX(INTERNAL, 172 + VR_SPP_BYTES), DROP(NO_FLOW));
    struct vr_addr other_port = client(1);
    other_port.port_be ^= 1;
    CHECK_EQ(send_internal(&b, transceiver(7), other_port, rtp()), VR_VERDICT_DROP);
    CHANGED(&b, RX(INTERNAL, 172 + VR_SPP_BYTES), DROP(NO_FLOW));
    bench_close(&b);
}

TEST(what_comes_from_inside_has_an_spp_header) {
    bench_open(&b);
    establish(&b, 1, 7, ufrag_of(&b, 1, 7, 0));
    struct message m = rtp();
    struct vr_ingress in = wrapped_ingress(&b, VR_SIDE_INTERNAL, transceiver(7), client(1), &m);
    for (uint32_t bytes = 1; bytes < VR_SPP_BYTES; bytes++) {
        in.data_bytes = bytes;
        CHECK_EQ(submit(&b, &in), VR_VERDICT_DROP);
        CHANGED(&b, RX(INTERNAL, bytes), DROP(SPP_MALFORMED));
    }
    in = wrapped_ingress(&b, VR_SIDE_INTERNAL, transceiver(7), client(1), &m);
    in.data[1] ^= 1;
    CHECK_EQ(submit(&b, &in), VR_VERDICT_DROP);
    CHANGED(&b, RX(INTERNAL, 172 + VR_SPP_BYTES), DROP(SPP_MALFORMED));
    bench_close(&b);
}

TEST(the_two_families_and_ports_of_a_client_are_different_flows) {
    bench_open(&b);
    establish(&b, 1, 7, ufrag_of(&b, 1, 7, 0));
    struct vr_addr v6 = {.ip = {0x20, 1}, .port_be = client(1).port_be};
    struct message check = check_of(ufrag_of(&b, 1, 8, 0), 1);
    CHECK_EQ(send_public(&b, v6, check), VR_VERDICT_SEND);
    CHANGED(&b, RX(PUBLIC, check.size), COUNT(flows_half_open, 1), COUNT(flows_created, 1));
    bench_close(&b);
}

/* --- what a flow counts --- */

TEST(a_flow_counts_each_way) {
    bench_open(&b);
    establish(&b, 1, 7, ufrag_of(&b, 1, 7, 0));
    wait_ms(&b, 50);
    send_public(&b, client(1), rtp());
    wait_ms(&b, 50);
    send_internal(&b, transceiver(7), client(1), rtp());
    const struct vr_flow *flow = &b.table.flow[slot_of(&b, VR_POOL_ESTABLISHED, client(1))];
    uint32_t check_bytes = check_of(ufrag_of(&b, 1, 7, 0), 1000).size;
    CHECK_EQ(flow->up_packets, 2);
    CHECK_EQ(flow->up_bytes, check_bytes + 172);
    CHECK_EQ(flow->down_packets, 2);
    CHECK_EQ(flow->down_bytes, 20 + 172);
    CHECK_EQ(vr_clock_ms(b.now_ns) - flow->up_seen_ms, 50);
    CHECK_EQ(vr_clock_ms(b.now_ns) - flow->owner_seen_ms, 0);
    bench_close(&b);
}

/* --- configuration --- */

TEST(a_new_configuration_keeps_the_flows) {
    bench_open(&b);
    establish(&b, 1, 7, ufrag_of(&b, 1, 7, 0));
    struct ufrag old = ufrag_of(&b, 1, 7, 1);
    struct vr_keyring *former = b.keyring;
    b.keyring = vr_keyring_new();
    CHECK_EQ(vr_keyring_add(b.keyring, 4, (const uint8_t[VR_TOKEN_KEY_BYTES]){9}), 0);
    b.config.keyring = b.keyring;
    b.config.allow_transceiver_count = 0;
    bench_configure(&b);
    vr_keyring_free(former);
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_SEND);
    check_went_up(&b, transceiver(7), client(1), 172);
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), rtp()), VR_VERDICT_SEND);
    check_refused(check_of(old, 1), VR_DROP_TOKEN_UNKNOWN_KEY);
    check_refused(check_of(ufrag_of(&b, 1, 7, 2), 1), VR_DROP_TRANSCEIVER_NOT_ALLOWED);
    bench_close(&b);
}

/* --- prefetch is a hint --- */

TEST(prefetch_changes_no_verdict_in_any_order) {
    bench_open(&b);
    establish(&b, 1, 7, ufrag_of(&b, 1, 7, 0));
    establish(&b, 2, 8, ufrag_of(&b, 1, 8, 0));
    struct message m = rtp();
    struct vr_ingress batch[4] = {public_ingress(&b, client(1), &m),
                                  public_ingress(&b, client(2), &m),
                                  public_ingress(&b, client(3), &m),
                                  {0}};
    batch[3] = batch[2];
    batch[3].data_bytes = 0;
    const unsigned orders[][4] = {{0, 1, 2, 3}, {1, 0, 3, 2}, {2, 2, 2, 1}, {1, 1, 0, 0}};
    const unsigned owner[] = {7, 8};
    for (unsigned o = 0; o < 4; o++) {
        vr_forward_prefetch(b.forwarder, batch, o < 2 ? 4 : 2);
        for (unsigned i = 0; i < 4; i++) {
            unsigned which = orders[o][i];
            struct vr_ingress in = batch[which];
            CHECK_EQ(submit(&b, &in), which < 2 ? VR_VERDICT_SEND : VR_VERDICT_DROP);
            if (which < 2)
                check_went_up(&b, transceiver(owner[which]), client(which + 1), 172);
        }
    }
    bench_close(&b);
}

/* --- nothing is allocated --- */

static unsigned allocations;

static void count_malloc(const volatile void *memory, size_t bytes) {
    (void)memory;
    (void)bytes;
    allocations++;
}
static void count_free(const volatile void *memory) {
    (void)memory;
}

TEST(no_datagram_allocates) {
    bench_open(&b);
    struct ufrag ufrags[3] = {ufrag_of(&b, 1, 7, 0), ufrag_of(&b, 1, 8, 0), ufrag_of(&b, 2, 7, 0)};
    CHECK(__sanitizer_install_malloc_and_free_hooks(count_malloc, count_free) > 0);
    allocations = 0;
    for (unsigned i = 0; i < 3000; i++) {
        send_public(&b, client(i % 200), check_of(ufrags[i % 3], i));
        send_public(&b, client(i % 200), check_of((struct ufrag){{0}}, i));
        send_internal(&b, i % 3 < 2 ? transceiver(7 + i % 3) : far_relay(1), client(i % 200),
                      i % 5 ? success_of(i) : error_of(i));
        send_public(&b, client(i % 200), rtp());
        send_internal(&b, transceiver(7), client(i % 200), dtls());
        send_backbone(&b, far_relay(1), client(i % 200), rtp());
        vr_forward_sweep(b.forwarder, b.now_ns);
        wait_ms(&b, 400);
    }
    CHECK_EQ(allocations, 0);
    CHECK(b.stats.flows_promoted > 10 && b.stats.flows_expired > 0);
    bench_close(&b);
}
