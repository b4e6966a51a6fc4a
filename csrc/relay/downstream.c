#include "forwarder.h"
#include "owners.h"

#include "../wire/demux.h"
#include "../wire/spp.h"
#include "../wire/stun.h"

/* --- sending on --- */

/* To the client, or to the entry relay that it came by, whose SPP header passes unchanged. */
static int send_by(const struct vr_arrival *arrival, const struct vr_path *path, bool from_route,
                   struct vr_egress *out) {
    struct vr_hop *hop = &out->hop[0];
    *hop = (struct vr_hop){.side = (enum vr_side)path->side};
    out->hops = 1;
    if (path->side == VR_SIDE_BACKBONE) {
        if (from_route)
            return VR_DROP_BACKBONE_LOOP;
        hop->destination = path->address;
        hop->is_relay = true;
        out->data = arrival->in->data;
        out->data_bytes = arrival->payload_bytes + VR_SPP_BYTES;
        return VR_DROPS;
    }
    hop->listen = path->listen;
    hop->destination = arrival->at.key.client;
    memcpy(hop->source_ip, path->address.ip, sizeof hop->source_ip);
    out->data = arrival->payload;
    out->data_bytes = arrival->payload_bytes;
    return VR_DROPS;
}

/* The half of the flow's owner that `sender` speaks for, or VR_FLOW_OWNERS. */
static unsigned sending_owner(const struct vr_routes *routes, const struct vr_flow *flow,
                              const struct vr_addr *sender) {
    for (unsigned i = 0; i < VR_FLOW_OWNERS; i++)
        if (flow->valid >> i & 1 && vr_routes_is_sender(routes, &flow->half[i].owner, sender))
            return i;
    return VR_FLOW_OWNERS;
}

/* A packet of an owner: design rules 6 and 8. */
static int pass(struct vr_forwarder *forwarder, const struct vr_arrival *arrival, uint32_t slot,
                unsigned owner, struct vr_egress *out) {
    struct vr_flow *flow = &forwarder->table->flow[slot];
    bool from_route = !vr_routes_is_local(&forwarder->routes, &flow->half[owner].owner);
    if (!(flow->valid & VR_VALID_PATH)) /* until the client's next packet shows it again */
        return VR_DROP_NO_FLOW;
    int reason = send_by(arrival, &forwarder->table->rest[slot].path, from_route, out);
    if (reason != VR_DROPS)
        return reason;
    flow->down_packets++;
    flow->down_bytes += arrival->payload_bytes;
    flow->owner_seen_ms = arrival->at.now_ms;
    return VR_DROPS;
}

/* --- responses: design rule 3 --- */

/* The check that this response answers, or NULL: it must come from where the check went. */
static const struct vr_transaction *answered_check(const struct vr_forwarder *forwarder,
                                                   const struct vr_arrival *arrival,
                                                   const uint8_t *tid) {
    const struct vr_addr *sender = &arrival->in->source;
    const struct vr_transactions *transactions = forwarder->transactions;
    uint64_t place = vr_transaction_hash(transactions, &arrival->at.key, tid, sender);
    const struct vr_transaction *check =
        vr_transactions_find(transactions, place, arrival->at.now_ms);
    if (!check && forwarder->routes.route_count > 0) {
        place = vr_transaction_hash(transactions, &arrival->at.key, tid, NULL);
        check = vr_transactions_find(transactions, place, arrival->at.now_ms);
    }
    return check && vr_routes_is_sender(&forwarder->routes, &check->claim.owner, sender) ? check
                                                                                         : NULL;
}

/* Whether a cache should hear of the flow's owners, before a success for `check` is taken in: this
 * owner is new, or the success is the first in a new span of this flow's own grid of time. */
static bool owners_due(struct vr_forwarder *forwarder, const struct vr_arrival *arrival,
                       const struct vr_transaction *check) {
    const struct vr_table *table = forwarder->table;
    uint32_t slot = vr_tracker_find(&forwarder->tracker, VR_POOL_ESTABLISHED, &arrival->at);
    unsigned i = slot == VR_NO_SLOT ? VR_FLOW_OWNERS
                                    : vr_owners_find(&table->flow[slot], &check->claim.owner);
    if (i == VR_FLOW_OWNERS)
        return true;
    uint32_t shift_ms = (uint32_t)(arrival->at.hash % VR_OWNERS_REFRESH_MS);
    return (table->rest[slot].success_ms[i] + shift_ms) / VR_OWNERS_REFRESH_MS !=
           (arrival->at.now_ms + shift_ms) / VR_OWNERS_REFRESH_MS;
}

