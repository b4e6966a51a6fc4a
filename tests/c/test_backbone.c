/* Design rule 7: other clusters' tokens, what comes over the backbone, and no loops. Relay n of
 * cluster 2 is both a route address and a backbone peer here. */
#include "forward_check.h"
#include "relay/forward.h"

static struct bench b;

/* Either address of cluster 2's route. */
static bool went_to_route(void) {
    struct vr_addr one = far_relay(1), two = far_relay(2);
    return b.out.hops == 1 && b.out.hop[0].side == VR_SIDE_INTERNAL &&
           (vr_addr_equal(&b.out.hop[0].destination, &one) ||
            vr_addr_equal(&b.out.hop[0].destination, &two));
}

TEST(a_token_of_another_cluster_takes_its_route) {
    bench_open(&b);
    struct message check = check_of(ufrag_of(&b, 2, 7, 0), 1);
    bool used[2] = {false, false};
    for (unsigned i = 0; i < 16; i++) {
        CHECK_EQ(send_public(&b, client(i), check_of(ufrag_of(&b, 2, 7, i), 1)), VR_VERDICT_SEND);
        CHANGED(&b, RX(PUBLIC, check.size), COUNT(flows_half_open, 1), COUNT(flows_created, 1));
        CHECK(went_to_route());
        struct vr_addr first = far_relay(1), chosen = b.out.hop[0].destination;
        used[vr_addr_equal(&chosen, &first)] = true;
        CASE("one client keeps to one address");
        send_public(&b, client(i), check_of(ufrag_of(&b, 2, 8, i), 2));
        CHECK(vr_addr_equal(&b.out.hop[0].destination, &chosen));
        check_went_up(&b, chosen, client(i), check.size);
    }
    CHECK(used[0] && used[1]);
    bench_close(&b);
}

TEST(the_answer_may_come_from_any_address_of_the_route) {
    bench_open(&b);
    for (unsigned n = 1; n <= 2; n++) {
        send_public(&b, client(n), check_of(ufrag_of(&b, 2, 7, n), 1));
        CHECK_EQ(send_internal(&b, far_relay(3), client(n), success_of(1)), VR_VERDICT_DROP);
        CHANGED(&b, RX(INTERNAL, 20 + VR_SPP_BYTES), DROP(RESPONSE_UNMATCHED));
        CHECK_EQ(send_internal(&b, transceiver(7), client(n), success_of(1)), VR_VERDICT_DROP);
        CHECK_EQ(send_internal(&b, far_relay(n), client(n), success_of(1)), VR_VERDICT_SEND);
        check_went_down(&b, client(n), 20);
        CHECK_EQ(send_public(&b, client(n), rtp()), VR_VERDICT_SEND);
        CHECK(went_to_route());
        for (unsigned m = 1; m <= 2; m++)
            CHECK_EQ(send_internal(&b, far_relay(m), client(n), rtp()), VR_VERDICT_SEND);
        CHECK_EQ(send_internal(&b, transceiver(7), client(n), rtp()), VR_VERDICT_DROP);
        CHANGED(&b, RX(INTERNAL, 172 + VR_SPP_BYTES), DROP(SENDER_NOT_OWNER));
    }
    bench_close(&b);
}

TEST(two_owners_behind_one_route_get_one_copy) {
    bench_open(&b);
    for (unsigned t = 7; t <= 8; t++) {
        send_public(&b, client(1), check_of(ufrag_of(&b, 2, t, 0), t));
        CHECK_EQ(send_internal(&b, far_relay(1), client(1), success_of(t)), VR_VERDICT_SEND);
    }
    CHECK_EQ(b.table.flow[slot_of(&b, VR_POOL_ESTABLISHED, client(1))].valid & VR_VALID_OWNERS, 3);
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_SEND);
    CHECK(went_to_route());
    CASE("and one in our own cluster another");
    send_public(&b, client(1), check_of(ufrag_of(&b, 1, 9, 0), 9));
    CHECK_EQ(send_internal(&b, transceiver(9), client(1), success_of(9)), VR_VERDICT_SEND);
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_SEND);
    CHECK_EQ(b.out.hops, 2);
    bench_close(&b);
}

