#include "flow.h"

#include "entry.h"

#include <string.h>

/* The order of stores is the whole crash safety: what was written before is there when this is seen,
 * and nothing is there that is written later. */
static void publish_tag(uint16_t *tag, uint16_t value) {
    __atomic_store_n(tag, value, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_RELEASE);
}

static void publish_valid(struct vr_flow *flow, unsigned valid) {
    __atomic_store_n(&flow->valid, (uint8_t)valid, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_RELEASE);
}

/* --- finding --- */

/* Bit i is set when tag i of the bucket is `tag`. */
static inline unsigned match_tags(const uint16_t *bucket, uint16_t tag) {
#ifdef __SSE2__
    typedef short lanes __attribute__((vector_size(16), may_alias));
    typedef char bytes __attribute__((vector_size(16)));
    const lanes *half = (const lanes *)(const void *)bucket;
    short t = (short)tag;
    lanes wanted = {t, t, t, t, t, t, t, t};
    bytes equal =
        __builtin_ia32_packsswb128((lanes)(half[0] == wanted), (lanes)(half[1] == wanted));
    return (unsigned)__builtin_ia32_pmovmskb128(equal);
#else
    unsigned mask = 0;
    for (unsigned i = 0; i < VR_BUCKET_SLOTS; i++)
        mask |= (unsigned)(bucket[i] == tag) << i;
    return mask;
#endif
}

uint32_t vr_flow_find(const struct vr_table *table, enum vr_pool pool,
                      const struct vr_flow_key *key, uint64_t hash) {
    uint32_t bucket[2];
    uint16_t tag = vr_entry_tag(hash);
    vr_entry_candidates(table, pool, hash, bucket);
    for (unsigned c = 0; c < 2; c++) {
        uint32_t first = bucket[c] * VR_BUCKET_SLOTS;
        unsigned mask = match_tags(table->tag + first, tag);
        for (; mask; mask &= mask - 1) {
            uint32_t slot = first + (uint32_t)__builtin_ctz(mask);
            if (vr_flow_key_equal(&table->flow[slot].key, key))
                return slot;
        }
    }
    return VR_NO_SLOT;
}

void vr_flow_prefetch_tags(const struct vr_table *table, uint64_t hash) {
    uint32_t bucket[2];
    vr_entry_candidates(table, VR_POOL_ESTABLISHED, hash, bucket);
    __builtin_prefetch(table->tag + (size_t)bucket[0] * VR_BUCKET_SLOTS);
    __builtin_prefetch(table->tag + (size_t)bucket[1] * VR_BUCKET_SLOTS);
}

void vr_flow_prefetch_entry(const struct vr_table *table, uint64_t hash, bool rest) {
    uint32_t bucket[2];
    vr_entry_candidates(table, VR_POOL_ESTABLISHED, hash, bucket);
    for (unsigned c = 0; c < 2; c++) {
        uint32_t first = bucket[c] * VR_BUCKET_SLOTS;
        unsigned mask = match_tags(table->tag + first, vr_entry_tag(hash));
        if (!mask)
            continue;
        uint32_t slot = first + (uint32_t)__builtin_ctz(mask);
        __builtin_prefetch(&table->flow[slot], 1);
        __builtin_prefetch(table->flow[slot].half, 1);
        if (rest)
            __builtin_prefetch(&table->rest[slot]);
        return;
    }
}

/* --- writing --- */

static uint32_t oldest(const struct vr_table *table, const uint32_t bucket[2], uint32_t now_ms) {
    uint32_t found = bucket[0] * VR_BUCKET_SLOTS;
    uint32_t found_age_ms = 0;
    for (unsigned i = 0; i < 2 * VR_BUCKET_SLOTS; i++) {
        uint32_t slot = bucket[i / VR_BUCKET_SLOTS] * VR_BUCKET_SLOTS + i % VR_BUCKET_SLOTS;
        uint32_t age_ms = vr_age_ms(now_ms, table->flow[slot].created_ms);
        if (age_ms > found_age_ms) {
            found = slot;
            found_age_ms = age_ms;
        }
    }
    return found;
}

uint32_t vr_flow_place(const struct vr_table *table, enum vr_pool pool, uint64_t hash,
                       uint32_t now_ms) {
    uint32_t bucket[2];
    vr_entry_candidates(table, pool, hash, bucket);
    unsigned free0 = match_tags(table->tag + (size_t)bucket[0] * VR_BUCKET_SLOTS, 0);
    unsigned free1 = match_tags(table->tag + (size_t)bucket[1] * VR_BUCKET_SLOTS, 0);
    if (!free0 && !free1)
        return pool == VR_POOL_HALF_OPEN ? oldest(table, bucket, now_ms) : VR_NO_SLOT;
    if (__builtin_popcount(free0) >= __builtin_popcount(free1))
        return bucket[0] * VR_BUCKET_SLOTS + (uint32_t)__builtin_ctz(free0);
    return bucket[1] * VR_BUCKET_SLOTS + (uint32_t)__builtin_ctz(free1);
}

