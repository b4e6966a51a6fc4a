#include "tracker.h"

#include "owners.h"

#include <string.h>

enum { SWEEP_ADOPTIONS = 256 }; /* about 0.1 ms */

/* --- counters --- */

static void count_flows(struct vr_tracker *tracker) {
    struct vr_stats *stats = tracker->stats;
    const uint32_t *counts = tracker->table->counts;
    __atomic_store_n(&stats->flows_half_open, counts[VR_POOL_HALF_OPEN], __ATOMIC_RELAXED);
    __atomic_store_n(&stats->flows_established, counts[VR_POOL_ESTABLISHED], __ATOMIC_RELAXED);
}

void vr_tracker_start(struct vr_tracker *tracker) {
    count_flows(tracker);
}

/* --- closing --- */

void vr_tracker_answered(struct vr_tracker *tracker, uint32_t slot) {
    struct vr_flow *flow = &tracker->table->flow[slot];
    if (!(flow->flags & VR_FLOW_UNANSWERED))
        return;
    flow->flags &= (uint8_t)~VR_FLOW_UNANSWERED;
    vr_caps_remove_unanswered(tracker->caps, &flow->key.client);
}

static void discard(struct vr_tracker *tracker, uint32_t slot) {
    struct vr_table *table = tracker->table;
    if (table->flow[slot].generation == table->generation) { /* else it was never counted */
        if (vr_flow_pool(table, slot) == VR_POOL_ESTABLISHED)
            vr_owners_uncount(table, tracker->caps, slot);
        else
            vr_tracker_answered(tracker, slot);
    }
    vr_flow_remove(table, slot);
    count_flows(tracker);
}

static void expire(struct vr_tracker *tracker, uint32_t slot) {
    if (vr_flow_pool(tracker->table, slot) == VR_POOL_ESTABLISHED)
        vr_count_add(&tracker->stats->flows_expired, 1);
    discard(tracker, slot);
}

/* --- looking --- */

/* Takes over an entry of an earlier generation; false when it did not hold. */
static bool take_over(struct vr_tracker *tracker, uint32_t slot) {
    struct vr_table *table = tracker->table;
    bool holds = vr_flow_adopt(table, slot);
    if (!holds)
        count_flows(tracker);
    else if (vr_flow_pool(table, slot) == VR_POOL_ESTABLISHED)
        vr_owners_count(table, tracker->caps, slot);
    else if (table->flow[slot].flags & VR_FLOW_UNANSWERED)
        vr_caps_add_unanswered(tracker->caps, &table->flow[slot].key.client);
    return holds;
}

static bool is_over(const struct vr_tracker *tracker, uint32_t slot, uint32_t now_ms) {
    const struct vr_flow *flow = &tracker->table->flow[slot];
    if (vr_flow_pool(tracker->table, slot) == VR_POOL_ESTABLISHED)
        return vr_age_ms(now_ms, flow->owner_seen_ms) >= tracker->idle_timeout_ms;
    bool provisional = flow->valid & VR_VALID_OWNERS;
    return vr_age_ms(now_ms, flow->created_ms) >=
           (uint32_t)(provisional ? VR_PROVISIONAL_MS : VR_HALF_OPEN_MS);
}

/* Brings the flow in `slot` to `now_ms`; false when that was its end. */
static bool look_at(struct vr_tracker *tracker, uint32_t slot, uint32_t now_ms) {
    struct vr_table *table = tracker->table;
    const struct vr_flow *flow = &table->flow[slot];
    if (flow->generation != table->generation && !take_over(tracker, slot))
        return false;
    if (is_over(tracker, slot, now_ms)) {
        expire(tracker, slot);
        return false;
    }
    if ((flow->valid & VR_VALID_OWNERS) == VR_VALID_OWNERS &&
        vr_flow_pool(table, slot) == VR_POOL_ESTABLISHED)
        vr_owners_settle(table, tracker->caps, slot, now_ms);
    return true;
}

uint32_t vr_tracker_find(struct vr_tracker *tracker, enum vr_pool pool,
                         const struct vr_flow_at *at) {
    uint32_t slot = vr_flow_find(tracker->table, pool, &at->key, at->hash);
    return slot != VR_NO_SLOT && look_at(tracker, slot, at->now_ms) ? slot : VR_NO_SLOT;
}

/* Returns how many entries of an earlier generation may still be taken over. */
static unsigned sweep_slot(struct vr_tracker *tracker, uint32_t slot, unsigned adoptions,
                           uint32_t now_ms) {
    bool is_ours = tracker->table->flow[slot].generation == tracker->table->generation;
    if (is_ours || adoptions > 0)
        look_at(tracker, slot, now_ms);
    else if (is_over(tracker, slot, now_ms))
        expire(tracker, slot);
    return is_ours || adoptions == 0 ? adoptions : adoptions - 1;
}

void vr_tracker_sweep(struct vr_tracker *tracker, uint32_t now_ms) {
    struct vr_table *table = tracker->table;
    uint32_t buckets = table->slots / VR_BUCKET_SLOTS;
    unsigned adoptions = SWEEP_ADOPTIONS;
    for (uint32_t left = buckets / 100 + 1; left > 0; left--) {
        uint32_t bucket = tracker->sweep_bucket;
        tracker->sweep_bucket = bucket + 1 < buckets ? bucket + 1 : 0;
        for (uint32_t i = 0; i < VR_BUCKET_SLOTS; i++) {
            uint32_t slot = bucket * VR_BUCKET_SLOTS + i;
            if (vr_flow_in_use(table, slot))
                adoptions = sweep_slot(tracker, slot, adoptions, now_ms);
        }
    }
}

