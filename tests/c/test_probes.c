/* Probes of route addresses and their echoes, with a clock and random bytes of the test's own. */
#include "check.h"
#include "relay/probes.h"

enum { START = 0xfffff000, ADDRS = 3 }; /* the clock runs over in the middle */

static struct vr_cluster_route route[2];
static struct vr_routes routes;
static struct vr_probes *probes;
static struct vr_stats stats;
static uint32_t now_ms;
static uint8_t serial;

struct probe {
    struct vr_addr to;
    uint8_t nonce[VR_PROBE_NONCE_BYTES];
};

static struct vr_addr address(unsigned n) {
    return (struct vr_addr){{[15] = (uint8_t)n}, 0x1111};
}

static void open_probes(void) {
    memset(&stats, 0, sizeof stats);
    memset(route, 0, sizeof route);
    route[0] = (struct vr_cluster_route){.cluster_id = 2, .addrs = 2};
    route[0].addr[0] = address(1);
    route[0].addr[1] = address(2);
    route[1] = (struct vr_cluster_route){.cluster_id = 3, .addrs = 1};
    route[1].addr[0] = address(3);
    routes = (struct vr_routes){.cluster_id = 1, .route = route, .route_count = 2};
    vr_routes_prepare(&routes);
    now_ms = START;
    probes = vr_probes_new(&routes, NULL, now_ms);
}

/* The next probe that is due now. */
static bool next(struct probe *probe) {
    uint8_t datagram[VR_PROBE_BYTES], nonce[VR_PROBE_NONCE_BYTES] = {serial++};
    struct vr_flow_key key;
    CHECK_EQ(vr_probes_are_due(probes, now_ms), 1);
    if (!vr_probes_next(probes, now_ms, nonce, datagram, &probe->to))
        return false;
    CHECK(vr_spp_read(datagram, sizeof datagram, &key));
    CHECK(vr_probe_is(&key));
    memcpy(probe->nonce, datagram + VR_SPP_BYTES, sizeof probe->nonce);
    CHECK_MEM(probe->nonce, nonce, sizeof nonce);
    return true;
}

static bool echo(const struct probe *probe) {
    return vr_probes_take_echo(probes, &probe->to, probe->nonce);
}

/* One interval; bit n of `answering`: address n + 1 does. */
static void round_of(unsigned answering) {
    struct probe probe;
    unsigned seen = 0;
    for (unsigned i = 0; i < VR_PROBE_INTERVAL_MS / 10; i++, now_ms += 10) {
        while (vr_probes_are_due(probes, now_ms) && next(&probe)) {
            unsigned n = probe.to.ip[15] - 1U;
            seen |= 1U << n;
            if (answering >> n & 1)
                CHECK(echo(&probe));
        }
    }
    CHECK_EQ(seen, (1U << ADDRS) - 1);
    vr_probes_show(probes, &stats);
}

static unsigned down(void) {
    unsigned mask = route[0].down_mask | route[1].down_mask << 2;
    CHECK_EQ(stats.route_down[0], mask);
    return mask;
}

TEST(an_address_goes_down_after_five_silent_probes_and_comes_back_after_three) {
    open_probes();
    for (unsigned i = 0; i < 20; i++)
        round_of(7);
    CHECK_EQ(down(), 0);
    for (unsigned i = 0; i < VR_PROBES_LOST; i++) {
        round_of(5);
        CHECK_EQ(down(), 0);
    }
    round_of(5);
    CHECK_EQ(down(), 2);
    CHECK_EQ(stats.route_falls, 1);
    CASE("and stays so");
    for (unsigned i = 0; i < 20; i++)
        round_of(5);
    CHECK_EQ(stats.route_falls, 1);
    for (unsigned i = 1; i < VR_PROBES_BACK; i++) {
        round_of(7);
        CHECK_EQ(down(), 2);
    }
    round_of(7);
    CHECK_EQ(down(), 0);
    vr_probes_free(probes);
}

TEST(a_lossy_way_is_up_and_does_not_come_back_from_down) {
    open_probes();
    for (unsigned i = 0; i < 100; i++)
        round_of(i % 4 ? 0 : 7);
    CHECK_EQ(down(), 0);
    for (unsigned i = 0; i < 10; i++)
        round_of(0);
    CHECK_EQ(down(), 7);
    for (unsigned i = 0; i < 100; i++)
        round_of(i % 2 ? 7 : 0);
    CHECK_EQ(down(), 7);
    vr_probes_free(probes);
}

TEST(only_the_echo_of_a_probe_of_its_own_counts_and_once) {
    struct probe probe, other;
    open_probes();
    CHECK(next(&probe));
    now_ms += VR_PROBE_INTERVAL_MS / ADDRS + 1;
    CHECK(next(&other));
    struct probe wrong = probe;
    wrong.nonce[15] ^= 1;
    CHECK(!echo(&wrong));
    wrong = probe;
    wrong.to = other.to;
    CHECK(!echo(&wrong));
    wrong.to = address(9);
    CHECK(!echo(&wrong));
    CHECK(echo(&probe));
    CHECK(!echo(&probe));
    CHECK(echo(&other));
    vr_probes_free(probes);
}

