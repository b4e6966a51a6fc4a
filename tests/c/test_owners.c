/* Design rule 4: two owners at most, who joins, who leaves, and what a new token changes. */
#include "relay/owners.h"

#include "forward_check.h"
#include "relay/forward.h"

static struct bench b;

/* A check of transceiver `t`'s token `serial` and its success, on client 1's flow. */
static void confirm(unsigned t, unsigned serial) {
    static unsigned tid = 5000;
    tid++;
    CHECK_EQ(send_public(&b, client(1), check_of(ufrag_of(&b, 1, t, serial), tid)),
             VR_VERDICT_SEND);
    CHECK_EQ(send_internal(&b, transceiver(t), client(1), success_of(tid)), VR_VERDICT_SEND);
}

static void check_sole(unsigned t) {
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_SEND);
    check_went_up(&b, transceiver(t), client(1), 172);
}

static void check_both(unsigned t, unsigned u) {
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_SEND);
    check_went_to_both(&b, transceiver(t), transceiver(u));
}

TEST(a_second_owner_joins_with_its_own_success_only) {
    bench_open(&b);
    confirm(7, 0);
    send_public(&b, client(1), check_of(ufrag_of(&b, 1, 8, 0), 1));
    check_sole(7);
    CHECK_EQ(send_internal(&b, transceiver(8), client(1), rtp()), VR_VERDICT_DROP);
    CHANGED(&b, RX(INTERNAL, 172 + VR_SPP_BYTES), DROP(SENDER_NOT_OWNER));
    CHECK_EQ(send_internal(&b, transceiver(8), client(1), error_of(1)), VR_VERDICT_SEND);
    CHANGED(&b, RX(INTERNAL, 20 + VR_SPP_BYTES));
    check_sole(7);
    CHECK_EQ(send_internal(&b, transceiver(8), client(1), success_of(1)), VR_VERDICT_SEND);
    CHANGED(&b, RX(INTERNAL, 20 + VR_SPP_BYTES));
    check_both(7, 8);
    bench_close(&b);
}

TEST(while_there_are_two_both_send_down) {
    bench_open(&b);
    confirm(7, 0);
    confirm(8, 0);
    for (unsigned t = 7; t <= 8; t++) {
        CHECK_EQ(send_internal(&b, transceiver(t), client(1), rtp()), VR_VERDICT_SEND);
        CHANGED(&b, RX(INTERNAL, 172 + VR_SPP_BYTES));
        check_went_down(&b, client(1), 172);
    }
    CHECK_EQ(send_internal(&b, transceiver(9), client(1), rtp()), VR_VERDICT_DROP);
    CHANGED(&b, RX(INTERNAL, 172 + VR_SPP_BYTES), DROP(SENDER_NOT_OWNER));
    bench_close(&b);
}

TEST(both_get_one_counted_packet) {
    bench_open(&b);
    confirm(7, 0);
    confirm(8, 0);
    const struct vr_flow *flow = &b.table.flow[slot_of(&b, VR_POOL_ESTABLISHED, client(1))];
    uint32_t packets = flow->up_packets;
    check_both(7, 8);
    CHECK_EQ(flow->up_packets, packets + 1);
    bench_close(&b);
}

TEST(the_one_without_a_success_for_30_s_leaves) {
    for (unsigned stays = 0; stays < 2; stays++) {
        bench_open(&b);
        confirm(7, 0);
        confirm(8, 0);
        for (unsigned i = 0; i < 14; i++) {
            wait_ms(&b, 2000);
            confirm(stays ? 8 : 7, 0);
            send_internal(&b, transceiver(7), client(1), rtp()); /* is no success */
        }
        wait_ms(&b, 1999);
        check_both(7, 8);
        wait_ms(&b, 1);
        check_sole(stays ? 8 : 7);
        bench_close(&b);
    }
}

TEST(the_sweep_makes_them_leave_too) {
    bench_open(&b);
    confirm(7, 0);
    wait_ms(&b, 20000);
    confirm(8, 0);
    wait_ms(&b, 10000);
    sweep_all(&b);
    CHECK_EQ(b.table.flow[slot_of(&b, VR_POOL_ESTABLISHED, client(1))].valid & VR_VALID_OWNERS, 2);
    check_sole(8);
    bench_close(&b);
}

TEST(the_last_owner_stays_without_a_success) {
    bench_open(&b);
    confirm(7, 0);
    for (unsigned i = 0; i < 10; i++) {
        wait_ms(&b, 20000);
        CHECK_EQ(send_internal(&b, transceiver(7), client(1), rtp()), VR_VERDICT_SEND);
    }
    check_sole(7);
    CASE("of two that are both silent, the later success stays");
    confirm(8, 0);
    wait_ms(&b, 1);
    confirm(7, 0);
    wait_ms(&b, 40000);
    check_sole(7);
    bench_close(&b);
}