void vr_flow_insert(struct vr_table *table, uint32_t slot, uint64_t hash,
                    const struct vr_flow *flow, const struct vr_flow_rest *rest) {
    struct vr_flow made = *flow;
    struct vr_flow_rest made_rest = *rest;
    made.generation = table->generation;
    made_rest.path_check = vr_entry_path_check(table, &made.key, &made_rest.path);
    for (unsigned i = 0; i < VR_FLOW_OWNERS; i++) {
        made.half[i].check = vr_entry_half_check(table, &made.key, i, &made.half[i].owner);
        vr_entry_token_check(table, &made.key, i, made_rest.token[i].sealed,
                             made_rest.token[i].check);
    }
    memcpy(&table->rest[slot], &made_rest, sizeof made_rest);
    memcpy(&table->flow[slot], &made, sizeof made);
    publish_tag(&table->tag[slot], vr_entry_tag(hash));
    table->counts[vr_flow_pool(table, slot)]++;
}

void vr_flow_remove(struct vr_table *table, uint32_t slot) {
    publish_tag(&table->tag[slot], 0);
    table->counts[vr_flow_pool(table, slot)]--;
}

void vr_flow_set_owner(struct vr_table *table, uint32_t slot, unsigned i,
                       const struct vr_claim *claim, uint32_t success_ms) {
    struct vr_flow *flow = &table->flow[slot];
    struct vr_owner_half half = {vr_entry_half_check(table, &flow->key, i, &claim->owner),
                                 claim->owner};
    if (flow->valid & 1U << i)
        vr_flow_clear_owner(table, slot, i);
    vr_flow_set_token(table, slot, i, claim->sealed);
    memcpy(&table->rest[slot].success_ms[i], &success_ms, sizeof success_ms);
    memcpy(&flow->half[i], &half, sizeof half);
    unsigned kept = flow->valid & ~(unsigned)VR_VALID_NEWER;
    publish_valid(flow, kept | 1U << i | (i == 1 ? (unsigned)VR_VALID_NEWER : 0));
}

void vr_flow_clear_owner(struct vr_table *table, uint32_t slot, unsigned i) {
    publish_valid(&table->flow[slot], table->flow[slot].valid & ~(1U << i));
}

void vr_flow_set_token(struct vr_table *table, uint32_t slot, unsigned i,
                       const uint8_t sealed[VR_TOKEN_BYTES]) {
    struct vr_flow_rest *rest = &table->rest[slot];
    uint8_t check[3];
    vr_entry_token_check(table, &table->flow[slot].key, i, sealed, check);
    memcpy(rest->token[i].sealed, sealed, VR_TOKEN_BYTES);
    memcpy(rest->token[i].check, check, sizeof check);
}

void vr_flow_set_path(struct vr_table *table, uint32_t slot, const struct vr_path *path) {
    struct vr_flow *flow = &table->flow[slot];
    struct vr_flow_rest *rest = &table->rest[slot];
    uint32_t check = vr_entry_path_check(table, &flow->key, path);
    publish_valid(flow, flow->valid & ~(unsigned)VR_VALID_PATH);
    memcpy(&rest->path, path, sizeof *path);
    memcpy(&rest->path_check, &check, sizeof check);
    publish_valid(flow, flow->valid | VR_VALID_PATH);
}

const uint8_t *vr_flow_token(const struct vr_table *table, uint32_t slot, unsigned i) {
    const struct vr_flow_rest *rest = &table->rest[slot];
    uint8_t check[3];
    vr_entry_token_check(table, &table->flow[slot].key, i, rest->token[i].sealed, check);
    return memcmp(check, rest->token[i].check, sizeof check) == 0 ? rest->token[i].sealed : NULL;
}

/* --- taking over --- */

/* Whether a sound entry may stay: in one of its buckets, and nowhere else as well. A promotion that
 * was cut short leaves a half-open entry beside the established one, which wins. */
static bool belongs(const struct vr_table *table, uint32_t slot, unsigned valid) {
    const struct vr_flow_key *key = &table->flow[slot].key;
    enum vr_pool pool = vr_flow_pool(table, slot);
    uint64_t hash = vr_flow_hash(table, key);
    if (table->tag[slot] != vr_entry_tag(hash) || vr_flow_find(table, pool, key, hash) != slot)
        return false;
    if (pool == VR_POOL_ESTABLISHED)
        return (valid & VR_VALID_OWNERS) != 0;
    return vr_flow_find(table, VR_POOL_ESTABLISHED, key, hash) == VR_NO_SLOT;
}

bool vr_flow_adopt(struct vr_table *table, uint32_t slot) {
    struct vr_flow *flow = &table->flow[slot];
    unsigned valid = vr_entry_valid(table, flow, &table->rest[slot]);
    if (!belongs(table, slot, valid)) {
        vr_flow_remove(table, slot);
        return false;
    }
    if (valid != flow->valid)
        publish_valid(flow, valid);
    memcpy(&flow->generation, &table->generation, sizeof flow->generation);
    return true;
}
