/* queue.h: a bounded queue of byte records from one thread to another, without a lock.
 *
 * One thread pushes, one pops. A record lies in one piece, 8-aligned; what does not fit is refused and the
 * pusher counts it. Pushing is two steps, so that the pusher writes into the queue itself.
 */
#ifndef VR_QUEUE_H
#define VR_QUEUE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

struct vr_queue {
    uint8_t *data;
    size_t capacity_bytes;   /* a power of two */
    _Atomic uint64_t pushed; /* bytes since the beginning */
    _Atomic uint64_t popped;
};

enum { VR_QUEUE_HEAD_BYTES = 8 }; /* length of the record; UINT64_MAX: go on at the start */

static inline bool vr_queue_init(struct vr_queue *q, size_t capacity_bytes) {
    q->data = malloc(capacity_bytes);
    q->capacity_bytes = capacity_bytes;
    atomic_init(&q->pushed, 0);
    atomic_init(&q->popped, 0);
    return q->data != NULL;
}

static inline void vr_queue_free(struct vr_queue *q) {
    free(q->data);
    q->data = NULL;
}

static inline size_t vr_queue_span(size_t bytes) {
    return VR_QUEUE_HEAD_BYTES + ((bytes + 7) & ~(size_t)7);
}

/* Bytes in use, as the pusher sees it: at least what is. */
static inline size_t vr_queue_used(struct vr_queue *q) {
    return (size_t)(atomic_load_explicit(&q->pushed, memory_order_relaxed) -
                    atomic_load_explicit(&q->popped, memory_order_acquire));
}

/* Bytes in use, as the popper sees it: at most what is. */
static inline size_t vr_queue_used_by_popper(struct vr_queue *q) {
    return (size_t)(atomic_load_explicit(&q->pushed, memory_order_acquire) -
                    atomic_load_explicit(&q->popped, memory_order_relaxed));
}

/* Room for a record of `bytes`, or NULL. Nothing is visible before vr_queue_push. */
static inline void *vr_queue_reserve(struct vr_queue *q, size_t bytes) {
    uint64_t pushed = atomic_load_explicit(&q->pushed, memory_order_relaxed);
    uint64_t popped = atomic_load_explicit(&q->popped, memory_order_acquire);
    size_t span = vr_queue_span(bytes), at = (size_t)(pushed & (q->capacity_bytes - 1));
    size_t to_end = q->capacity_bytes - at;
    size_t needed = span <= to_end ? span : to_end + span;
    if (bytes >= q->capacity_bytes / 2 || needed > q->capacity_bytes - (size_t)(pushed - popped))
        return NULL;
    if (span > to_end) {
        *(uint64_t *)(void *)(q->data + at) = UINT64_MAX;
        atomic_store_explicit(&q->pushed, pushed + to_end, memory_order_release);
        at = 0;
    }
    *(uint64_t *)(void *)(q->data + at) = bytes;
    return q->data + at + VR_QUEUE_HEAD_BYTES;
}

/* Makes the record that was reserved last, of the same `bytes`, visible. */
static inline void vr_queue_push(struct vr_queue *q, size_t bytes) {
    uint64_t pushed = atomic_load_explicit(&q->pushed, memory_order_relaxed);
    atomic_store_explicit(&q->pushed, pushed + vr_queue_span(bytes), memory_order_release);
}

/* The oldest record, or NULL; it stays until vr_queue_pop. */
static inline void *vr_queue_peek(struct vr_queue *q, size_t *bytes) {
    for (;;) {
        uint64_t popped = atomic_load_explicit(&q->popped, memory_order_relaxed);
        if (popped == atomic_load_explicit(&q->pushed, memory_order_acquire))
            return NULL;
        size_t at = (size_t)(popped & (q->capacity_bytes - 1));
        uint64_t length = *(uint64_t *)(void *)(q->data + at);
        if (length != UINT64_MAX) {
            *bytes = (size_t)length;
            return q->data + at + VR_QUEUE_HEAD_BYTES;
        }
        atomic_store_explicit(&q->popped, popped + q->capacity_bytes - at, memory_order_release);
    }
}

static inline void vr_queue_pop(struct vr_queue *q, size_t bytes) {
    uint64_t popped = atomic_load_explicit(&q->popped, memory_order_relaxed);
    atomic_store_explicit(&q->popped, popped + vr_queue_span(bytes), memory_order_release);
}

#endif
