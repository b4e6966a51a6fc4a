/* rate.h: how often each of many keys happened in the current second, in fixed memory.
 *
 * 1. Keys are keyed hashes (siphash.h): nobody outside can aim at a bucket.
 * 2. A bucket full of this second's keys forgets the one that happened least: under pressure a few
 *    pass that should not, and nobody is refused for what others did.
 * 3. A second is a window, not a bucket that fills: around its end up to twice the limit passes.
 */
#ifndef VR_RATE_H
#define VR_RATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vr_rate;

/* Remembers about `keys` different keys a second. NULL when memory is not to be had. */
struct vr_rate *vr_rate_new(size_t keys);
void vr_rate_free(struct vr_rate *rate);

/* Counts one event of `hash`; false, not counted, when `limit` of them were counted in this second
 * already. A limit of 0, or of 65,535 and more, is none. */
bool vr_rate_take(struct vr_rate *rate, uint64_t hash, uint32_t limit, uint32_t now_ms);

#endif
