/* What is due: every session's 20 ms, in the order of their milliseconds. */
#include "engine_state.h"

#include <string.h>

enum {
    EXPIRE_EVERY_TICKS = 50,
    LATE_BUCKET_NS = 100000,
};

void vr_engine_send_now(struct vr_engine *e, const struct vr_ice_path *path, const uint8_t *data,
                        size_t bytes) {
    memcpy(vr_socket_prepare(e->socket), data, bytes);
    vr_socket_queue(e->socket, &path->source, &path->key, bytes);
}

static void tell_readable(struct vr_engine *e, uint32_t session, uint64_t now_ns) {
    struct vr_seat *seat = &e->seats[session];
    if (atomic_load_explicit(&seat->told, memory_order_acquire) ||
        !vr_session_is_readable(seat->media, e->config.wake_ms))
        return;
    atomic_store_explicit(&seat->told, true, memory_order_relaxed);
    if (!vr_engine_emit(e, VR_ENGINE_READABLE, session, now_ns, NULL, NULL, 0))
        atomic_store_explicit(&seat->told, false, memory_order_relaxed);
}

int vr_engine_tick(struct vr_engine *e, uint32_t session, uint64_t deadline_ns, uint64_t now_ns) {
    struct vr_seat *seat = &e->seats[session];
    struct vr_ice_path *path = vr_ice_media_path(e->ice, session, now_ns);
    vr_engine_publish_path(e, session, path);
    if (++seat->ticks % EXPIRE_EVERY_TICKS == 0) {
        vr_ice_expire(e->ice, session, now_ns);
        if (!seat->expired && !vr_ice_has_consent(e->ice, session, now_ns)) {
            seat->expired = true;
            vr_engine_tell_end(e, VR_ENGINE_EXPIRED, session, now_ns);
        }
        path = vr_ice_media_path(e->ice, session, now_ns);
    }
    if (seat->media == NULL)
        return 0;
    struct vr_session_output *out = &e->output;
    bool heard = vr_session_tick(seat->media, now_ns, path == NULL, out);
    if (out->rtp_bytes != 0) {
        vr_engine_send_now(e, path, out->rtp, out->rtp_bytes);
        e->counts.rtp_out++;
    }
    if (out->rtcp_bytes != 0) {
        vr_engine_send_now(e, path, out->rtcp, out->rtcp_bytes);
        e->counts.rtcp_out++;
    }
    if (heard)
        tell_readable(e, session, now_ns);
    return vr_session_shift_ms(seat->media, now_ns - deadline_ns);
}

static void note_lateness(struct vr_engine *e, uint64_t late_ns) {
    uint64_t bucket = late_ns / LATE_BUCKET_NS;
    e->counts.lateness[bucket < VR_ENGINE_LATENESS ? bucket : VR_ENGINE_LATENESS - 1]++;
    e->counts.late_ns += late_ns;
    e->counts.ticks++;
}

/* Up to the millisecond in which it began: with more sessions than it can serve, the socket and the
 * controller have their turn all the same. */
void vr_engine_serve_clock(struct vr_engine *e) {
    uint64_t now_ns = vr_engine_now_ns(), now_ms = now_ns / VR_MS_NS;
    if (now_ms > e->clock_ms + VR_ENGINE_CATCH_UP_MS) {
        uint64_t skipped_ms = now_ms - VR_ENGINE_CATCH_UP_MS;
        e->counts.skipped_ticks += vr_wheel_ticks(&e->wheel, e->clock_ms, skipped_ms);
        e->clock_ms = skipped_ms;
    }
    while (e->clock_ms < now_ms) {
        uint64_t deadline_ns = ++e->clock_ms * VR_MS_NS;
        uint32_t cursor = 0, session;
        while (vr_wheel_take(&e->wheel, e->clock_ms, &cursor, &session)) {
            now_ns = vr_engine_now_ns();
            note_lateness(e, now_ns - deadline_ns);
            uint32_t missed = vr_wheel_missed(&e->wheel, session, e->clock_ms);
            if (missed != 0 && e->seats[session].media != NULL)
                vr_session_skip(e->seats[session].media, missed);
            int shift_ms = vr_engine_tick(e, session, deadline_ns, now_ns);
            vr_wheel_again(&e->wheel, session, e->clock_ms, shift_ms);
        }
        vr_socket_flush(e->socket);
    }
}
