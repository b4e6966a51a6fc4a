#include "owners.h"

#include <string.h>

static bool has_owner(const struct vr_flow *flow, unsigned i) {
    return flow->valid >> i & 1;
}

unsigned vr_owners_find(const struct vr_flow *flow, const struct vr_owner *owner) {
    for (unsigned i = 0; i < VR_FLOW_OWNERS; i++)
        if (has_owner(flow, i) && memcmp(&flow->half[i].owner, owner, sizeof *owner) == 0)
            return i;
    return VR_FLOW_OWNERS;
}

static void uncount_one(const struct vr_table *table, struct vr_caps *caps, uint32_t slot,
                        unsigned i) {
    const uint8_t *sealed = vr_flow_token(table, slot, i);
    if (sealed)
        vr_caps_remove_established(caps, sealed);
}

static void leave(struct vr_table *table, struct vr_caps *caps, uint32_t slot, unsigned i) {
    uncount_one(table, caps, slot, i);
    vr_flow_clear_owner(table, slot, i);
}

void vr_owners_settle(struct vr_table *table, struct vr_caps *caps, uint32_t slot,
                      uint32_t now_ms) {
    const struct vr_flow *flow = &table->flow[slot];
    if ((flow->valid & VR_VALID_OWNERS) != VR_VALID_OWNERS)
        return;
    uint32_t silent_ms[VR_FLOW_OWNERS];
    for (unsigned i = 0; i < VR_FLOW_OWNERS; i++)
        silent_ms[i] = vr_age_ms(now_ms, table->rest[slot].success_ms[i]);
    unsigned newer = flow->valid & VR_VALID_NEWER ? 1 : 0;
    unsigned more_silent = silent_ms[0] == silent_ms[1] ? newer : silent_ms[1] > silent_ms[0];
    if (silent_ms[more_silent] >= VR_OWNER_SILENCE_MS)
        leave(table, caps, slot, more_silent);
}

static void change_token(struct vr_table *table, struct vr_caps *caps, uint32_t slot, unsigned i,
                         const uint8_t *sealed) {
    const uint8_t *former = vr_flow_token(table, slot, i);
    if (former && memcmp(former, sealed, VR_TOKEN_BYTES) == 0)
        return;
    if (vr_caps_established(caps, sealed) != VR_DROPS)
        return;
    uncount_one(table, caps, slot, i);
    vr_flow_set_token(table, slot, i, sealed);
    vr_caps_add_established(caps, sealed);
}

static void join(struct vr_table *table, struct vr_caps *caps, uint32_t slot,
                 const struct vr_transaction *check, uint32_t now_ms) {
    const struct vr_flow *flow = &table->flow[slot];
    vr_owners_settle(table, caps, slot, now_ms);
    unsigned i;
    if (!has_owner(flow, 0) || !has_owner(flow, 1)) {
        i = has_owner(flow, 0) ? 1 : 0;
    } else {
        i = flow->valid & VR_VALID_NEWER ? 1 : 0;
        uncount_one(table, caps, slot, i);
    }
    vr_flow_set_owner(table, slot, i, &check->claim, now_ms);
    vr_caps_add_established(caps, check->claim.sealed);
}

enum vr_drop vr_owners_confirm(struct vr_table *table, struct vr_caps *caps, uint32_t slot,
                               const struct vr_transaction *check, uint32_t now_ms) {
    unsigned i = vr_owners_find(&table->flow[slot], &check->claim.owner);
    if (i < VR_FLOW_OWNERS) {
        table->rest[slot].success_ms[i] = now_ms;
        change_token(table, caps, slot, i, check->claim.sealed);
    } else {
        enum vr_drop reason = vr_caps_established(caps, check->claim.sealed);
        if (reason != VR_DROPS)
            return reason;
        join(table, caps, slot, check, now_ms);
    }
    const struct vr_flow *flow = &table->flow[slot];
    if (!(flow->valid & VR_VALID_PATH) ||
        memcmp(&table->rest[slot].path, &check->path, sizeof check->path) != 0)
        vr_flow_set_path(table, slot, &check->path);
    return VR_DROPS;
}

void vr_owners_count(const struct vr_table *table, struct vr_caps *caps, uint32_t slot) {
    for (unsigned i = 0; i < VR_FLOW_OWNERS; i++) {
        const uint8_t *sealed =
            has_owner(&table->flow[slot], i) ? vr_flow_token(table, slot, i) : NULL;
        if (sealed)
            vr_caps_add_established(caps, sealed);
    }
}

void vr_owners_uncount(const struct vr_table *table, struct vr_caps *caps, uint32_t slot) {
    for (unsigned i = 0; i < VR_FLOW_OWNERS; i++)
        if (has_owner(&table->flow[slot], i))
            uncount_one(table, caps, slot, i);
}
