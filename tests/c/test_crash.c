/* The writer dies after any single store: design 3.4 "The table".
 *
 * The processor's trap flag stops vr_forward after each machine instruction; whenever the table has
 * changed, its memory is copied: this is what a worker leaves behind that is killed there. Then a new
 * forwarder takes over each copy. It is the compiled code in its real order of stores that is tried,
 * all of it: insert, displace, promote, join, replace, leave, new token, new path, expire, adopt.
 */
#include "forward_check.h"
#include "relay/forward.h"
#include "relay/tracker.h"

#include <signal.h>

#ifdef __x86_64__
#define CAN_STEP 1
#else
#define CAN_STEP 0
#endif

enum { SNAPSHOTS_MAX = 512 };

static struct bench b;    /* the writer that dies */
static struct bench heir; /* the new one, on one of the copies */
static uint8_t *snapshot[SNAPSHOTS_MAX];
static unsigned snapshots;
static volatile sig_atomic_t steps;
static bool damaged; /* the table was, before the stepping began */

static void take_snapshot(void) {
    if (snapshots == SNAPSHOTS_MAX)
        return;
    if (!snapshot[snapshots])
        snapshot[snapshots] = aligned_alloc(64, (b.memory_bytes + 63) / 64 * 64);
    memcpy(snapshot[snapshots++], b.memory, b.memory_bytes);
}

static void on_step(int signal_number) {
    (void)signal_number;
    steps = steps + 1;
    if (memcmp(snapshot[snapshots - 1], b.memory, b.memory_bytes) != 0)
        take_snapshot();
}

static void set_trap_flag(bool on) {
#if CAN_STEP
    if (on)
        __asm__ volatile("pushfq; orq $0x100, (%%rsp); popfq" ::: "memory", "cc");
    else
        __asm__ volatile("pushfq; andq $~0x100, (%%rsp); popfq" ::: "memory", "cc");
#else
    (void)on;
#endif
}

/* Runs `change` and copies the table before it and after every store. */
static void step_through(void (*change)(void)) {
    struct sigaction action = {.sa_handler = on_step}, former;
    sigaction(SIGTRAP, &action, &former);
    snapshots = 0;
    steps = 0;
    take_snapshot();
    set_trap_flag(true);
    change();
    set_trap_flag(false);
    sigaction(SIGTRAP, &former, NULL);
    CHECK(!CAN_STEP || steps > 100);
    CHECK(!CAN_STEP || (snapshots > 1 && snapshots < SNAPSHOTS_MAX));
}

/* Before anybody has taken over: the order of the stores alone leaves nothing torn behind. Only a
 * flow that is being promoted lies in both pools for a moment. */
static void check_untouched(const struct vr_table *table) {
    struct vr_fault fault[4];
    size_t faults = vr_table_audit(table, fault, 4);
    CHECK(faults <= 4);
    for (size_t i = 0; i < faults && i < 4; i++)
        if (fault[i].kind != VR_FAULT_BOTH_POOLS)
            check_fail(__FILE__, __LINE__, "audit", vr_fault_text(fault[i].kind));
}

static void open_heir(const uint8_t *memory) {
    heir = b;
    heir.memory = aligned_alloc(64, (b.memory_bytes + 63) / 64 * 64);
    memcpy(heir.memory, memory, b.memory_bytes);
    CHECK_EQ(vr_table_attach(&heir.table, heir.memory, heir.memory_bytes), VR_TABLE_OK);
    if (!damaged)
        check_untouched(&heir.table);
    heir.forwarder = vr_forwarder_new(&heir.config, &heir.table, &heir.stats, heir.now_ns);
}

static void close_heir(void) {
    sweep_all(&heir);
    check_sound(&heir);
    vr_forwarder_free(heir.forwarder);
    free(heir.memory);
}

/* Bit t - 7 of the transceivers that the heir sends client `c`'s packets to. */
static unsigned owners_of(unsigned c) {
    unsigned found = 0;
    if (send_public(&heir, client(c), rtp()) != VR_VERDICT_SEND)
        return 0;
    for (unsigned i = 0; i < heir.out.hops; i++) {
        unsigned bit = 0;
        for (unsigned t = 0; t < 3; t++) {
            struct vr_addr addr = transceiver(7 + t);
            if (vr_addr_equal(&heir.out.hop[i].destination, &addr))
                bit = 1u << t;
        }
        CHECK(bit != 0); /* nobody else, ever */
        found |= bit;
    }
    return found;
}

enum { BYSTANDERS = 20 };

