#define _GNU_SOURCE
#include "loop.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum {
    TICK_MS = 10,       /* while there are flows to expire */
    IDLE_TICK_MS = 100, /* the slowest that progress may be */
    CENSUS_NS = 1000000000,
};

/* epoll's word for a descriptor: a socket's place in the array, or one of these. */
enum { STOP = VR_LOOP_SOCKETS_MAX, LIFE, COMMAND, WATCHED_MAX };

struct watch {
    struct vr_socket *socket;
    uint32_t events; /* what epoll was told */
};

struct vr_loop {
    struct vr_loop_config config;
    int epoll_fd;
    unsigned first; /* whose turn it is to be served first */
    uint64_t swept_ns;
    uint64_t census_ns;
    uint64_t mailbox_position;
    bool received; /* something, in this turn */
    bool was_full; /* a batch of this turn */
    struct vr_ingress batch[VR_BATCH_MAX];
    struct watch watch[VR_LOOP_SOCKETS_MAX];
    struct vr_socket *public_socket[256]; /* by listen index */
    struct vr_socket *internal_socket;
    struct vr_socket *backbone_socket;
};

uint64_t vr_loop_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint64_t unix_now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    return (uint64_t)now.tv_sec;
}

/* --- life --- */

static int watch_fd(struct vr_loop *loop, int operation, int fd, uint32_t events, uint32_t word) {
    struct epoll_event event = {.events = events, .data.u32 = word};
    return epoll_ctl(loop->epoll_fd, operation, fd, &event);
}

static int watch_all(struct vr_loop *loop) {
    const struct vr_loop_config *config = &loop->config;
    for (uint32_t i = 0; i < config->socket_count; i++) {
        loop->watch[i].events = EPOLLIN;
        if (watch_fd(loop, EPOLL_CTL_ADD, vr_socket_fd(loop->watch[i].socket), EPOLLIN, i) < 0)
            return -1;
    }
    if (config->command_fd >= 0 &&
        watch_fd(loop, EPOLL_CTL_ADD, config->command_fd, EPOLLIN, COMMAND) < 0)
        return -1;
    if (watch_fd(loop, EPOLL_CTL_ADD, config->stop_fd, EPOLLIN, STOP) < 0)
        return -1;
    return watch_fd(loop, EPOLL_CTL_ADD, config->life_fd, EPOLLIN, LIFE);
}

/* Where a hop of each side and index goes. */
static void place_socket(struct vr_loop *loop, struct vr_socket *socket) {
    switch (vr_socket_side(socket)) {
    case VR_SIDE_PUBLIC:
        loop->public_socket[vr_socket_listen(socket)] = socket;
        break;
    case VR_SIDE_INTERNAL:
        loop->internal_socket = socket;
        break;
    default:
        loop->backbone_socket = socket;
    }
}

/* Rule 8. As linux/eventpoll.h has it, which older headers lack. */
static void ask_to_busy_poll(const struct vr_loop *loop) {
    struct {
        uint32_t busy_poll_usecs;
        uint16_t busy_poll_budget; /* 0: the kernel's own */
        uint8_t prefer_busy_poll;
        uint8_t pad;
    } params = {.busy_poll_usecs = loop->config.busy_poll_us, .prefer_busy_poll = 1};
    if (loop->config.busy_poll_us > 0)
        ioctl(loop->epoll_fd, _IOW(0x8A, 0x01, params), &params);
}

struct vr_loop *vr_loop_new(const struct vr_loop_config *config) {
    if (config->socket_count < 1 || config->socket_count > VR_LOOP_SOCKETS_MAX ||
        config->batch_max < 1 || config->batch_max > VR_BATCH_MAX ||
        config->coalesce_us > VR_COALESCE_US_MAX || config->busy_poll_us > VR_BUSY_POLL_US_MAX ||
        (config->command_fd >= 0 && !config->mailbox)) {
        errno = EINVAL;
        return NULL;
    }
    struct vr_loop *loop = calloc(1, sizeof *loop);
    if (!loop)
        return NULL;
    loop->config = *config;
    loop->config.sockets = NULL;
    if (config->mailbox)
        loop->mailbox_position = __atomic_load_n(&config->mailbox->read, __ATOMIC_ACQUIRE);
    for (size_t i = 0; i < config->socket_count; i++) {
        loop->watch[i].socket = config->sockets[i];
        place_socket(loop, config->sockets[i]);
    }
    if (config->coalesce_us > 0)
        prctl(PR_SET_TIMERSLACK, 1UL); /* 50 us by default: as much again */
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (loop->epoll_fd >= 0 && watch_all(loop) == 0) {
        ask_to_busy_poll(loop);
        return loop;
    }
    int error = errno;
    vr_loop_free(loop);
    errno = error;
    return NULL;
}

