/* What other threads take of a session: its sound, its frames, its numbers. */
#include "session_state.h"

#include <stdatomic.h>

size_t vr_session_readable(const struct vr_session *s) {
    return vr_ring_readable(&s->heard);
}

bool vr_session_is_readable(const struct vr_session *s, uint32_t least_ms) {
    if (s->config.mode == VR_SESSION_FRAMES)
        return vr_frames_waiting(&s->frames) != 0;
    return vr_session_readable(s) * 1000 / s->config.receive.rate_hz >= least_ms;
}

size_t vr_session_read(struct vr_session *s, int16_t *pcm, size_t capacity) {
    return vr_ring_read(&s->heard, pcm, capacity);
}

size_t vr_session_tap_readable(const struct vr_session *s) {
    return vr_ring_readable(&s->tap);
}

size_t vr_session_read_tap(struct vr_session *s, int16_t *pcm, size_t capacity) {
    return vr_ring_read(&s->tap, pcm, capacity / 2 * 2);
}

struct vr_frames *vr_session_frames(struct vr_session *s) {
    return &s->frames;
}

struct vr_frames *vr_session_frame_tap(struct vr_session *s) {
    return &s->frame_tap;
}

struct vr_frame_pacer *vr_session_frame_pacer(struct vr_session *s) {
    return s->config.mode == VR_SESSION_FRAMES ? &s->frame_pacer : NULL;
}

struct vr_pacer *vr_session_pacer(struct vr_session *s) {
    return s->pacer;
}

void vr_session_read_marks(const struct vr_session *s, struct vr_session_marks *out) {
    *out = (struct vr_session_marks){
        .first_in_ns = s->counts.first_in_ns,
        .first_out_ns = s->counts.first_out_ns,
    };
}

void vr_session_read_counts(const struct vr_session *session, struct vr_session_counts *out) {
    struct vr_session *s = (struct vr_session *)session;
    *out = s->counts;
    out->blocks_lost = atomic_load_explicit(&s->heard.blocks_lost, memory_order_relaxed);
    out->tap_blocks_lost = atomic_load_explicit(&s->tap.blocks_lost, memory_order_relaxed);
    out->lost_in = s->lost_of_others + vr_reception_lost(&s->reception);
    out->jitter_in_units = s->reception.jitter_16 >> 4;
    out->clock_hz_in = s->reception.clock_hz;
    out->frames_lost = atomic_load_explicit(&s->frames.refused, memory_order_relaxed);
    out->tap_frames_lost = atomic_load_explicit(&s->frame_tap.refused, memory_order_relaxed);
    if (s->config.mode != VR_SESSION_PCM)
        return;
    out->receive = s->receiver.counts;
    out->jitter = s->receiver.jitter.counts;
    out->target_ns = s->receiver.jitter.target_ns;
    vr_pacer_read_counts(s->pacer, &out->pacer);
}
