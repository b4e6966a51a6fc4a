/* Probes of route addresses as a forwarder sends, answers and counts them, and the flows that leave a silent
 * one. */
#include "backbone_check.h"
#include "relay/forward.h"

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
    CHANGED(&b, RX(PUBLIC, VR_PROBE_NONCE_BYTES), DROP(SOURCE_UNANSWERABLE));
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
