/* tally.h: how many of something each of many keys has now, in fixed memory: added and removed.
 *
 * 1. Keys are keyed hashes (siphash.h). Two keys whose 32-bit fingerprints meet share one count.
 * 2. Where there is no room for a new key it is not counted: a full tally refuses nobody.
 * 3. A count never goes below 0.
 */
#ifndef VR_TALLY_H
#define VR_TALLY_H

#include <stddef.h>
#include <stdint.h>

struct vr_tally;

/* Room for `keys` keys with a count above 0. NULL when memory is not to be had. */
struct vr_tally *vr_tally_new(size_t keys);
void vr_tally_free(struct vr_tally *tally);

uint32_t vr_tally_get(const struct vr_tally *tally, uint64_t hash);
void vr_tally_add(struct vr_tally *tally, uint64_t hash);
void vr_tally_remove(struct vr_tally *tally, uint64_t hash);

#endif