static int pass_success(struct vr_forwarder *forwarder, const struct vr_arrival *arrival,
                        const struct vr_transaction *check, struct vr_egress *out) {
    uint32_t slot;
    out->owners_due = owners_due(forwarder, arrival, check);
    enum vr_drop reason = vr_tracker_confirm(&forwarder->tracker, &arrival->at, check, &slot);
    if (reason != VR_DROPS)
        return reason;
    struct vr_flow *flow = &forwarder->table->flow[slot];
    unsigned owner = vr_owners_find(flow, &check->claim.owner);
    flow->via[owner] =
        (uint8_t)vr_routes_via(&forwarder->routes, &check->claim.owner, &arrival->in->source);
    return pass(forwarder, arrival, slot, owner, out);
}

/* An error passes and confirms nothing. On an established flow it is a packet of an owner, or it
 * answers somebody who wants to become one, and then it must not keep the flow alive. */
static int pass_error(struct vr_forwarder *forwarder, const struct vr_arrival *arrival,
                      const struct vr_transaction *check, struct vr_egress *out) {
    struct vr_table *table = forwarder->table;
    bool from_route = !vr_routes_is_local(&forwarder->routes, &check->claim.owner);
    uint32_t slot = vr_tracker_find(&forwarder->tracker, VR_POOL_ESTABLISHED, &arrival->at);
    if (slot != VR_NO_SLOT) {
        unsigned owner = vr_owners_find(&table->flow[slot], &check->claim.owner);
        if (owner < VR_FLOW_OWNERS)
            return pass(forwarder, arrival, slot, owner, out);
    } else {
        slot = vr_tracker_find(&forwarder->tracker, VR_POOL_HALF_OPEN, &arrival->at);
        if (slot != VR_NO_SLOT)
            vr_tracker_answered(&forwarder->tracker, slot);
    }
    int reason = send_by(arrival, &check->path, from_route, out);
    if (reason == VR_DROPS && slot != VR_NO_SLOT) {
        table->flow[slot].down_packets++;
        table->flow[slot].down_bytes += arrival->payload_bytes;
    }
    return reason;
}

/* --- everything else --- */

static int follow(struct vr_forwarder *forwarder, const struct vr_arrival *arrival,
                  bool is_response, struct vr_egress *out) {
    struct vr_tracker *tracker = &forwarder->tracker;
    bool half_open = false;
    uint32_t slot = vr_tracker_find(tracker, VR_POOL_ESTABLISHED, &arrival->at);
    if (slot == VR_NO_SLOT) {
        slot = vr_tracker_find(tracker, VR_POOL_HALF_OPEN, &arrival->at);
        if (slot == VR_NO_SLOT)
            return VR_DROP_NO_FLOW;
        half_open = !(forwarder->table->flow[slot].valid & VR_VALID_OWNERS);
    }
    if (half_open)
        return is_response ? VR_DROP_RESPONSE_UNMATCHED : VR_DROP_HALF_OPEN;
    unsigned owner =
        sending_owner(&forwarder->routes, &forwarder->table->flow[slot], &arrival->in->source);
    if (owner == VR_FLOW_OWNERS)
        return VR_DROP_SENDER_NOT_OWNER;
    return pass(forwarder, arrival, slot, owner, out);
}

int vr_downstream(struct vr_forwarder *forwarder, const struct vr_arrival *arrival,
                  struct vr_egress *out) {
    struct vr_stun message;
    switch (vr_demux(arrival->payload[0])) {
    case VR_PROTOCOL_STUN: {
        enum vr_drop reason = vr_stun_drop(arrival->payload, arrival->payload_bytes, &message);
        if (reason != VR_DROPS)
            return reason;
        if (message.class_ != VR_STUN_SUCCESS && message.class_ != VR_STUN_ERROR)
            return follow(forwarder, arrival, false, out);
        const struct vr_transaction *check = answered_check(forwarder, arrival, message.tid);
        if (!check)
            return follow(forwarder, arrival, true, out);
        return message.class_ == VR_STUN_SUCCESS ? pass_success(forwarder, arrival, check, out)
                                                 : pass_error(forwarder, arrival, check, out);
    }
    case VR_PROTOCOL_DTLS:
    case VR_PROTOCOL_MEDIA:
        return follow(forwarder, arrival, false, out);
    default:
        return VR_DROP_PROTOCOL;
    }
}