TEST(a_slow_way_counts_until_its_probe_is_forgotten) {
    struct probe probe[VR_PROBE_MEMORY + 1];
    open_probes();
    routes.route_count = 1;
    route[0].addrs = 1;
    vr_probes_free(probes);
    probes = vr_probes_new(&routes, NULL, now_ms);
    for (unsigned i = 0; i <= VR_PROBE_MEMORY; i++, now_ms += VR_PROBE_INTERVAL_MS)
        CHECK(next(&probe[i]));
    CHECK(!echo(&probe[0]));
    CHECK_EQ(route[0].down_mask, 1);
    CASE("late answers, in a wrong order, are answers");
    CHECK(echo(&probe[3]));
    CHECK(echo(&probe[2]));
    CHECK(echo(&probe[1]));
    CHECK_EQ(route[0].down_mask, 0);
    vr_probes_free(probes);
}

TEST(a_loop_that_was_held_up_sends_one_probe_an_address) {
    struct probe probe;
    open_probes();
    now_ms += 60000;
    for (unsigned i = 0; i < ADDRS; i++)
        CHECK(next(&probe));
    CHECK(!vr_probes_are_due(probes, now_ms));
    CHECK(vr_probes_are_due(probes, now_ms + VR_PROBE_INTERVAL_MS));
    vr_probes_free(probes);
}

TEST(a_verdict_outlives_its_configuration_and_its_worker) {
    open_probes();
    for (unsigned i = 0; i < 10; i++)
        round_of(3);
    CHECK_EQ(down(), 4);
    CASE("a reload: the address is known by its cluster and itself");
    struct vr_cluster_route changed[2] = {route[1], {.cluster_id = 4, .addrs = 1}};
    changed[1].addr[0] = address(3);
    struct vr_routes reloaded = {.cluster_id = 1, .route = changed, .route_count = 2};
    vr_routes_prepare(&reloaded);
    struct vr_probes *newer = vr_probes_new(&reloaded, probes, now_ms);
    CHECK_EQ(changed[0].down_mask, 1);
    CHECK_EQ(changed[1].down_mask, 0);
    vr_probes_free(newer);
    CASE("another worker, same routes");
    vr_probes_free(probes);
    vr_routes_prepare(&routes);
    probes = vr_probes_new(&routes, NULL, now_ms);
    CHECK_EQ(route[1].down_mask, 0);
    vr_probes_restore(probes, &stats);
    CHECK_EQ(route[1].down_mask, 1);
    CASE("another worker, other routes");
    vr_routes_prepare(&reloaded);
    newer = vr_probes_new(&reloaded, NULL, now_ms);
    vr_probes_restore(newer, &stats);
    CHECK_EQ(changed[0].down_mask | changed[1].down_mask, 0);
    vr_probes_free(newer);
    vr_probes_free(probes);
}

TEST(a_relay_without_routes_probes_nobody) {
    struct vr_routes none = {.cluster_id = 1};
    uint8_t datagram[VR_PROBE_BYTES], nonce[VR_PROBE_NONCE_BYTES] = {0};
    struct vr_addr to = address(1);
    probes = vr_probes_new(&none, NULL, 0);
    CHECK(!vr_probes_are_due(probes, 0));
    CHECK(!vr_probes_next(probes, 0, nonce, datagram, &to));
    CHECK(!vr_probes_take_echo(probes, &to, nonce));
    vr_probes_free(probes);
}

TEST(a_nonce_is_echoed_once_and_so_many_in_a_second) {
    static struct vr_echoes echoes = {.hash_key = {{1, 2}}};
    struct vr_addr peer = {.ip = {10}, .port_be = 1}, other = {.ip = {11}, .port_be = 1};
    uint8_t nonce[VR_PROBE_NONCE_BYTES] = {0};
    unsigned echoed = 0, again = 0, i = 1;
    CHECK(vr_echoes_may(&echoes, &peer, nonce, 5000));
    CHECK(!vr_echoes_may(&echoes, &peer, nonce, 5000));
    CHECK(!vr_echoes_may(&echoes, &other, nonce, 5900));
    for (; i < 2 * VR_ECHOES_PER_S; i++) {
        memcpy(nonce, &i, sizeof i);
        peer.port_be++;
        echoed += vr_echoes_may(&echoes, &peer, nonce, 5900);
    }
    CHECK_EQ(echoed, VR_ECHOES_PER_S - 1);
    for (; i < 2 * VR_ECHOES_PER_S + 100; i++) {
        memcpy(nonce, &i, sizeof i);
        again += vr_echoes_may(&echoes, &other, nonce, 5900);
    }
    CHECK_EQ(again, 100); /* another peer's are its own */
    memcpy(nonce, &i, sizeof i);
    CHECK(vr_echoes_may(&echoes, &peer, nonce, 6000));
}
