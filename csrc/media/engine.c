#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine_state.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum {
    RECEIVE_BATCHES = 8, /* between two looks at the clock */
    BATCHING_SESSIONS = 16,
    IDLE_MS = 1000,
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

void vr_engine_poke(int event_fd) {
    uint64_t one = 1;
    if (write(event_fd, &one, sizeof one) < 0)
        return; /* the counter is full: readable all the same */
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
    bool wheel = vr_wheel_init(&e->wheel, config->max_sessions);
    bool queues = vr_queue_init(&e->commands, VR_ENGINE_COMMANDS_BYTES);
    queues &= vr_queue_init(&e->events, VR_ENGINE_EVENTS_BYTES);
    if (e->command_fd >= 0 && e->notify_fd >= 0 && e->socket && e->ice && e->seats && wheel &&
        queues)
        return e;
    vr_engine_free(e);
    return NULL;
}

void vr_engine_free(struct vr_engine *e) {
    if (e == NULL)
        return;
    vr_engine_free_commands(e);
    for (uint32_t i = 0; e->seats != NULL && i < e->config.max_sessions; i++)
        vr_session_free(e->seats[i].media);
    vr_wheel_free(&e->wheel);
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

/* --- the thread ------------------------------------------------------------------------------ */

static void serve_socket(struct vr_engine *e) {
    struct vr_received in;
    for (int i = 0; i < RECEIVE_BATCHES; i++) {
        unsigned messages = vr_socket_receive(e->socket);
        uint64_t now_ns = vr_engine_now_ns();
        while (vr_socket_next(e->socket, &in))
            vr_engine_on_datagram(e, &in, now_ns);
        vr_socket_flush(e->socket);
        if (messages < VR_BATCH_MESSAGES || now_ns / VR_MS_NS > e->clock_ms)
            return;
    }
}

/* Sleeps until the next millisecond, or until something comes. With many sessions something comes all
 * the time: then only the clock wakes, and what came meanwhile is served in one batch. */
static int wait_for_work(struct vr_engine *e) {
    struct pollfd waits[2] = {{.fd = e->config.fd, .events = POLLIN},
                              {.fd = e->command_fd, .events = POLLIN}};
    uint64_t now_ns = vr_engine_now_ns(), next_ns = (e->clock_ms + 1) * VR_MS_NS;
    uint64_t wait_ns = next_ns > now_ns ? next_ns - now_ns : 0;
    if (e->counts.sessions == 0)
        wait_ns = IDLE_MS * VR_MS_NS;
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
    e->clock_ms = vr_engine_now_ns() / VR_MS_NS;
    while (!atomic_load_explicit(&e->stopping, memory_order_acquire)) {
        int error = wait_for_work(e);
        if (error != 0)
            return error;
        if (e->counts.sessions == 0)
            e->clock_ms = vr_engine_now_ns() / VR_MS_NS;
        if (vr_engine_has_commands(e))
            vr_engine_serve_commands(e, vr_engine_now_ns());
        vr_engine_serve_clock(e);
        serve_socket(e);
        vr_engine_notify(e, vr_engine_now_ns());
    }
    return 0;
}

void vr_engine_stop(struct vr_engine *e) {
    atomic_store_explicit(&e->stopping, true, memory_order_release);
    vr_engine_poke(e->command_fd);
}

/* --- the controller -------------------------------------------------------------------------- */

int vr_engine_notify_fd(const struct vr_engine *e) {
    return e->notify_fd;
}

void vr_engine_awake(struct vr_engine *e) {
    uint64_t quiet;
    if (read(e->notify_fd, &quiet, sizeof quiet) < 0 && errno != EAGAIN)
        return;
    atomic_store(&e->notified, false);
}

void vr_engine_read_counts(const struct vr_engine *e, struct vr_engine_counts *out) {
    *out = e->counts;
    out->socket = *vr_socket_read_counts(e->socket);
}
