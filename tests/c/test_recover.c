/* The seam for the cache (design 3.4 "Redis"): parking, and provisional flows. */
#include "forward_check.h"
#include "relay/forward.h"
#include "relay/tracker.h"

static struct bench b;

static void open_with_cache(void) {
    bench_open(&b);
    b.config.park_enabled = true;
    bench_configure(&b);
}

/* What the cache says of client 1; the flow came in on `side`. */
static unsigned recover(enum vr_side side, unsigned count, const struct ufrag *ufrags) {
    struct vr_cached_token tokens[3];
    struct message m = rtp();
    struct vr_ingress in = side == VR_SIDE_PUBLIC
                               ? public_ingress(&b, client(1), &m)
                               : wrapped_ingress(&b, side, far_relay(9), client(1), &m);
    for (unsigned i = 0; i < count; i++)
        tokens[i] = (struct vr_cached_token){(const uint8_t *)ufrags[i].chars, VR_TOKEN_CHARS};
    b.before = b.stats;
    return vr_forward_recover(b.forwarder, &in, tokens, count, b.now_ns);
}

TEST(an_unknown_clients_media_is_parked_once) {
    open_with_cache();
    CHECK_EQ(send_public(&b, client(1), dtls()), VR_VERDICT_PARK);
    CHANGED(&b, RX(PUBLIC, 100));
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_PARK);
    CHANGED(&b, RX(PUBLIC, 172));
    struct message m = rtp();
    struct vr_ingress in = public_ingress(&b, client(1), &m);
    in.parked = true;
    CHECK_EQ(submit(&b, &in), VR_VERDICT_DROP);
    CHANGED(&b, DROP(NO_FLOW)); /* not received twice */
    bench_close(&b);
}

TEST(nothing_else_is_parked) {
    open_with_cache();
    CHECK_EQ(send_public(&b, client(1), stun_of(0x0001, 1, NULL, 0)), VR_VERDICT_DROP);
    CHANGED(&b, RX(PUBLIC, 20), DROP(NO_FLOW));
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), rtp()), VR_VERDICT_DROP);
    CHANGED(&b, RX(INTERNAL, 172 + VR_SPP_BYTES), DROP(NO_FLOW));
    send_public(&b, client(1), check_of(ufrag_of(&b, 1, 7, 0), 1));
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_DROP);
    CHANGED(&b, RX(PUBLIC, 172), DROP(HALF_OPEN));
    bench_close(&b);
}

TEST(a_recovered_flow_passes_both_ways) {
    open_with_cache();
    struct ufrag ufrag = ufrag_of(&b, 1, 7, 0);
    CHECK_EQ(recover(VR_SIDE_PUBLIC, 1, &ufrag), 1);
    CHANGED(&b, COUNT(flows_half_open, 1), COUNT(flows_created, 1));
    struct message m = rtp();
    struct vr_ingress in = public_ingress(&b, client(1), &m);
    in.parked = true;
    CHECK_EQ(submit(&b, &in), VR_VERDICT_SEND);
    check_went_up(&b, transceiver(7), client(1), 172);
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), rtp()), VR_VERDICT_SEND);
    check_went_down(&b, client(1), 172);
    CHECK_EQ(send_internal(&b, transceiver(8), client(1), rtp()), VR_VERDICT_DROP);
    CHANGED(&b, RX(INTERNAL, 172 + VR_SPP_BYTES), DROP(SENDER_NOT_OWNER));
    bench_close(&b);
}

TEST(it_has_two_owners_at_most) {
    open_with_cache();
    struct ufrag ufrags[3] = {ufrag_of(&b, 1, 7, 0), ufrag_of(&b, 1, 8, 0), ufrag_of(&b, 1, 9, 0)};
    CHECK_EQ(recover(VR_SIDE_PUBLIC, 3, ufrags), 2);
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_SEND);
    check_went_to_both(&b, transceiver(7), transceiver(8));
    bench_close(&b);
}

