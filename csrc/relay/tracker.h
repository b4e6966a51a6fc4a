/* tracker.h: the life of a flow: half-open, established, gone; table, caps and counters in step
 * (design rules 3 and 8).
 *
 *     nothing    -- check ---------------> half-open     (VR_HALF_OPEN_MS)
 *     nothing    -- found in the cache --> provisional   (VR_PROVISIONAL_MS)
 *     half-open  -- found in the cache --> provisional
 *     any        -- Binding success -----> established   (until its owners are silent)
 *
 * 1. Every flow is opened and closed here, so that what caps.h counts is what the table holds.
 * 2. A life is measured when the flow is looked at, and by the sweep when nobody looks.
 * 3. Repeated checks do not lengthen a half-open life: nobody can pin an entry of that pool.
 * 4. A flow of an earlier generation is checked and counted when it is first seen.
 */
#ifndef VR_TRACKER_H
#define VR_TRACKER_H

#include "caps.h"
#include "flow.h"
#include "stats.h"
#include "transactions.h"

/* In 2 s one token makes under 64 new flows (20/s), so a single captured token cannot use up the
 * unanswered first packets of somebody else's address. */
enum { VR_HALF_OPEN_MS = 2000, VR_PROVISIONAL_MS = 10000 };

/* One flow key at one moment. */
struct vr_flow_at {
    struct vr_flow_key key;
    uint64_t hash; /* vr_flow_hash of the key */
    uint32_t now_ms;
};

struct vr_tracker {
    struct vr_table *table;
    struct vr_caps *caps;
    struct vr_stats *stats;
    uint32_t idle_timeout_ms;
    uint32_t sweep_bucket; /* the next one */
};

/* Shows what the table holds, once the table has been taken over. */
void vr_tracker_start(struct vr_tracker *tracker);

/* The flow that lives in `pool`, its owners settled, or VR_NO_SLOT. */
uint32_t vr_tracker_find(struct vr_tracker *tracker, enum vr_pool pool,
                         const struct vr_flow_at *at);

/* A new half-open flow for a key that has none, made by a check with the token `sealed` (NULL: by
 * none). The oldest one of its buckets gives way. */
uint32_t vr_tracker_open(struct vr_tracker *tracker, const struct vr_flow_at *at,
                         const struct vr_path *path, const uint8_t *sealed);

/* A provisional flow for a key that is not established, or a half-open one made provisional, with the
 * owners and path of `found`: 1 or 2 that the cache has, none the same. */
void vr_tracker_recover(struct vr_tracker *tracker, const struct vr_flow_at *at,
                        const struct vr_transaction *found, unsigned count);

/* A success for `check` passes: makes the flow established, or confirms an owner. VR_DROPS and the
 * flow in `slot`, or the reason and nothing has changed. */
enum vr_drop vr_tracker_confirm(struct vr_tracker *tracker, const struct vr_flow_at *at,
                                const struct vr_transaction *check, uint32_t *slot);

/* A response passed on a half-open flow: it does not count as unanswered any more. */
void vr_tracker_answered(struct vr_tracker *tracker, uint32_t slot);

/* Looks at the next hundredth of all buckets: ends what is over, and takes over a few hundred entries of
 * an earlier generation. (The rest waits for its first packet or another round: a big table is not
 * checked while its clients wait.) */
void vr_tracker_sweep(struct vr_tracker *tracker, uint32_t now_ms);

#endif
