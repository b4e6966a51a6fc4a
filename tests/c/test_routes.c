#include "check.h"
#include "relay/routes.h"
#include "wire/bytes.h"

static struct vr_cluster_route ROUTES[2] = {{.cluster_id = 2, .addrs = 3},
                                            {.cluster_id = 3, .addrs = 0}};

static struct vr_routes routes(void) {
    for (uint8_t i = 0; i < 3; i++)
        ROUTES[0].addr[i] = (struct vr_addr){{[15] = i}, 0x1111};
    return (struct vr_routes){.cluster_id = 1, .route = ROUTES, .route_count = 2};
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
    CHECK(vr_routes_next_hop(&r, &a, &(struct vr_flow_key){{{0}, 0}, {{0}, 0}}) == NULL);
}

TEST(a_flow_keeps_to_one_address_and_all_are_used) {
    struct vr_routes r = routes();
    struct vr_owner owner = {.cluster_id = 2};
    struct vr_flow_key key = {{{0x20, 1}, 5}, {{0x20, 2}, 6}};
    unsigned used = 0;
    for (uint8_t i = 0; i < 30; i++) {
        key.client.ip[15] = i;
        const struct vr_addr *hop = vr_routes_next_hop(&r, &owner, &key);
        CHECK(hop && hop == vr_routes_next_hop(&r, &owner, &key));
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
    CHECK(vr_routes_next_hop(&r, &owner, &key) == &owner.address);
    CHECK(vr_routes_is_sender(&r, &owner, &owner.address));
    other.port_be ^= 1;
    CHECK(!vr_routes_is_sender(&r, &owner, &other));
    CHECK(!vr_routes_is_sender(&r, &owner, &ROUTES[0].addr[0]));
}
