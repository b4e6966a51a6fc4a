#include "frames.h"

#include <string.h>

bool vr_frames_init(struct vr_frames *f, size_t capacity_bytes) {
    memset(f, 0, sizeof *f);
    return vr_queue_init(&f->queue, capacity_bytes);
}

void vr_frames_free(struct vr_frames *f) {
    vr_queue_free(&f->queue);
}

bool vr_frames_write(struct vr_frames *f, const struct vr_frame *frame, const uint8_t *payload) {
    size_t bytes = sizeof *frame + frame->payload_bytes;
    struct vr_frame *made = f->queue.data == NULL ? NULL : vr_queue_reserve(&f->queue, bytes);
    if (made == NULL) {
        atomic_fetch_add_explicit(&f->refused, 1, memory_order_relaxed);
        return false;
    }
    *made = *frame;
    if (frame->payload_bytes != 0)
        memcpy(made->payload, payload, frame->payload_bytes);
    vr_queue_push(&f->queue, bytes);
    atomic_fetch_add_explicit(&f->written, 1, memory_order_release);
    return true;
}

void vr_frames_flush(struct vr_frames *f) {
    atomic_store_explicit(&f->flush_to, atomic_load_explicit(&f->written, memory_order_relaxed),
                          memory_order_release);
}

size_t vr_frames_waiting(const struct vr_frames *frames) {
    struct vr_frames *f = (struct vr_frames *)frames;
    uint64_t read = atomic_load_explicit(&f->read, memory_order_acquire);
    return (size_t)(atomic_load_explicit(&f->written, memory_order_acquire) - read);
}

const struct vr_frame *vr_frames_peek(struct vr_frames *f) {
    size_t bytes;
    return f->queue.data == NULL ? NULL : vr_queue_peek(&f->queue, &bytes);
}

void vr_frames_pop(struct vr_frames *f) {
    size_t bytes;
    if (f->queue.data == NULL || vr_queue_peek(&f->queue, &bytes) == NULL)
        return;
    vr_queue_pop(&f->queue, bytes);
    atomic_fetch_add_explicit(&f->read, 1, memory_order_release);
}

bool vr_frames_is_flushed(struct vr_frames *f) {
    uint64_t flush_to = atomic_load_explicit(&f->flush_to, memory_order_acquire);
    return atomic_load_explicit(&f->read, memory_order_relaxed) < flush_to &&
           vr_frames_peek(f) != NULL;
}
