/* The five caps of design rule 3, each with its own counter, and nobody locked out by others. */
#include "relay/caps.h"

#include "forward_check.h"
#include "relay/forward.h"
#include "relay/tracker.h"

static struct bench b;

static uint32_t check_bytes(void) {
    return check_of(ufrag_of(&b, 1, 7, 0), 1).size;
}

#define REFUSED(reason) CHANGED(&b, RX(PUBLIC, check_bytes()), DROP(reason))

TEST(new_flows_of_a_token_in_a_second) {
    bench_open(&b);
    struct ufrag ufrag = ufrag_of(&b, 1, 7, 0);
    for (unsigned i = 0; i < 20; i++)
        CHECK_EQ(send_public(&b, client(i), check_of(ufrag, i)), VR_VERDICT_SEND);
    CHECK_EQ(send_public(&b, client(20), check_of(ufrag, 20)), VR_VERDICT_DROP);
    REFUSED(CAP_TOKEN_FLOWS_RATE);
    CASE("flows that exist go on");
    CHECK_EQ(send_public(&b, client(3), check_of(ufrag, 21)), VR_VERDICT_SEND);
    CASE("another token of the same transceiver");
    CHECK_EQ(send_public(&b, client(20), check_of(ufrag_of(&b, 1, 7, 1), 22)), VR_VERDICT_SEND);
    CASE("the next second");
    wait_ms(&b, 1000);
    CHECK_EQ(send_public(&b, client(21), check_of(ufrag, 23)), VR_VERDICT_SEND);
    bench_close(&b);
}

TEST(a_token_on_flows_that_do_not_hold_it_is_as_good_as_new) {
    bench_open(&b);
    b.config.limits.token_new_flows_per_s = 0;
    bench_configure(&b);
    for (unsigned i = 0; i < 30; i++)
        establish(&b, i, 7, ufrag_of(&b, 1, 7, i));
    b.config.limits.token_new_flows_per_s = 20;
    bench_configure(&b);
    struct ufrag sprayed = ufrag_of(&b, 1, 8, 0);
    for (unsigned i = 0; i < 20; i++)
        CHECK_EQ(send_public(&b, client(i), check_of(sprayed, i)), VR_VERDICT_SEND);
    CHECK_EQ(send_public(&b, client(20), check_of(sprayed, 20)), VR_VERDICT_DROP);
    REFUSED(CAP_TOKEN_FLOWS_RATE);
    CASE("the owner's own token is not asked");
    CHECK_EQ(send_public(&b, client(20), check_of(ufrag_of(&b, 1, 7, 20), 21)), VR_VERDICT_SEND);
    bench_close(&b);
}

TEST(established_flows_of_a_token) {
    bench_open(&b);
    struct ufrag ufrag = ufrag_of(&b, 1, 7, 0);
    for (unsigned i = 0; i < 16; i++)
        establish(&b, i, 7, ufrag);
    CHECK_EQ(send_public(&b, client(16), check_of(ufrag, 1)), VR_VERDICT_DROP);
    REFUSED(CAP_TOKEN_FLOWS);
    CASE("on a flow of somebody else");
    establish(&b, 17, 8, ufrag_of(&b, 1, 8, 0));
    CHECK_EQ(send_public(&b, client(17), check_of(ufrag, 2)), VR_VERDICT_DROP);
    REFUSED(CAP_TOKEN_FLOWS);
    CASE("its own flows go on");
    CHECK_EQ(send_public(&b, client(3), check_of(ufrag, 3)), VR_VERDICT_SEND);
    CHECK_EQ(send_internal(&b, transceiver(7), client(3), success_of(3)), VR_VERDICT_SEND);
    bench_close(&b);
}

TEST(successes_in_flight_do_not_pass_the_cap) {
    bench_open(&b);
    struct ufrag ufrag = ufrag_of(&b, 1, 7, 0);
    for (unsigned i = 0; i < 18; i++)
        CHECK_EQ(send_public(&b, client(i), check_of(ufrag, 1)), VR_VERDICT_SEND);
    for (unsigned i = 0; i < 16; i++)
        CHECK_EQ(send_internal(&b, transceiver(7), client(i), success_of(1)), VR_VERDICT_SEND);
    CHECK_EQ(send_internal(&b, transceiver(7), client(16), success_of(1)), VR_VERDICT_DROP);
    CHANGED(&b, RX(INTERNAL, 20 + VR_SPP_BYTES), DROP(CAP_TOKEN_FLOWS));
    bench_close(&b);
}

