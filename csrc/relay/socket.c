#define _GNU_SOURCE
#include "socket.h"
#include "sender.h"

#include <errno.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#ifndef UDP_GRO
#define UDP_GRO 104
#endif

/* Room for the TOS, and for the address that was asked (PKTINFO) or the size of a train's datagrams. */
struct control {
    _Alignas(struct cmsghdr)
        uint8_t bytes[CMSG_SPACE(sizeof(struct in6_pktinfo)) + CMSG_SPACE(sizeof(int))];
};

struct vr_slots {
    uint8_t data[VR_BATCH_MAX][VR_SLOT_BYTES] __attribute__((aligned(64)));
    uint8_t train[VR_TRAIN_MESSAGES][VR_TRAIN_BYTES] __attribute__((aligned(64)));
};

/* One datagram of a train, or of a message that is none. */
struct piece {
    uint8_t *data;
    uint32_t data_bytes;
    uint32_t message;
};

/* Rule 6. */
struct trains {
    unsigned wanted;  /* messages of the next receive call */
    unsigned message; /* where to go on taking apart, */
    unsigned at;      /* and how far into that message */
    unsigned segment_bytes[VR_TRAIN_MESSAGES];
    uint8_t tos[VR_TRAIN_MESSAGES];
    struct piece piece[VR_BATCH_MAX];
};

struct rx {
    unsigned used; /* headers that the last receive call may have written */
    bool was_full;
    struct mmsghdr message[VR_BATCH_MAX];
    struct iovec part[VR_BATCH_MAX];
    union vr_sockaddr name[VR_BATCH_MAX];
    struct control control[VR_BATCH_MAX];
};

struct vr_socket {
    int fd;
    int family;
    enum vr_side side;
    uint8_t listen;
    bool wildcard; /* PUBLIC and bound to any address: PKTINFO both ways */
    bool has_advertised;
    unsigned data_offset; /* where in a slot a datagram starts */
    struct vr_addr bound;
    struct vr_addr advertised;
    bool takes_trains;
    struct vr_slots *slots;
    struct rx rx;
    struct trains trains;
    struct vr_sender sender;
};

/* --- memory: mmap, so that what is never used is never touched --- */

