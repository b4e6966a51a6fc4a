#include "forwarder.h"
#include "owners.h"

#include "../wire/demux.h"
#include "../wire/spp.h"
#include "../wire/stun.h"

/* --- sending on --- */

static void add_hop(struct vr_egress *out, const struct vr_addr *destination, bool is_relay) {
    if (out->hops == 1 && vr_addr_equal(&out->hop[0].destination, destination))
        return;
    out->hop[out->hops++] = (struct vr_hop){
        .side = VR_SIDE_INTERNAL, .destination = *destination, .is_relay = is_relay};
}

/* With the client's SPP header: one that an entry relay wrote passes unchanged. */
static void wrap(const struct vr_arrival *arrival, struct vr_egress *out) {
    out->data = arrival->payload - VR_SPP_BYTES;
    out->data_bytes = arrival->payload_bytes + VR_SPP_BYTES;
    if (arrival->in->side == VR_SIDE_PUBLIC)
        vr_spp_write(out->data, &arrival->at.key);
}

static void count_up(struct vr_flow *flow, const struct vr_arrival *arrival) {
    flow->up_packets++;
    flow->up_bytes += arrival->payload_bytes;
    flow->up_seen_ms = arrival->at.now_ms;
}

/* --- checks: design rules 2 and 3 --- */

/* A half-open flow has the token that made it, every other flow those of its owners. */
static bool holds_token(const struct vr_table *table, uint32_t slot, const uint8_t *sealed) {
    unsigned owners = table->flow[slot].valid & VR_VALID_OWNERS;
    for (unsigned i = 0; i < VR_FLOW_OWNERS; i++) {
        if (!(owners ? owners >> i & 1 : i == 0))
            continue;
        const uint8_t *held = vr_flow_token(table, slot, i);
        if (held && memcmp(held, sealed, VR_TOKEN_BYTES) == 0)
            return true;
    }
    return false;
}

static enum vr_drop admit_to_flow(struct vr_forwarder *forwarder, const struct vr_arrival *arrival,
                                  uint32_t slot, const uint8_t *sealed) {
    struct vr_caps *caps = forwarder->caps;
    uint32_t now_ms = arrival->at.now_ms;
    if (holds_token(forwarder->table, slot, sealed))
        return vr_caps_check(caps, &arrival->at.key, sealed, now_ms);
    enum vr_drop reason = vr_caps_established(caps, sealed);
    if (reason == VR_DROPS)
        reason = vr_caps_new_token(caps, sealed, NULL, now_ms);
    return reason == VR_DROPS ? vr_caps_check(caps, &arrival->at.key, NULL, now_ms) : reason;
}

static enum vr_drop admit_new_flow(struct vr_forwarder *forwarder, const struct vr_arrival *arrival,
                                   const struct vr_transaction *check) {
    enum vr_drop reason = vr_caps_unanswered(forwarder->caps, &arrival->at.key.client);
    if (reason == VR_DROPS)
        reason = vr_caps_established(forwarder->caps, check->claim.sealed);
    if (reason == VR_DROPS)
        reason = vr_caps_new_token(forwarder->caps, check->claim.sealed, &check->claim.owner,
                                   arrival->at.now_ms);
    if (reason == VR_DROPS)
        reason = vr_caps_check(forwarder->caps, &arrival->at.key, check->claim.sealed,
                               arrival->at.now_ms);
    return reason;
}

/* Finds or makes the flow that the check belongs to, unless a cap says no. */
static enum vr_drop admit(struct vr_forwarder *forwarder, const struct vr_arrival *arrival,
                          const struct vr_transaction *check, uint32_t *slot) {
    struct vr_tracker *tracker = &forwarder->tracker;
    *slot = vr_tracker_find(tracker, VR_POOL_ESTABLISHED, &arrival->at);
    if (*slot == VR_NO_SLOT)
        *slot = vr_tracker_find(tracker, VR_POOL_HALF_OPEN, &arrival->at);
    if (*slot != VR_NO_SLOT)
        return admit_to_flow(forwarder, arrival, *slot, check->claim.sealed);
    enum vr_drop reason = admit_new_flow(forwarder, arrival, check);
    if (reason == VR_DROPS)
        *slot = vr_tracker_open(tracker, &arrival->at, &check->path, check->claim.sealed);
    return reason;
}

/* Opens the token and finds its owner; VR_DROPS or why it leads nowhere. */
static enum vr_drop open_token(const struct vr_forwarder *forwarder,
                               const struct vr_arrival *arrival, const uint8_t *ufrag, size_t chars,
                               struct vr_transaction *check) {
    struct vr_token token;
    enum vr_drop reason = vr_token_drop(vr_token_open(forwarder->keyring, ufrag, chars, &token));
    if (reason != VR_DROPS)
        return reason;
    if (arrival->in->side == VR_SIDE_BACKBONE && token.cluster_id != forwarder->routes.cluster_id)
        return VR_DROP_BACKBONE_LOOP;
    check->path = vr_arrival_path(arrival);
    memcpy(check->claim.sealed, token.sealed, VR_TOKEN_BYTES);
    return vr_routes_owner(&forwarder->routes, &token, &check->claim.owner);
}