void vr_loop_free(struct vr_loop *loop) {
    if (!loop)
        return;
    if (loop->epoll_fd >= 0)
        close(loop->epoll_fd);
    free(loop);
}

/* --- one batch --- */

static struct vr_socket *socket_of(const struct vr_loop *loop, const struct vr_hop *hop) {
    if (hop->side == VR_SIDE_PUBLIC)
        return loop->public_socket[hop->listen];
    return hop->side == VR_SIDE_INTERNAL ? loop->internal_socket : loop->backbone_socket;
}

static void send_hop(struct vr_loop *loop, const struct vr_egress *out, const struct vr_hop *hop) {
    struct vr_socket *socket = socket_of(loop, hop);
    /* A flow of an earlier generation may name a socket that this one does not have. */
    if (!socket)
        vr_count_add(&loop->config.stats->drop[VR_DROP_SEND_ERROR], 1);
    else
        vr_socket_queue(socket, out, hop, loop->config.stats);
}

/* A probe that cannot be sent is lost, as it would be on its way. */
static void send_probe(struct vr_loop *loop, const struct vr_egress *out, uint64_t *counter) {
    struct vr_socket *socket = socket_of(loop, &out->hop[0]);
    if (socket && vr_socket_send_now(socket, out, &out->hop[0]))
        vr_count_add(counter, 1);
}

static void count_truncated(struct vr_stats *stats, enum vr_side side, uint32_t data_bytes) {
    vr_count_add(&stats->side[side].rx_packets, 1);
    vr_count_add(&stats->side[side].rx_bytes, data_bytes);
    vr_count_add(&stats->drop[VR_DROP_TRUNCATED], 1);
}

static void forward_one(struct vr_loop *loop, const struct vr_ingress *in, uint64_t now_ns) {
    struct vr_egress out;
    switch (vr_forward(loop->config.forwarder, in, now_ns, &out)) {
    case VR_VERDICT_SEND:
        if (out.is_probe) {
            send_probe(loop, &out, &loop->config.stats->probes_echoed);
            break;
        }
        for (unsigned i = 0; i < out.hops; i++)
            send_hop(loop, &out, &out.hop[i]);
        if (out.owners_due && loop->config.asker)
            vr_asker_owners(loop->config.asker, in, now_ns);
        break;
    case VR_VERDICT_PARK:
        if (!loop->config.asker || !vr_asker_park(loop->config.asker, in, now_ns))
            vr_count_add(&loop->config.stats->drop[VR_DROP_PARK_FULL], 1);
        break;
    case VR_VERDICT_DROP:
    case VR_VERDICT_TAKEN:
        break;
    }
}

/* Tells epoll whether to wait for room in the send buffer. */
static int update_interest(struct vr_loop *loop, uint32_t index) {
    struct watch *watch = &loop->watch[index];
    uint32_t events = vr_socket_blocked(watch->socket) ? EPOLLIN | EPOLLOUT : EPOLLIN;
    if (events == watch->events)
        return 0;
    if (watch_fd(loop, EPOLL_CTL_MOD, vr_socket_fd(watch->socket), events, index) < 0)
        return -errno;
    watch->events = events;
    return 0;
}

/* Describes the received datagrams in loop->batch; returns how many are whole. */
static unsigned fill_batch(struct vr_loop *loop, struct vr_socket *socket, unsigned received) {
    unsigned whole = 0;
    for (unsigned i = 0; i < received; i++) {
        struct vr_ingress *in = &loop->batch[whole];
        if (vr_socket_ingress(socket, i, in))
            whole++;
        else
            count_truncated(loop->config.stats, vr_socket_side(socket), in->data_bytes);
    }
    return whole;
}