/* Established flows of clients 1..20, half of them with two owners. */
static void open_with_bystanders(void) {
    bench_open(&b);
    for (unsigned c = 1; c <= BYSTANDERS; c++) {
        establish(&b, c, 7, ufrag_of(&b, 1, 7, c));
        if (c % 2)
            continue;
        send_public(&b, client(c), check_of(ufrag_of(&b, 1, 8, c), 1));
        send_internal(&b, transceiver(8), client(c), success_of(1));
    }
}

static void check_bystanders(void) {
    for (unsigned c = 1; c <= BYSTANDERS; c++) {
        CHECK_EQ(owners_of(c), c % 2 ? 1 : 3);
        CHECK_EQ(send_internal(&heir, transceiver(7), client(c), rtp()), VR_VERDICT_SEND);
        check_went_down(&heir, client(c), 172);
    }
}

/* Each copy has a sound successor, in which client 99 has owners out of `allowed`, always those in
 * `always`, and in the last copy exactly `at_last`. */
static void check_heirs(unsigned allowed, unsigned always, unsigned at_last) {
    for (unsigned i = 0; i < snapshots; i++) {
        open_heir(snapshot[i]);
        unsigned owners = owners_of(99);
        CHECK_EQ(owners & ~allowed, 0);
        CHECK_EQ(owners & always, always);
        if (i == snapshots - 1)
            CHECK_EQ(owners, at_last);
        if (owners & 1) { /* and the way back is there, or was learnt from the packet just sent */
            CHECK_EQ(send_internal(&heir, transceiver(7), client(99), rtp()), VR_VERDICT_SEND);
            check_went_down(&heir, client(99), 172);
        }
        check_bystanders();
        close_heir();
    }
    bench_close(&b);
}

static void send_check(unsigned t, unsigned serial, unsigned tid) {
    send_public(&b, client(99), check_of(ufrag_of(&b, 1, t, serial), tid));
}

/* The datagram is made before the stepping starts. */
static struct vr_ingress next;
static void forward_next(void) {
    submit(&b, &next);
}
static void step_success(unsigned t, unsigned tid) {
    struct message m = success_of(tid);
    next = wrapped_ingress(&b, VR_SIDE_INTERNAL, transceiver(t), client(99), &m);
    step_through(forward_next);
}
static void step_check(unsigned t, unsigned serial, unsigned tid) {
    struct message m = check_of(ufrag_of(&b, 1, t, serial), tid);
    next = public_ingress(&b, client(99), &m);
    step_through(forward_next);
}

TEST(insert) {
    open_with_bystanders();
    step_check(7, 0, 1);
    check_heirs(0, 0, 0);
}

TEST(displace) {
    open_with_bystanders();
    b.config.limits = (struct vr_limits){0};
    bench_configure(&b);
    for (unsigned i = 0; i < 4000; i++)
        send_public(&b, client(1000 + i), check_of(ufrag_of(&b, 1, 9, i), i));
    wait_ms(&b, 1);
    uint64_t displaced = b.stats.half_open_displaced;
    step_check(7, 0, 1);
    CHECK_EQ(b.stats.half_open_displaced, displaced + 1);
    check_heirs(0, 0, 0);
}

TEST(promote) {
    open_with_bystanders();
    send_check(7, 0, 1);
    step_success(7, 1);
    for (unsigned i = 0; i < snapshots; i++) {
        open_heir(snapshot[i]);
        CHECK(slot_of(&heir, VR_POOL_HALF_OPEN, client(99)) != VR_NO_SLOT ||
              slot_of(&heir, VR_POOL_ESTABLISHED, client(99)) != VR_NO_SLOT);
        close_heir();
    }
    check_heirs(1, 0, 1);
}

TEST(a_second_owner_joins) {
    open_with_bystanders();
    establish(&b, 99, 7, ufrag_of(&b, 1, 7, 0));
    send_check(8, 0, 2);
    step_success(8, 2);
    check_heirs(3, 1, 3);
}

TEST(a_third_replaces_the_newer) {
    open_with_bystanders();
    establish(&b, 99, 7, ufrag_of(&b, 1, 7, 0));
    send_check(8, 0, 2);
    send_internal(&b, transceiver(8), client(99), success_of(2));
    send_check(9, 0, 3);
    step_success(9, 3);
    check_heirs(7, 1, 5);
}

TEST(an_owner_leaves) {
    open_with_bystanders();
    establish(&b, 99, 8, ufrag_of(&b, 1, 8, 0));
    wait_ms(&b, 20000);
    send_check(7, 0, 2);
    send_internal(&b, transceiver(7), client(99), success_of(2));
    for (unsigned c = 1; c <= BYSTANDERS; c++) { /* fresh successes */
        for (unsigned t = 7; t <= (c % 2 ? 7u : 8u); t++) {
            send_public(&b, client(c), check_of(ufrag_of(&b, 1, t, c), 10 + t));
            send_internal(&b, transceiver(t), client(c), success_of(10 + t));
        }
    }
    wait_ms(&b, 10000);
    struct message m = rtp();
    next = public_ingress(&b, client(99), &m);
    step_through(forward_next);
    check_heirs(1, 1, 1); /* for every heir, too, the 30 s are over */
}