TEST(a_route_that_is_gone_drops_and_one_that_comes_back_serves) {
    bench_open(&b);
    send_public(&b, client(1), check_of(ufrag_of(&b, 2, 7, 0), 1));
    send_internal(&b, far_relay(1), client(1), success_of(1));
    b.config.route_count = 0;
    bench_configure(&b);
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_DROP);
    CHANGED(&b, RX(PUBLIC, 172), DROP(CLUSTER_UNKNOWN));
    CHECK_EQ(send_internal(&b, far_relay(1), client(1), rtp()), VR_VERDICT_DROP);
    CHANGED(&b, RX(INTERNAL, 172 + VR_SPP_BYTES), DROP(SENDER_NOT_OWNER));
    b.config.route_count = 1;
    bench_configure(&b);
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_SEND);
    bench_close(&b);
}

/* --- the cluster's relay --- */

/* The last datagram went over the backbone to `peer`, its SPP header and all unchanged. */
static void check_went_back(struct vr_addr peer, uint32_t payload_bytes) {
    CHECK_EQ(b.out.hops, 1);
    CHECK_EQ(b.out.hop[0].side, VR_SIDE_BACKBONE);
    CHECK(vr_addr_equal(&b.out.hop[0].destination, &peer));
    CHECK(b.out.data == b.buffer + HEADROOM);
    CHECK_EQ(b.out.data_bytes, payload_bytes + VR_SPP_BYTES);
}

static void establish_by(unsigned c, struct vr_addr peer, unsigned t, unsigned tid) {
    struct message check = check_of(ufrag_of(&b, 1, t, c), tid);
    CHECK_EQ(send_backbone(&b, peer, client(c), check), VR_VERDICT_SEND);
    check_went_up(&b, transceiver(t), client(c), check.size);
    CHECK(b.out.data == b.buffer + HEADROOM);
    CHECK_EQ(send_internal(&b, transceiver(t), client(c), success_of(tid)), VR_VERDICT_SEND);
    check_went_back(peer, 20);
}

TEST(what_comes_over_the_backbone_goes_back_over_it) {
    bench_open(&b);
    establish_by(1, far_relay(9), 7, 1);
    CHECK_EQ(send_backbone(&b, far_relay(9), client(1), dtls()), VR_VERDICT_SEND);
    CHANGED(&b, RX(BACKBONE, 100 + VR_SPP_BYTES));
    check_went_up(&b, transceiver(7), client(1), 100);
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), rtp()), VR_VERDICT_SEND);
    CHANGED(&b, RX(INTERNAL, 172 + VR_SPP_BYTES));
    check_went_back(far_relay(9), 172);
    bench_close(&b);
}

TEST(replies_follow_the_peer_of_the_last_confirmed_request) {
    bench_open(&b);
    establish_by(1, far_relay(9), 7, 1);
    CASE("no media, no unconfirmed check moves them");
    send_backbone(&b, far_relay(8), client(1), rtp());
    send_backbone(&b, far_relay(8), client(1), check_of(ufrag_of(&b, 1, 7, 1), 2));
    send_internal(&b, transceiver(7), client(1), rtp());
    check_went_back(far_relay(9), 172);
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), success_of(2)), VR_VERDICT_SEND);
    check_went_back(far_relay(8), 20);
    send_internal(&b, transceiver(7), client(1), rtp());
    check_went_back(far_relay(8), 172);
    CASE("the client comes to us directly");
    establish(&b, 1, 7, ufrag_of(&b, 1, 7, 1));
    send_internal(&b, transceiver(7), client(1), rtp());
    check_went_down(&b, client(1), 172);
    bench_close(&b);
}

TEST(only_allowed_peers_use_the_backbone) {
    bench_open(&b);
    struct message check = check_of(ufrag_of(&b, 1, 7, 0), 1);
    CHECK_EQ(send_backbone(&b, v4(192, 0, 3, 1, 3479), client(1), check), VR_VERDICT_DROP);
    CHANGED(&b, RX(BACKBONE, check.size + VR_SPP_BYTES), DROP(BACKBONE_PEER));
    struct message m = rtp();
    struct vr_ingress in = wrapped_ingress(&b, VR_SIDE_BACKBONE, far_relay(1), client(1), &m);
    in.data[0] = 0x57;
    CHECK_EQ(submit(&b, &in), VR_VERDICT_DROP);
    CHANGED(&b, RX(BACKBONE, 172 + VR_SPP_BYTES), DROP(SPP_MALFORMED));
    bench_close(&b);
}