/* Sends what forward_one lined up. */
static int flush_all(struct vr_loop *loop) {
    for (uint32_t i = 0; i < loop->config.socket_count; i++) {
        vr_socket_flush(loop->watch[i].socket, loop->config.stats);
        int status = update_interest(loop, i);
        if (status < 0)
            return status;
    }
    return 0;
}

/* A bell that cannot take another ring is ringing. */
static void ring(const struct vr_loop *loop) {
    uint64_t one = 1;
    ssize_t bytes = write(loop->config.bell_fd, &one, sizeof one);
    (void)bytes;
}

/* Forwards `received` datagrams, sends included. */
static int serve_batch(struct vr_loop *loop, struct vr_socket *socket, unsigned received) {
    uint64_t now_ns = vr_loop_now_ns();
    unsigned whole = fill_batch(loop, socket, received);
    vr_forward_prefetch(loop->config.forwarder, loop->batch, whole);
    for (unsigned i = 0; i < whole; i++)
        forward_one(loop, &loop->batch[i], now_ns);
    if (loop->config.asker && vr_asker_must_ring(loop->config.asker))
        ring(loop);
    return flush_all(loop);
}

/* On the inside one call brings fewer messages: more of them, until it was a batch, so that each side gets
 * its share (rule 2). */
static int serve_socket(struct vr_loop *loop, struct vr_socket *socket) {
    unsigned served = 0;
    do {
        int received = vr_socket_receive(socket, loop->config.batch_max);
        if (received < 0)
            return received;
        for (unsigned count = (unsigned)received; count > 0; count = vr_socket_continue(socket)) {
            int status = serve_batch(loop, socket, count);
            if (status < 0)
                return status;
            served += count;
        }
    } while (vr_socket_was_full(socket) && served < loop->config.batch_max);
    loop->received |= served > 0;
    loop->was_full |= served >= loop->config.batch_max;
    return 0;
}

static int serve_ready(struct vr_loop *loop, const uint32_t ready[VR_LOOP_SOCKETS_MAX]) {
    uint32_t count = (uint32_t)loop->config.socket_count;
    loop->first = (loop->first + 1) % count;
    for (uint32_t step = 0; step < count; step++) {
        uint32_t i = (loop->first + step) % count;
        struct vr_socket *socket = loop->watch[i].socket;
        int status = 0;
        if (vr_socket_blocked(socket) && ready[i] & EPOLLOUT) {
            vr_socket_flush_backlog(socket, loop->config.stats);
            status = update_interest(loop, i);
        }
        if (status == 0 && ready[i] & ~(uint32_t)EPOLLOUT)
            status = serve_socket(loop, socket);
        if (status < 0)
            return status;
    }
    return VR_LOOP_GOES_ON;
}

/* --- one turn --- */

/* True when the command is an answer of the cache: what waited for it goes on its way, or is dropped. */
static bool take_answer(struct vr_loop *loop, const struct vr_command *command, uint64_t now_ns) {
    struct vr_parked parked;
    bool recovered;
    if (!loop->config.asker || command->kind != VR_COMMAND_ANSWER)
        return false;
    if (!vr_asker_answer(loop->config.asker, command, now_ns, &parked, &recovered))
        return true;
    if (!recovered)
        vr_count_add(&loop->config.stats->drop[VR_DROP_PARK_EXPIRED], parked.count);
    for (unsigned i = 0; recovered && i < parked.count; i++)
        forward_one(loop, &parked.in[i], now_ns);
    return true;
}

static int take_commands(struct vr_loop *loop, uint64_t now_ns) {
    struct vr_command command;
    uint64_t rings;
    ssize_t bytes = read(loop->config.command_fd, &rings, sizeof rings);
    (void)bytes; /* the ring tells what there is; the bell only wakes */
    for (unsigned i = 0; i < VR_MAILBOX_CELLS; i++) {
        if (!vr_mailbox_take(loop->config.mailbox, &loop->mailbox_position, &command))
            break;
        if (!take_answer(loop, &command, now_ns) && loop->config.on_command)
            loop->config.on_command(loop->config.command_context, &command, now_ns);
    }
    return flush_all(loop);
}

