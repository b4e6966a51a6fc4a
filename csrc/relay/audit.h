/* audit.h: reading a flow table that another process writes, or wrote until it died.
 *
 * 1. Nothing here writes to the table: a read-only mapping is enough.
 * 2. An entry is copied, then checked; what was torn is not reported as an entry.
 * 3. A fault is something that no writer leaves behind, dead or alive: it is looked at again before
 *    it is reported, since the writer may be in the middle of a change.
 */
#ifndef VR_AUDIT_H
#define VR_AUDIT_H

#include "table.h"

/* Copies the entry in `slot`: false when it is free, changed meanwhile, or not what its tag says.
 * In the copies `valid` keeps only bits whose checksum holds, and a torn token is all zero. */
bool vr_flow_read(const struct vr_table *table, uint32_t slot, struct vr_flow *flow,
                  struct vr_flow_rest *rest);

/* X(symbol, "what is wrong with the entry") */
#define VR_FAULTS(X)                                                                               \
    X(KEY, "its tag does not belong to its flow key")                                              \
    X(BUCKET, "it lies in neither of its buckets")                                                 \
    X(OWNER, "the checksum of a valid owner half does not hold")                                   \
    X(PATH, "the checksum of its path does not hold")                                              \
    X(OWNERLESS, "it is established without an owner")                                             \
    X(SAME_OWNER, "both owner halves name the same transceiver")                                   \
    X(TWICE, "its flow key lies in another slot of the pool as well")                              \
    X(BOTH_POOLS, "it is both half-open and established")

enum vr_fault_kind {
#define X(symbol, text) VR_FAULT_##symbol,
    VR_FAULTS(X)
#undef X
        VR_FAULT_KINDS,
};

struct vr_fault {
    uint32_t slot;
    enum vr_fault_kind kind;
};

/* Looks at every slot. Returns how many faults there are, the first `capacity` of them in `faults`.
 * BOTH_POOLS alone is what a writer that died may leave: the half-open entry goes when the next
 * writer first touches it (vr_flow_adopt). About 30 ms for a million flows. */
size_t vr_table_audit(const struct vr_table *table, struct vr_fault *faults, size_t capacity);

/* "it is established without an owner" */
const char *vr_fault_text(enum vr_fault_kind kind);

#endif
