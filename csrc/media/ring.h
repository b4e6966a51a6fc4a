/* ring.h: blocks of samples from one thread to another; a reader that sleeps loses the oldest.
 *
 * The writer never waits and never fails. The reader sees whole blocks in order; what was overwritten
 * before it came is counted. No lock.
 */
#ifndef VR_RING_H
#define VR_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vr_ring {
    int16_t *samples; /* NULL: no ring; reading gives nothing */
    size_t capacity;  /* a whole number of blocks */
    size_t block;
    _Atomic uint64_t written; /* since the beginning */
    _Atomic uint64_t read;    /* moved by the reader only */
    _Atomic uint64_t blocks_lost;
};

/* False when memory is short. */
bool vr_ring_init(struct vr_ring *ring, size_t block, size_t blocks);
void vr_ring_free(struct vr_ring *ring);

/* Writer: one block. */
void vr_ring_write(struct vr_ring *ring, const int16_t *block);

/* Reader: samples that wait, and the oldest of them, at most `capacity`. */
size_t vr_ring_readable(const struct vr_ring *ring);
size_t vr_ring_read(struct vr_ring *ring, int16_t *out, size_t capacity);

#endif
