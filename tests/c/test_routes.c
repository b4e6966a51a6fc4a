#include "check.h"
#include "relay/routes.h"
#include "wire/bytes.h"

static struct vr_cluster_route ROUTES[2] = {{.cluster_id = 2, .addrs = 3},
                                            {.cluster_id = 3, .addrs = 0}};

static struct vr_routes routes(void) {
    for (uint8_t i = 0; i < 3; i++)
        ROUTES[0].addr[i] = (struct vr_addr){{[15] = i}, 0x1111};
    struct vr_routes made = {.cluster_id = 1, .route = ROUTES, .route_count = 2};
    vr_routes_prepare(&made);
    return made;
}

TEST(owners_of_other_clusters_are_names) {
    struct vr_routes r = routes();
    struct vr_token v4 = {.kind = 4, .cluster_id = 2, .port_be = 0x1234, .ipv4 = {10, 0, 0, 1}};
    struct vr_token v6 = {.kind = 6, .cluster_id = 2, .port_be = 0x1234, .prefix_index = 3};
    struct vr_owner a, c, d;
    CHECK_EQ(vr_routes_owner(&r, &v4, &a), VR_DROPS);
    CHECK_EQ(vr_routes_owner(&r, &v6, &c), VR_DROPS);
    v6.prefix_index = 4;
    CHECK_EQ(vr_routes_owner(&r, &v6, &d), VR_DROPS);
    CHECK(memcmp(&a, &c, sizeof a) != 0 && memcmp(&c, &d, sizeof c) != 0);
    CHECK(!vr_routes_is_local(&r, &a));
    CASE("an empty route is none");
    v4.cluster_id = 3;
    CHECK_EQ(vr_routes_owner(&r, &v4, &a), VR_DROP_CLUSTER_UNKNOWN);
    CHECK(vr_routes_next_hop(&r, &a, &(struct vr_flow_key){{{0}, 0}, {{0}, 0}}, 0) == NULL);
}

TEST(a_flow_keeps_to_one_address_and_all_are_used) {
    struct vr_routes r = routes();
    struct vr_owner owner = {.cluster_id = 2};
    struct vr_flow_key key = {{{0x20, 1}, 5}, {{0x20, 2}, 6}};
    unsigned used = 0;
    for (uint8_t i = 0; i < 30; i++) {
        key.client.ip[15] = i;
        const struct vr_addr *hop = vr_routes_next_hop(&r, &owner, &key, 0);
        CHECK(hop && hop == vr_routes_next_hop(&r, &owner, &key, 0));
        CHECK(vr_routes_is_sender(&r, &owner, hop));
        used |= 1u << hop->ip[15];
    }
    CHECK_EQ(used, 7);
}

TEST(a_local_owner_is_its_own_hop_and_sender) {
    struct vr_routes r = routes();
    struct vr_owner owner = {.cluster_id = 1, .address = {{[15] = 9}, 0x2222}};
    struct vr_addr other = owner.address;
    struct vr_flow_key key = {{{0}, 0}, {{0}, 0}};
    CHECK(vr_routes_next_hop(&r, &owner, &key, 0) == &owner.address);
    CHECK(vr_routes_is_sender(&r, &owner, &owner.address));
    other.port_be ^= 1;
    CHECK(!vr_routes_is_sender(&r, &owner, &other));
    CHECK(!vr_routes_is_sender(&r, &owner, &ROUTES[0].addr[0]));
}

/* --- many flows over a whole route --- */

enum { FLOWS = 20000 };

static struct vr_cluster_route wide;

static struct vr_routes wide_routes(unsigned addrs) {
    wide = (struct vr_cluster_route){.cluster_id = 2, .addrs = addrs};
    for (uint8_t i = 0; i < addrs; i++) {
        vr_ip_from_v4(wide.addr[i].ip, (const uint8_t[]){192, 0, 2, i});
        wide.addr[i].port_be = 0x960d;
    }
    struct vr_routes made = {.cluster_id = 1, .route = &wide, .route_count = 1};
    vr_routes_prepare(&made);
    return made;
}

/* Index of the address that flow `n` of one relay takes: ports of few clients, as behind a NAT. */
static unsigned choice(const struct vr_routes *r, unsigned n, unsigned via) {
    struct vr_owner owner = {.cluster_id = 2};
    struct vr_flow_key key = {{{0}, (uint16_t)(n * 8)}, {{[15] = 9}, 0x960d}};
    vr_ip_from_v4(key.client.ip, (const uint8_t[]){203, 0, 113, (uint8_t)(n / 8000)});
    return (unsigned)(vr_routes_next_hop(r, &owner, &key, via) - wide.addr);
}

TEST(addresses_get_equal_shares) {
    for (unsigned addrs = 1; addrs <= VR_CLUSTER_ROUTE_ADDRS; addrs++) {
        struct vr_routes r = wide_routes(addrs);
        unsigned got[VR_CLUSTER_ROUTE_ADDRS] = {0};
        for (unsigned n = 0; n < FLOWS; n++)
            got[choice(&r, n, 0)]++;
        for (unsigned a = 0; a < addrs; a++) /* 5 standard deviations are under 9 % */
            CHECK(got[a] * addrs > FLOWS * 90 / 100 && got[a] * addrs < FLOWS * 110 / 100);
    }
}

TEST(an_address_that_goes_moves_its_own_flows_alone) {
    static unsigned before[FLOWS];
    struct vr_routes r = wide_routes(4);
    for (unsigned n = 0; n < FLOWS; n++)
        before[n] = choice(&r, n, 0);
    CASE("down");
    unsigned heirs[4] = {0};
    wide.down_mask = 1U << 2;
    for (unsigned n = 0; n < FLOWS; n++) {
        unsigned now = choice(&r, n, 0);
        CHECK(before[n] == 2 ? now != 2 : now == before[n]);
        heirs[now] += before[n] == 2;
    }
    CHECK(heirs[0] > FLOWS / 15 && heirs[1] > FLOWS / 15 && heirs[3] > FLOWS / 15);
    CASE("back");
    wide.down_mask = 0;
    for (unsigned n = 0; n < FLOWS; n++)
        CHECK_EQ(choice(&r, n, 0), before[n]);
    CASE("not configured any more: the order of the others does not matter");
    r = wide_routes(4);
    wide.addr[2] = wide.addr[3];
    wide.addrs = 3;
    vr_routes_prepare(&r);
    for (unsigned n = 0; n < FLOWS; n++)
        if (before[n] != 2)
            CHECK_EQ(choice(&r, n, 0), before[n] == 3 ? 2 : before[n]);
}

TEST(a_flow_stays_where_its_success_came_from_while_that_is_up) {
    struct vr_routes r = wide_routes(3);
    for (unsigned n = 0; n < 100; n++) {
        unsigned best = choice(&r, n, 0), other = (best + 1) % 3;
        wide.down_mask = 0;
        CHECK_EQ(choice(&r, n, other + 1), other);
        CHECK_EQ(choice(&r, n, 9), best);
        wide.down_mask = 1U << other;
        CHECK_EQ(choice(&r, n, other + 1), best);
        CASE("all down is as good as all up");
        wide.down_mask = 7;
        CHECK_EQ(choice(&r, n, 0), best);
        CHECK_EQ(choice(&r, n, other + 1), other);
        wide.down_mask = 0;
    }
}
