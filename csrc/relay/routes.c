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

const struct vr_addr *vr_routes_next_hop(const struct vr_routes *routes,
                                         const struct vr_owner *owner,
                                         const struct vr_flow_key *key) {
    static const struct vr_hash_key all_relays; /* a secret one would differ from relay to relay */
    if (vr_routes_is_local(routes, owner))
        return &owner->address;
    const struct vr_cluster_route *route = find(routes, owner->cluster_id);
    if (!route)
        return NULL;
    return &route->addr[(uint32_t)vr_siphash(&all_relays, key, sizeof *key) % route->addrs];
}

bool vr_routes_is_sender(const struct vr_routes *routes, const struct vr_owner *owner,
                         const struct vr_addr *sender) {
    if (vr_routes_is_local(routes, owner))
        return vr_addr_equal(&owner->address, sender);
    const struct vr_cluster_route *route = find(routes, owner->cluster_id);
    for (unsigned i = 0; route && i < route->addrs; i++)
        if (vr_addr_equal(&route->addr[i], sender))
            return true;
    return false;
}