/* --- opening --- */

uint32_t vr_tracker_open(struct vr_tracker *tracker, const struct vr_flow_at *at,
                         const struct vr_path *path, const uint8_t *sealed) {
    struct vr_table *table = tracker->table;
    struct vr_flow flow = {.key = at->key, .valid = VR_VALID_PATH, .created_ms = at->now_ms};
    struct vr_flow_rest rest = {.path = *path};
    uint32_t slot = vr_flow_place(table, VR_POOL_HALF_OPEN, at->hash, at->now_ms);
    if (vr_flow_in_use(table, slot)) {
        discard(tracker, slot);
        vr_count_add(&tracker->stats->half_open_displaced, 1);
    }
    flow.up_seen_ms = flow.owner_seen_ms = at->now_ms;
    if (sealed) {
        flow.flags = VR_FLOW_UNANSWERED;
        memcpy(rest.token[0].sealed, sealed, VR_TOKEN_BYTES);
        vr_caps_add_unanswered(tracker->caps, &at->key.client);
    }
    vr_flow_insert(table, slot, at->hash, &flow, &rest);
    vr_count_add(&tracker->stats->flows_created, 1);
    count_flows(tracker);
    return slot;
}

void vr_tracker_recover(struct vr_tracker *tracker, const struct vr_flow_at *at,
                        const struct vr_transaction *found, unsigned count) {
    struct vr_table *table = tracker->table;
    uint32_t slot = vr_tracker_find(tracker, VR_POOL_HALF_OPEN, at);
    if (slot == VR_NO_SLOT)
        slot = vr_tracker_open(tracker, at, &found[0].path, NULL);
    if (table->flow[slot].valid & VR_VALID_OWNERS)
        return;
    vr_tracker_answered(tracker, slot);
    for (unsigned i = 0; i < count && i < VR_FLOW_OWNERS; i++)
        vr_flow_set_owner(table, slot, i, &found[i].claim, at->now_ms);
    table->flow[slot].created_ms = at->now_ms;
}

/* What an established flow starts with: what was counted while it was half-open, and the owners that
 * the cache named, which stay for as long as an owner stays without a success of its own. */
static void inherit(const struct vr_tracker *tracker, uint32_t half_open,
                    const struct vr_transaction *check, struct vr_flow *flow,
                    struct vr_flow_rest *rest) {
    const struct vr_flow *former = &tracker->table->flow[half_open];
    flow->up_packets = former->up_packets;
    flow->up_bytes = former->up_bytes;
    flow->down_packets = former->down_packets;
    flow->down_bytes = former->down_bytes;
    flow->up_seen_ms = former->up_seen_ms;
    for (unsigned i = 0; i < VR_FLOW_OWNERS; i++) {
        const uint8_t *sealed = vr_flow_token(tracker->table, half_open, i);
        if (!(former->valid >> i & 1) || !sealed ||
            memcmp(&former->half[i].owner, &check->claim.owner, sizeof check->claim.owner) == 0 ||
            vr_caps_established(tracker->caps, sealed) != VR_DROPS)
            continue;
        flow->half[1].owner = former->half[i].owner;
        flow->valid |= 2 | VR_VALID_NEWER;
        memcpy(rest->token[1].sealed, sealed, VR_TOKEN_BYTES);
        return;
    }
}

static enum vr_drop establish(struct vr_tracker *tracker, const struct vr_flow_at *at,
                              const struct vr_transaction *check, uint32_t *slot) {
    struct vr_table *table = tracker->table;
    uint32_t now_ms = at->now_ms;
    enum vr_drop reason = vr_caps_established(tracker->caps, check->claim.sealed);
    if (reason != VR_DROPS)
        return reason;
    *slot = vr_flow_place(table, VR_POOL_ESTABLISHED, at->hash, now_ms);
    if (*slot == VR_NO_SLOT)
        return VR_DROP_TABLE_FULL;

    struct vr_flow flow = {.key = at->key, .valid = 1 | VR_VALID_PATH, .created_ms = now_ms};
    struct vr_flow_rest rest = {.path = check->path, .success_ms = {now_ms, now_ms}};
    flow.up_seen_ms = flow.owner_seen_ms = now_ms;
    flow.half[0].owner = check->claim.owner;
    memcpy(rest.token[0].sealed, check->claim.sealed, VR_TOKEN_BYTES);
    uint32_t half_open = vr_tracker_find(tracker, VR_POOL_HALF_OPEN, at);
    if (half_open != VR_NO_SLOT)
        inherit(tracker, half_open, check, &flow, &rest);
    vr_flow_insert(table, *slot, at->hash, &flow, &rest);
    if (half_open != VR_NO_SLOT)
        discard(tracker, half_open);
    vr_owners_count(table, tracker->caps, *slot);
    vr_count_add(&tracker->stats->flows_promoted, 1);
    count_flows(tracker);
    return VR_DROPS;
}

enum vr_drop vr_tracker_confirm(struct vr_tracker *tracker, const struct vr_flow_at *at,
                                const struct vr_transaction *check, uint32_t *slot) {
    *slot = vr_tracker_find(tracker, VR_POOL_ESTABLISHED, at);
    if (*slot == VR_NO_SLOT)
        return establish(tracker, at, check, slot);
    return vr_owners_confirm(tracker->table, tracker->caps, *slot, check, at->now_ms);
}