TEST(a_token_never_takes_a_route_from_the_backbone) {
    bench_open(&b);
    const unsigned clusters[] = {2, 3};
    for (unsigned i = 0; i < 2; i++) {
        struct message check = check_of(ufrag_of(&b, clusters[i], 7, 0), 1);
        CHECK_EQ(send_backbone(&b, far_relay(9), client(1), check), VR_VERDICT_DROP);
        CHANGED(&b, RX(BACKBONE, check.size + VR_SPP_BYTES), DROP(BACKBONE_LOOP));
    }
    bench_close(&b);
}

TEST(a_flow_never_takes_a_route_from_the_backbone) {
    bench_open(&b);
    send_public(&b, client(1), check_of(ufrag_of(&b, 2, 7, 0), 1));
    send_internal(&b, far_relay(1), client(1), success_of(1));
    CHECK_EQ(send_backbone(&b, far_relay(1), client(1), rtp()), VR_VERDICT_DROP);
    CHANGED(&b, RX(BACKBONE, 172 + VR_SPP_BYTES), DROP(BACKBONE_LOOP));
    CASE("an owner of our own cluster still gets it, alone");
    establish_by(1, far_relay(9), 7, 2);
    CHECK_EQ(send_backbone(&b, far_relay(9), client(1), rtp()), VR_VERDICT_SEND);
    check_went_up(&b, transceiver(7), client(1), 172);
    CASE("and what another cluster's relay answers does not leave over the backbone");
    CHECK_EQ(send_internal(&b, far_relay(1), client(1), rtp()), VR_VERDICT_DROP);
    CHANGED(&b, RX(INTERNAL, 172 + VR_SPP_BYTES), DROP(BACKBONE_LOOP));
    bench_close(&b);
}

TEST(the_caps_hold_over_the_backbone) {
    bench_open(&b);
    struct ufrag ufrag = ufrag_of(&b, 1, 7, 0);
    struct message check = check_of(ufrag, 1);
    for (unsigned i = 0; i < 20; i++)
        CHECK_EQ(send_backbone(&b, far_relay(1), client(i), check), VR_VERDICT_SEND);
    CHECK_EQ(send_backbone(&b, far_relay(1), client(20), check), VR_VERDICT_DROP);
    CHANGED(&b, RX(BACKBONE, check.size + VR_SPP_BYTES), DROP(CAP_TOKEN_FLOWS_RATE));
    bench_close(&b);
}

TEST(a_replay_with_another_token_does_not_rewrite_what_a_success_confirms) {
    bench_open(&b);
    send_public(&b, client(1), check_of(ufrag_of(&b, 2, 7, 0), 1));
    send_public(&b, client(1), check_of(ufrag_of(&b, 2, 8, 0), 1)); /* same id, same route */
    send_internal(&b, far_relay(1), client(1), success_of(1));
    const struct vr_flow *flow = &b.table.flow[slot_of(&b, VR_POOL_ESTABLISHED, client(1))];
    struct vr_addr expected = transceiver(7);
    CHECK(vr_addr_equal(&flow->half[0].owner.address, &expected));
    CHECK_EQ(flow->half[0].owner.cluster_id, 2);
    bench_close(&b);
}

TEST(every_relay_of_a_cluster_chooses_the_same_address) {
    bench_open(&b);
    struct vr_addr chosen[16];
    for (unsigned i = 0; i < 16; i++) {
        send_public(&b, client(i), check_of(ufrag_of(&b, 2, 7, i), 1));
        chosen[i] = b.out.hop[0].destination;
    }
    memset(b.memory, 0, b.memory_bytes); /* another relay, with a hash key of its own */
    vr_table_format(b.memory, b.memory_bytes, MAX_FLOWS, (const uint8_t *)"another hash key");
    bench_restart(&b);
    for (unsigned i = 0; i < 16; i++) {
        send_public(&b, client(i), check_of(ufrag_of(&b, 2, 7, i), 1));
        CHECK(vr_addr_equal(&b.out.hop[0].destination, &chosen[i]));
    }
    bench_close(&b);
}

