/* Design rule 8, the sweep, and what a new worker makes of the table of a dead one. */
#include "relay/tracker.h"

#include "forward_check.h"
#include "relay/forward.h"

static struct bench b;

TEST(a_silent_owner_ends_the_flow) {
    bench_open(&b);
    establish(&b, 1, 7, ufrag_of(&b, 1, 7, 0));
    for (unsigned i = 0; i < 5999; i++) { /* client packets alone keep nothing alive */
        wait_ms(&b, 10);
        CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_SEND);
    }
    send_public(&b, client(1), check_of(ufrag_of(&b, 1, 7, 0), 1));
    wait_ms(&b, 10);
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_DROP);
    CHANGED(&b, RX(PUBLIC, 172), DROP(NO_FLOW), COUNT(flows_established, -1),
            COUNT(flows_expired, 1));
    bench_close(&b);
}

TEST(every_packet_of_an_owner_restarts_the_clock) { /* cases E22 */
    bench_open(&b);
    establish(&b, 1, 7, ufrag_of(&b, 1, 7, 0));
    const struct message messages[] = {rtp(), dtls(), success_of(1), error_of(1),
                                       stun_of(0x0011, 1, NULL, 0)};
    for (unsigned i = 0; i < 5; i++) {
        wait_ms(&b, 59999);
        CHECK_EQ(send_internal(&b, transceiver(7), client(1), messages[i]), VR_VERDICT_SEND);
    }
    wait_ms(&b, 59999);
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_SEND);
    bench_close(&b);
}

TEST(so_does_an_error_that_answers_his_check) {
    bench_open(&b);
    establish(&b, 1, 7, ufrag_of(&b, 1, 7, 0));
    wait_ms(&b, 59999);
    send_public(&b, client(1), check_of(ufrag_of(&b, 1, 7, 0), 1));
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), error_of(1)), VR_VERDICT_SEND);
    wait_ms(&b, 59999);
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_SEND);
    bench_close(&b);
}

TEST(an_error_for_a_stranger_does_not_restart_it) {
    bench_open(&b);
    establish(&b, 1, 7, ufrag_of(&b, 1, 7, 0));
    wait_ms(&b, 59999);
    send_public(&b, client(1), check_of(ufrag_of(&b, 1, 8, 0), 1));
    CHECK_EQ(send_internal(&b, transceiver(8), client(1), error_of(1)), VR_VERDICT_SEND);
    CHECK_EQ(send_internal(&b, transceiver(8), client(1), rtp()), VR_VERDICT_DROP);
    wait_ms(&b, 1);
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_DROP);
    bench_close(&b);
}

TEST(the_idle_timeout_is_configured) {
    bench_open(&b);
    establish(&b, 1, 7, ufrag_of(&b, 1, 7, 0));
    b.config.idle_timeout_ns = 5000000000;
    bench_configure(&b);
    wait_ms(&b, 4999);
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_SEND);
    wait_ms(&b, 1);
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_DROP);
    bench_close(&b);
}

TEST(a_hundred_sweeps_visit_every_bucket) {
    bench_open(&b);
    for (unsigned i = 0; i < 60; i++)
        establish(&b, i, 7, ufrag_of(&b, 1, 7, i));
    for (unsigned i = 0; i < 60; i++)
        send_public(&b, client(100 + i), check_of(ufrag_of(&b, 1, 8, i), 1));
    wait_ms(&b, 60000);
    sweep_all(&b);
    CHECK_EQ(b.stats.flows_established, 0);
    CHECK_EQ(b.stats.flows_half_open, 0);
    CHECK_EQ(b.stats.flows_expired, 60);
    bench_close(&b);
}

TEST(a_new_worker_goes_on_with_every_flow) {
    bench_open(&b);
    for (unsigned i = 0; i < 50; i++)
        establish(&b, i, 7 + i % 3, ufrag_of(&b, 1, 7 + i % 3, i));
    send_public(&b, client(90), check_of(ufrag_of(&b, 1, 8, 90), 1));
    b.stats.flows_established = b.stats.flows_half_open = 999; /* whatever the former one left */
    bench_restart(&b);
    CHECK_EQ(b.stats.flows_established, 50);
    CHECK_EQ(b.stats.flows_half_open, 1);
    for (unsigned i = 0; i < 50; i++) {
        CHECK_EQ(send_public(&b, client(i), rtp()), VR_VERDICT_SEND);
        CHANGED(&b, RX(PUBLIC, 172));
        check_went_up(&b, transceiver(7 + i % 3), client(i), 172);
        CHECK_EQ(send_internal(&b, transceiver(7 + i % 3), client(i), rtp()), VR_VERDICT_SEND);
        CHANGED(&b, RX(INTERNAL, 172 + VR_SPP_BYTES));
        check_went_down(&b, client(i), 172);
    }
    CASE("a response in flight, to an owner's flow, passes");
    CHECK_EQ(send_internal(&b, transceiver(7), client(0), success_of(4711)), VR_VERDICT_SEND);
    bench_close(&b);
}