static void *map_zeroed(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

struct vr_slots *vr_slots_new(void) {
    return map_zeroed(sizeof(struct vr_slots));
}

void vr_slots_free(struct vr_slots *slots) {
    if (slots)
        munmap(slots, sizeof *slots);
}

/* --- options --- */

static int set_option(int fd, int level, int option, int value) {
    return setsockopt(fd, level, option, &value, sizeof value);
}

static int set_options(const struct vr_socket *socket) {
    bool v4 = socket->family == AF_INET;
    int level = v4 ? IPPROTO_IP : IPPROTO_IPV6;
    if (set_option(socket->fd, level, v4 ? IP_RECVERR : IPV6_RECVERR, 0) < 0 ||
        set_option(socket->fd, level, v4 ? IP_RECVTOS : IPV6_RECVTCLASS, 1) < 0)
        return -1;
    /* A wildcard inside serves both families: what comes by IPv4 has a TOS there, too. */
    if (!v4 && set_option(socket->fd, IPPROTO_IP, IP_RECVTOS, 1) < 0)
        return -1;
    if (socket->side == VR_SIDE_PUBLIC)
        return set_option(socket->fd, level, v4 ? IP_PKTINFO : IPV6_RECVPKTINFO, socket->wildcard);
    /* IPv4 goes without DF, so routers fragment. No router does that for IPv6 (RFC 8200 4.5): there the
     * kernel has to hear what the path takes, and fragments itself. A wildcard of both has both. */
    if (!v4 && set_option(socket->fd, level, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_WANT) < 0)
        return -1;
    return set_option(socket->fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_OMIT);
}

/* --- life --- */

static void prepare_receiving(struct vr_socket *socket) {
    bool trains = socket->takes_trains;
    for (unsigned i = 0; i < (trains ? VR_TRAIN_MESSAGES : VR_BATCH_MAX); i++) {
        struct msghdr *header = &socket->rx.message[i].msg_hdr;
        uint8_t *room = trains ? socket->slots->train[i] : socket->slots->data[i];
        unsigned end = trains ? VR_TRAIN_BYTES : VR_SLOT_PAYLOAD_OFFSET + VR_DATAGRAM_MAX_BYTES;
        socket->rx.part[i].iov_base = room + socket->data_offset;
        socket->rx.part[i].iov_len = end - socket->data_offset;
        header->msg_iov = &socket->rx.part[i];
        header->msg_iovlen = 1;
        header->msg_name = &socket->rx.name[i];
        header->msg_control = &socket->rx.control[i];
    }
    socket->rx.used = trains ? VR_TRAIN_MESSAGES : VR_BATCH_MAX;
    socket->trains.wanted = VR_TRAIN_MESSAGES;
}

struct vr_socket *vr_socket_new(const struct vr_socket_config *config) {
    union vr_sockaddr name = {0};
    socklen_t name_bytes = sizeof name;
    if (getsockname(config->fd, &name.any, &name_bytes) < 0)
        return NULL;
    if (name.any.sa_family != AF_INET && name.any.sa_family != AF_INET6) {
        errno = EAFNOSUPPORT;
        return NULL;
    }
    struct vr_socket *socket = map_zeroed(sizeof *socket);
    if (!socket) {
        errno = ENOMEM;
        return NULL;
    }
    socket->fd = config->fd;
    socket->family = name.any.sa_family;
    socket->side = config->side;
    socket->listen = config->listen;
    socket->advertised = config->advertised;
    socket->has_advertised = config->advertised.port_be != 0;
    socket->slots = config->slots;
    vr_sockaddr_read(&socket->bound, &name);
    socket->wildcard = socket->side == VR_SIDE_PUBLIC && vr_ip_is_any(socket->bound.ip);
    /* On the inside the SPP header lies in the datagram: the payload is aligned all the same. */
    socket->data_offset =
        socket->side == VR_SIDE_PUBLIC ? VR_SLOT_PAYLOAD_OFFSET : VR_SLOT_HEADER_OFFSET;
    if (set_options(socket) < 0) {
        int error = errno;
        vr_socket_free(socket);
        errno = error;
        return NULL;
    }
    socket->takes_trains =
        socket->side != VR_SIDE_PUBLIC && set_option(socket->fd, IPPROTO_UDP, UDP_GRO, 1) == 0;
    prepare_receiving(socket);
    vr_sender_init(&socket->sender, socket->fd, socket->family, socket->side, socket->wildcard);
    return socket;
}

void vr_socket_free(struct vr_socket *socket) {
    if (socket)
        munmap(socket, sizeof *socket);
}

int vr_socket_fd(const struct vr_socket *socket) {
    return socket->fd;
}

enum vr_side vr_socket_side(const struct vr_socket *socket) {
    return socket->side;
}

uint8_t vr_socket_listen(const struct vr_socket *socket) {
    return socket->listen;
}

uint32_t vr_socket_kernel_drops(const struct vr_socket *socket) {
    uint32_t info[SK_MEMINFO_VARS] = {0};
    socklen_t bytes = sizeof info;
    if (getsockopt(socket->fd, SOL_SOCKET, SO_MEMINFO, info, &bytes) < 0)
        return 0;
    return info[SK_MEMINFO_DROPS];
}

/* --- receiving --- */

static bool is_fatal(int error) {
    return error == EBADF || error == ENOTSOCK || error == EFAULT || error == EINVAL;
}

/* Looks at the messages that were received: how long their datagrams are, and how many there are, so that
 * the next call takes no more than `max` if they go on like this. */
static void measure_trains(struct vr_socket *socket, unsigned max);

int vr_socket_receive(struct vr_socket *socket, unsigned max) {
    struct rx *rx = &socket->rx;
    for (unsigned i = 0; i < rx->used; i++) {
        rx->message[i].msg_hdr.msg_namelen = sizeof(union vr_sockaddr);
        rx->message[i].msg_hdr.msg_controllen = sizeof(struct control);
    }
    unsigned wanted = max;
    if (socket->takes_trains && socket->trains.wanted < max)
        wanted = socket->trains.wanted;
    int received = recvmmsg(socket->fd, rx->message, wanted, MSG_DONTWAIT, NULL);
    rx->used = received > 0 ? (unsigned)received : 0;
    rx->was_full = rx->used == wanted;
    if (received < 0)
        return is_fatal(errno) ? -errno : 0;
    if (!socket->takes_trains)
        return received;
    measure_trains(socket, max);
    return (int)vr_socket_continue(socket);
}

bool vr_socket_was_full(const struct vr_socket *socket) {
    return socket->rx.was_full;
}

/* The TOS of a datagram and, of a wildcard socket, the address it was sent to; what the kernel did
 * not say stays as it is. Returns the size of a train's datagrams, 0 when it is none. */
static unsigned read_control(const struct msghdr *received, struct vr_ingress *in) {
    int segment_bytes = 0;
    struct msghdr header = *received;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&header); part; part = CMSG_NXTHDR(&header, part)) {
        const uint8_t *data = CMSG_DATA(part);
        if (part->cmsg_level == IPPROTO_IP && part->cmsg_type == IP_TOS) {
            in->tos = *data;
        } else if (part->cmsg_level == IPPROTO_IPV6 && part->cmsg_type == IPV6_TCLASS) {
            int tclass;
            memcpy(&tclass, data, sizeof tclass);
            in->tos = (uint8_t)tclass;
        } else if (part->cmsg_level == IPPROTO_IP && part->cmsg_type == IP_PKTINFO) {
            struct in_pktinfo info;
            memcpy(&info, data, sizeof info);
            vr_ip_from_v4(in->local.ip, (const uint8_t *)&info.ipi_addr);
        } else if (part->cmsg_level == IPPROTO_IPV6 && part->cmsg_type == IPV6_PKTINFO) {
            struct in6_pktinfo info;
            memcpy(&info, data, sizeof info);
            memcpy(in->local.ip, &info.ipi6_addr, 16);
        } else if (part->cmsg_level == IPPROTO_UDP && part->cmsg_type == UDP_GRO) {
            memcpy(&segment_bytes, data, sizeof segment_bytes);
        }
    }
    return segment_bytes > 0 ? (unsigned)segment_bytes : 0;
}