TEST(a_new_token) {
    open_with_bystanders();
    establish(&b, 99, 7, ufrag_of(&b, 1, 7, 0));
    send_check(7, 1, 2);
    step_success(7, 2);
    check_heirs(1, 1, 1);
}

TEST(a_new_path) {
    open_with_bystanders();
    establish(&b, 99, 7, ufrag_of(&b, 1, 7, 0));
    send_backbone(&b, far_relay(9), client(99), check_of(ufrag_of(&b, 1, 7, 0), 2));
    struct message m = success_of(2);
    next = wrapped_ingress(&b, VR_SIDE_INTERNAL, transceiver(7), client(99), &m);
    step_through(forward_next);
    for (unsigned i = 0; i < snapshots; i++) {
        open_heir(snapshot[i]);
        enum vr_verdict verdict = send_internal(&heir, transceiver(7), client(99), rtp());
        struct vr_addr peer = far_relay(9), direct = client(99);
        if (verdict == VR_VERDICT_SEND) /* the old way or the new way, nothing between */
            CHECK(vr_addr_equal(&heir.out.hop[0].destination,
                                heir.out.hop[0].side == VR_SIDE_BACKBONE ? &peer : &direct));
        CHECK_EQ(owners_of(99), 1);
        CHECK_EQ(send_internal(&heir, transceiver(7), client(99), rtp()), VR_VERDICT_SEND);
        check_bystanders();
        close_heir();
    }
    bench_close(&b);
}

TEST(expire) {
    open_with_bystanders();
    establish(&b, 99, 7, ufrag_of(&b, 1, 7, 0));
    wait_ms(&b, 60000);
    for (unsigned c = 1; c <= BYSTANDERS; c++)
        b.table.flow[slot_of(&b, VR_POOL_ESTABLISHED, client(c))].owner_seen_ms += 1;
    struct message m = rtp();
    next = public_ingress(&b, client(99), &m);
    step_through(forward_next);
    for (unsigned i = 0; i < snapshots; i++) {
        open_heir(snapshot[i]);
        CHECK_EQ(owners_of(99), 0);
        for (unsigned c = 1; c <= BYSTANDERS; c++)
            CHECK_EQ(owners_of(c),
                     1); /* an even client's second, as silent as the first, has left */
        close_heir();
    }
    bench_close(&b);
}

static void recover_next(void) {
    struct ufrag ufrags[2] = {ufrag_of(&b, 1, 7, 0), ufrag_of(&b, 1, 8, 0)};
    struct vr_cached_token tokens[2];
    for (unsigned i = 0; i < 2; i++)
        tokens[i] = (struct vr_cached_token){(const uint8_t *)ufrags[i].chars, VR_TOKEN_CHARS};
    CHECK_EQ(vr_forward_recover(b.forwarder, &next, tokens, 2, b.now_ns), 2);
}

TEST(recover_from_the_cache) {
    open_with_bystanders();
    struct message m = rtp();
    next = public_ingress(&b, client(99), &m);
    step_through(recover_next);
    check_heirs(3, 0, 3);
}

TEST(confirm_a_recovered_flow) {
    open_with_bystanders();
    struct message m = rtp();
    next = public_ingress(&b, client(99), &m);
    recover_next();
    send_check(7, 0, 1);
    step_success(7, 1);
    check_heirs(3, 3, 3);
}

/* The heir dies while it takes over. */
static void restart(void) {
    bench_restart(&b);
    next.data_bytes = 172;
    submit(&b, &next);
}

TEST(take_over) {
    open_with_bystanders();
    establish(&b, 99, 7, ufrag_of(&b, 1, 7, 0));
    send_check(8, 0, 2);
    send_internal(&b, transceiver(8), client(99), success_of(2));
    b.table.flow[slot_of(&b, VR_POOL_ESTABLISHED, client(99))].half[1].owner.cluster_id = 77;
    struct message m = rtp();
    next = public_ingress(&b, client(99), &m);
    damaged = true;
    step_through(restart);
    check_heirs(1, 1, 1);
    damaged = false;
}

TEST(the_writer_can_be_stepped) {
    if (!CAN_STEP)
        printf("skipped: stores are only stepped through on x86-64; only their ends were tried\n");
}