/* --- probes --- */

static struct message probe_of(const uint8_t nonce[VR_PROBE_NONCE_BYTES]) {
    struct message m = {.size = VR_PROBE_NONCE_BYTES};
    memcpy(m.bytes, nonce, VR_PROBE_NONCE_BYTES);
    return m;
}

/* A probe's datagram, or an echo's. */
static enum vr_verdict send_probe(enum vr_side side, struct vr_addr from, struct message m) {
    static const struct vr_flow_key nobody;
    struct vr_ingress in = wrapped_ingress(&b, side, from, client(1), &m);
    vr_spp_write(in.data, &nobody);
    return submit(&b, &in);
}

/* All probes that are due, of which those to `silent` get no echo. */
static void answer_probes(const struct vr_addr *silent) {
    uint8_t nonce[VR_PROBE_NONCE_BYTES] = {0}, buffer[VR_PROBE_BYTES];
    struct vr_egress out;
    static uint32_t serial;
    while (vr_forward_probes_are_due(b.forwarder, b.now_ns)) {
        memcpy(nonce, &serial, sizeof serial);
        serial++;
        CHECK(vr_forward_next_probe(b.forwarder, b.now_ns, nonce, buffer, &out));
        CHECK(out.is_probe && out.hops == 1 && out.hop[0].side == VR_SIDE_INTERNAL);
        CHECK_EQ(out.data_bytes, VR_PROBE_BYTES);
        if (silent && vr_addr_equal(&out.hop[0].destination, silent))
            continue;
        CHECK_EQ(send_probe(VR_SIDE_INTERNAL, out.hop[0].destination, probe_of(nonce)),
                 VR_VERDICT_TAKEN);
        CHECK_EQ(b.stats.probes_answered, b.before.probes_answered + 1);
    }
}

static void probe_for(unsigned rounds, const struct vr_addr *silent) {
    for (unsigned i = 0; i < rounds; i++) {
        answer_probes(silent);
        wait_ms(&b, VR_PROBE_INTERVAL_MS);
    }
}

TEST(a_probe_is_echoed_to_an_allowed_peer_and_is_no_clients_packet) {
    bench_open(&b);
    const uint8_t nonce[VR_PROBE_NONCE_BYTES] = "sixteen bytes..";
    CHECK_EQ(send_probe(VR_SIDE_BACKBONE, far_relay(9), probe_of(nonce)), VR_VERDICT_SEND);
    CHANGED(&b, COUNT(probes_echoed, 0));
    CHECK(b.out.is_probe);
    check_went_back(far_relay(9), VR_PROBE_NONCE_BYTES);
    CHECK_MEM(b.out.data + VR_SPP_BYTES, nonce, sizeof nonce);
    CASE("once");
    CHECK_EQ(send_probe(VR_SIDE_BACKBONE, far_relay(9), probe_of(nonce)), VR_VERDICT_DROP);
    CHANGED(&b, RX(BACKBONE, VR_PROBE_BYTES), DROP(PROBE_REPEATED));
    CASE("to nobody else");
    CHECK_EQ(send_probe(VR_SIDE_BACKBONE, v4(192, 0, 3, 1, 3479), probe_of(nonce)),
             VR_VERDICT_DROP);
    CHANGED(&b, RX(BACKBONE, VR_PROBE_BYTES), DROP(BACKBONE_PEER));
    CASE("of this length alone");
    CHECK_EQ(send_probe(VR_SIDE_BACKBONE, far_relay(9), rtp()), VR_VERDICT_DROP);
    CHANGED(&b, RX(BACKBONE, 172 + VR_SPP_BYTES), DROP(PROBE_MALFORMED));
    CASE("a client's port is never 0");
    struct message m = probe_of(nonce);
    struct vr_ingress in = public_ingress(&b, (struct vr_addr){{0}, 0}, &m);
    CHECK_EQ(submit(&b, &in), VR_VERDICT_DROP);
    CHANGED(&b, RX(PUBLIC, VR_PROBE_NONCE_BYTES), DROP(PROTOCOL));
    bench_close(&b);
}

