/* Design rule 3: half-open flows, remembered checks, and what makes a flow established. */
#include "forward_check.h"
#include "relay/forward.h"
#include "relay/tracker.h"

static struct bench b;

TEST(half_open_passes_nothing_but_checks_and_their_responses) {
    bench_open(&b);
    send_public(&b, client(1), check_of(ufrag_of(&b, 1, 7, 0), 1));
    CHECK_EQ(send_public(&b, client(1), dtls()), VR_VERDICT_DROP);
    CHANGED(&b, RX(PUBLIC, 100), DROP(HALF_OPEN));
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_DROP);
    CHANGED(&b, RX(PUBLIC, 172), DROP(HALF_OPEN));
    CHECK_EQ(send_public(&b, client(1), stun_of(0x0001, 1, NULL, 0)), VR_VERDICT_DROP);
    CHANGED(&b, RX(PUBLIC, 20), DROP(HALF_OPEN));
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), dtls()), VR_VERDICT_DROP);
    CHANGED(&b, RX(INTERNAL, 100 + VR_SPP_BYTES), DROP(HALF_OPEN));
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), rtp()), VR_VERDICT_DROP);
    CHANGED(&b, RX(INTERNAL, 172 + VR_SPP_BYTES), DROP(HALF_OPEN));
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), stun_of(0x0001, 1, NULL, 0)),
             VR_VERDICT_DROP);
    CHANGED(&b, RX(INTERNAL, 20 + VR_SPP_BYTES), DROP(HALF_OPEN));
    bench_close(&b);
}

TEST(more_checks_make_no_more_flows) {
    bench_open(&b);
    struct message check = check_of(ufrag_of(&b, 1, 7, 0), 1);
    send_public(&b, client(1), check);
    CHECK_EQ(send_public(&b, client(1), check_of(ufrag_of(&b, 1, 7, 0), 2)), VR_VERDICT_SEND);
    CHANGED(&b, RX(PUBLIC, check.size));
    CHECK_EQ(send_public(&b, client(1), check_of(ufrag_of(&b, 1, 8, 0), 3)), VR_VERDICT_SEND);
    CHANGED(&b, RX(PUBLIC, check.size));
    check_went_up(&b, transceiver(8), client(1), check.size);
    bench_close(&b);
}

TEST(an_error_passes_and_confirms_nothing) { /* cases B11: 487 */
    bench_open(&b);
    send_public(&b, client(1), check_of(ufrag_of(&b, 1, 7, 0), 1));
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), error_of(1)), VR_VERDICT_SEND);
    CHANGED(&b, RX(INTERNAL, 20 + VR_SPP_BYTES));
    check_went_down(&b, client(1), 20);
    CHECK_EQ(send_public(&b, client(1), dtls()), VR_VERDICT_DROP);
    CHANGED(&b, RX(PUBLIC, 100), DROP(HALF_OPEN));
    bench_close(&b);
}

static void check_unmatched(struct vr_addr from, struct message m) {
    CHECK_EQ(send_internal(&b, from, client(1), m), VR_VERDICT_DROP);
    CHANGED(&b, RX(INTERNAL, m.size + VR_SPP_BYTES), DROP(RESPONSE_UNMATCHED));
}

TEST(a_response_must_match_a_check_and_its_destination) {
    bench_open(&b);
    send_public(&b, client(1), check_of(ufrag_of(&b, 1, 7, 0), 1));
    struct vr_addr other_port = transceiver(7);
    other_port.port_be ^= 0x0100;
    check_unmatched(transceiver(7), success_of(2));
    check_unmatched(transceiver(7), error_of(2));
    check_unmatched(transceiver(8), success_of(1));
    check_unmatched(transceiver(8), error_of(1));
    check_unmatched(other_port, success_of(1));
    CHECK_EQ(send_internal(&b, transceiver(7), client(2), success_of(1)), VR_VERDICT_DROP);
    CHANGED(&b, RX(INTERNAL, 20 + VR_SPP_BYTES), DROP(NO_FLOW));
    bench_close(&b);
}

