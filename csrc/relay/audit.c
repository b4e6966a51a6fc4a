#include "audit.h"

#include "entry.h"

#include <string.h>

enum { LOOKS = 3 };

/* A copy of the entry, none of it checked. False when the slot is free or was reused meanwhile. */
static bool copy(const struct vr_table *table, uint32_t slot, struct vr_flow *flow,
                 struct vr_flow_rest *rest) {
    uint16_t tag = __atomic_load_n(&table->tag[slot], __ATOMIC_ACQUIRE);
    if (tag == 0)
        return false;
    memcpy(flow, &table->flow[slot], sizeof *flow);
    memcpy(rest, &table->rest[slot], sizeof *rest);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(&table->tag[slot], __ATOMIC_RELAXED) == tag;
}

bool vr_flow_read(const struct vr_table *table, uint32_t slot, struct vr_flow *flow,
                  struct vr_flow_rest *rest) {
    uint8_t check[3];
    if (!copy(table, slot, flow, rest))
        return false;
    uint64_t hash = vr_siphash(&table->hash_key, &flow->key, sizeof flow->key);
    if (__atomic_load_n(&table->tag[slot], __ATOMIC_RELAXED) != vr_entry_tag(hash))
        return false;
    flow->valid = (uint8_t)vr_entry_valid(table, flow, rest);
    for (unsigned i = 0; i < VR_FLOW_OWNERS; i++) {
        vr_entry_token_check(table, &flow->key, i, rest->token[i].sealed, check);
        if (memcmp(check, rest->token[i].check, sizeof check) != 0)
            memset(&rest->token[i], 0, sizeof rest->token[i]);
    }
    return true;
}

/* Whether `key` lies in a slot of `pool` other than `slot`. */
static bool lies_elsewhere(const struct vr_table *table, enum vr_pool pool,
                           const struct vr_flow_key *key, uint64_t hash, uint32_t slot) {
    uint32_t bucket[2];
    vr_entry_candidates(table, pool, hash, bucket);
    for (unsigned i = 0; i < 2 * VR_BUCKET_SLOTS; i++) {
        uint32_t other = bucket[i / VR_BUCKET_SLOTS] * VR_BUCKET_SLOTS + i % VR_BUCKET_SLOTS;
        if (other != slot &&
            __atomic_load_n(&table->tag[other], __ATOMIC_ACQUIRE) == vr_entry_tag(hash) &&
            vr_flow_key_equal(&table->flow[other].key, key))
            return true;
    }
    return false;
}

/* The first fault of the entry in `slot`, or VR_FAULT_KINDS. */
static enum vr_fault_kind fault_of(const struct vr_table *table, uint32_t slot) {
    struct vr_flow flow;
    struct vr_flow_rest rest;
    uint32_t bucket[2];
    if (!copy(table, slot, &flow, &rest))
        return VR_FAULT_KINDS;
    enum vr_pool pool = vr_flow_pool(table, slot);
    uint64_t hash = vr_siphash(&table->hash_key, &flow.key, sizeof flow.key);
    if (table->tag[slot] != vr_entry_tag(hash))
        return VR_FAULT_KEY;
    vr_entry_candidates(table, pool, hash, bucket);
    if (slot / VR_BUCKET_SLOTS != bucket[0] && slot / VR_BUCKET_SLOTS != bucket[1])
        return VR_FAULT_BUCKET;
    unsigned broken = flow.valid & ~vr_entry_valid(table, &flow, &rest);
    if (broken & VR_VALID_OWNERS)
        return VR_FAULT_OWNER;
    if (broken & VR_VALID_PATH)
        return VR_FAULT_PATH;
    unsigned owners = flow.valid & VR_VALID_OWNERS;
    if (pool == VR_POOL_ESTABLISHED && owners == 0)
        return VR_FAULT_OWNERLESS;
    if (owners == VR_VALID_OWNERS &&
        memcmp(&flow.half[0].owner, &flow.half[1].owner, sizeof flow.half[0].owner) == 0)
        return VR_FAULT_SAME_OWNER;
    if (lies_elsewhere(table, pool, &flow.key, hash, slot))
        return VR_FAULT_TWICE;
    if (pool == VR_POOL_HALF_OPEN &&
        lies_elsewhere(table, VR_POOL_ESTABLISHED, &flow.key, hash, slot))
        return VR_FAULT_BOTH_POOLS;
    return VR_FAULT_KINDS;
}

size_t vr_table_audit(const struct vr_table *table, struct vr_fault *faults, size_t capacity) {
    size_t found = 0;
    for (uint32_t slot = 0; slot < table->slots; slot++) {
        enum vr_fault_kind kind = VR_FAULT_KINDS;
        for (unsigned look = 0; look < LOOKS; look++) {
            kind = fault_of(table, slot);
            if (kind == VR_FAULT_KINDS)
                break;
        }
        if (kind == VR_FAULT_KINDS)
            continue;
        if (found < capacity)
            faults[found] = (struct vr_fault){slot, kind};
        found++;
    }
    return found;
}

const char *vr_fault_text(enum vr_fault_kind kind) {
    static const char *const text[] = {
#define X(symbol, text) text,
        VR_FAULTS(X)
#undef X
    };
    return kind < VR_FAULT_KINDS ? text[kind] : "";
}