TEST(an_echo_that_answers_no_probe_is_dropped) {
    bench_open(&b);
    answer_probes(NULL);
    const uint8_t nonce[VR_PROBE_NONCE_BYTES] = "a guessed nonce";
    CHECK_EQ(send_probe(VR_SIDE_INTERNAL, far_relay(1), probe_of(nonce)), VR_VERDICT_DROP);
    CHANGED(&b, RX(INTERNAL, VR_PROBE_BYTES), DROP(PROBE_UNMATCHED));
    bench_close(&b);
}

/* A client whose flow takes relay 1 of the route. */
static unsigned client_of_first(void) {
    struct vr_addr first = far_relay(1);
    unsigned n = 1;
    for (;; n++) {
        send_public(&b, client(n), check_of(ufrag_of(&b, 2, 7, n), 1));
        if (vr_addr_equal(&b.out.hop[0].destination, &first))
            break;
    }
    CHECK_EQ(send_internal(&b, first, client(n), success_of(1)), VR_VERDICT_SEND);
    return n;
}

TEST(flows_leave_a_silent_address_and_return_with_a_success) {
    bench_open(&b);
    struct vr_addr first = far_relay(1), second = far_relay(2);
    unsigned n = client_of_first();
    CHECK_EQ(send_public(&b, client(n), rtp()), VR_VERDICT_SEND);
    check_went_up(&b, first, client(n), 172);
    CASE("down: everything takes the other address, replies of both still pass");
    probe_for(VR_PROBES_LOST + 1, &first);
    CHECK_EQ(b.stats.route_down[0], 1);
    CHECK_EQ(b.stats.route_falls, 1);
    send_public(&b, client(n), rtp());
    check_went_up(&b, second, client(n), 172);
    CHECK_EQ(send_internal(&b, first, client(n), rtp()), VR_VERDICT_SEND);
    struct message check = check_of(ufrag_of(&b, 2, 7, n), 2);
    send_public(&b, client(n), check);
    check_went_up(&b, second, client(n), check.size);
    CHECK_EQ(send_internal(&b, second, client(n), success_of(2)), VR_VERDICT_SEND);
    CASE("back: a check asks the first one, media waits for its success");
    probe_for(VR_PROBES_BACK, NULL);
    CHECK_EQ(b.stats.route_down[0], 0);
    send_public(&b, client(n), rtp());
    check_went_up(&b, second, client(n), 172);
    check = check_of(ufrag_of(&b, 2, 7, n), 3);
    send_public(&b, client(n), check);
    check_went_up(&b, first, client(n), check.size);
    send_public(&b, client(n), rtp());
    check_went_up(&b, second, client(n), 172);
    CHECK_EQ(send_internal(&b, first, client(n), success_of(3)), VR_VERDICT_SEND);
    send_public(&b, client(n), rtp());
    check_went_up(&b, first, client(n), 172);
    CASE("all down: as if all were up");
    bench_restart(&b);
    probe_for(VR_PROBES_LOST + 1, &first);
    b.config.routes = &(struct vr_cluster_route){.cluster_id = 2, .addrs = 1, .addr = {first}};
    bench_configure(&b);
    CHECK_EQ(b.stats.route_down[0], 1);
    send_public(&b, client(n), rtp());
    check_went_up(&b, first, client(n), 172);
    bench_close(&b);
}

TEST(a_new_worker_knows_what_the_last_one_knew) {
    bench_open(&b);
    struct vr_addr first = far_relay(1), second = far_relay(2);
    unsigned n = client_of_first();
    probe_for(VR_PROBES_LOST + 1, &first);
    bench_restart(&b);
    send_public(&b, client(n), rtp());
    check_went_up(&b, second, client(n), 172);
    bench_close(&b);
}

/* --- a keyed backbone --- */

enum { UNIX_S = 1800000000 };

static void open_keyed(void) {
    bench_open(&b);
    b.config.backbone_keys = vr_trailer_keys_new();
    CHECK_EQ(vr_trailer_keys_add(b.config.backbone_keys, (const uint8_t *)"sixteen byte key"), 0);
    bench_configure(&b);
    vr_forward_set_clock(b.forwarder, UNIX_S);
}

