/* When a cache should hear of a flow's owners, and of whom. */
#include "forward_check.h"
#include "relay/forward.h"

static struct bench b;

static unsigned owners(unsigned c, uint8_t sealed[VR_FLOW_OWNERS][VR_TOKEN_BYTES]) {
    struct vr_flow_key key = key_of(client(c));
    return vr_forward_owners(b.forwarder, &key, b.now_ns, sealed);
}

static void check_and_success(unsigned c, unsigned t, unsigned tid) {
    send_public(&b, client(c), check_of(ufrag_of(&b, 1, t, 0), tid));
    CHECK(!b.out.owners_due);
    CHECK_EQ(send_internal(&b, transceiver(t), client(c), success_of(tid)), VR_VERDICT_SEND);
}

TEST(due_when_a_flow_is_established) {
    uint8_t sealed[VR_FLOW_OWNERS][VR_TOKEN_BYTES];
    bench_open(&b);
    send_public(&b, client(1), check_of(ufrag_of(&b, 1, 7, 0), 1));
    CHECK_EQ(owners(1, sealed), 0);
    send_internal(&b, transceiver(7), client(1), error_of(1));
    CHECK(!b.out.owners_due);
    check_and_success(1, 7, 2);
    CHECK(b.out.owners_due);
    CHECK_EQ(owners(1, sealed), 1);
    send_public(&b, client(1), rtp());
    CHECK(!b.out.owners_due);
    send_internal(&b, transceiver(7), client(1), rtp());
    CHECK(!b.out.owners_due);
    bench_close(&b);
}

TEST(due_when_a_second_owner_joins) {
    uint8_t sealed[VR_FLOW_OWNERS][VR_TOKEN_BYTES];
    bench_open(&b);
    check_and_success(1, 7, 1);
    check_and_success(1, 7, 2);
    CHECK(!b.out.owners_due);
    check_and_success(1, 8, 3);
    CHECK(b.out.owners_due);
    CHECK_EQ(owners(1, sealed), 2);
    CHECK(memcmp(sealed[0], sealed[1], VR_TOKEN_BYTES) != 0);
    bench_close(&b);
}

TEST(due_every_15_s_while_successes_pass) {
    bench_open(&b);
    check_and_success(1, 7, 1);
    unsigned due = 0;
    for (unsigned i = 0; i < 60; i++) { /* a check every 2.5 s for 150 s */
        wait_ms(&b, 2500);
        check_and_success(1, 7, 10 + i);
        due += b.out.owners_due;
    }
    CHECK_EQ(due, 10);
    bench_close(&b);
}

TEST(flows_do_not_refresh_in_step) {
    enum { FLOWS = 40 };
    bench_open(&b);
    for (unsigned c = 0; c < FLOWS; c++)
        check_and_success(c, c % 8, 1);
    unsigned due[15] = {0}, most = 0;
    for (unsigned second = 0; second < 15; second++) {
        wait_ms(&b, 1000);
        for (unsigned c = 0; c < FLOWS; c++) {
            check_and_success(c, c % 8, 100 + second);
            due[second] += b.out.owners_due;
        }
        most = due[second] > most ? due[second] : most;
    }
    CHECK(most < FLOWS / 2);
    bench_close(&b);
}
