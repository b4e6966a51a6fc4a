#define _GNU_SOURCE
#include "socket.h"

#include <errno.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

enum { TX_MAX = 2 * VR_BATCH_MAX }; /* a datagram may go to two owners */

union name {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

/* Room for one IP_PKTINFO or IPV6_PKTINFO. */
struct control {
    _Alignas(struct cmsghdr) uint8_t bytes[CMSG_SPACE(sizeof(struct in6_pktinfo))];
};

struct vr_slots {
    uint8_t data[VR_BATCH_MAX][VR_SLOT_BYTES] __attribute__((aligned(64)));
};

struct rx {
    unsigned used; /* headers that the last receive call may have written */
    struct mmsghdr message[VR_BATCH_MAX];
    struct iovec part[VR_BATCH_MAX];
    union name name[VR_BATCH_MAX];
    struct control control[VR_BATCH_MAX];
};

struct tx {
    unsigned count;
    struct mmsghdr message[TX_MAX];
    struct iovec part[TX_MAX];
    union name name[TX_MAX];
    struct control control[TX_MAX];
};

struct waiting {
    union name name;
    struct control control;
    uint32_t control_bytes; /* 0: none */
    uint32_t data_bytes;
    uint8_t data[VR_SPP_BYTES + VR_DATAGRAM_MAX_BYTES];
};

/* A ring; its pages are touched only when a send buffer was full. */
struct backlog {
    unsigned first;
    unsigned count;
    struct waiting item[VR_BACKLOG_MAX];
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
    struct vr_slots *slots;
    struct rx rx;
    struct tx tx;
    struct backlog backlog;
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

/* --- addresses --- */

static void addr_from_name(struct vr_addr *addr, const union name *name) {
    if (name->any.sa_family == AF_INET) {
        vr_ip_from_v4(addr->ip, (const uint8_t *)&name->v4.sin_addr);
        addr->port_be = name->v4.sin_port;
    } else {
        memcpy(addr->ip, &name->v6.sin6_addr, 16);
        addr->port_be = name->v6.sin6_port;
    }
}

/* False when the socket's family cannot reach the address. */
static bool name_from_addr(union name *name, int family, const struct vr_addr *addr) {
    if (family == AF_INET) {
        if (!vr_ip_is_v4(addr->ip))
            return false;
        name->v4.sin_family = AF_INET;
        name->v4.sin_port = addr->port_be;
        memcpy(&name->v4.sin_addr, addr->ip + 12, 4);
    } else {
        name->v6.sin6_family = AF_INET6;
        name->v6.sin6_port = addr->port_be;
        memcpy(&name->v6.sin6_addr, addr->ip, 16);
    }
    return true;
}

static bool ip_is_any(const uint8_t ip[16]) {
    static const uint8_t zero[4];
    static const uint8_t zeroes[16];
    return memcmp(ip, zeroes, 16) == 0 || (vr_ip_is_v4(ip) && memcmp(ip + 12, zero, 4) == 0);
}

/* --- options --- */

static int set_option(int fd, int level, int option, int value) {
    return setsockopt(fd, level, option, &value, sizeof value);
}

static int set_options(const struct vr_socket *socket) {
    bool v4 = socket->family == AF_INET;
    int level = v4 ? IPPROTO_IP : IPPROTO_IPV6;
    if (set_option(socket->fd, level, v4 ? IP_RECVERR : IPV6_RECVERR, 0) < 0)
        return -1;
    if (socket->side == VR_SIDE_PUBLIC)
        return set_option(socket->fd, level, v4 ? IP_PKTINFO : IPV6_RECVPKTINFO, socket->wildcard);
    return set_option(socket->fd, level, v4 ? IP_MTU_DISCOVER : IPV6_MTU_DISCOVER,
                      v4 ? IP_PMTUDISC_OMIT : IPV6_PMTUDISC_OMIT);
}

/* --- life --- */

static void prepare_messages(struct vr_socket *socket) {
    for (unsigned i = 0; i < VR_BATCH_MAX; i++) {
        struct msghdr *header = &socket->rx.message[i].msg_hdr;
        socket->rx.part[i].iov_base = socket->slots->data[i] + socket->data_offset;
        socket->rx.part[i].iov_len =
            VR_DATAGRAM_MAX_BYTES + VR_SLOT_PAYLOAD_OFFSET - socket->data_offset;
        header->msg_iov = &socket->rx.part[i];
        header->msg_iovlen = 1;
        header->msg_name = &socket->rx.name[i];
        header->msg_control = socket->wildcard ? &socket->rx.control[i] : NULL;
    }
    socket->rx.used = VR_BATCH_MAX;
    for (unsigned i = 0; i < TX_MAX; i++) {
        struct msghdr *header = &socket->tx.message[i].msg_hdr;
        header->msg_iov = &socket->tx.part[i];
        header->msg_iovlen = 1;
        header->msg_name = &socket->tx.name[i];
        header->msg_namelen =
            socket->family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    }
}

struct vr_socket *vr_socket_new(const struct vr_socket_config *config) {
    union name name = {0};
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
    addr_from_name(&socket->bound, &name);
    socket->wildcard = socket->side == VR_SIDE_PUBLIC && ip_is_any(socket->bound.ip);
    /* On the inside the SPP header lies in the datagram: the payload is aligned all the same. */
    socket->data_offset =
        socket->side == VR_SIDE_PUBLIC ? VR_SLOT_PAYLOAD_OFFSET : VR_SLOT_HEADER_OFFSET;
    if (set_options(socket) < 0) {
        int error = errno;
        vr_socket_free(socket);
        errno = error;
        return NULL;
    }
    prepare_messages(socket);
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

int vr_socket_receive(struct vr_socket *socket, unsigned max) {
    struct rx *rx = &socket->rx;
    for (unsigned i = 0; i < rx->used; i++) {
        rx->message[i].msg_hdr.msg_namelen = sizeof(union name);
        rx->message[i].msg_hdr.msg_controllen = socket->wildcard ? sizeof(struct control) : 0;
    }
    int received = recvmmsg(socket->fd, rx->message, max, MSG_DONTWAIT, NULL);
    rx->used = received > 0 ? (unsigned)received : 0;
    if (received < 0)
        return is_fatal(errno) ? -errno : 0;
    return received;
}

/* The destination of a datagram on a wildcard socket. False when the kernel did not say. */
static bool destination_ip(struct msghdr *header, uint8_t ip[16]) {
    struct cmsghdr *part = CMSG_FIRSTHDR(header);
    if (!part)
        return false;
    if (part->cmsg_level == IPPROTO_IP && part->cmsg_type == IP_PKTINFO) {
        struct in_pktinfo info;
        memcpy(&info, CMSG_DATA(part), sizeof info);
        vr_ip_from_v4(ip, (const uint8_t *)&info.ipi_addr);
        return true;
    }
    if (part->cmsg_level == IPPROTO_IPV6 && part->cmsg_type == IPV6_PKTINFO) {
        struct in6_pktinfo info;
        memcpy(&info, CMSG_DATA(part), sizeof info);
        memcpy(ip, &info.ipi6_addr, 16);
        return true;
    }
    return false;
}

bool vr_socket_ingress(const struct vr_socket *socket, unsigned index, struct vr_ingress *in) {
    const struct mmsghdr *message = &socket->rx.message[index];
    *in = (struct vr_ingress){
        .side = socket->side,
        .listen = socket->listen,
        .data = socket->rx.part[index].iov_base,
        .data_bytes = message->msg_len,
    };
    if (message->msg_hdr.msg_flags & MSG_TRUNC)
        return false;
    addr_from_name(&in->source, &socket->rx.name[index]);
    if (socket->side != VR_SIDE_PUBLIC)
        return true;
    in->local = socket->bound;
    if (socket->wildcard) {
        struct msghdr header = message->msg_hdr;
        destination_ip(&header, in->local.ip);
    }
    in->proxy = socket->has_advertised ? socket->advertised : in->local;
    return true;
}

/* --- sending --- */

static void count_drop(struct vr_stats *stats, enum vr_drop reason) {
    vr_count_add(&stats->drop[reason], 1);
}

static enum vr_drop drop_reason(int error) {
    switch (error) {
    case EMSGSIZE:
        return VR_DROP_SEND_SIZE;
    case EAGAIN:
    case ENOBUFS:
    case ENOMEM:
        return VR_DROP_SEND_BUSY;
    default:
        return VR_DROP_SEND_ERROR;
    }
}

/* Makes a datagram leave from `source`; the kernel goes on choosing the interface. */
static void set_source(struct msghdr *header, struct control *control, int family,
                       const uint8_t source[16]) {
    memset(control, 0, sizeof *control);
    header->msg_control = control;
    struct cmsghdr *part = (struct cmsghdr *)control->bytes;
    if (family == AF_INET) {
        struct in_pktinfo info = {0};
        memcpy(&info.ipi_spec_dst, source + 12, 4);
        part->cmsg_level = IPPROTO_IP;
        part->cmsg_type = IP_PKTINFO;
        part->cmsg_len = CMSG_LEN(sizeof info);
        memcpy(CMSG_DATA(part), &info, sizeof info);
        header->msg_controllen = CMSG_SPACE(sizeof info);
    } else {
        struct in6_pktinfo info = {0};
        memcpy(&info.ipi6_addr, source, 16);
        part->cmsg_level = IPPROTO_IPV6;
        part->cmsg_type = IPV6_PKTINFO;
        part->cmsg_len = CMSG_LEN(sizeof info);
        memcpy(CMSG_DATA(part), &info, sizeof info);
        header->msg_controllen = CMSG_SPACE(sizeof info);
    }
}

void vr_socket_queue(struct vr_socket *socket, const uint8_t *data, uint32_t data_bytes,
                     const struct vr_hop *hop, struct vr_stats *stats) {
    struct tx *tx = &socket->tx;
    if (tx->count == TX_MAX) {
        count_drop(stats, VR_DROP_SEND_BUSY);
        return;
    }
    unsigned i = tx->count;
    struct msghdr *header = &tx->message[i].msg_hdr;
    if (!name_from_addr(&tx->name[i], socket->family, &hop->destination)) {
        count_drop(stats, VR_DROP_SEND_ERROR);
        return;
    }
    tx->part[i].iov_base = (void *)data;
    tx->part[i].iov_len = data_bytes;
    header->msg_control = NULL;
    header->msg_controllen = 0;
    if (socket->wildcard && !ip_is_any(hop->source_ip))
        set_source(header, &tx->control[i], socket->family, hop->source_ip);
    tx->count++;
}

/* Sends the lined-up messages and skips over those that the kernel refuses. Returns how many are
 * dealt with: all, or fewer when the send buffer is full. */
static unsigned send_messages(struct vr_socket *socket, struct vr_stats *stats) {
    struct tx *tx = &socket->tx;
    struct vr_side_stats *side = &stats->side[socket->side];
    unsigned done = 0;
    while (done < tx->count) {
        int sent = sendmmsg(socket->fd, tx->message + done, tx->count - done, MSG_DONTWAIT);
        if (sent > 0) {
            uint64_t bytes = 0;
            for (unsigned i = done; i < done + (unsigned)sent; i++)
                bytes += tx->part[i].iov_len;
            vr_count_add(&side->tx_packets, (uint64_t)sent);
            vr_count_add(&side->tx_bytes, bytes);
            done += (unsigned)sent;
        } else if (errno == EAGAIN) {
            break;
        } else if (errno != EINTR) {
            count_drop(stats, drop_reason(errno));
            done++;
        }
    }
    return done;
}

/* --- the backlog --- */

/* Copies message `index` of the transmit batch to the backlog's end. */
static void backlog_push(struct vr_socket *socket, unsigned index, struct vr_stats *stats) {
    struct backlog *backlog = &socket->backlog;
    const struct iovec *part = &socket->tx.part[index];
    struct waiting *item = &backlog->item[(backlog->first + backlog->count) % VR_BACKLOG_MAX];
    if (backlog->count == VR_BACKLOG_MAX || part->iov_len > sizeof item->data) {
        count_drop(stats, VR_DROP_SEND_BUSY);
        return;
    }
    item->name = socket->tx.name[index];
    item->control = socket->tx.control[index];
    item->control_bytes = (uint32_t)socket->tx.message[index].msg_hdr.msg_controllen;
    item->data_bytes = (uint32_t)part->iov_len;
    memcpy(item->data, part->iov_base, part->iov_len);
    backlog->count++;
}

/* Lines up the whole backlog; the transmit batch is empty before. */
static void backlog_line_up(struct vr_socket *socket) {
    struct backlog *backlog = &socket->backlog;
    struct tx *tx = &socket->tx;
    for (unsigned i = 0; i < backlog->count; i++) {
        struct waiting *item = &backlog->item[(backlog->first + i) % VR_BACKLOG_MAX];
        tx->name[i] = item->name;
        tx->control[i] = item->control;
        tx->message[i].msg_hdr.msg_control = item->control_bytes ? &tx->control[i] : NULL;
        tx->message[i].msg_hdr.msg_controllen = item->control_bytes;
        tx->part[i].iov_base = item->data;
        tx->part[i].iov_len = item->data_bytes;
    }
    tx->count = backlog->count;
}

void vr_socket_flush(struct vr_socket *socket, struct vr_stats *stats) {
    struct tx *tx = &socket->tx;
    /* A full buffer earlier in this turn: what comes after must not overtake what waits. */
    unsigned done = vr_socket_blocked(socket) ? 0 : send_messages(socket, stats);
    for (unsigned i = done; i < tx->count; i++)
        backlog_push(socket, i, stats);
    tx->count = 0;
}

void vr_socket_flush_backlog(struct vr_socket *socket, struct vr_stats *stats) {
    struct backlog *backlog = &socket->backlog;
    backlog_line_up(socket);
    unsigned done = send_messages(socket, stats);
    backlog->first = (backlog->first + done) % VR_BACKLOG_MAX;
    backlog->count -= done;
    socket->tx.count = 0;
}

bool vr_socket_blocked(const struct vr_socket *socket) {
    return socket->backlog.count > 0;
}
