/* loop_check.h: a worker's loop with real sockets, between fakes of what it calls: a forwarder, a cache and
 * a kernel that do what a test says. They take the place of those of csrc, so one file of a program
 * includes this. */
#ifndef VR_LOOP_CHECK_H
#define VR_LOOP_CHECK_H

#include "net_check.h"
#include "relay/loop.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

/* --- a forwarder that does what a datagram's first byte says --- */

struct vr_forwarder {
    struct vr_stats *stats;
    struct vr_hop hop[2]; /* where '1' and '2' go */
    struct vr_hop bad;    /* where 'b' goes */
    unsigned sweeps;
    unsigned probes; /* that are due, to where '1' goes */
    uint64_t now_ns;
};

enum vr_verdict vr_forward(struct vr_forwarder *forwarder, const struct vr_ingress *in,
                           uint64_t now_ns, struct vr_egress *out) {
    CHECK(now_ns >= forwarder->now_ns);
    forwarder->now_ns = now_ns;
    vr_count_add(&forwarder->stats->side[in->side].rx_packets, 1);
    *out = (struct vr_egress){.data = in->data, .data_bytes = in->data_bytes, .hops = 1};
    out->owners_due = in->data_bytes > 1 && in->data[1] == 'o';
    switch (in->data_bytes ? in->data[0] : 0) {
    case '1': /* to the first */
        out->hop[0] = forwarder->hop[0];
        return VR_VERDICT_SEND;
    case '2': /* to both */
        out->hops = 2;
        memcpy(out->hop, forwarder->hop, sizeof out->hop);
        return VR_VERDICT_SEND;
    case 'b':
        out->hop[0] = forwarder->bad;
        return VR_VERDICT_SEND;
    case 'e': /* back to the sender */
        out->hop[0] =
            (struct vr_hop){.side = in->side, .listen = in->listen, .destination = in->source};
        memcpy(out->hop[0].source_ip, in->local.ip, 16);
        return VR_VERDICT_SEND;
    case 'h': /* a probe's echo, to the first */
        out->hop[0] = forwarder->hop[0];
        out->is_probe = true;
        return VR_VERDICT_SEND;
    case 't':
        return VR_VERDICT_TAKEN;
    case 'p':
        return VR_VERDICT_PARK;
    default:
        return VR_VERDICT_DROP;
    }
}

void vr_forward_set_clock(struct vr_forwarder *forwarder, uint64_t unix_s) {
    (void)forwarder;
    CHECK(unix_s > 1700000000);
}

void vr_forward_prefetch(struct vr_forwarder *forwarder, const struct vr_ingress *in,
                         unsigned count) {
    (void)forwarder;
    CHECK(count <= VR_PREFETCH_MAX);
    for (unsigned i = 0; i < count; i++)
        CHECK(in[i].data_bytes <= VR_DATAGRAM_MAX_BYTES && !in[i].parked);
}

void vr_forward_sweep(struct vr_forwarder *forwarder, uint64_t now_ns) {
    CHECK(now_ns >= forwarder->now_ns);
    forwarder->sweeps++;
}

bool vr_forward_probes_are_due(const struct vr_forwarder *forwarder, uint64_t now_ns) {
    CHECK(now_ns >= forwarder->now_ns);
    return forwarder->probes > 0;
}

bool vr_forward_next_probe(struct vr_forwarder *forwarder, uint64_t now_ns,
                           const uint8_t nonce[VR_PROBE_NONCE_BYTES],
                           uint8_t buffer[VR_PROBE_BYTES], struct vr_egress *out) {
    CHECK(now_ns >= forwarder->now_ns);
    *out = (struct vr_egress){.data = buffer, .data_bytes = VR_PROBE_BYTES, .is_probe = true};
    out->hops = 1;
    out->hop[0] = forwarder->hop[0];
    memcpy(buffer + VR_SPP_BYTES, nonce, VR_PROBE_NONCE_BYTES);
    return forwarder->probes-- > 0;
}

/* --- a cache whose answers a test decides --- */

struct vr_asker {
    bool has_room, must_ring, recovered;
    unsigned parked, told, swept;
    struct vr_parked waiting; /* what an answer sets free */
};

bool vr_asker_park(struct vr_asker *asker, const struct vr_ingress *in, uint64_t now_ns) {
    (void)in, (void)now_ns;
    asker->parked++;
    asker->must_ring = asker->has_room;
    return asker->has_room;
}

void vr_asker_owners(struct vr_asker *asker, const struct vr_ingress *in, uint64_t now_ns) {
    (void)in, (void)now_ns;
    asker->told++;
    asker->must_ring = true;
}

bool vr_asker_must_ring(struct vr_asker *asker) {
    bool must_ring = asker->must_ring;
    asker->must_ring = false;
    return must_ring;
}

bool vr_asker_answer(struct vr_asker *asker, const struct vr_command *command, uint64_t now_ns,
                     struct vr_parked *parked, bool *recovered) {
    (void)command, (void)now_ns;
    *parked = asker->waiting;
    *recovered = asker->recovered;
    return parked->count > 0;
}