static void close_keyed(void) {
    bench_close(&b);
    vr_trailer_keys_free(b.config.backbone_keys);
}

/* A datagram with a trailer of this age, of which bytes are changed. */
static enum vr_verdict send_signed(enum vr_side side, struct vr_addr from,
                                   const struct vr_flow_key *about, struct message m, int age_s,
                                   bool forge) {
    struct vr_ingress in = wrapped_ingress(&b, side, from, client(1), &m);
    vr_spp_write(in.data, about);
    uint8_t *trailer = in.data + in.data_bytes;
    CHECK(vr_trailer_write(b.config.backbone_keys, in.data, (uint64_t)(UNIX_S - age_s), trailer));
    trailer[15] ^= forge;
    in.data_bytes += VR_TRAILER_BYTES;
    return submit(&b, &in);
}

static enum vr_verdict send_good(enum vr_side side, struct vr_addr from, unsigned c,
                                 struct message m) {
    struct vr_flow_key key = key_of(client(c));
    return send_signed(side, from, &key, m, 0, false);
}

/* The last datagram has a good trailer for its one hop; its data does not include it. */
static void check_signed(void) {
    CHECK_EQ(b.out.trailer_bytes, VR_TRAILER_BYTES);
    CHECK(b.out.hop[0].is_relay);
    CHECK_EQ(vr_trailer_check(b.config.backbone_keys, b.out.data, b.out.trailer, UNIX_S),
             VR_TRAILER_OK);
}

TEST(an_entry_signs_what_it_hands_over_and_strips_what_it_gets) {
    open_keyed();
    struct vr_addr first = far_relay(1);
    struct message check = check_of(ufrag_of(&b, 2, 7, 1), 1);
    send_public(&b, client(1), check);
    CHECK_EQ(b.out.data_bytes, check.size + VR_SPP_BYTES);
    check_signed();
    CHECK_EQ(send_internal(&b, first, client(1), success_of(1)), VR_VERDICT_DROP);
    CHANGED(&b, RX(INTERNAL, 20 + VR_SPP_BYTES), DROP(BACKBONE_KEY));
    CHECK_EQ(send_good(VR_SIDE_INTERNAL, first, 1, success_of(1)), VR_VERDICT_SEND);
    check_went_down(&b, client(1), 20);
    CHECK_EQ(b.out.trailer_bytes, 0);
    CASE("media, both ways");
    send_public(&b, client(1), rtp());
    check_signed();
    CHECK_EQ(send_good(VR_SIDE_INTERNAL, first, 1, rtp()), VR_VERDICT_SEND);
    CHANGED(&b, RX(INTERNAL, 172 + VR_SPP_BYTES + VR_TRAILER_BYTES));
    check_went_down(&b, client(1), 172);
    CASE("a transceiver of our own neither gets nor sends one");
    establish(&b, 2, 7, ufrag_of(&b, 1, 7, 2));
    send_public(&b, client(2), rtp());
    CHECK_EQ(b.out.trailer_bytes, 0);
    CHECK(!b.out.hop[0].is_relay);
    close_keyed();
}

TEST(a_copy_for_each_tier_has_the_trailer_on_one) {
    open_keyed();
    send_public(&b, client(1), check_of(ufrag_of(&b, 2, 7, 1), 1));
    send_good(VR_SIDE_INTERNAL, far_relay(1), 1, success_of(1));
    establish(&b, 1, 9, ufrag_of(&b, 1, 9, 0));
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_SEND);
    CHECK_EQ(b.out.hops, 2);
    CHECK_EQ(b.out.trailer_bytes, VR_TRAILER_BYTES);
    CHECK(b.out.hop[0].is_relay && !b.out.hop[1].is_relay);
    close_keyed();
}