TEST(two_tokens_of_one_transceiver_are_one_owner) {
    open_with_cache();
    struct ufrag ufrags[3] = {ufrag_of(&b, 1, 7, 0), ufrag_of(&b, 1, 7, 1), ufrag_of(&b, 1, 8, 0)};
    CHECK_EQ(recover(VR_SIDE_PUBLIC, 2, ufrags), 1);
    check_sound(&b);
    send_public(&b, client(1), rtp());
    check_went_up(&b, transceiver(7), client(1), 172);
    wait_ms(&b, VR_PROVISIONAL_MS);
    CHECK_EQ(recover(VR_SIDE_PUBLIC, 3, ufrags), 2);
    send_public(&b, client(1), rtp());
    check_went_to_both(&b, transceiver(7), transceiver(8));
    bench_close(&b);
}

TEST(it_ends_after_10_s_without_a_success) {
    open_with_cache();
    struct ufrag ufrag = ufrag_of(&b, 1, 7, 0);
    recover(VR_SIDE_PUBLIC, 1, &ufrag);
    for (unsigned i = 0; i < 99; i++) { /* whatever passes */
        wait_ms(&b, 100);
        CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_SEND);
        CHECK_EQ(send_internal(&b, transceiver(7), client(1), rtp()), VR_VERDICT_SEND);
    }
    wait_ms(&b, 100);
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_PARK);
    CHANGED(&b, RX(PUBLIC, 172), COUNT(flows_half_open, -1));
    bench_close(&b);
}

TEST(a_success_confirms_it_and_keeps_the_other_owner_for_30_s) {
    open_with_cache();
    struct ufrag ufrags[2] = {ufrag_of(&b, 1, 7, 0), ufrag_of(&b, 1, 8, 0)};
    recover(VR_SIDE_PUBLIC, 2, ufrags);
    send_public(&b, client(1), check_of(ufrags[1], 1));
    CHECK_EQ(send_internal(&b, transceiver(8), client(1), success_of(1)), VR_VERDICT_SEND);
    CHANGED(&b, RX(INTERNAL, 20 + VR_SPP_BYTES), COUNT(flows_half_open, -1),
            COUNT(flows_established, 1), COUNT(flows_promoted, 1));
    send_public(&b, client(1), rtp());
    check_went_to_both(&b, transceiver(7), transceiver(8));
    for (unsigned i = 2; i < 17; i++) {
        wait_ms(&b, 2000);
        send_public(&b, client(1), check_of(ufrags[1], i));
        send_internal(&b, transceiver(8), client(1), success_of(i));
    }
    send_public(&b, client(1), rtp());
    check_went_up(&b, transceiver(8), client(1), 172);
    bench_close(&b);
}

TEST(the_confirmed_owner_is_the_older) {
    open_with_cache();
    struct ufrag ufrags[2] = {ufrag_of(&b, 1, 7, 0), ufrag_of(&b, 1, 8, 0)};
    recover(VR_SIDE_PUBLIC, 2, ufrags);
    for (unsigned t = 8; t <= 9; t++) {
        send_public(&b, client(1), check_of(ufrag_of(&b, 1, t, 0), t));
        CHECK_EQ(send_internal(&b, transceiver(t), client(1), success_of(t)), VR_VERDICT_SEND);
    }
    send_public(&b, client(1), rtp());
    check_went_to_both(&b, transceiver(8), transceiver(9));
    bench_close(&b);
}

TEST(a_poisoned_cache_routes_nowhere_new) {
    open_with_cache();
    struct ufrag forged = ufrag_of(&b, 1, 7, 0), good = forged;
    forged.chars[9] = forged.chars[9] == 'A' ? 'B' : 'A';
    struct ufrag elsewhere = ufrag_of(&b, 3, 7, 0); /* no route */
    struct vr_token token = {.kind = 4, .cluster_id = 1, .port_be = 0x1234, .ipv4 = {8, 8, 8, 8}};
    struct ufrag not_allowed;
    vr_token_seal(b.keyring, &token, (const uint8_t[8]){0}, not_allowed.chars);
    CHECK_EQ(recover(VR_SIDE_PUBLIC, 3, (struct ufrag[]){forged, elsewhere, not_allowed}), 0);
    CHANGED(&b, COUNT(flows_created, 0));
    struct message m = rtp();
    struct vr_ingress in = public_ingress(&b, client(1), &m);
    struct vr_cached_token rubbish[] = {{(const uint8_t *)"", 0}, {(const uint8_t *)"1 A", 3}};
    CHECK_EQ(vr_forward_recover(b.forwarder, &in, rubbish, 2, b.now_ns), 0);
    CASE("one good token among them");
    CHECK_EQ(recover(VR_SIDE_PUBLIC, 3, (struct ufrag[]){forged, good, not_allowed}), 1);
    send_public(&b, client(1), rtp());
    check_went_up(&b, transceiver(7), client(1), 172);
    bench_close(&b);
}