TEST(an_expired_flow_gives_its_place_under_the_cap_back) {
    bench_open(&b);
    struct ufrag ufrag = ufrag_of(&b, 1, 7, 0);
    for (unsigned i = 0; i < 16; i++)
        establish(&b, i, 7, ufrag);
    wait_ms(&b, 60000);
    sweep_all(&b);
    CHECK_EQ(b.stats.flows_established, 0);
    for (unsigned i = 0; i < 16; i++)
        establish(&b, 100 + i, 7, ufrag);
    CHECK_EQ(send_public(&b, client(16), check_of(ufrag, 1)), VR_VERDICT_DROP);
    REFUSED(CAP_TOKEN_FLOWS);
    bench_close(&b);
}

TEST(the_cap_of_a_token_outlives_the_worker) {
    bench_open(&b);
    struct ufrag ufrag = ufrag_of(&b, 1, 7, 0);
    for (unsigned i = 0; i < 16; i++)
        establish(&b, i, 7, ufrag);
    bench_restart(&b);
    sweep_all(&b); /* a second of it: each entry is taken over, and counted */
    CHECK_EQ(send_public(&b, client(16), check_of(ufrag, 1)), VR_VERDICT_DROP);
    REFUSED(CAP_TOKEN_FLOWS);
    wait_ms(&b, 60000);
    sweep_all(&b);
    establish(&b, 100, 7, ufrag);
    bench_close(&b);
}

TEST(checks_of_a_flow_in_a_second) {
    bench_open(&b);
    struct ufrag ufrag = ufrag_of(&b, 1, 7, 0);
    for (unsigned i = 0; i < 50; i++)
        CHECK_EQ(send_public(&b, client(1), check_of(ufrag, i)), VR_VERDICT_SEND);
    CHECK_EQ(send_public(&b, client(1), check_of(ufrag, 50)), VR_VERDICT_DROP);
    REFUSED(CAP_FLOW_CHECKS);
    CASE("another flow of the same token");
    CHECK_EQ(send_public(&b, client(2), check_of(ufrag, 51)), VR_VERDICT_SEND);
    CASE("the next second");
    wait_ms(&b, 1000);
    CHECK_EQ(send_public(&b, client(1), check_of(ufrag, 52)), VR_VERDICT_SEND);
    bench_close(&b);
}

TEST(checks_of_a_flow_with_tokens_that_it_does_not_hold) {
    bench_open(&b);
    struct ufrag held = ufrag_of(&b, 1, 7, 0);
    send_public(&b, client(1), check_of(held, 0));
    for (unsigned i = 1; i <= 50; i++)
        CHECK_EQ(send_public(&b, client(1), check_of(ufrag_of(&b, 1, 8, i), i)), VR_VERDICT_SEND);
    CHECK_EQ(send_public(&b, client(1), check_of(ufrag_of(&b, 1, 8, 51), 51)), VR_VERDICT_DROP);
    REFUSED(CAP_FLOW_CHECKS);
    CASE("the one that it holds");
    CHECK_EQ(send_public(&b, client(1), check_of(held, 52)), VR_VERDICT_SEND);
    bench_close(&b);
}

TEST(nobody_spends_the_checks_of_a_client_whose_address_he_spoofs) {
    bench_open(&b);
    struct ufrag victim = ufrag_of(&b, 1, 7, 0);
    establish(&b, 1, 7, victim);
    for (unsigned own = 0; own < 2; own++) { /* on another transceiver, and on the same */
        struct ufrag attacker = ufrag_of(&b, 1, own ? 7 : 8, 99);
        for (unsigned i = 0; i < 500; i++)
            send_public(&b, client(1), check_of(attacker, 2000 + i));
        CHECK_EQ(b.stats.drop[VR_DROP_CAP_TOKEN_FLOWS_RATE], 480 * (own + 1));
    }
    CHECK_EQ(send_public(&b, client(1), check_of(victim, 1)), VR_VERDICT_SEND);
    bench_close(&b);
}

