/* engine.h: the media thread of a transceiver process: the socket, the rules of its flow keys, the clock.
 *
 * 1. One thread runs vr_engine_run without the GIL and owns the socket, the ICE agent and all sessions.
 *    STUN is answered here; SRTP is handled in place; DTLS goes to Python as an event.
 * 2. Python is the *controller*: one thread at a time calls the functions marked so. Commands and events
 *    cross two bounded queues; what does not fit is refused or dropped, and counted. Closing needs no room;
 *    that it is done, and that consent has ended, is told as soon as there is some.
 * 3. The clock: 20 slots of 1 ms, each session in the emptiest when it opens (wheel.h). A session's tick then
 *    moves, a millisecond a round, to where its client's sound is due, and no farther than the slots
 *    stay level. Deadlines are absolute; a late thread catches up by at most VR_ENGINE_CATCH_UP_MS, then
 *    skips and counts.
 * 4. `notify_fd` becomes readable when events wait: at once for DTLS, checks and ends, at most every
 *    `wake_ms` when there is only sound to read.
 * 5. A session's media (vr_session) may be read and written by the controller until it closes the session;
 *    the engine frees it.
 */
#ifndef VR_ENGINE_H
#define VR_ENGINE_H

#include "session.h"
#include "socket.h"

enum {
    VR_ENGINE_CATCH_UP_MS = 100,
    VR_ENGINE_RELAYS = 64, /* --allow-relay networks */
    VR_ENGINE_EVENTS_BYTES = 1 << 20,
    VR_ENGINE_COMMANDS_BYTES = 1 << 20,
    VR_ENGINE_LATENESS = 10 * VR_ENGINE_CATCH_UP_MS + 1, /* buckets of 100 us; the last: more */
};

struct vr_network {
    uint8_t ip[16];      /* IPv4 mapped */
    uint8_t prefix_bits; /* 0..128 */
};

struct vr_engine_config {
    int fd; /* bound UDP socket, non-blocking; stays the caller's */
    uint32_t max_sessions;
    uint32_t wake_ms; /* 20..100: also the PCM that a session gathers before it is told of */
    bool direct;      /* datagrams without SPP are taken too */
    uint32_t relay_count;
    struct vr_network relays[VR_ENGINE_RELAYS];
    uint64_t hash_seed;
};

enum vr_engine_drop {
    VR_ENGINE_FOREIGN_RELAY, /* wrapped, but not from an allowed relay */
    VR_ENGINE_NOT_WRAPPED,
    VR_ENGINE_EMPTY,
    VR_ENGINE_UNKNOWN_PROTOCOL,
    VR_ENGINE_NO_MEMBER,     /* DTLS or media of a flow key that nobody has validated */
    VR_ENGINE_NOT_AUTHENTIC, /* media that none of the sessions of its flow key could open */
    VR_ENGINE_REPLAYED,
    VR_ENGINE_EVENTS_FULL, /* DTLS, checks and digits that Python was too slow to fetch */
    VR_ENGINE_TOO_BIG,     /* over what a datagram of ours can hold */
    VR_ENGINE_PAUSED,      /* to be sent, but no path is authenticated */
    VR_ENGINE_DROP_COUNT,
};

/* The text of a drop, for metrics. */
const char *vr_engine_drop_name(enum vr_engine_drop drop);

struct vr_engine_counts {
    uint64_t drops[VR_ENGINE_DROP_COUNT];
    uint64_t checks[VR_ICE_STATUS_COUNT];
    uint64_t rtp_in, rtp_out, rtcp_in, rtcp_out, dtls_in, dtls_out;
    uint64_t ticks, skipped_ticks;         /* of sessions: served, and left out */
    uint64_t late_ns;                      /* of all that were served, to their deadlines */
    uint64_t lateness[VR_ENGINE_LATENESS]; /* how many of them were so late */
    uint64_t wakeups;                      /* of Python */
    uint64_t sessions;
    struct vr_socket_counts socket;
};

enum vr_engine_event_kind {
    VR_ENGINE_CHECKED = 1, /* a check was answered: the first of the session on this flow key */
    VR_ENGINE_DTLS,        /* payload: a datagram of one of the session's validated flow keys */
    VR_ENGINE_READABLE,    /* PCM waits; comes again only after vr_engine_rearm */
    VR_ENGINE_DIGIT,       /* payload: one byte, the telephone event */
    VR_ENGINE_EXPIRED,     /* no consent any more */
    VR_ENGINE_CLOSED,      /* the session's slot is free again */
};

struct vr_engine_event {
    uint32_t kind;
    uint32_t session;
    uint32_t payload_bytes;
    uint32_t reserved;
    uint64_t at_ns;
    struct vr_flow_key key;  /* CHECKED, DTLS */
    struct vr_source source; /* CHECKED, DTLS: handed back to vr_engine_authenticated */
    uint8_t payload[];
};

struct vr_engine;

/* NULL when memory is short or the socket is none. */
struct vr_engine *vr_engine_new(const struct vr_engine_config *config);
void vr_engine_free(
    struct vr_engine *engine); /* after vr_engine_run has returned; ends all sessions */

/* The engine's thread. Returns 0 after vr_engine_stop, or -errno when it cannot go on. */
int vr_engine_run(struct vr_engine *engine);
void vr_engine_stop(struct vr_engine *engine); /* any thread */

int vr_engine_notify_fd(const struct vr_engine *engine);
uint64_t vr_engine_now_ns(void); /* the clock of all times here: CLOCK_MONOTONIC */

/* Controller. Opens a free `session` (0..max_sessions-1; one that was closed is free when VR_ENGINE_CLOSED
 * has come); `media` is the engine's from now on when 0 is
 * returned. -EINVAL for credentials of a bad length, -EAGAIN when the command queue is full. A ufrag that
 * is in use is the caller's fault; such a session never gets a check and expires. */
int vr_engine_open(struct vr_engine *engine, uint32_t session, const char *ufrag, const char *pwd,
                   const char *remote_ufrag, struct vr_session *media);
int vr_engine_keys(struct vr_engine *engine, uint32_t session, struct vr_srtp *receive,
                   struct vr_srtp *send);

/* Controller. Ends a session that was opened, with a BYE; cannot fail. */
void vr_engine_close(struct vr_engine *engine, uint32_t session);

/* Controller. Sends a DTLS datagram to the session's media path, if there is one. */
int vr_engine_send(struct vr_engine *engine, uint32_t session, const uint8_t *data, size_t bytes);

/* Controller. A DTLS datagram that came with `event` was authentic. */
int vr_engine_authenticated(struct vr_engine *engine, const struct vr_engine_event *event);

/* Controller. The oldest event, or NULL; valid until vr_engine_pop. Before the first look, call
 * vr_engine_awake, which makes the notify_fd quiet. */
void vr_engine_awake(struct vr_engine *engine);
const struct vr_engine_event *vr_engine_peek(struct vr_engine *engine);
void vr_engine_pop(struct vr_engine *engine);

/* Controller. The session's PCM was read: tell of more. */
void vr_engine_rearm(struct vr_engine *engine, uint32_t session);

/* Any thread. Whether the session has consent, may send, and since when nothing authentic came. */
struct vr_engine_path {
    bool paused;
    struct vr_flow_key key; /* where media goes; zeros before the first check */
    uint64_t authenticated_ns;
};
bool vr_engine_read_path(const struct vr_engine *engine, uint32_t session,
                         struct vr_engine_path *out);

/* Any thread, approximately. */
void vr_engine_read_counts(const struct vr_engine *engine, struct vr_engine_counts *out);

#endif
