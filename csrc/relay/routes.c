#include "routes.h"

static const struct vr_cluster_route *find(const struct vr_routes *routes, uint16_t cluster_id) {
    for (size_t i = 0; i < routes->route_count; i++)
        if (routes->route[i].cluster_id == cluster_id && routes->route[i].addrs > 0)
            return &routes->route[i];
    return NULL;
}

/* A name for a transceiver of another cluster: its IPv6 prefix is known there alone, so the index
 * stands in its place, inside 0100::/64 (RFC 6666), which nothing is sent to. */
static void name_remote(const struct vr_token *token, struct vr_addr *address) {
    if (token->kind == 4) {
        vr_ip_from_v4(address->ip, token->ipv4);
    } else {
        memset(address->ip, 0, 8);
        address->ip[0] = 0x01;
        address->ip[7] = token->prefix_index;
        memcpy(address->ip + 8, token->interface_id, 8);
    }
    address->port_be = token->port_be;
}

enum vr_drop vr_routes_owner(const struct vr_routes *routes, const struct vr_token *token,
                             struct vr_owner *owner) {
    owner->cluster_id = token->cluster_id;
    if (!vr_routes_is_local(routes, owner)) {
        name_remote(token, &owner->address);
        return find(routes, token->cluster_id) ? VR_DROPS : VR_DROP_CLUSTER_UNKNOWN;
    }
    if (!vr_token_address(token, &routes->ipv6_prefixes, &owner->address) ||
        !vr_allow_match(routes->allow_transceiver, routes->allow_transceiver_count,
                        &owner->address))
        return VR_DROP_TRANSCEIVER_NOT_ALLOWED;
    return VR_DROPS;
}

/* A secret key would make every relay choose differently. */
static const struct vr_hash_key ALL_RELAYS;

/* MurmurHash3's finaliser: each bit of the sum moves every bit of the weight. */
static uint64_t weight(uint64_t flow_hash, uint64_t seed) {
    uint64_t value = flow_hash ^ seed;
    value = (value ^ value >> 33) * UINT64_C(0xff51afd7ed558ccd);
    value = (value ^ value >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
    return value ^ value >> 33;
}

void vr_routes_prepare(struct vr_routes *routes) {
    for (size_t i = 0; i < routes->route_count; i++) {
        struct vr_cluster_route *route = &routes->route[i];
        for (unsigned a = 0; a < route->addrs; a++)
            route->seed[a] = vr_siphash(&ALL_RELAYS, &route->addr[a], sizeof route->addr[a]);
        route->down_mask = 0;
    }
}

static const struct vr_addr *choose(const struct vr_cluster_route *route,
                                    const struct vr_flow_key *key, unsigned via) {
    unsigned all = (1U << route->addrs) - 1, up = all & ~route->down_mask, best = 0;
    if (!up)
        up = all;
    if (route->addrs == 1)
        return &route->addr[0];
    if (via > 0 && via <= route->addrs && up >> (via - 1) & 1)
        return &route->addr[via - 1];
    uint64_t flow_hash = vr_siphash(&ALL_RELAYS, key, sizeof *key), heaviest = 0;
    for (unsigned a = 0; a < route->addrs; a++) {
        uint64_t its = weight(flow_hash, route->seed[a]);
        if (up >> a & 1 && its >= heaviest) {
            heaviest = its;
            best = a;
        }
    }
    return &route->addr[best];
}

const struct vr_addr *vr_routes_next_hop(const struct vr_routes *routes,
                                         const struct vr_owner *owner,
                                         const struct vr_flow_key *key, unsigned via) {
    if (vr_routes_is_local(routes, owner))
        return &owner->address;
    const struct vr_cluster_route *route = find(routes, owner->cluster_id);
    return route ? choose(route, key, via) : NULL;
}

bool vr_routes_is_sender(const struct vr_routes *routes, const struct vr_owner *owner,
                         const struct vr_addr *sender) {
    if (vr_routes_is_local(routes, owner))
        return vr_addr_equal(&owner->address, sender);
    return vr_routes_via(routes, owner, sender) > 0;
}

unsigned vr_routes_via(const struct vr_routes *routes, const struct vr_owner *owner,
                       const struct vr_addr *sender) {
    if (vr_routes_is_local(routes, owner))
        return 0;
    const struct vr_cluster_route *route = find(routes, owner->cluster_id);
    for (unsigned i = 0; route && i < route->addrs; i++)
        if (vr_addr_equal(&route->addr[i], sender))
            return i + 1;
    return 0;
}

bool vr_routes_has(const struct vr_routes *routes, const struct vr_addr *addr) {
    for (size_t i = 0; i < routes->route_count; i++)
        for (unsigned a = 0; a < routes->route[i].addrs; a++)
            if (vr_addr_equal(&routes->route[i].addr[a], addr))
                return true;
    return false;
}