static void send_probes(struct vr_loop *loop, uint64_t now_ns) {
    uint8_t nonce[VR_PROBE_NONCE_BYTES];
    _Alignas(8) uint8_t buffer[VR_PROBE_BYTES];
    struct vr_egress out;
    while (vr_forward_probes_are_due(loop->config.forwarder, now_ns)) {
        if (getrandom(nonce, sizeof nonce, GRND_NONBLOCK) != sizeof nonce)
            return;
        if (vr_forward_next_probe(loop->config.forwarder, now_ns, nonce, buffer, &out))
            send_probe(loop, &out, &loop->config.stats->probes_sent);
    }
}

/* Expires flows, and once a second counts what the kernel dropped. */
static void sweep(struct vr_loop *loop, uint64_t now_ns) {
    if (now_ns - loop->swept_ns >= (uint64_t)TICK_MS * 1000000) {
        loop->swept_ns = now_ns;
        vr_forward_sweep(loop->config.forwarder, now_ns);
        send_probes(loop, now_ns);
        if (loop->config.asker)
            vr_count_add(&loop->config.stats->drop[VR_DROP_PARK_EXPIRED],
                         vr_asker_sweep(loop->config.asker, now_ns));
    }
    if (now_ns - loop->census_ns >= CENSUS_NS) {
        loop->census_ns = now_ns;
        uint64_t drops = 0;
        for (size_t i = 0; i < loop->config.socket_count; i++)
            drops += vr_socket_kernel_drops(loop->watch[i].socket);
        __atomic_store_n(&loop->config.stats->kernel_drops, drops, __ATOMIC_RELAXED);
    }
}

/* Rule 7. */
static void coalesce(const struct vr_loop *loop) {
    struct timespec pause = {.tv_nsec = (long)loop->config.coalesce_us * 1000};
    if (loop->config.coalesce_us > 0 && loop->received && !loop->was_full)
        nanosleep(&pause, NULL);
}

int vr_loop_turn(struct vr_loop *loop, int timeout_ms) {
    struct epoll_event event[WATCHED_MAX];
    loop->received = loop->was_full = false;
    int events = epoll_wait(loop->epoll_fd, event, WATCHED_MAX, timeout_ms);
    if (events < 0 && errno != EINTR)
        return -errno;
    uint64_t now_ns = vr_loop_now_ns();
    struct vr_stats *stats = loop->config.stats;
    vr_forward_set_clock(loop->config.forwarder, unix_now_s());
    vr_count_add(&stats->progress, 1);
    __atomic_store_n(&stats->progress_ns, now_ns, __ATOMIC_RELAXED);

    uint32_t ready[VR_LOOP_SOCKETS_MAX] = {0};
    int end = VR_LOOP_GOES_ON, status = VR_LOOP_GOES_ON;
    for (int i = 0; i < events; i++) {
        uint32_t word = event[i].data.u32;
        if (word < VR_LOOP_SOCKETS_MAX)
            ready[word] = event[i].events;
        else if (word == COMMAND)
            status = take_commands(loop, now_ns);
        else if (end != VR_LOOP_ORPHANED)
            end = word == LIFE ? VR_LOOP_ORPHANED : VR_LOOP_STOPPED;
    }
    if (end != VR_LOOP_GOES_ON) /* what waits in the sockets is for the next worker */
        return end;
    if (status == VR_LOOP_GOES_ON && events > 0)
        status = serve_ready(loop, ready);
    sweep(loop, vr_loop_now_ns()); /* later than the batches: time never goes back */
    coalesce(loop);
    return status;
}

int vr_loop_run(struct vr_loop *loop) {
    const struct vr_stats *stats = loop->config.stats;
    int end = VR_LOOP_GOES_ON;
    while (end == VR_LOOP_GOES_ON) {
        bool is_busy = stats->flows_half_open + stats->flows_established > 0 ||
                       (loop->config.asker && vr_asker_is_waiting(loop->config.asker));
        end = vr_loop_turn(loop, is_busy ? TICK_MS : IDLE_TICK_MS);
    }
    for (size_t i = 0; i < loop->config.socket_count; i++)
        if (vr_socket_blocked(loop->watch[i].socket))
            vr_socket_flush_backlog(loop->watch[i].socket, loop->config.stats);
    return end;
}