TEST(new_flows_of_a_transceiver_in_a_second) {
    bench_open(&b);
    b.config.limits.transceiver_new_flows_per_s = 30;
    bench_configure(&b);
    for (unsigned i = 0; i < 30; i++)
        CHECK_EQ(send_public(&b, client(i), check_of(ufrag_of(&b, 1, 7, i), i)), VR_VERDICT_SEND);
    CHECK_EQ(send_public(&b, client(30), check_of(ufrag_of(&b, 1, 7, 30), 30)), VR_VERDICT_DROP);
    REFUSED(CAP_TRANSCEIVER_FLOWS);
    CHECK_EQ(send_public(&b, client(30), check_of(ufrag_of(&b, 1, 8, 30), 30)), VR_VERDICT_SEND);
    bench_close(&b);
}

TEST(a_token_over_its_cap_does_not_use_up_its_transceivers) {
    bench_open(&b);
    b.config.limits.transceiver_new_flows_per_s = 21;
    bench_configure(&b);
    for (unsigned i = 0; i < 1000; i++)
        send_public(&b, client(i), check_of(ufrag_of(&b, 1, 7, 0), i));
    CHECK_EQ(b.stats.drop[VR_DROP_CAP_TOKEN_FLOWS_RATE], 980);
    CHECK_EQ(send_public(&b, client(1001), check_of(ufrag_of(&b, 1, 7, 1), 1)), VR_VERDICT_SEND);
    bench_close(&b);
}

/* Client behind one address; every port is a client. */
static struct vr_addr natted(unsigned n) {
    return v4(203, 0, 113, 5, 1024 + n);
}

TEST(unanswered_first_packets_of_an_address) {
    bench_open(&b);
    for (unsigned i = 0; i < 64; i++)
        CHECK_EQ(send_public(&b, natted(i), check_of(ufrag_of(&b, 1, 7, i), 1)), VR_VERDICT_SEND);
    CHECK_EQ(send_public(&b, natted(64), check_of(ufrag_of(&b, 1, 7, 64), 1)), VR_VERDICT_DROP);
    REFUSED(CAP_SOURCE_UNANSWERED);
    CASE("another address");
    CHECK_EQ(send_public(&b, client(6), check_of(ufrag_of(&b, 1, 7, 65), 1)), VR_VERDICT_SEND);
    CASE("one is answered, by an error");
    send_internal(&b, transceiver(7), natted(0), error_of(1));
    CHECK_EQ(b.out.hops, 1);
    CHECK_EQ(send_public(&b, natted(64), check_of(ufrag_of(&b, 1, 7, 66), 1)), VR_VERDICT_SEND);
    CASE("one is answered, by a success");
    send_internal(&b, transceiver(7), natted(1), success_of(1));
    CHECK_EQ(send_public(&b, natted(65), check_of(ufrag_of(&b, 1, 7, 67), 1)), VR_VERDICT_SEND);
    CHECK_EQ(send_public(&b, natted(66), check_of(ufrag_of(&b, 1, 7, 68), 1)), VR_VERDICT_DROP);
    REFUSED(CAP_SOURCE_UNANSWERED);
    CASE("their time is over");
    wait_ms(&b, VR_HALF_OPEN_MS);
    sweep_all(&b);
    for (unsigned i = 0; i < 64; i++)
        CHECK_EQ(send_public(&b, natted(100 + i), check_of(ufrag_of(&b, 1, 7, i), 1)),
                 VR_VERDICT_SEND);
    bench_close(&b);
}

TEST(a_carrier_nat_full_of_honest_users_is_not_capped) {
    bench_open(&b);
    b.config.limits.transceiver_new_flows_per_s = 0;
    bench_configure(&b);
    for (unsigned i = 0; i < 5000; i++) {
        CHECK_EQ(send_public(&b, natted(i), check_of(ufrag_of(&b, 1, 7, i), 1)), VR_VERDICT_SEND);
        send_internal(&b, transceiver(7), natted(i), error_of(1));
    }
    CHECK_EQ(b.stats.drop[VR_DROP_CAP_SOURCE_UNANSWERED], 0);
    bench_close(&b);
}