TEST(several_checks_are_in_flight_to_several_transceivers) {
    bench_open(&b);
    for (unsigned i = 0; i < 6; i++) {
        send_public(&b, client(1), check_of(ufrag_of(&b, 1, 7 + i % 2, 0), 10 + i));
        wait_ms(&b, 48);
    }
    check_unmatched(transceiver(8), success_of(10)); /* 7 was asked that */
    CHECK_EQ(send_internal(&b, transceiver(8), client(1), success_of(11)), VR_VERDICT_SEND);
    CHANGED(&b, RX(INTERNAL, 20 + VR_SPP_BYTES), COUNT(flows_half_open, -1),
            COUNT(flows_established, 1), COUNT(flows_promoted, 1));
    send_public(&b, client(1), dtls());
    check_went_up(&b, transceiver(8), client(1), 100);
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), success_of(10)), VR_VERDICT_SEND);
    CHANGED(&b, RX(INTERNAL, 20 + VR_SPP_BYTES)); /* the second owner joins */
    send_public(&b, client(1), dtls());
    check_went_to_both(&b, transceiver(7), transceiver(8));
    bench_close(&b);
}

TEST(one_transaction_id_at_two_transceivers_is_two_checks) {
    bench_open(&b);
    send_public(&b, client(1), check_of(ufrag_of(&b, 1, 7, 0), 1));
    send_public(&b, client(1), check_of(ufrag_of(&b, 1, 8, 0), 1));
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), success_of(1)), VR_VERDICT_SEND);
    send_public(&b, client(1), dtls());
    check_went_up(&b, transceiver(7), client(1), 100);
    bench_close(&b);
}

TEST(a_check_is_remembered_for_two_seconds) {
    bench_open(&b);
    establish(&b, 2, 7, ufrag_of(&b, 1, 7, 0));
    send_public(&b, client(2), check_of(ufrag_of(&b, 1, 8, 0), 1));
    send_public(&b, client(2), check_of(ufrag_of(&b, 1, 9, 0), 2));
    wait_ms(&b, VR_CHECK_MEMORY_MS - 1);
    CHECK_EQ(send_internal(&b, transceiver(8), client(2), success_of(1)), VR_VERDICT_SEND);
    wait_ms(&b, 1);
    CHECK_EQ(send_internal(&b, transceiver(9), client(2), success_of(2)), VR_VERDICT_DROP);
    CHANGED(&b, RX(INTERNAL, 20 + VR_SPP_BYTES), DROP(SENDER_NOT_OWNER));
    bench_close(&b);
}

TEST(a_half_open_life_is_not_lengthened_by_checks) {
    bench_open(&b);
    struct ufrag ufrag = ufrag_of(&b, 1, 7, 0);
    send_public(&b, client(1), check_of(ufrag, 1));
    wait_ms(&b, VR_HALF_OPEN_MS - 1);
    send_public(&b, client(1), check_of(ufrag, 2));
    CHECK_EQ(b.stats.flows_created, 1);
    CHECK_EQ(send_public(&b, client(1), dtls()), VR_VERDICT_DROP);
    CHANGED(&b, RX(PUBLIC, 100), DROP(HALF_OPEN));
    wait_ms(&b, 1);
    CHECK_EQ(send_public(&b, client(1), dtls()), VR_VERDICT_DROP);
    CHANGED(&b, RX(PUBLIC, 100), COUNT(flows_half_open, -1), DROP(NO_FLOW));
    bench_close(&b);
}

TEST(the_sweep_ends_half_open_flows) {
    bench_open(&b);
    send_public(&b, client(1), check_of(ufrag_of(&b, 1, 7, 0), 1));
    wait_ms(&b, VR_HALF_OPEN_MS - 1);
    sweep_all(&b);
    CHECK_EQ(b.stats.flows_half_open, 1);
    wait_ms(&b, 1);
    sweep_all(&b);
    CHECK_EQ(b.stats.flows_half_open, 0);
    CHECK_EQ(b.stats.flows_expired, 0);
    bench_close(&b);
}