/* --- trains --- */

static void measure_trains(struct vr_socket *socket, unsigned max) {
    struct trains *trains = &socket->trains;
    unsigned longest = 1;
    for (unsigned i = 0; i < socket->rx.used; i++) {
        struct vr_ingress in = {.tos = 0};
        unsigned bytes = socket->rx.message[i].msg_len;
        unsigned segment_bytes = read_control(&socket->rx.message[i].msg_hdr, &in);
        trains->tos[i] = in.tos;
        trains->segment_bytes[i] = segment_bytes ? segment_bytes : bytes;
        if (segment_bytes && (bytes - 1) / segment_bytes + 1 > longest)
            longest = (bytes - 1) / segment_bytes + 1;
    }
    trains->message = trains->at = 0;
    trains->wanted = max / longest < VR_TRAIN_MESSAGES ? max / longest : VR_TRAIN_MESSAGES;
    if (trains->wanted == 0)
        trains->wanted = 1;
}

unsigned vr_socket_continue(struct vr_socket *socket) {
    struct trains *trains = &socket->trains;
    unsigned count = 0;
    if (!socket->takes_trains)
        return 0;
    while (trains->message < socket->rx.used && count < VR_BATCH_MAX) {
        unsigned i = trains->message, bytes = trains->segment_bytes[i];
        unsigned left = socket->rx.message[i].msg_len - trains->at;
        if (bytes > left) /* the last of a train may be shorter */
            bytes = left;
        trains->piece[count++] = (struct piece){
            .data = (uint8_t *)socket->rx.part[i].iov_base + trains->at,
            .data_bytes = bytes,
            .message = i,
        };
        trains->at += bytes;
        if (bytes == left) {
            trains->message++;
            trains->at = 0;
        }
    }
    return count;
}

static bool describe_piece(const struct vr_socket *socket, unsigned index, struct vr_ingress *in) {
    const struct piece *piece = &socket->trains.piece[index];
    *in = (struct vr_ingress){
        .side = socket->side,
        .data = piece->data,
        .data_bytes = piece->data_bytes,
        .tos = socket->trains.tos[piece->message],
        .local = socket->bound,
    };
    vr_sockaddr_read(&in->source, &socket->rx.name[piece->message]);
    if (in->data_bytes <= VR_SPP_BYTES + VR_DATAGRAM_MAX_BYTES)
        return true;
    in->data_bytes = VR_SPP_BYTES + VR_DATAGRAM_MAX_BYTES; /* rule 2, as in a slot */
    return false;
}

bool vr_socket_ingress(const struct vr_socket *socket, unsigned index, struct vr_ingress *in) {
    if (socket->takes_trains)
        return describe_piece(socket, index, in);
    const struct mmsghdr *message = &socket->rx.message[index];
    *in = (struct vr_ingress){
        .side = socket->side,
        .listen = socket->listen,
        .data = socket->rx.part[index].iov_base,
        .data_bytes = message->msg_len,
    };
    if (message->msg_hdr.msg_flags & MSG_TRUNC)
        return false;
    vr_sockaddr_read(&in->source, &socket->rx.name[index]);
    in->local = socket->bound;
    read_control(&message->msg_hdr, in);
    if (socket->side != VR_SIDE_PUBLIC)
        return true;
    in->proxy = socket->has_advertised ? socket->advertised : in->local;
    return true;
}

/* --- sending --- */

void vr_socket_queue(struct vr_socket *socket, const struct vr_egress *egress,
                     const struct vr_hop *hop, struct vr_stats *stats) {
    vr_sender_queue(&socket->sender, egress, hop, stats);
}

void vr_socket_flush(struct vr_socket *socket, struct vr_stats *stats) {
    vr_sender_flush(&socket->sender, stats);
}

bool vr_socket_send_now(struct vr_socket *socket, const struct vr_egress *egress,
                        const struct vr_hop *hop) {
    union vr_sockaddr name = {0};
    if (!vr_sockaddr_write(&name, socket->family, &hop->destination))
        return false;
    struct iovec part[2] = {{egress->data, egress->data_bytes},
                            {(void *)egress->trailer, hop->is_relay ? egress->trailer_bytes : 0}};
    struct msghdr header = {.msg_name = &name,
                            .msg_namelen = vr_sockaddr_bytes(socket->family),
                            .msg_iov = part,
                            .msg_iovlen = 2};
    return sendmsg(socket->fd, &header, MSG_DONTWAIT) >= 0;
}

bool vr_socket_blocked(const struct vr_socket *socket) {
    return socket->sender.backlog_count > 0;
}

void vr_socket_flush_backlog(struct vr_socket *socket, struct vr_stats *stats) {
    vr_sender_flush_backlog(&socket->sender, stats);
}