unsigned vr_asker_sweep(struct vr_asker *asker, uint64_t now_ns) {
    (void)now_ns;
    unsigned swept = asker->swept;
    asker->swept = 0;
    return swept;
}

bool vr_asker_is_waiting(const struct vr_asker *asker) {
    return asker->swept > 0;
}

/* --- the kernel's sendmmsg, which can be told to be full --- */

static unsigned full_calls;

int sendmmsg(int fd, struct mmsghdr *message, unsigned count, int flags) {
    if (full_calls > 0) {
        full_calls--;
        errno = EAGAIN;
        return -1;
    }
    return (int)syscall(SYS_sendmmsg, fd, message, count, flags);
}

/* --- a worker with two public sockets and an internal one, a client and two transceivers --- */

enum { FIRST, SECOND, INTERNAL, SOCKETS };

struct worker {
    int fd[SOCKETS], client, transceiver[2], stop_fd, command_fd, life[2];
    struct vr_addr addr[SOCKETS], client_addr, transceiver_addr[2];
    struct vr_slots *slots;
    struct vr_socket *socket[SOCKETS];
    struct vr_forwarder forwarder;
    struct vr_stats stats;
    struct vr_mailbox mailbox;
    struct vr_loop *loop;
    unsigned batch_max;
    unsigned coalesce_us;
    struct vr_command command[3];
    unsigned commands;
    struct vr_asker *asker;
    int bell_fd;
};

static inline void on_command(void *context, const struct vr_command *command, uint64_t now_ns) {
    struct worker *w = context;
    CHECK(now_ns > 0);
    if (w->commands < 3)
        w->command[w->commands] = *command;
    w->commands++;
}

static inline struct vr_loop *make_loop(struct worker *w) {
    struct vr_loop_config config = {.forwarder = &w->forwarder,
                                    .stats = &w->stats,
                                    .sockets = w->socket,
                                    .socket_count = SOCKETS,
                                    .batch_max = w->batch_max ? w->batch_max : VR_BATCH_MAX,
                                    .coalesce_us = w->coalesce_us,
                                    .stop_fd = w->stop_fd,
                                    .life_fd = w->life[0],
                                    .command_fd = w->command_fd,
                                    .mailbox = &w->mailbox,
                                    .on_command = on_command,
                                    .command_context = w,
                                    .asker = w->asker,
                                    .bell_fd = w->bell_fd};
    return vr_loop_new(&config);
}

static inline struct worker *open_worker(unsigned batch_max) {
    struct worker *w = aligned_alloc(64, (sizeof *w + 63) & ~(size_t)63);
    memset(w, 0, sizeof *w);
    w->batch_max = batch_max;
    w->slots = vr_slots_new();
    for (unsigned i = 0; i < SOCKETS; i++) {
        w->fd[i] = open_udp(i == SECOND ? "0.0.0.0" : "127.0.0.1");
        w->addr[i] = bound_addr(w->fd[i]);
        struct vr_socket_config config = {.fd = w->fd[i],
                                          .side = i == INTERNAL ? VR_SIDE_INTERNAL : VR_SIDE_PUBLIC,
                                          .listen = (uint8_t)(200 + i),
                                          .slots = w->slots};
        w->socket[i] = vr_socket_new(&config);
    }
    w->client = open_udp("127.0.0.1");
    w->client_addr = bound_addr(w->client);
    for (unsigned i = 0; i < 2; i++) {
        w->transceiver[i] = open_udp("127.0.0.1");
        w->transceiver_addr[i] = bound_addr(w->transceiver[i]);
        w->forwarder.hop[i] =
            (struct vr_hop){.side = VR_SIDE_INTERNAL, .destination = w->transceiver_addr[i]};
    }
    w->forwarder.bad =
        (struct vr_hop){.side = VR_SIDE_INTERNAL, .destination = addr_of("127.0.0.1", 0)};
    w->forwarder.stats = &w->stats;
    w->stop_fd = eventfd(0, EFD_NONBLOCK);
    w->command_fd = eventfd(0, EFD_NONBLOCK);
    if (pipe(w->life) < 0)
        abort();
    w->loop = make_loop(w);
    CHECK(w->loop != NULL);
    return w;
}

static inline void close_worker(struct worker *w) {
    vr_loop_free(w->loop);
    for (unsigned i = 0; i < SOCKETS; i++) {
        vr_socket_free(w->socket[i]);
        close(w->fd[i]);
    }
    vr_slots_free(w->slots);
    close(w->client);
    close(w->transceiver[0]);
    close(w->transceiver[1]);
    close(w->stop_fd);
    close(w->command_fd);
    close(w->life[0]);
    if (w->life[1] >= 0)
        close(w->life[1]);
    free(w);
}

static inline void ring(int fd) {
    uint64_t one = 1;
    CHECK_EQ(write(fd, &one, sizeof one), sizeof one);
}

static inline void expect(int fd, const char *text) {
    char data[16] = {0};
    CHECK_EQ(receive_udp(fd, data, sizeof data - 1, NULL), strlen(text));
    CHECK(strcmp(data, text) == 0);
}

static inline uint64_t all_drops(const struct vr_stats *stats) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < VR_DROPS; i++)
        sum += stats->drop[i];
    return sum;
}

#endif
