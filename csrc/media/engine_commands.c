/* What the controller asks for: both ends of the queue of commands. */
#include "engine_state.h"

#include <errno.h>
#include <string.h>

enum command_kind { OPEN = 1, KEYS, SEND, AUTHENTICATED };

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

/* --- the engine's end ------------------------------------------------------------------------- */

static void do_close(struct vr_engine *e, uint32_t session, uint64_t now_ns) {
    struct vr_seat *seat = &e->seats[session];
    if (!seat->open)
        return;
    struct vr_ice_path *path = vr_ice_media_path(e->ice, session, now_ns);
    if (path != NULL && seat->media != NULL) {
        uint8_t bye[VR_RTCP_WRITE_BYTES + VR_SRTP_GROWTH_BYTES];
        size_t bytes = vr_session_bye(seat->media, now_ns, bye);
        if (bytes != 0)
            vr_engine_send_now(e, path, bye, bytes);
    }
    vr_ice_close(e->ice, session);
    vr_wheel_leave(&e->wheel, session);
    vr_session_free(seat->media);
    seat->media = NULL;
    seat->open = false;
    vr_engine_clear_path(e, session, now_ns); /* who opens it next sees nothing of this call */
    e->counts.sessions--;
    vr_engine_tell_end(e, VR_ENGINE_CLOSED, session, now_ns);
}

static void do_open(struct vr_engine *e, struct command *c, uint64_t now_ns) {
    struct vr_seat *seat = &e->seats[c->session];
    const char *ufrag = (const char *)c->data, *pwd = ufrag + c->open.ufrag_bytes;
    if (seat->open)
        do_close(e, c->session, now_ns);
    seat->media = c->open.media;
    seat->open = true;
    seat->expired = false;
    seat->ticks = 0;
    vr_engine_clear_path(e, c->session, now_ns);
    atomic_store_explicit(&seat->told, false, memory_order_relaxed);
    e->counts.sessions++;
    if (vr_ice_open(e->ice, c->session, ufrag, pwd, pwd + c->open.pwd_bytes, now_ns) != 0 ||
        !vr_wheel_join(&e->wheel, c->session, now_ns / VR_MS_NS)) {
        seat->expired = true;
        vr_engine_tell_end(e, VR_ENGINE_EXPIRED, c->session, now_ns);
    }
}

static void do_send(struct vr_engine *e, struct command *c, uint64_t now_ns) {
    struct vr_ice_path *path = vr_ice_media_path(e->ice, c->session, now_ns);
    if (path == NULL) {
        vr_engine_drop(e, VR_ENGINE_PAUSED);
        return;
    }
    vr_engine_send_now(e, path, c->data, c->send.bytes);
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
    vr_engine_publish_path(e, c->session,
                           vr_ice_media_path(e->ice, c->session, c->authenticated.at_ns));
}

/* Ends those that the controller is done with. One that it opened just now is found next time. */
static void serve_closings(struct vr_engine *e, uint64_t now_ns) {
    for (uint32_t i = 0; i < e->config.max_sessions; i++) {
        struct vr_seat *seat = &e->seats[i];
        if (!atomic_load_explicit(&seat->closing, memory_order_acquire))
            continue;
        if (seat->open) {
            atomic_store_explicit(&seat->closing, false, memory_order_relaxed);
            do_close(e, i, now_ns);
        } else {
            atomic_store_explicit(&e->closings, true, memory_order_relaxed);
        }
    }
}

bool vr_engine_has_commands(struct vr_engine *e) {
    return vr_queue_used_by_popper(&e->commands) != 0 || e->untold != 0 ||
           atomic_load_explicit(&e->closings, memory_order_relaxed);
}

void vr_engine_serve_commands(struct vr_engine *e, uint64_t now_ns) {
    size_t bytes;
    struct command *c;
    bool closings = atomic_exchange(&e->closings, false); /* so that their OPEN is done by then */
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
        case SEND:
            do_send(e, c, now_ns);
            break;
        case AUTHENTICATED:
            do_authenticated(e, c);
            break;
        }
        vr_queue_pop(&e->commands, bytes);
    }
    if (closings)
        serve_closings(e, now_ns);
    vr_engine_tell_ends(e, now_ns);
    vr_socket_flush(e->socket);
}

void vr_engine_free_commands(struct vr_engine *e) {
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
}

/* --- the controller's end --------------------------------------------------------------------- */

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
    vr_queue_push(&e->commands, sizeof(struct command) + data_bytes);
    vr_engine_poke(e->command_fd);
    return 0;
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

void vr_engine_close(struct vr_engine *e, uint32_t session) {
    if (session >= e->config.max_sessions)
        return;
    atomic_store_explicit(&e->seats[session].closing, true, memory_order_release);
    atomic_store(&e->closings, true);
    vr_engine_poke(e->command_fd);
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