/* Fills the half-open pool far over its 1,024 slots, each token and source a few times. */
static void flood(unsigned flows) {
    b.config.limits = (struct vr_limits){0};
    bench_configure(&b);
    for (unsigned i = 0; i < flows; i++)
        CHECK_EQ(send_public(&b, client(1000 + i), check_of(ufrag_of(&b, 1, 9, i), i)),
                 VR_VERDICT_SEND);
}

TEST(newcomers_displace_the_oldest_half_open_and_no_established_flow) {
    bench_open(&b);
    for (unsigned i = 1; i <= 40; i++)
        establish(&b, i, 7, ufrag_of(&b, 1, 7, i));
    flood(5000);
    CHECK_EQ(b.stats.flows_created, 5040);
    CHECK_EQ(b.stats.flows_half_open + b.stats.half_open_displaced, 5000);
    CHECK(b.stats.flows_half_open <= 1024);
    CHECK(b.stats.flows_half_open > 1000);
    CHECK_EQ(b.stats.flows_established, 40);
    for (unsigned i = 1; i <= 40; i++) {
        CHECK_EQ(send_public(&b, client(i), rtp()), VR_VERDICT_SEND);
        CHECK_EQ(send_internal(&b, transceiver(7), client(i), rtp()), VR_VERDICT_SEND);
    }
    bench_close(&b);
}

TEST(the_oldest_gives_way) {
    bench_open(&b);
    send_public(&b, client(1), check_of(ufrag_of(&b, 1, 7, 0), 1));
    wait_ms(&b, 10);
    flood(500);
    CHECK(slot_of(&b, VR_POOL_HALF_OPEN, client(1)) != VR_NO_SLOT);
    wait_ms(&b, 10);
    flood(4000); /* all of the same moment: nobody is younger than client 1's former neighbours */
    CHECK(slot_of(&b, VR_POOL_HALF_OPEN, client(1)) == VR_NO_SLOT);
    bench_close(&b);
}

TEST(a_displaced_flow_is_still_established_by_its_success) {
    bench_open(&b);
    send_public(&b, client(1), check_of(ufrag_of(&b, 1, 7, 0), 77777));
    wait_ms(&b, 1);
    flood(4000);
    CHECK(slot_of(&b, VR_POOL_HALF_OPEN, client(1)) == VR_NO_SLOT);
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), success_of(77777)), VR_VERDICT_SEND);
    CHANGED(&b, RX(INTERNAL, 20 + VR_SPP_BYTES), COUNT(flows_established, 1),
            COUNT(flows_promoted, 1));
    check_went_down(&b, client(1), 20);
    bench_close(&b);
}

TEST(a_full_table_refuses_a_success_and_cuts_nobody) {
    bench_open(&b);
    b.config.limits = (struct vr_limits){0};
    bench_configure(&b);
    unsigned refused = 0, made = 0;
    for (unsigned i = 1; i <= 300; i++) {
        send_public(&b, client(i), check_of(ufrag_of(&b, 1, 7, 0), 1));
        if (send_internal(&b, transceiver(7), client(i), success_of(1)) == VR_VERDICT_SEND) {
            made++;
        } else {
            CHANGED(&b, RX(INTERNAL, 20 + VR_SPP_BYTES), DROP(TABLE_FULL));
            refused++;
        }
    }
    CHECK(made >= MAX_FLOWS && refused > 0);
    CHECK_EQ(b.stats.flows_established, made);
    for (unsigned i = 1; i <= MAX_FLOWS; i++)
        CHECK_EQ(send_public(&b, client(i), rtp()), VR_VERDICT_SEND);
    bench_close(&b);
}
