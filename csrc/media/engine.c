#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine.h"

#include "../wire/demux.h"
#include "../wire/spp.h"
#include "queue.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define MS_NS ((uint64_t)1000000)

enum {
    RECEIVE_BATCHES = 8, /* between two looks at the clock */
    NEVER_SLOT = 255,
    EXPIRE_EVERY_TICKS = 50,
    BATCHING_SESSIONS = 16,
    IDLE_MS = 1000,
};

enum command_kind { OPEN = 1, KEYS, CLOSE, SEND, AUTHENTICATED };

struct command {
    uint32_t kind;
    uint32_t session;
    union {
        struct {
            struct vr_session *media;
            uint16_t ufrag_bytes, pwd_bytes,
                remote_bytes; /* with their NULs, in `data` one by one */
        } open;
        struct {
            struct vr_srtp *receive, *send;
        } keys;
        struct {
            uint32_t bytes;
        } send;
        struct {
            struct vr_flow_key key;
            struct vr_source source;
            uint64_t at_ns;
        } authenticated;
    };
    uint8_t data[];
};

struct seat {
    struct vr_session *media;
    bool open;
    uint8_t slot;
    uint32_t ticks;
    bool expired;
    _Atomic bool told; /* READABLE is out and not rearmed */
    /* a copy of the path for other threads, guarded by a sequence number: odd while it is written */
    _Atomic uint32_t path_sequence;
    struct vr_engine_path path;
};

struct slot {
    uint32_t *sessions;
    uint32_t count, capacity;
};

struct vr_engine {
    struct vr_engine_config config;
    struct vr_socket *socket;
    struct vr_ice *ice;
    struct seat *seats;
    struct slot slots[VR_ENGINE_SLOTS];
    struct vr_queue commands, events;
    int command_fd, notify_fd;
    _Atomic bool stopping;
    _Atomic bool notified;
    bool urgent, lazy; /* events since the last wake-up */
    uint64_t woken_ms;
    uint64_t clock_ms; /* the newest slot that was served, in ms of the monotonic clock */
    uint8_t last_relay[16];
    bool last_relay_known;
    struct vr_engine_counts counts;
    struct vr_session_output output;
};

static const char *const drop_names[VR_ENGINE_DROP_COUNT] = {
    [VR_ENGINE_FOREIGN_RELAY] = "foreign_relay",
    [VR_ENGINE_NOT_WRAPPED] = "not_wrapped",
    [VR_ENGINE_EMPTY] = "empty",
    [VR_ENGINE_UNKNOWN_PROTOCOL] = "unknown_protocol",
    [VR_ENGINE_NO_MEMBER] = "no_member",
    [VR_ENGINE_NOT_AUTHENTIC] = "not_authentic",
    [VR_ENGINE_REPLAYED] = "replayed",
    [VR_ENGINE_EVENTS_FULL] = "events_full",
    [VR_ENGINE_TOO_BIG] = "too_big",
    [VR_ENGINE_PAUSED] = "paused",
};

const char *vr_engine_drop_name(enum vr_engine_drop drop) {
    return drop_names[drop];
}

uint64_t vr_engine_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void drop(struct vr_engine *e, enum vr_engine_drop reason) {
    e->counts.drops[reason]++;
}

/* --- making ---------------------------------------------------------------------------------- */

struct vr_engine *vr_engine_new(const struct vr_engine_config *config) {
    struct vr_engine *e = calloc(1, sizeof *e);
    if (e == NULL || config->max_sessions == 0 || config->relay_count > VR_ENGINE_RELAYS) {
        free(e);
        return NULL;
    }
    e->config = *config;
    e->command_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    e->notify_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    e->socket = vr_socket_new(config->fd);
    e->ice = vr_ice_new(config->max_sessions, config->hash_seed);
    e->seats = calloc(config->max_sessions, sizeof *e->seats);
    bool queues = vr_queue_init(&e->commands, VR_ENGINE_COMMANDS_BYTES);
    queues &= vr_queue_init(&e->events, VR_ENGINE_EVENTS_BYTES);
    if (e->command_fd >= 0 && e->notify_fd >= 0 && e->socket && e->ice && e->seats && queues)
        return e;
    vr_engine_free(e);
    return NULL;
}