static int forward_check(struct vr_forwarder *forwarder, const struct vr_arrival *arrival,
                         const struct vr_stun *message, struct vr_egress *out) {
    const struct vr_routes *routes = &forwarder->routes;
    struct vr_transaction check = {.path = {0}};
    uint32_t slot;
    size_t chars = vr_stun_local_ufrag(message);
    if (chars == 0)
        return VR_DROP_STUN_USERNAME;
    enum vr_drop reason = open_token(forwarder, arrival, message->username, chars, &check);
    if (reason == VR_DROPS)
        reason = admit(forwarder, arrival, &check, &slot);
    if (reason != VR_DROPS)
        return reason;
    bool local = vr_routes_is_local(routes, &check.claim.owner);
    uint64_t place = vr_transaction_hash(forwarder->transactions, &arrival->at.key, message->tid,
                                         local ? &check.claim.owner.address : NULL);
    vr_transactions_remember(forwarder->transactions, place, &check, arrival->at.now_ms);
    count_up(&forwarder->table->flow[slot], arrival);
    add_hop(out, vr_routes_next_hop(routes, &check.claim.owner, &arrival->at.key, 0), !local);
    wrap(arrival, out);
    return VR_DROPS;
}

/* --- everything else: design rule 5 --- */

/* To each owner of the flow, one copy per next hop. */
static int follow_owners(struct vr_forwarder *forwarder, const struct vr_arrival *arrival,
                         uint32_t slot, struct vr_egress *out) {
    const struct vr_routes *routes = &forwarder->routes;
    struct vr_flow *flow = &forwarder->table->flow[slot];
    bool loop = false;
    for (unsigned i = 0; i < VR_FLOW_OWNERS; i++) {
        const struct vr_owner *owner = &flow->half[i].owner;
        if (!(flow->valid >> i & 1))
            continue;
        if (arrival->in->side == VR_SIDE_BACKBONE && !vr_routes_is_local(routes, owner)) {
            loop = true;
            continue;
        }
        const struct vr_addr *next =
            vr_routes_next_hop(routes, owner, &arrival->at.key, flow->via[i]);
        if (next)
            add_hop(out, next, !vr_routes_is_local(routes, owner));
    }
    if (out->hops == 0)
        return loop ? VR_DROP_BACKBONE_LOOP : VR_DROP_CLUSTER_UNKNOWN;
    if (!(flow->valid & VR_VALID_PATH)) { /* a writer died while it changed it */
        struct vr_path path = vr_arrival_path(arrival);
        vr_flow_set_path(forwarder->table, slot, &path);
    }
    count_up(flow, arrival);
    wrap(arrival, out);
    return VR_DROPS;
}

static int follow(struct vr_forwarder *forwarder, const struct vr_arrival *arrival, bool may_park,
                  struct vr_egress *out) {
    struct vr_tracker *tracker = &forwarder->tracker;
    uint32_t slot = vr_tracker_find(tracker, VR_POOL_ESTABLISHED, &arrival->at);
    if (slot != VR_NO_SLOT)
        return follow_owners(forwarder, arrival, slot, out);
    slot = vr_tracker_find(tracker, VR_POOL_HALF_OPEN, &arrival->at);
    if (slot == VR_NO_SLOT)
        return may_park && forwarder->park_enabled && !arrival->in->parked
                   ? (int)VR_DROP_NO_FLOW_PARK
                   : (int)VR_DROP_NO_FLOW;
    if (forwarder->table->flow[slot].valid & VR_VALID_OWNERS)
        return follow_owners(forwarder, arrival, slot, out);
    return VR_DROP_HALF_OPEN;
}

int vr_upstream(struct vr_forwarder *forwarder, const struct vr_arrival *arrival,
                struct vr_egress *out) {
    struct vr_stun message;
    enum vr_drop reason;
    out->hops = 0;
    if (!vr_addr_can_be_sent_to(&arrival->at.key.client))
        return VR_DROP_SOURCE_UNANSWERABLE;
    switch (vr_demux(arrival->payload[0])) {
    case VR_PROTOCOL_STUN:
        reason = vr_stun_drop(arrival->payload, arrival->payload_bytes, &message);
        if (reason != VR_DROPS)
            return reason;
        if (message.class_ == VR_STUN_REQUEST && message.username)
            return forward_check(forwarder, arrival, &message, out);
        return follow(forwarder, arrival, false, out);
    case VR_PROTOCOL_DTLS:
    case VR_PROTOCOL_MEDIA:
        return follow(forwarder, arrival, true, out);
    default:
        return VR_DROP_PROTOCOL;
    }
}

/* --- what the cache says --- */

unsigned vr_forward_recover(struct vr_forwarder *forwarder, const struct vr_ingress *in,
                            const struct vr_cached_token *tokens, unsigned count, uint64_t now_ns) {
    struct vr_arrival arrival = {.in = in, .at.now_ms = vr_clock_ms(now_ns)};
    struct vr_transaction owner[VR_FLOW_OWNERS];
    unsigned owners = 0;
    if (in->side == VR_SIDE_INTERNAL || !vr_forward_key(in, &arrival.at.key))
        return 0;
    arrival.at.hash = vr_flow_hash(forwarder->table, &arrival.at.key);
    for (unsigned i = 0; i < count && owners < VR_FLOW_OWNERS; i++) {
        struct vr_transaction *found = &owner[owners];
        if (open_token(forwarder, &arrival, tokens[i].chars, tokens[i].bytes, found) == VR_DROPS &&
            (owners == 0 ||
             memcmp(&found->claim.owner, &owner[0].claim.owner, sizeof found->claim.owner) != 0))
            owners++;
    }
    if (owners == 0 ||
        vr_tracker_find(&forwarder->tracker, VR_POOL_ESTABLISHED, &arrival.at) != VR_NO_SLOT)
        return owners;
    vr_tracker_recover(&forwarder->tracker, &arrival.at, owner, owners);
    return owners;
}