TEST(the_former_workers_clock_may_be_a_little_ahead) {
    bench_open(&b);
    establish(&b, 1, 7, ufrag_of(&b, 1, 7, 0));
    b.now_ns -= 4000000;
    bench_restart(&b);
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_SEND);
    bench_close(&b);
}

TEST(time_wraps_around) {
    bench_open(&b);
    b.now_ns = (UINT64_C(1) << 32) * 1000000 - 1000000;
    establish(&b, 1, 7, ufrag_of(&b, 1, 7, 0));
    wait_ms(&b, 59999);
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), rtp()), VR_VERDICT_SEND);
    wait_ms(&b, 60000);
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), rtp()), VR_VERDICT_DROP);
    bench_close(&b);
}

/* --- damage: what a new worker finds is checked before it is used --- */

static struct vr_flow *flow_of(unsigned c) {
    return &b.table.flow[slot_of(&b, VR_POOL_ESTABLISHED, client(c))];
}

TEST(a_damaged_owner_is_not_followed) {
    bench_open(&b);
    establish(&b, 1, 7, ufrag_of(&b, 1, 7, 0));
    send_public(&b, client(1), check_of(ufrag_of(&b, 1, 8, 0), 1));
    send_internal(&b, transceiver(8), client(1), success_of(1));
    flow_of(1)->half[0].owner.address.ip[15] ^= 1;
    bench_restart(&b);
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_SEND);
    check_went_up(&b, transceiver(8), client(1), 172);
    CASE("and without another the flow is gone");
    flow_of(1)->half[1].owner.address.port_be ^= 1;
    bench_restart(&b);
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_DROP);
    CHANGED(&b, RX(PUBLIC, 172), DROP(NO_FLOW), COUNT(flows_established, -1));
    bench_close(&b);
}

TEST(a_damaged_path_is_learnt_again) {
    bench_open(&b);
    establish(&b, 1, 7, ufrag_of(&b, 1, 7, 0));
    b.table.rest[slot_of(&b, VR_POOL_ESTABLISHED, client(1))].path.address.ip[3] ^= 1;
    bench_restart(&b);
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), rtp()), VR_VERDICT_DROP);
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_SEND);
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), rtp()), VR_VERDICT_SEND);
    check_went_down(&b, client(1), 172);
    bench_close(&b);
}

TEST(a_damaged_key_or_time_ends_the_flow) {
    bench_open(&b);
    for (unsigned i = 1; i <= 3; i++)
        establish(&b, i, 7, ufrag_of(&b, 1, 7, i));
    flow_of(2)->owner_seen_ms -= 1u << 31;
    flow_of(1)->key.client.ip[15] = 250;
    bench_restart(&b);
    sweep_all(&b);
    CHECK_EQ(b.stats.flows_established, 1);
    CHECK_EQ(send_public(&b, client(3), rtp()), VR_VERDICT_SEND);
    bench_close(&b);
}

TEST(a_big_table_is_taken_over_bit_by_bit) {
    enum { FLOWS = 20000 };
    bench_open(&b);
    free(b.memory);
    b.memory_bytes = vr_table_bytes(FLOWS);
    b.memory = aligned_alloc(64, (b.memory_bytes + 63) / 64 * 64);
    memset(b.memory, 0, b.memory_bytes);
    vr_table_format(b.memory, b.memory_bytes, FLOWS, TEST_HASH_KEY);
    b.config.limits = (struct vr_limits){0};
    bench_restart(&b);
    for (unsigned i = 0; i < FLOWS; i++) {
        send_public(&b, v4(100, 64, i / 256, i % 256, 1), check_of(ufrag_of(&b, 1, 7, 0), 1));
        send_internal(&b, transceiver(7), v4(100, 64, i / 256, i % 256, 1), success_of(1));
    }
    bench_restart(&b);
    unsigned taken[3] = {0};
    for (unsigned round = 0; round < 3; round++) {
        if (round == 1)
            vr_forward_sweep(b.forwarder, b.now_ns);
        if (round == 2)
            sweep_all(&b);
        for (uint32_t slot = 0; slot < b.table.slots; slot++)
            taken[round] += vr_flow_in_use(&b.table, slot) &&
                            b.table.flow[slot].generation == b.table.generation;
    }
    CHECK_EQ(taken[0], 0);
    CHECK(taken[1] > 0 && taken[1] <= 256);
    CHECK_EQ(taken[2], b.stats.flows_established);
    CASE("what is over goes at once");
    bench_restart(&b);
    wait_ms(&b, 60000);
    sweep_all(&b);
    CHECK_EQ(b.stats.flows_established, 0);
    bench_close(&b);
}
