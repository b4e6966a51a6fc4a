/* Design rule 7: other clusters' tokens, what comes over the backbone, and no loops. */
#include "backbone_check.h"
#include "relay/forward.h"

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
