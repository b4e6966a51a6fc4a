/* What the controller is told: events through the bounded queue, and the copy of each session's path. */
#include "engine_state.h"

#include <string.h>

static bool refused(struct vr_engine *e, enum vr_engine_event_kind kind) {
    if (kind == VR_ENGINE_CHECKED || kind == VR_ENGINE_DTLS || kind == VR_ENGINE_DIGIT)
        vr_engine_drop(e, VR_ENGINE_EVENTS_FULL);
    return false;
}

bool vr_engine_emit(struct vr_engine *e, enum vr_engine_event_kind kind, uint32_t session,
                    uint64_t now_ns, const struct vr_event_origin *origin, const uint8_t *payload,
                    size_t payload_bytes) {
    size_t bytes = sizeof(struct vr_engine_event) + payload_bytes;
    /* what is told once, an end above all, has a quarter of the queue for itself */
    bool repeats = kind == VR_ENGINE_DTLS || kind == VR_ENGINE_READABLE;
    if (repeats && vr_queue_used(&e->events) > VR_ENGINE_EVENTS_BYTES / 4 * 3)
        return refused(e, kind);
    struct vr_engine_event *event = vr_queue_reserve(&e->events, bytes);
    if (event == NULL)
        return refused(e, kind);
    memset(event, 0, sizeof *event);
    event->kind = kind;
    event->session = session;
    event->payload_bytes = (uint32_t)payload_bytes;
    event->at_ns = now_ns;
    if (origin != NULL) {
        event->key = *origin->key;
        event->source = *origin->source;
    }
    if (payload_bytes != 0)
        memcpy(event->payload, payload, payload_bytes);
    vr_queue_push(&e->events, bytes);
    if (kind == VR_ENGINE_READABLE)
        e->lazy = true;
    else
        e->urgent = true;
    return true;
}

/* Wakes Python when something urgent waits, or sound for long enough. */
void vr_engine_notify(struct vr_engine *e, uint64_t now_ns) {
    uint64_t now_ms = now_ns / VR_MS_NS;
    if (!e->urgent && !(e->lazy && now_ms - e->woken_ms >= e->config.wake_ms))
        return;
    e->urgent = e->lazy = false;
    e->woken_ms = now_ms;
    if (atomic_exchange(&e->notified, true))
        return;
    e->counts.wakeups++;
    vr_engine_poke(e->notify_fd);
}

void vr_engine_tell_end(struct vr_engine *e, enum vr_engine_event_kind kind, uint32_t session,
                        uint64_t now_ns) {
    struct vr_seat *seat = &e->seats[session];
    if (seat->untold == 0)
        e->untold++;
    seat->untold = kind;
    vr_engine_tell_ends(e, now_ns);
}

void vr_engine_tell_ends(struct vr_engine *e, uint64_t now_ns) {
    for (uint32_t i = 0; e->untold != 0 && i < e->config.max_sessions; i++) {
        enum vr_engine_event_kind kind = e->seats[i].untold;
        if (kind == 0)
            continue;
        if (!vr_engine_emit(e, kind, i, now_ns, NULL, NULL, 0))
            return;
        e->seats[i].untold = 0;
        e->untold--;
    }
}

static void write_path(struct vr_seat *seat, const struct vr_engine_path *path) {
    uint32_t sequence = atomic_load_explicit(&seat->path_sequence, memory_order_relaxed);
    atomic_store_explicit(&seat->path_sequence, sequence + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    seat->path = *path;
    atomic_store_explicit(&seat->path_sequence, sequence + 2, memory_order_release);
}

void vr_engine_clear_path(struct vr_engine *e, uint32_t session, uint64_t now_ns) {
    struct vr_engine_path none = {.paused = true, .authenticated_ns = now_ns};
    write_path(&e->seats[session], &none);
}

void vr_engine_publish_path(struct vr_engine *e, uint32_t session, const struct vr_ice_path *path) {
    struct vr_seat *seat = &e->seats[session];
    if (path == NULL && seat->path.paused)
        return;
    if (path != NULL && !seat->path.paused &&
        seat->path.authenticated_ns == path->authenticated_ns &&
        vr_flow_key_equal(&seat->path.key, &path->key))
        return;
    struct vr_engine_path fresh = seat->path;
    fresh.paused = path == NULL;
    if (path != NULL) {
        fresh.key = path->key;
        fresh.authenticated_ns = path->authenticated_ns;
    }
    write_path(seat, &fresh);
}

bool vr_engine_read_path(const struct vr_engine *e, uint32_t session, struct vr_engine_path *out) {
    struct vr_seat *seat = &e->seats[session];
    for (int tries = 0; tries < 1000; tries++) {
        uint32_t before = atomic_load_explicit(&seat->path_sequence, memory_order_acquire);
        *out = seat->path;
        atomic_thread_fence(memory_order_acquire);
        if (before % 2 == 0 &&
            before == atomic_load_explicit(&seat->path_sequence, memory_order_relaxed))
            return true;
    }
    return false;
}

const struct vr_engine_event *vr_engine_peek(struct vr_engine *e) {
    size_t bytes;
    return vr_queue_peek(&e->events, &bytes);
}

void vr_engine_pop(struct vr_engine *e) {
    size_t bytes;
    if (vr_queue_peek(&e->events, &bytes) != NULL)
        vr_queue_pop(&e->events, bytes);
}

void vr_engine_rearm(struct vr_engine *e, uint32_t session) {
    atomic_store_explicit(&e->seats[session].told, false, memory_order_release);
}
