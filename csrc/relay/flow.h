/* flow.h: the flow table: which transceivers a client's packets belong to, in shared memory that
 * outlives the worker that writes it (design 3.4 "The table").
 *
 * 1. One writer. It may die after any single store; the next writer finds every established flow.
 * 2. Fixed buckets of 16 slots, two candidates a key, by keyed SipHash. Tags lie apart from the
 *    entries. Nothing moves; there is no free list and no second index.
 * 3. Insert: fill the entry, then store its tag. Delete: clear the tag.
 * 4. An owner half and the path are written only while their bit in `valid` is clear, and each has
 *    its own keyed checksum over the flow key and itself.
 * 5. Half-open flows have a pool of their own: buckets that no established flow ever takes.
 * 6. An entry of an earlier generation is checked on first touch (vr_flow_adopt).
 * 7. Readers in other processes use audit.h: torn data gives them an entry to skip, never a crash.
 */
#ifndef VR_FLOW_H
#define VR_FLOW_H

#include "table.h"

/* --- finding --- */

/* The slot of `key` in `pool`, or VR_NO_SLOT. `hash` is the key's vr_flow_hash. */
uint32_t vr_flow_find(const struct vr_table *table, enum vr_pool pool,
                      const struct vr_flow_key *key, uint64_t hash);

/* Hints for a batch: first the tags of all its keys, then the entries, `rest` too where a reply needs
 * the way back. */
void vr_flow_prefetch_tags(const struct vr_table *table, uint64_t hash);
void vr_flow_prefetch_entry(const struct vr_table *table, uint64_t hash, bool rest);

/* --- writing: the one writer only --- */

/* Where a new flow goes: a free slot of the emptier candidate bucket, else VR_NO_SLOT, or for the
 * half-open pool the oldest entry of both buckets, which the caller removes first. */
uint32_t vr_flow_place(const struct vr_table *table, enum vr_pool pool, uint64_t hash,
                       uint32_t now_ms);

/* Fills the free slot `slot` from vr_flow_place and makes it visible. Of `flow` the key, flags,
 * times and counters are taken, of `rest` path, success times and tokens; owner halves come from
 * `flow` where `flow->valid` says so. Checksums and generation are made here. */
void vr_flow_insert(struct vr_table *table, uint32_t slot, uint64_t hash,
                    const struct vr_flow *flow, const struct vr_flow_rest *rest);

void vr_flow_remove(struct vr_table *table, uint32_t slot);

/* Writes owner half `i`, whose former content is gone first. With two owners it is the newer. */
void vr_flow_set_owner(struct vr_table *table, uint32_t slot, unsigned i,
                       const struct vr_claim *claim, uint32_t success_ms);
void vr_flow_clear_owner(struct vr_table *table, uint32_t slot, unsigned i);
void vr_flow_set_token(struct vr_table *table, uint32_t slot, unsigned i,
                       const uint8_t sealed[VR_TOKEN_BYTES]);
void vr_flow_set_path(struct vr_table *table, uint32_t slot, const struct vr_path *path);

/* The sealed token `i` of the flow, or NULL when it has none or a torn one. */
const uint8_t *vr_flow_token(const struct vr_table *table, uint32_t slot, unsigned i);

/* Checks an entry of an earlier generation and makes it this one's: what does not hold is cleared,
 * and an entry without what its pool requires, or known twice, is removed: false. */
bool vr_flow_adopt(struct vr_table *table, uint32_t slot);

#endif
