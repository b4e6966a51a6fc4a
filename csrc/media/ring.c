#include "ring.h"

#include <stdlib.h>
#include <string.h>

bool vr_ring_init(struct vr_ring *r, size_t block, size_t blocks) {
    memset(r, 0, sizeof *r);
    r->samples = malloc(block * blocks * sizeof *r->samples);
    r->block = block;
    r->capacity = block * blocks;
    return r->samples != NULL;
}

void vr_ring_free(struct vr_ring *r) {
    free(r->samples);
    r->samples = NULL;
}

void vr_ring_write(struct vr_ring *r, const int16_t *block) {
    uint64_t written = atomic_load_explicit(&r->written, memory_order_relaxed);
    /* the capacity is a whole number of blocks: a block never wraps */
    memcpy(r->samples + written % r->capacity, block, r->block * sizeof *block);
    atomic_store_explicit(&r->written, written + r->block, memory_order_release);
}

/* The oldest sample that is still whole: the writer may be filling the block behind the newest. */
static uint64_t oldest(const struct vr_ring *r, uint64_t written) {
    uint64_t kept = r->capacity - r->block;
    return written > kept ? written - kept : 0;
}

size_t vr_ring_readable(const struct vr_ring *ring) {
    struct vr_ring *r = (struct vr_ring *)ring;
    if (r->samples == NULL)
        return 0;
    uint64_t written = atomic_load_explicit(&r->written, memory_order_acquire);
    uint64_t read = atomic_load_explicit(&r->read, memory_order_relaxed);
    uint64_t first = oldest(r, written);
    return (size_t)(written - (read > first ? read : first));
}

size_t vr_ring_read(struct vr_ring *r, int16_t *out, size_t capacity) {
    if (r->samples == NULL)
        return 0;
    uint64_t read = atomic_load_explicit(&r->read, memory_order_relaxed);
    for (;;) {
        uint64_t written = atomic_load_explicit(&r->written, memory_order_acquire);
        uint64_t first = oldest(r, written);
        if (read < first) {
            atomic_fetch_add_explicit(&r->blocks_lost, (first - read) / r->block,
                                      memory_order_relaxed);
            read = first;
        }
        size_t count = (size_t)(written - read) < capacity ? (size_t)(written - read) : capacity;
        size_t at = (size_t)(read % r->capacity), to_end = r->capacity - at;
        size_t head = count < to_end ? count : to_end;
        memcpy(out, r->samples + at, head * sizeof *out);
        memcpy(out + head, r->samples, (count - head) * sizeof *out);
        atomic_thread_fence(memory_order_acquire);
        if (oldest(r, atomic_load_explicit(&r->written, memory_order_relaxed)) > read)
            continue; /* overwritten meanwhile */
        atomic_store_explicit(&r->read, read + count, memory_order_relaxed);
        return count;
    }
}
