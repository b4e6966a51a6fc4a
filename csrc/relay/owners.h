/* owners.h: who a flow's packets belong to (design rule 4).
 *
 * 1. A flow has at most two owners. A second one joins when its own success passes.
 * 2. Of two, one leaves, in favour of the other, when no success of its own has passed for 30 s. The
 *    last one stays: only the idle clock ends a flow.
 * 3. A third replaces the newer of the two, never the older.
 * 4. A new token of an owner changes nothing but the token.
 * 5. Each owner's token counts once for the established flows of that token (caps.h).
 */
#ifndef VR_OWNERS_H
#define VR_OWNERS_H

#include "caps.h"
#include "flow.h"
#include "transactions.h"

enum { VR_OWNER_SILENCE_MS = 30000 };

/* The half (0 or 1) of `flow` that `owner` has, or VR_FLOW_OWNERS. */
unsigned vr_owners_find(const struct vr_flow *flow, const struct vr_owner *owner);

/* Rule 2, at `now_ms`. */
void vr_owners_settle(struct vr_table *table, struct vr_caps *caps, uint32_t slot, uint32_t now_ms);

/* A success for `check` passes on the established flow in `slot`: refreshes, joins or replaces.
 * VR_DROPS, or VR_DROP_CAP_TOKEN_FLOWS and nothing has changed. */
enum vr_drop vr_owners_confirm(struct vr_table *table, struct vr_caps *caps, uint32_t slot,
                               const struct vr_transaction *check, uint32_t now_ms);

/* Counts the tokens of the established flow in `slot`, or takes them from the count. */
void vr_owners_count(const struct vr_table *table, struct vr_caps *caps, uint32_t slot);
void vr_owners_uncount(const struct vr_table *table, struct vr_caps *caps, uint32_t slot);

#endif
