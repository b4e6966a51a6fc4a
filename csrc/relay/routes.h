/* routes.h: where a token leads: the transceiver itself, or a relay of its cluster (design 3.1, rule 7).
 *
 * 1. Only addresses in --allow-transceiver are ever reached in our own cluster: a relay must not be
 *    usable to reach anything else.
 * 2. An owner in another cluster is reached through that cluster's route, and what comes back from
 *    any address of the route is that owner's.
 * 3. Of a route's addresses a flow has the one with the highest weight (rendezvous hashing, without a
 *    secret): so it keeps to one worker of the other relay, every relay here chooses the same one,
 *    and an address that goes away or comes back moves only its own flows.
 * 4. An address that is down is passed over; when all are, all count as up: a wrong verdict must not
 *    cut anybody off.
 * 5. Checks go where rule 3 says. All else of a flow goes where its last success came from, while that
 *    is up: when an address comes back, it gets a flow's media only once it has shown a success.
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
    uint64_t seed[VR_CLUSTER_ROUTE_ADDRS]; /* made by vr_routes_prepare */
    unsigned down_mask;                    /* bit i: addr[i] does not answer (probes.h) */
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

/* Makes what choosing needs of each route's addresses, all of them up. Once, before the first choice. */
void vr_routes_prepare(struct vr_routes *routes);

/* The owner that `token` names. VR_DROPS (no reason) or why it is refused. */
enum vr_drop vr_routes_owner(const struct vr_routes *routes, const struct vr_token *token,
                             struct vr_owner *owner);

static inline bool vr_routes_is_local(const struct vr_routes *routes,
                                      const struct vr_owner *owner) {
    return owner->cluster_id == routes->cluster_id;
}

/* Where packets of the flow `key` for `owner` go next: its address, or one of its cluster's route. NULL
 * when there is no route. `via` is vr_routes_via of the sender of the flow's last success (rule 5), 0
 * for checks; what this route does not have is as good as 0. The pointer lives as long as `owner`
 * and `routes`. */
const struct vr_addr *vr_routes_next_hop(const struct vr_routes *routes,
                                         const struct vr_owner *owner,
                                         const struct vr_flow_key *key, unsigned via);

/* True when what `sender` sends is the owner's. */
bool vr_routes_is_sender(const struct vr_routes *routes, const struct vr_owner *owner,
                         const struct vr_addr *sender);

/* True when `addr` is an address of any route. */
bool vr_routes_has(const struct vr_routes *routes, const struct vr_addr *addr);

/* Which address of the owner's route `sender` is, from 1 on; 0: none, or the owner is local. */
unsigned vr_routes_via(const struct vr_routes *routes, const struct vr_owner *owner,
                       const struct vr_addr *sender);

#endif
