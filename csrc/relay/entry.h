/* entry.h: what an entry of the flow table must satisfy: its tag, its two places, its checksums.
 *
 * Internal to flow.c and audit.c. Checksums are keyed, and each covers the flow key and what kind of
 * thing it is: nothing that holds in one place holds in another.
 */
#ifndef VR_ENTRY_H
#define VR_ENTRY_H

#include "table.h"

static inline uint16_t vr_entry_tag(uint64_t hash) {
    uint16_t tag = (uint16_t)hash;
    return tag ? tag : 1;
}

/* The two candidate buckets of a hash: the upper and lower half of it, scaled. */
static inline void vr_entry_candidates(const struct vr_table *table, enum vr_pool pool,
                                       uint64_t hash, uint32_t bucket[2]) {
    uint32_t first = table->first_slot[pool] / VR_BUCKET_SLOTS;
    bucket[0] = first + (uint32_t)((hash >> 32) * table->buckets[pool] >> 32);
    bucket[1] = first + (uint32_t)((hash & UINT32_MAX) * table->buckets[pool] >> 32);
}

static inline uint32_t vr_entry_half_check(const struct vr_table *table,
                                           const struct vr_flow_key *key, unsigned i,
                                           const struct vr_owner *owner) {
    struct {
        struct vr_flow_key key;
        struct vr_owner owner;
        uint8_t what[4];
    } covered = {*key, *owner, {'o', (uint8_t)i}};
    return (uint32_t)vr_siphash(&table->hash_key, &covered, sizeof covered);
}

static inline uint32_t vr_entry_path_check(const struct vr_table *table,
                                           const struct vr_flow_key *key,
                                           const struct vr_path *path) {
    struct {
        struct vr_flow_key key;
        struct vr_path path;
        uint8_t what[4];
    } covered = {*key, *path, {'p'}};
    return (uint32_t)vr_siphash(&table->hash_key, &covered, sizeof covered);
}

static inline void vr_entry_token_check(const struct vr_table *table, const struct vr_flow_key *key,
                                        unsigned i, const uint8_t sealed[VR_TOKEN_BYTES],
                                        uint8_t check[3]) {
    struct {
        struct vr_flow_key key;
        uint8_t sealed[VR_TOKEN_BYTES];
        uint8_t what[3];
    } covered = {*key, {0}, {'t', (uint8_t)i}};
    memcpy(covered.sealed, sealed, VR_TOKEN_BYTES);
    uint64_t hash = vr_siphash(&table->hash_key, &covered, sizeof covered);
    memcpy(check, &hash, 3);
}

/* The bits of `valid` whose checksums hold. */
static inline unsigned vr_entry_valid(const struct vr_table *table, const struct vr_flow *flow,
                                      const struct vr_flow_rest *rest) {
    unsigned valid = flow->valid & (VR_VALID_OWNERS | VR_VALID_NEWER | VR_VALID_PATH);
    for (unsigned i = 0; i < VR_FLOW_OWNERS; i++)
        if (valid >> i & 1 &&
            vr_entry_half_check(table, &flow->key, i, &flow->half[i].owner) != flow->half[i].check)
            valid &= ~(1U << i);
    if (valid & VR_VALID_PATH &&
        vr_entry_path_check(table, &flow->key, &rest->path) != rest->path_check)
        valid &= ~(unsigned)VR_VALID_PATH;
    return valid;
}

#endif