TEST(a_third_replaces_the_newer) {
    bench_open(&b);
    confirm(7, 0);
    confirm(8, 0);
    confirm(9, 0);
    check_both(7, 9);
    confirm(8, 0);
    check_both(7, 8);
    CASE("the older one's success does not make it newer");
    confirm(7, 0);
    confirm(9, 0);
    check_both(7, 9);
    bench_close(&b);
}

TEST(who_came_later_is_known_in_both_places) {
    bench_open(&b);
    confirm(7, 0);
    confirm(8, 0);
    for (unsigned i = 0; i < 20; i++) { /* 7, the older, leaves */
        wait_ms(&b, 2000);
        confirm(8, 0);
    }
    check_sole(8);
    confirm(7, 0); /* and comes back, as the newer */
    check_both(7, 8);
    confirm(9, 0);
    check_both(8, 9);
    bench_close(&b);
}

TEST(a_third_comes_in_beside_the_one_that_is_not_silent) {
    bench_open(&b);
    confirm(7, 0);
    wait_ms(&b, 1000);
    confirm(8, 0);
    wait_ms(&b, 29500); /* 7 is silent for 30 s, nothing has looked yet */
    confirm(9, 0);
    check_both(8, 9);
    bench_close(&b);
}

TEST(a_new_token_changes_nothing_but_the_token) {
    bench_open(&b);
    confirm(7, 0);
    confirm(8, 0);
    uint32_t slot = slot_of(&b, VR_POOL_ESTABLISHED, client(1));
    struct vr_flow before = b.table.flow[slot];
    confirm(7, 1);
    const struct vr_flow *after = &b.table.flow[slot];
    CHECK_MEM(after->half, before.half, sizeof before.half);
    CHECK_EQ(after->valid, before.valid);
    check_both(7, 8);
    struct vr_token token;
    struct ufrag ufrag = ufrag_of(&b, 1, 7, 1);
    vr_token_open(b.keyring, (const uint8_t *)ufrag.chars, VR_TOKEN_CHARS, &token);
    CHECK_MEM(vr_flow_token(&b.table, slot, 0), token.sealed, VR_TOKEN_BYTES);
    CASE("the former token has its place under the cap back");
    b.config.limits.token_established_flows = 1;
    bench_configure(&b);
    establish(&b, 2, 7, ufrag_of(&b, 1, 7, 0));
    bench_close(&b);
}

TEST(a_token_over_its_cap_does_not_replace_another) {
    bench_open(&b);
    struct ufrag full = ufrag_of(&b, 1, 7, 9);
    send_public(&b, client(1), check_of(full, 1)); /* in time, before its token is full */
    for (unsigned i = 0; i < 16; i++)
        establish(&b, 10 + i, 7, full);
    confirm(7, 0);
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), success_of(1)), VR_VERDICT_SEND);
    struct vr_token token;
    struct ufrag held = ufrag_of(&b, 1, 7, 0);
    vr_token_open(b.keyring, (const uint8_t *)held.chars, VR_TOKEN_CHARS, &token);
    CHECK_MEM(vr_flow_token(&b.table, slot_of(&b, VR_POOL_ESTABLISHED, client(1)), 0), token.sealed,
              VR_TOKEN_BYTES);
    bench_close(&b);
}

/* With a cap of one flow a token: whether another flow of this token may be established. */
static bool has_room(unsigned t, unsigned serial) {
    static unsigned c = 100;
    struct ufrag ufrag = ufrag_of(&b, 1, t, serial);
    return send_public(&b, client(++c), check_of(ufrag, 1)) == VR_VERDICT_SEND &&
           send_internal(&b, transceiver(t), client(c), success_of(1)) == VR_VERDICT_SEND;
}

TEST(each_owner_counts_for_its_token_while_it_is_one) {
    bench_open(&b);
    b.config.limits.token_established_flows = 1;
    bench_configure(&b);
    confirm(7, 0);
    CASE("a new token instead of the old");
    confirm(7, 1);
    CHECK(has_room(7, 0));
    CHECK(!has_room(7, 1));
    CASE("one that joins, and is replaced");
    confirm(8, 0);
    CHECK(!has_room(8, 0));
    confirm(9, 0);
    CHECK(has_room(8, 0));
    CHECK(!has_room(9, 0));
    CASE("one that leaves");
    for (unsigned i = 0; i < 15; i++) {
        wait_ms(&b, 2000);
        confirm(7, 1);
    }
    CHECK(has_room(9, 0));
    bench_close(&b);
}

TEST(owners_outlive_the_worker) {
    bench_open(&b);
    confirm(7, 0);
    wait_ms(&b, 1);
    confirm(8, 0);
    bench_restart(&b);
    check_both(7, 8);
    confirm(9, 0);
    check_both(7, 9);
    bench_close(&b);
}