TEST(an_established_flow_is_left_as_it_is) {
    open_with_cache();
    establish(&b, 1, 7, ufrag_of(&b, 1, 7, 0));
    struct ufrag ufrag = ufrag_of(&b, 1, 8, 0);
    CHECK_EQ(recover(VR_SIDE_PUBLIC, 1, &ufrag), 1);
    CHANGED(&b, COUNT(flows_created, 0));
    send_public(&b, client(1), rtp());
    check_went_up(&b, transceiver(7), client(1), 172);
    bench_close(&b);
}

TEST(a_half_open_flow_becomes_provisional) {
    open_with_cache();
    struct ufrag ufrag = ufrag_of(&b, 1, 7, 0);
    send_public(&b, client(1), check_of(ufrag_of(&b, 1, 8, 0), 1));
    wait_ms(&b, VR_HALF_OPEN_MS - 1);
    CHECK_EQ(recover(VR_SIDE_PUBLIC, 1, &ufrag), 1);
    CHANGED(&b, COUNT(flows_created, 0));
    wait_ms(&b, VR_PROVISIONAL_MS - 1);
    send_public(&b, client(1), rtp());
    check_went_up(&b, transceiver(7), client(1), 172);
    bench_close(&b);
}

TEST(it_counts_no_unanswered_packet) {
    open_with_cache();
    b.config.limits.source_unanswered = 1;
    bench_configure(&b);
    struct ufrag ufrag = ufrag_of(&b, 1, 7, 0);
    recover(VR_SIDE_PUBLIC, 1, &ufrag);
    struct vr_addr neighbour = client(1);
    neighbour.port_be ^= 0x0100;
    CHECK_EQ(send_public(&b, neighbour, check_of(ufrag, 1)), VR_VERDICT_SEND);
    bench_close(&b);
}

TEST(it_outlives_the_worker) {
    open_with_cache();
    struct ufrag ufrag = ufrag_of(&b, 1, 7, 0);
    recover(VR_SIDE_PUBLIC, 1, &ufrag);
    bench_restart(&b);
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_SEND);
    check_went_up(&b, transceiver(7), client(1), 172);
    bench_close(&b);
}

TEST(over_the_backbone_it_takes_no_route) {
    open_with_cache();
    struct ufrag far = ufrag_of(&b, 2, 7, 0), near = ufrag_of(&b, 1, 7, 0);
    CHECK_EQ(send_backbone(&b, far_relay(9), client(1), rtp()), VR_VERDICT_PARK);
    CHECK_EQ(recover(VR_SIDE_BACKBONE, 1, &far), 0);
    CHECK_EQ(recover(VR_SIDE_BACKBONE, 2, (struct ufrag[]){far, near}), 1);
    CHECK_EQ(send_backbone(&b, far_relay(9), client(1), rtp()), VR_VERDICT_SEND);
    check_went_up(&b, transceiver(7), client(1), 172);
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), rtp()), VR_VERDICT_SEND);
    CHECK_EQ(b.out.hop[0].side, VR_SIDE_BACKBONE);
    bench_close(&b);
}

TEST(from_a_client_it_may) {
    open_with_cache();
    struct ufrag far = ufrag_of(&b, 2, 7, 0);
    CHECK_EQ(recover(VR_SIDE_PUBLIC, 1, &far), 1);
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_SEND);
    CHECK_EQ(send_internal(&b, far_relay(2), client(1), rtp()), VR_VERDICT_SEND);
    check_went_down(&b, client(1), 172);
    bench_close(&b);
}