TEST(a_clusters_relay_checks_strips_and_signs) {
    open_keyed();
    struct message check = check_of(ufrag_of(&b, 1, 7, 1), 1);
    CHECK_EQ(send_good(VR_SIDE_BACKBONE, far_relay(9), 1, check), VR_VERDICT_SEND);
    check_went_up(&b, transceiver(7), client(1), check.size);
    CHECK_EQ(b.out.trailer_bytes, 0);
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), success_of(1)), VR_VERDICT_SEND);
    check_went_back(far_relay(9), 20);
    check_signed();
    CASE("what has none is dropped, whatever it is");
    const struct message plain[] = {rtp(), check, bytes_of(128, 1), bytes_of(128, 16)};
    for (unsigned i = 0; i < 4; i++) {
        CHECK_EQ(send_backbone(&b, far_relay(9), client(1), plain[i]), VR_VERDICT_DROP);
        CHANGED(&b, RX(BACKBONE, plain[i].size + VR_SPP_BYTES), DROP(BACKBONE_KEY));
    }
    CASE("another client's, an altered or an old one");
    struct vr_flow_key key = key_of(client(1));
    CHECK_EQ(send_signed(VR_SIDE_BACKBONE, far_relay(9), &key, rtp(), 0, true), VR_VERDICT_DROP);
    CHANGED(&b, RX(BACKBONE, 172 + VR_SPP_BYTES + VR_TRAILER_BYTES), DROP(BACKBONE_KEY));
    for (int age_s = -31; age_s <= 31; age_s += 62) {
        CHECK_EQ(send_signed(VR_SIDE_BACKBONE, far_relay(9), &key, rtp(), age_s, false),
                 VR_VERDICT_DROP);
        CHANGED(&b, RX(BACKBONE, 172 + VR_SPP_BYTES + VR_TRAILER_BYTES), DROP(BACKBONE_STALE));
    }
    CHECK_EQ(send_signed(VR_SIDE_BACKBONE, far_relay(9), &key, rtp(), 30, false), VR_VERDICT_SEND);
    check_went_up(&b, transceiver(7), client(1), 172);
    CASE("a stranger is a stranger first");
    CHECK_EQ(send_good(VR_SIDE_BACKBONE, v4(192, 0, 3, 1, 3479), 1, rtp()), VR_VERDICT_DROP);
    CHANGED(&b, RX(BACKBONE, 172 + VR_SPP_BYTES + VR_TRAILER_BYTES), DROP(BACKBONE_PEER));
    close_keyed();
}

TEST(probes_and_echoes_are_signed_too) {
    static const struct vr_flow_key nobody;
    open_keyed();
    const uint8_t nonce[VR_PROBE_NONCE_BYTES] = "sixteen bytes..";
    struct message probe = probe_of(nonce);
    CHECK_EQ(send_signed(VR_SIDE_BACKBONE, far_relay(9), &nobody, probe, 0, false),
             VR_VERDICT_SEND);
    check_went_back(far_relay(9), VR_PROBE_NONCE_BYTES);
    check_signed();
    CHECK_EQ(send_probe(VR_SIDE_BACKBONE, far_relay(9), probe_of(nonce)), VR_VERDICT_DROP);
    CHANGED(&b, RX(BACKBONE, VR_PROBE_BYTES), DROP(BACKBONE_KEY));
    CASE("our own");
    uint8_t buffer[VR_PROBE_BYTES];
    struct vr_egress out;
    CHECK(vr_forward_next_probe(b.forwarder, b.now_ns, nonce, buffer, &out));
    CHECK_EQ(vr_trailer_check(b.config.backbone_keys, out.data, out.trailer, UNIX_S),
             VR_TRAILER_OK);
    struct vr_addr to = out.hop[0].destination;
    CHECK_EQ(send_probe(VR_SIDE_INTERNAL, to, probe), VR_VERDICT_DROP);
    CHANGED(&b, RX(INTERNAL, VR_PROBE_BYTES), DROP(BACKBONE_KEY));
    CHECK_EQ(send_signed(VR_SIDE_INTERNAL, to, &nobody, probe, 0, false), VR_VERDICT_TAKEN);
    CASE("a relay without a key says what is wrong");
    struct vr_trailer_keys *keys = b.config.backbone_keys;
    b.config.backbone_keys = NULL;
    bench_configure(&b);
    b.config.backbone_keys = keys;
    CHECK_EQ(send_signed(VR_SIDE_BACKBONE, far_relay(9), &nobody, probe, 0, false),
             VR_VERDICT_DROP);
    CHANGED(&b, RX(BACKBONE, VR_PROBE_BYTES + VR_TRAILER_BYTES), DROP(BACKBONE_KEY));
    close_keyed();
}
