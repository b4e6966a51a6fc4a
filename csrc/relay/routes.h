/* routes.h: where a token leads: the transceiver itself, or a relay of its cluster (design 3.1, rule 7).
 *
 * 1. Only addresses in --allow-transceiver are ever reached in our own cluster: a relay must not be
 *    usable to reach anything else.
 * 2. An owner in another cluster is reached through that cluster's route, and what comes back from
 *    any address of the route is that owner's.
 * 3. One client's packets keep to one address of a route, so to one worker of the other relay, and
 *    every relay here chooses the same one: a client that moves to another relay finds its flow.
 */
#ifndef VR_ROUTES_H
#define VR_ROUTES_H

#include "allow.h"
#include "stats.h"
#include "table.h"

enum { VR_CLUSTER_ROUTE_ADDRS = 8 };

struct vr_cluster_route {
    uint16_t cluster_id;
    unsigned addrs; /* 1..VR_CLUSTER_ROUTE_ADDRS */
    struct vr_addr addr[VR_CLUSTER_ROUTE_ADDRS];
};

struct vr_routes {
    uint16_t cluster_id;
    struct vr_ipv6_prefixes ipv6_prefixes;
    size_t allow_transceiver_count;
    size_t backbone_allow_count;
    size_t route_count;
    struct vr_cidr *allow_transceiver;
    struct vr_cidr *backbone_allow;
    struct vr_cluster_route *route;
};

/* The owner that `token` names. VR_DROPS (no reason) or why it is refused. */
enum vr_drop vr_routes_owner(const struct vr_routes *routes, const struct vr_token *token,
                             struct vr_owner *owner);

static inline bool vr_routes_is_local(const struct vr_routes *routes,
                                      const struct vr_owner *owner) {
    return owner->cluster_id == routes->cluster_id;
}

/* Where packets of the flow `key` for `owner` go next: its address, or one of its cluster's route. NULL
 * when there is no route. The pointer lives as long as `owner` and `routes`. */
const struct vr_addr *vr_routes_next_hop(const struct vr_routes *routes,
                                         const struct vr_owner *owner,
                                         const struct vr_flow_key *key);

/* True when what `sender` sends is the owner's. */
bool vr_routes_is_sender(const struct vr_routes *routes, const struct vr_owner *owner,
                         const struct vr_addr *sender);

#endif
