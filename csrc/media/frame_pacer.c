#include "frame_pacer.h"

#include <string.h>

enum { TICK_MS = 20 };

static uint32_t tick_units(const struct vr_frame_pacer *p) {
    return p->clock_hz / 1000 * TICK_MS;
}

bool vr_frame_pacer_init(struct vr_frame_pacer *p, uint32_t clock_hz, uint32_t start_ms,
                         uint32_t first_timestamp, size_t capacity_bytes) {
    memset(p, 0, sizeof *p);
    p->clock_hz = clock_hz;
    p->start_ticks = (start_ms + TICK_MS - 1) / TICK_MS;
    p->timestamp = first_timestamp;
    return vr_frames_init(&p->frames, capacity_bytes);
}

void vr_frame_pacer_free(struct vr_frame_pacer *p) {
    vr_frames_free(&p->frames);
}

/* --- writer ---------------------------------------------------------------------------------- */

bool vr_frame_pacer_write(struct vr_frame_pacer *p, uint32_t units, const uint8_t *payload,
                          size_t payload_bytes) {
    struct vr_frame frame = {.units = units, .payload_bytes = (uint32_t)payload_bytes};
    atomic_fetch_add_explicit(&p->waiting_units, units, memory_order_relaxed);
    if (vr_frames_write(&p->frames, &frame, payload))
        return true;
    atomic_fetch_sub_explicit(&p->waiting_units, units, memory_order_relaxed);
    return false;
}

void vr_frame_pacer_flush(struct vr_frame_pacer *p) {
    vr_frames_flush(&p->frames);
}

uint32_t vr_frame_pacer_waiting_ms(const struct vr_frame_pacer *pacer) {
    struct vr_frame_pacer *p = (struct vr_frame_pacer *)pacer;
    uint64_t units = atomic_load_explicit(&p->waiting_units, memory_order_relaxed);
    return p->clock_hz == 0 ? 0 : (uint32_t)(units * 1000 / p->clock_hz);
}

/* --- player ---------------------------------------------------------------------------------- */

static void pop(struct vr_frame_pacer *p) {
    const struct vr_frame *frame = vr_frames_peek(&p->frames);
    if (frame != NULL)
        atomic_fetch_sub_explicit(&p->waiting_units, frame->units, memory_order_relaxed);
    vr_frames_pop(&p->frames);
}

static void drop_flushed(struct vr_frame_pacer *p) {
    while (vr_frames_is_flushed(&p->frames))
        pop(p);
}

static bool may_start(struct vr_frame_pacer *p) {
    if (p->talking || vr_frame_pacer_waiting_ms(p) >= p->start_ticks * TICK_MS ||
        p->waited_ticks >= p->start_ticks)
        return true;
    p->waited_ticks++;
    return false;
}

const struct vr_frame *vr_frame_pacer_tick(struct vr_frame_pacer *p, struct vr_frame *out) {
    *out = (struct vr_frame){.timestamp = p->timestamp};
    p->timestamp += tick_units(p);
    drop_flushed(p);
    if (p->busy_ticks != 0) {
        p->busy_ticks--;
        return NULL;
    }
    const struct vr_frame *frame = vr_frames_peek(&p->frames);
    if (frame == NULL) {
        p->talking = false;
        p->waited_ticks = 0;
        return NULL;
    }
    if (!may_start(p))
        return NULL;
    uint32_t ticks = frame->units / tick_units(p);
    p->busy_ticks = ticks != 0 ? ticks - 1 : 0;
    if (frame->payload_bytes == 0) {
        pop(p);
        p->talking = false;
        p->waited_ticks = p->start_ticks; /* what follows a pause is on time */
        return NULL;
    }
    out->units = frame->units;
    out->payload_bytes = frame->payload_bytes;
    out->marker = !p->talking;
    p->talking = true;
    p->waited_ticks = 0;
    return frame;
}

void vr_frame_pacer_skip(struct vr_frame_pacer *p, uint32_t ticks) {
    p->timestamp += ticks * tick_units(p);
    p->busy_ticks -= ticks < p->busy_ticks ? ticks : p->busy_ticks;
}

void vr_frame_pacer_sent(struct vr_frame_pacer *p) {
    pop(p);
}
