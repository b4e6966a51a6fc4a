/* engine_state.h: what the parts of the engine share; for engine*.c and its tests, nobody else.
 *
 * 1. engine.c makes the engine and runs its thread; engine_commands.c is the way from the controller to it,
 *    engine_events.c the way back; engine_datagrams.c takes what comes, engine_clock.c sends what is due.
 * 2. Everything is the engine thread's but what is marked atomic, the queues' two ends and the path's copy.
 * 3. Only engine.c and socket.c make system calls.
 */
#ifndef VR_ENGINE_STATE_H
#define VR_ENGINE_STATE_H

#include "engine.h"
#include "queue.h"
#include "wheel.h"

#define VR_MS_NS ((uint64_t)1000000)

struct vr_seat {
    struct vr_session *media;
    bool open;
    bool expired;
    uint32_t untold; /* EXPIRED or CLOSED, which there was no room to say yet; 0: none */
    uint32_t ticks;
    _Atomic bool closing; /* the controller is done with it */
    _Atomic bool told;    /* READABLE is out and not rearmed */
    /* a copy of the path for other threads, guarded by a sequence number: odd while it is written */
    _Atomic uint32_t path_sequence;
    struct vr_engine_path path;
};

struct vr_engine {
    struct vr_engine_config config;
    struct vr_socket *socket;
    struct vr_ice *ice;
    struct vr_seat *seats;
    struct vr_wheel wheel;
    struct vr_queue commands, events;
    int command_fd, notify_fd;
    _Atomic bool stopping;
    _Atomic bool closings; /* some seat is `closing` */
    _Atomic bool notified;
    bool urgent, lazy; /* events since the last wake-up */
    uint32_t untold;   /* seats */
    uint64_t woken_ms;
    uint64_t clock_ms; /* the newest slot that was served, in ms of the monotonic clock */
    uint8_t last_relay[16];
    bool last_relay_known;
    struct vr_engine_counts counts;
    struct vr_session_output output;
};

struct vr_event_origin {
    const struct vr_flow_key *key;
    const struct vr_source *source;
};

static inline void vr_engine_drop(struct vr_engine *e, enum vr_engine_drop reason) {
    e->counts.drops[reason]++;
}

/* engine.c */
void vr_engine_poke(int event_fd); /* makes it readable */

/* engine_events.c: false when there is no room; counted, but for what is told again: READABLE and ends. */
bool vr_engine_emit(struct vr_engine *e, enum vr_engine_event_kind kind, uint32_t session,
                    uint64_t now_ns, const struct vr_event_origin *origin, const uint8_t *payload,
                    size_t payload_bytes);
/* Says of an end when there is room; CLOSED takes the place of an EXPIRED that is untold. */
void vr_engine_tell_end(struct vr_engine *e, enum vr_engine_event_kind kind, uint32_t session,
                        uint64_t now_ns);
void vr_engine_tell_ends(struct vr_engine *e, uint64_t now_ns); /* those that are untold */
void vr_engine_notify(struct vr_engine *e, uint64_t now_ns);    /* wakes Python when it is time */
void vr_engine_publish_path(struct vr_engine *e, uint32_t session, const struct vr_ice_path *path);
void vr_engine_clear_path(struct vr_engine *e, uint32_t session,
                          uint64_t now_ns); /* as before a check */

/* engine_commands.c: does what the controller asked for. */
bool vr_engine_has_commands(struct vr_engine *e);
void vr_engine_serve_commands(struct vr_engine *e, uint64_t now_ns);
void vr_engine_free_commands(struct vr_engine *e); /* those that nobody will do */

/* engine_datagrams.c */
void vr_engine_on_datagram(struct vr_engine *e, struct vr_received *in, uint64_t now_ns);

/* engine_clock.c */
void vr_engine_send_now(struct vr_engine *e, const struct vr_ice_path *path, const uint8_t *data,
                        size_t bytes);
/* 20 ms of a session, due at the deadline; returns by how many ms the next had better be later (negative:
 * earlier). */
int vr_engine_tick(struct vr_engine *e, uint32_t session, uint64_t deadline_ns, uint64_t now_ns);
void vr_engine_serve_clock(struct vr_engine *e); /* the slots whose millisecond has come */

#endif