void vr_engine_free(struct vr_engine *e) {
    if (e == NULL)
        return;
    size_t bytes;
    struct command *c;
    while (e->commands.data != NULL && (c = vr_queue_peek(&e->commands, &bytes)) != NULL) {
        if (c->kind == OPEN)
            vr_session_free(c->open.media);
        if (c->kind == KEYS) {
            vr_srtp_free(c->keys.receive);
            vr_srtp_free(c->keys.send);
        }
        vr_queue_pop(&e->commands, bytes);
    }
    for (uint32_t i = 0; e->seats != NULL && i < e->config.max_sessions; i++)
        vr_session_free(e->seats[i].media);
    for (int i = 0; i < VR_ENGINE_SLOTS; i++)
        free(e->slots[i].sessions);
    free(e->seats);
    vr_ice_free(e->ice);
    vr_socket_free(e->socket);
    vr_queue_free(&e->commands);
    vr_queue_free(&e->events);
    if (e->command_fd >= 0)
        close(e->command_fd);
    if (e->notify_fd >= 0)
        close(e->notify_fd);
    free(e);
}

/* --- events ---------------------------------------------------------------------------------- */

struct event_origin {
    const struct vr_flow_key *key;
    const struct vr_source *source;
};

static bool emit(struct vr_engine *e, enum vr_engine_event_kind kind, uint32_t session,
                 uint64_t now_ns, const struct event_origin *origin, const uint8_t *payload,
                 size_t payload_bytes) {
    size_t bytes = sizeof(struct vr_engine_event) + payload_bytes;
    /* what is told once, an end above all, has a quarter of the queue for itself */
    bool repeats = kind == VR_ENGINE_DTLS || kind == VR_ENGINE_READABLE;
    if (repeats && vr_queue_used(&e->events) > VR_ENGINE_EVENTS_BYTES / 4 * 3)
        return false;
    struct vr_engine_event *event = vr_queue_reserve(&e->events, bytes);
    if (event == NULL)
        return false;
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
static void notify(struct vr_engine *e, uint64_t now_ns) {
    uint64_t now_ms = now_ns / MS_NS;
    if (!e->urgent && !(e->lazy && now_ms - e->woken_ms >= e->config.wake_ms))
        return;
    e->urgent = e->lazy = false;
    e->woken_ms = now_ms;
    if (atomic_exchange(&e->notified, true))
        return;
    uint64_t one = 1;
    e->counts.wakeups++;
    if (write(e->notify_fd, &one, sizeof one) < 0)
        return; /* the counter is full: readable all the same */
}

static void publish_path(struct vr_engine *e, uint32_t session, const struct vr_ice_path *path) {
    struct seat *seat = &e->seats[session];
    if (path == NULL && seat->path.paused)
        return;
    if (path != NULL && !seat->path.paused &&
        seat->path.authenticated_ns == path->authenticated_ns &&
        vr_flow_key_equal(&seat->path.key, &path->key))
        return;
    uint32_t sequence = atomic_load_explicit(&seat->path_sequence, memory_order_relaxed);
    atomic_store_explicit(&seat->path_sequence, sequence + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    seat->path.paused = path == NULL;
    if (path != NULL) {
        seat->path.key = path->key;
        seat->path.authenticated_ns = path->authenticated_ns;
    }
    atomic_store_explicit(&seat->path_sequence, sequence + 2, memory_order_release);
}

bool vr_engine_read_path(const struct vr_engine *e, uint32_t session, struct vr_engine_path *out) {
    struct seat *seat = &e->seats[session];
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

/* --- datagrams ------------------------------------------------------------------------------- */

static bool in_network(const uint8_t ip[16], const struct vr_network *network) {
    unsigned whole = network->prefix_bits / 8, rest = network->prefix_bits % 8;
    if (memcmp(ip, network->ip, whole) != 0)
        return false;
    return rest == 0 || ((ip[whole] ^ network->ip[whole]) >> (8 - rest)) == 0;
}

static bool relay_allowed(struct vr_engine *e, const struct vr_addr *peer) {
    if (e->last_relay_known && memcmp(e->last_relay, peer->ip, 16) == 0)
        return true;
    for (uint32_t i = 0; i < e->config.relay_count; i++)
        if (in_network(peer->ip, &e->config.relays[i])) {
            memcpy(e->last_relay, peer->ip, 16);
            e->last_relay_known = true;
            return true;
        }
    return false;
}

static void on_stun(struct vr_engine *e, const struct vr_received *in,
                    const struct vr_flow_key *key, uint64_t now_ns) {
    struct vr_ice_check check;
    struct vr_engine_path before = {0};
    enum vr_ice_status status =
        vr_ice_check(e->ice, in->data, in->bytes, key, &in->source, now_ns, &check);
    e->counts.checks[status]++;
    if (check.reply_bytes == 0)
        return;
    memcpy(vr_socket_prepare(e->socket), check.reply, check.reply_bytes);
    vr_socket_queue(e->socket, &in->source, key, check.reply_bytes);
    if (check.path == NULL)
        return;
    uint32_t session = check.path->session;
    before = e->seats[session].path;
    publish_path(e, session, vr_ice_media_path(e->ice, session, now_ns));
    if (check.path->first_check_ns == now_ns || before.paused) {
        struct event_origin origin = {key, &in->source};
        emit(e, VR_ENGINE_CHECKED, session, now_ns, &origin, NULL, 0);
    }
}

static void on_dtls(struct vr_engine *e, const struct vr_received *in,
                    const struct vr_flow_key *key, uint64_t now_ns) {
    struct vr_ice_path *paths[VR_ICE_SESSIONS_PER_FLOW_KEY];
    unsigned count = vr_ice_members(e->ice, key, now_ns, paths);
    struct event_origin origin = {key, &in->source};
    if (count == 0)
        drop(e, VR_ENGINE_NO_MEMBER);
    for (unsigned i = 0; i < count;
         i++) { /* several may be in a handshake: each decides for itself */
        e->counts.dtls_in++;
        if (!emit(e, VR_ENGINE_DTLS, paths[i]->session, now_ns, &origin, in->data, in->bytes))
            drop(e, VR_ENGINE_EVENTS_FULL);
    }
}

static void on_media(struct vr_engine *e, struct vr_received *in, const struct vr_flow_key *key,
                     uint64_t now_ns) {
    struct vr_ice_path *paths[VR_ICE_SESSIONS_PER_FLOW_KEY];
    unsigned count = vr_ice_members(e->ice, key, now_ns, paths);
    uint8_t copy[VR_DATAGRAM_BYTES];
    bool shared = count > 1, replayed = false;
    if (count == 0) {
        drop(e, VR_ENGINE_NO_MEMBER);
        return;
    }
    if (in->bytes > sizeof copy) {
        drop(e, VR_ENGINE_TOO_BIG);
        return;
    }
    if (shared) /* the wrong keys leave garbage behind */
        memcpy(copy, in->data, in->bytes);
    bool rtcp = vr_rtp_is_rtcp(in->data, in->bytes);
    for (unsigned i = 0; i < count; i++) {
        struct seat *seat = &e->seats[paths[i]->session];
        if (seat->media == NULL)
            continue;
        if (i > 0)
            memcpy(in->data, copy, in->bytes);
        size_t out_bytes;
        enum vr_session_status status = vr_session_packet(seat->media, in->data, in->bytes, now_ns,
                                                          vr_socket_prepare(e->socket), &out_bytes);
        replayed |= status == VR_SESSION_REPLAYED;
        if (!vr_session_authentic(status))
            continue;
        e->counts.rtp_in += !rtcp;
        e->counts.rtcp_in += rtcp;
        vr_ice_authenticated(e->ice, paths[i], &in->source, now_ns, true);
        if (out_bytes != 0) {
            /* the newest authenticated packet came from here, so this is the media path */
            vr_socket_queue(e->socket, &in->source, key, out_bytes);
            e->counts.rtp_out++;
        }
        int digit;
        while ((digit = vr_session_event(seat->media)) >= 0) {
            uint8_t byte = (uint8_t)digit;
            emit(e, VR_ENGINE_DIGIT, paths[i]->session, now_ns, NULL, &byte, 1);
        }
        return;
    }
    drop(e, replayed ? VR_ENGINE_REPLAYED : VR_ENGINE_NOT_AUTHENTIC);
}

static void on_datagram(struct vr_engine *e, struct vr_received *in, uint64_t now_ns) {
    struct vr_flow_key key;
    if (vr_spp_read(in->data, in->bytes, &key)) {
        if (!relay_allowed(e, &in->source.peer)) {
            drop(e, VR_ENGINE_FOREIGN_RELAY);
            return;
        }
        in->data += VR_SPP_BYTES;
        in->bytes -= VR_SPP_BYTES;
    } else if (e->config.direct) {
        key.client = in->source.peer;
        key.proxy = *vr_socket_bound(e->socket);
        static const uint8_t zeros[16];
        if (memcmp(in->source.local_ip, zeros, 16) != 0)
            memcpy(key.proxy.ip, in->source.local_ip, 16);
        in->source.direct = true;
    } else {
        drop(e, VR_ENGINE_NOT_WRAPPED);
        return;
    }
    if (in->bytes == 0) {
        drop(e, VR_ENGINE_EMPTY);
        return;
    }
    switch (vr_demux(in->data[0])) {
    case VR_PROTOCOL_STUN:
        on_stun(e, in, &key, now_ns);
        return;
    case VR_PROTOCOL_DTLS:
        on_dtls(e, in, &key, now_ns);
        return;
    case VR_PROTOCOL_MEDIA:
        on_media(e, in, &key, now_ns);
        return;
    case VR_PROTOCOL_OTHER:
        drop(e, VR_ENGINE_UNKNOWN_PROTOCOL);
        return;
    }
}

/* --- the clock ------------------------------------------------------------------------------- */

static void send_now(struct vr_engine *e, const struct vr_ice_path *path, const uint8_t *data,
                     size_t bytes) {
    memcpy(vr_socket_prepare(e->socket), data, bytes);
    vr_socket_queue(e->socket, &path->source, &path->key, bytes);
}

static void tick_session(struct vr_engine *e, uint32_t session, uint64_t now_ns) {
    struct seat *seat = &e->seats[session];
    struct vr_ice_path *path = vr_ice_media_path(e->ice, session, now_ns);
    publish_path(e, session, path);
    if (++seat->ticks % EXPIRE_EVERY_TICKS == 0) {
        vr_ice_expire(e->ice, session, now_ns);
        if (!seat->expired && !vr_ice_has_consent(e->ice, session, now_ns))
            seat->expired = emit(e, VR_ENGINE_EXPIRED, session, now_ns, NULL, NULL, 0);
        path = vr_ice_media_path(e->ice, session, now_ns);
    }
    if (seat->media == NULL)
        return;
    struct vr_session_output *out = &e->output;
    bool heard = vr_session_tick(seat->media, now_ns, path == NULL, out);
    if (out->rtp_bytes != 0) {
        send_now(e, path, out->rtp, out->rtp_bytes);
        e->counts.rtp_out++;
    }
    if (out->rtcp_bytes != 0) {
        send_now(e, path, out->rtcp, out->rtcp_bytes);
        e->counts.rtcp_out++;
    }
    if (heard && !atomic_load_explicit(&seat->told, memory_order_acquire) &&
        vr_session_readable_ms(seat->media) >= e->config.wake_ms) {
        atomic_store_explicit(&seat->told, true, memory_order_relaxed);
        if (!emit(e, VR_ENGINE_READABLE, session, now_ns, NULL, NULL, 0))
            atomic_store_explicit(&seat->told, false, memory_order_relaxed);
    }
}

/* Serves the slots whose millisecond has come. */
static void serve_clock(struct vr_engine *e) {
    uint64_t now_ns = vr_engine_now_ns(), now_ms = now_ns / MS_NS;
    if (now_ms > e->clock_ms + VR_ENGINE_CATCH_UP_MS) {
        e->counts.skipped_ticks += now_ms - VR_ENGINE_CATCH_UP_MS - e->clock_ms;
        e->clock_ms = now_ms - VR_ENGINE_CATCH_UP_MS;
    }
    while (e->clock_ms < now_ms) {
        uint64_t deadline_ns = ++e->clock_ms * MS_NS;
        struct slot *slot = &e->slots[e->clock_ms % VR_ENGINE_SLOTS];
        for (uint32_t i = 0; i < slot->count; i++) {
            now_ns = vr_engine_now_ns();
            uint64_t late = (now_ns - deadline_ns) / 100000;
            e->counts.lateness[late < VR_ENGINE_LATENESS ? late : VR_ENGINE_LATENESS - 1]++;
            e->counts.ticks++;
            tick_session(e, slot->sessions[i], now_ns);
        }
        vr_socket_flush(e->socket);
        now_ms = vr_engine_now_ns() / MS_NS;
    }
}

/* --- commands -------------------------------------------------------------------------------- */

static bool join_slot(struct vr_engine *e, uint32_t session) {
    struct slot *best = &e->slots[0];
    for (int i = 1; i < VR_ENGINE_SLOTS; i++)
        if (e->slots[i].count < best->count)
            best = &e->slots[i];
    if (best->count == best->capacity) {
        uint32_t capacity = best->capacity != 0 ? 2 * best->capacity : 8;
        uint32_t *grown = realloc(best->sessions, capacity * sizeof *grown);
        if (grown == NULL)
            return false;
        best->sessions = grown;
        best->capacity = capacity;
    }
    best->sessions[best->count++] = session;
    e->seats[session].slot = (uint8_t)(best - e->slots);
    return true;
}

static void leave_slot(struct vr_engine *e, uint32_t session) {
    if (e->seats[session].slot == NEVER_SLOT)
        return;
    struct slot *slot = &e->slots[e->seats[session].slot];
    for (uint32_t i = 0; i < slot->count; i++)
        if (slot->sessions[i] == session) {
            slot->sessions[i] = slot->sessions[--slot->count];
            return;
        }
}

static void do_close(struct vr_engine *e, uint32_t session, uint64_t now_ns) {
    struct seat *seat = &e->seats[session];
    if (!seat->open)
        return;
    struct vr_ice_path *path = vr_ice_media_path(e->ice, session, now_ns);
    if (path != NULL && seat->media != NULL) {
        uint8_t bye[VR_RTCP_WRITE_BYTES + VR_SRTP_GROWTH_BYTES];
        size_t bytes = vr_session_bye(seat->media, now_ns, bye);
        if (bytes != 0)
            send_now(e, path, bye, bytes);
    }
    vr_ice_close(e->ice, session);
    leave_slot(e, session);
    vr_session_free(seat->media);
    seat->media = NULL;
    seat->open = false;
    seat->path.paused = true;
    e->counts.sessions--;
    emit(e, VR_ENGINE_CLOSED, session, now_ns, NULL, NULL, 0);
}

static void do_open(struct vr_engine *e, struct command *c, uint64_t now_ns) {
    struct seat *seat = &e->seats[c->session];
    const char *ufrag = (const char *)c->data, *pwd = ufrag + c->open.ufrag_bytes;
    if (seat->open)
        do_close(e, c->session, now_ns);
    seat->media = c->open.media;
    seat->open = true;
    seat->expired = false;
    seat->ticks = 0;
    seat->slot = NEVER_SLOT;
    seat->path = (struct vr_engine_path){.paused = true, .authenticated_ns = now_ns};
    atomic_store_explicit(&seat->told, false, memory_order_relaxed);
    e->counts.sessions++;
    if (vr_ice_open(e->ice, c->session, ufrag, pwd, pwd + c->open.pwd_bytes, now_ns) != 0 ||
        !join_slot(e, c->session)) {
        seat->expired = true;
        emit(e, VR_ENGINE_EXPIRED, c->session, now_ns, NULL, NULL, 0);
    }
}

static void do_send(struct vr_engine *e, struct command *c, uint64_t now_ns) {
    struct vr_ice_path *path = vr_ice_media_path(e->ice, c->session, now_ns);
    if (path == NULL) {
        drop(e, VR_ENGINE_PAUSED);
        return;
    }
    send_now(e, path, c->data, c->send.bytes);
    e->counts.dtls_out++;
}

static void do_authenticated(struct vr_engine *e, struct command *c) {
    struct vr_ice_path *path = vr_ice_find(e->ice, c->session, &c->authenticated.key);
    if (path == NULL || c->authenticated.at_ns < path->media_ns)
        return;
    if (c->authenticated.at_ns < path->authenticated_ns) /* a check has come meanwhile */
        path->media_ns = c->authenticated.at_ns;
    else
        vr_ice_authenticated(e->ice, path, &c->authenticated.source, c->authenticated.at_ns, true);
    publish_path(e, c->session, vr_ice_media_path(e->ice, c->session, c->authenticated.at_ns));
}

static void serve_commands(struct vr_engine *e) {
    size_t bytes;
    struct command *c;
    uint64_t now_ns = vr_engine_now_ns();
    while ((c = vr_queue_peek(&e->commands, &bytes)) != NULL) {
        switch ((enum command_kind)c->kind) {
        case OPEN:
            do_open(e, c, now_ns);
            break;
        case KEYS:
            if (e->seats[c->session].media != NULL) {
                vr_session_set_keys(e->seats[c->session].media, c->keys.receive, c->keys.send);
            } else {
                vr_srtp_free(c->keys.receive);
                vr_srtp_free(c->keys.send);
            }
            break;
        case CLOSE:
            do_close(e, c->session, now_ns);
            break;
        case SEND:
            do_send(e, c, now_ns);
            break;
        case AUTHENTICATED:
            do_authenticated(e, c);
            break;
        }
        vr_queue_pop(&e->commands, bytes);
    }
    vr_socket_flush(e->socket);
}

/* --- the thread ------------------------------------------------------------------------------ */

static void serve_socket(struct vr_engine *e) {
    struct vr_received in;
    for (int i = 0; i < RECEIVE_BATCHES; i++) {
        unsigned messages = vr_socket_receive(e->socket);
        uint64_t now_ns = vr_engine_now_ns();
        while (vr_socket_next(e->socket, &in))
            on_datagram(e, &in, now_ns);
        vr_socket_flush(e->socket);
        if (messages < VR_BATCH_MESSAGES || now_ns / MS_NS > e->clock_ms)
            return;
    }
}

/* Sleeps until the next millisecond, or until something comes. With many sessions something comes all
 * the time: then only the clock wakes, and what came meanwhile is served in one batch. */
static int wait_for_work(struct vr_engine *e) {
    struct pollfd waits[2] = {{.fd = e->config.fd, .events = POLLIN},
                              {.fd = e->command_fd, .events = POLLIN}};
    uint64_t now_ns = vr_engine_now_ns(), next_ns = (e->clock_ms + 1) * MS_NS;
    uint64_t wait_ns = next_ns > now_ns ? next_ns - now_ns : 0;
    if (e->counts.sessions == 0)
        wait_ns = IDLE_MS * MS_NS;
    struct timespec wait = {.tv_sec = (time_t)(wait_ns / 1000000000u),
                            .tv_nsec = (long)(wait_ns % 1000000000u)};
    int ready = ppoll(waits, e->counts.sessions < BATCHING_SESSIONS ? 2 : 0, &wait, NULL);
    if (ready < 0 && errno != EINTR)
        return -errno;
    uint64_t quiet;
    if (ready > 0 && waits[1].revents != 0 && read(e->command_fd, &quiet, sizeof quiet) < 0)
        return errno == EAGAIN ? 0 : -errno;
    return 0;
}

int vr_engine_run(struct vr_engine *e) {
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0); /* the default adds 50 us to each deadline */
    e->clock_ms = vr_engine_now_ns() / MS_NS;
    while (!atomic_load_explicit(&e->stopping, memory_order_acquire)) {
        int error = wait_for_work(e);
        if (error != 0)
            return error;
        if (e->counts.sessions == 0)
            e->clock_ms = vr_engine_now_ns() / MS_NS;
        if (vr_queue_used_by_popper(&e->commands) != 0)
            serve_commands(e);
        serve_clock(e);
        serve_socket(e);
        notify(e, vr_engine_now_ns());
    }
    return 0;
}

void vr_engine_stop(struct vr_engine *e) {
    uint64_t one = 1;
    atomic_store_explicit(&e->stopping, true, memory_order_release);
    if (write(e->command_fd, &one, sizeof one) < 0)
        return;
}

/* --- the controller -------------------------------------------------------------------------- */

int vr_engine_notify_fd(const struct vr_engine *e) {
    return e->notify_fd;
}

static struct command *command(struct vr_engine *e, enum command_kind kind, uint32_t session,
                               size_t data_bytes) {
    struct command *c = NULL;
    if (session < e->config.max_sessions)
        c = vr_queue_reserve(&e->commands, sizeof *c + data_bytes);
    if (c == NULL)
        return NULL;
    memset(c, 0, sizeof *c);
    c->kind = kind;
    c->session = session;
    return c;
}

static int submit(struct vr_engine *e, size_t data_bytes) {
    uint64_t one = 1;
    vr_queue_push(&e->commands, sizeof(struct command) + data_bytes);
    return write(e->command_fd, &one, sizeof one) < 0 && errno != EAGAIN ? -errno : 0;
}

int vr_engine_open(struct vr_engine *e, uint32_t session, const char *ufrag, const char *pwd,
                   const char *remote_ufrag, struct vr_session *media) {
    size_t ufrag_bytes = strlen(ufrag) + 1, pwd_bytes = strlen(pwd) + 1;
    size_t remote_bytes = strlen(remote_ufrag) + 1, bytes = ufrag_bytes + pwd_bytes + remote_bytes;
    if (ufrag_bytes > VR_ICE_UFRAG_BYTES + 1 || remote_bytes > VR_ICE_UFRAG_BYTES + 1 ||
        pwd_bytes > VR_ICE_PWD_BYTES + 1 || session >= e->config.max_sessions)
        return -EINVAL;
    struct command *c = command(e, OPEN, session, bytes);
    if (c == NULL)
        return -EAGAIN;
    c->open.media = media;
    c->open.ufrag_bytes = (uint16_t)ufrag_bytes;
    c->open.pwd_bytes = (uint16_t)pwd_bytes;
    c->open.remote_bytes = (uint16_t)remote_bytes;
    memcpy(c->data, ufrag, ufrag_bytes);
    memcpy(c->data + ufrag_bytes, pwd, pwd_bytes);
    memcpy(c->data + ufrag_bytes + pwd_bytes, remote_ufrag, remote_bytes);
    return submit(e, bytes);
}

int vr_engine_keys(struct vr_engine *e, uint32_t session, struct vr_srtp *receive,
                   struct vr_srtp *send) {
    struct command *c = command(e, KEYS, session, 0);
    if (c == NULL)
        return -EAGAIN;
    c->keys.receive = receive;
    c->keys.send = send;
    return submit(e, 0);
}

int vr_engine_close(struct vr_engine *e, uint32_t session) {
    return command(e, CLOSE, session, 0) == NULL ? -EAGAIN : submit(e, 0);
}

int vr_engine_send(struct vr_engine *e, uint32_t session, const uint8_t *data, size_t bytes) {
    if (bytes > VR_SESSION_PACKET_BYTES)
        return -EINVAL;
    struct command *c = command(e, SEND, session, bytes);
    if (c == NULL)
        return -EAGAIN;
    c->send.bytes = (uint32_t)bytes;
    memcpy(c->data, data, bytes);
    return submit(e, bytes);
}

int vr_engine_authenticated(struct vr_engine *e, const struct vr_engine_event *event) {
    struct command *c = command(e, AUTHENTICATED, event->session, 0);
    if (c == NULL)
        return -EAGAIN;
    c->authenticated.key = event->key;
    c->authenticated.source = event->source;
    c->authenticated.at_ns = event->at_ns;
    return submit(e, 0);
}

void vr_engine_awake(struct vr_engine *e) {
    uint64_t quiet;
    if (read(e->notify_fd, &quiet, sizeof quiet) < 0 && errno != EAGAIN)
        return;
    atomic_store(&e->notified, false);
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

void vr_engine_read_counts(const struct vr_engine *e, struct vr_engine_counts *out) {
    *out = e->counts;
    out->socket = *vr_socket_read_counts(e->socket);
}