TEST(an_ipv6_client_is_its_64) {
    bench_open(&b);
    struct vr_addr addr = {.ip = {0x20, 1, 0xd, 0xb8, 1}, .port_be = 1};
    for (unsigned i = 0; i < 65; i++) {
        vr_store_be64(addr.ip + 8, 0x123456789 * i);
        enum vr_verdict verdict = send_public(&b, addr, check_of(ufrag_of(&b, 1, 7, i), 1));
        CHECK_EQ(verdict, i < 64 ? VR_VERDICT_SEND : VR_VERDICT_DROP);
    }
    REFUSED(CAP_SOURCE_UNANSWERED);
    addr.ip[7] = 1;
    CHECK_EQ(send_public(&b, addr, check_of(ufrag_of(&b, 1, 7, 65), 1)), VR_VERDICT_SEND);
    bench_close(&b);
}

TEST(displaced_and_restarted_flows_do_not_pin_the_source) {
    bench_open(&b);
    b.config.limits.token_new_flows_per_s = 0;
    b.config.limits.transceiver_new_flows_per_s = 0;
    bench_configure(&b);
    for (unsigned i = 0; i < 60; i++)
        send_public(&b, natted(i), check_of(ufrag_of(&b, 1, 7, i), 1));
    wait_ms(&b, 1);
    for (unsigned i = 0; i < 6000; i++) /* displaces all of them */
        send_public(&b, client(1000 + i), check_of(ufrag_of(&b, 1, 7, 0), 1));
    for (unsigned i = 0; i < 64; i++) {
        wait_ms(&b, 1);
        CHECK_EQ(send_public(&b, natted(100 + i), check_of(ufrag_of(&b, 1, 7, i), 1)),
                 VR_VERDICT_SEND);
    }
    bench_restart(&b);
    sweep_all(&b);
    CHECK_EQ(send_public(&b, natted(300), check_of(ufrag_of(&b, 1, 7, 0), 1)), VR_VERDICT_DROP);
    REFUSED(CAP_SOURCE_UNANSWERED);
    wait_ms(&b, VR_HALF_OPEN_MS);
    sweep_all(&b);
    CHECK_EQ(b.stats.flows_half_open, 0);
    for (unsigned i = 0; i < 64; i++)
        CHECK_EQ(send_public(&b, natted(400 + i), check_of(ufrag_of(&b, 1, 7, i), 1)),
                 VR_VERDICT_SEND);
    bench_close(&b);
}

TEST(one_captured_token_does_not_use_up_an_address) {
    bench_open(&b);
    struct ufrag captured = ufrag_of(&b, 1, 7, 0);
    for (unsigned ms = 0; ms < 10000; ms += 5) { /* 200 a second, spoofed */
        send_public(&b, natted(1000 + ms), check_of(captured, ms));
        vr_forward_sweep(b.forwarder, b.now_ns);
        if (ms % 250 == 0) {
            enum vr_verdict honest =
                send_public(&b, natted(ms / 250), check_of(ufrag_of(&b, 1, 8, ms), 1));
            CHECK_EQ(honest, VR_VERDICT_SEND);
            send_internal(&b, transceiver(8), natted(ms / 250), error_of(1));
        }
        wait_ms(&b, 5);
    }
    CHECK_EQ(b.stats.drop[VR_DROP_CAP_SOURCE_UNANSWERED], 0);
    bench_close(&b);
}

TEST(limits_of_0_are_none) {
    bench_open(&b);
    b.config.limits = (struct vr_limits){0};
    bench_configure(&b);
    for (unsigned i = 0; i < 500; i++)
        CHECK_EQ(send_public(&b, natted(i), check_of(ufrag_of(&b, 1, 7, 0), i)), VR_VERDICT_SEND);
    for (unsigned i = 0; i < 500; i++)
        CHECK_EQ(send_public(&b, natted(0), check_of(ufrag_of(&b, 1, 7, 0), i)), VR_VERDICT_SEND);
    bench_close(&b);
}
