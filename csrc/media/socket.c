#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "socket.h"

#include "../wire/spp.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <sys/socket.h>

enum {
    TRAIN_BYTES = 65536, /* the most that UDP_GRO puts together */
    CONTROL_BYTES = 128,
    HEADROOM_BYTES = 2, /* so that the payload behind 38 bytes of SPP is 8-aligned */
};

#ifndef UDP_GRO
#define UDP_GRO 104
#endif

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

struct vr_socket {
    int fd;
    bool ipv6;
    bool wildcard;
    struct vr_addr bound;
    struct vr_socket_counts counts;

    struct mmsghdr in[VR_BATCH_MESSAGES];
    struct iovec in_parts[VR_BATCH_MESSAGES];
    union address in_from[VR_BATCH_MESSAGES];
    _Alignas(8) uint8_t in_control[VR_BATCH_MESSAGES][CONTROL_BYTES];
    uint8_t *in_data;
    unsigned in_count, in_next; /* messages; the next one to look at */
    size_t in_at, in_segment;   /* within it: offset, and the length of a datagram */
    struct vr_source in_source;

    struct mmsghdr out[VR_BATCH_SENDS];
    struct iovec out_parts[VR_BATCH_SENDS];
    union address out_to[VR_BATCH_SENDS];
    _Alignas(8) uint8_t out_control[VR_BATCH_SENDS][CONTROL_BYTES];
    uint8_t *out_data;
    unsigned out_count;
};

static void read_address(const union address *from, struct vr_addr *out) {
    if (from->any.sa_family == AF_INET6) {
        memcpy(out->ip, &from->v6.sin6_addr, 16);
        out->port_be = from->v6.sin6_port;
    } else {
        vr_ip_from_v4(out->ip, (const uint8_t *)&from->v4.sin_addr);
        out->port_be = from->v4.sin_port;
    }
}

struct vr_socket *vr_socket_new(int fd) {
    struct vr_socket *s = calloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    s->fd = fd;
    s->in_data = malloc((size_t)VR_BATCH_MESSAGES * TRAIN_BYTES);
    s->out_data = malloc((size_t)VR_BATCH_SENDS * VR_DATAGRAM_BYTES);
    union address bound;
    socklen_t length = sizeof bound;
    if (s->in_data == NULL || s->out_data == NULL || getsockname(fd, &bound.any, &length) != 0) {
        vr_socket_free(s);
        return NULL;
    }
    static const uint8_t zeros[16];
    s->ipv6 = bound.any.sa_family == AF_INET6;
    read_address(&bound, &s->bound);
    if (!s->ipv6 && bound.v4.sin_addr.s_addr == 0)
        memset(s->bound.ip, 0, 16);
    s->wildcard = memcmp(s->bound.ip, zeros, 16) == 0;
    int on = 1;
    setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof on); /* older kernels go without */
    if (s->ipv6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, &on, sizeof on);
    else
        setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &on, sizeof on);
    for (int i = 0; i < VR_BATCH_MESSAGES; i++) {
        s->in_parts[i] = (struct iovec){s->in_data + (size_t)i * TRAIN_BYTES, TRAIN_BYTES};
        s->in[i].msg_hdr = (struct msghdr){.msg_name = &s->in_from[i],
                                           .msg_iov = &s->in_parts[i],
                                           .msg_iovlen = 1,
                                           .msg_control = s->in_control[i]};
    }
    for (int i = 0; i < VR_BATCH_SENDS; i++)
        s->out[i].msg_hdr = (struct msghdr){
            .msg_name = &s->out_to[i], .msg_iov = &s->out_parts[i], .msg_iovlen = 1};
    return s;
}

void vr_socket_free(struct vr_socket *s) {
    if (s == NULL)
        return;
    free(s->in_data);
    free(s->out_data);
    free(s);
}

const struct vr_addr *vr_socket_bound(const struct vr_socket *s) {
    return &s->bound;
}

const struct vr_socket_counts *vr_socket_read_counts(const struct vr_socket *s) {
    return &s->counts;
}

/* --- receiving ------------------------------------------------------------------------------- */

unsigned vr_socket_receive(struct vr_socket *s) {
    for (int i = 0; i < VR_BATCH_MESSAGES; i++) {
        s->in[i].msg_hdr.msg_namelen = sizeof s->in_from[i];
        s->in[i].msg_hdr.msg_controllen = CONTROL_BYTES;
        s->in[i].msg_hdr.msg_flags = 0;
    }
    int count = recvmmsg(s->fd, s->in, VR_BATCH_MESSAGES, MSG_DONTWAIT, NULL);
    s->counts.receive_calls++;
    if (count < 0 && errno != EAGAIN && errno != EINTR)
        s->counts.receive_errors++;
    s->in_count = count > 0 ? (unsigned)count : 0;
    s->counts.messages += s->in_count;
    s->in_next = 0;
    s->in_segment = 0;
    return s->in_count;
}

static void read_control(struct vr_socket *s, struct msghdr *message) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c != NULL; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
            int segment;
            memcpy(&segment, CMSG_DATA(c), sizeof segment);
            s->in_segment = segment > 0 ? (size_t)segment : s->in_segment;
        } else if (s->wildcard && c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) {
            struct in_pktinfo info;
            memcpy(&info, CMSG_DATA(c), sizeof info);
            vr_ip_from_v4(s->in_source.local_ip, (const uint8_t *)&info.ipi_addr);
        } else if (s->wildcard && c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO) {
            struct in6_pktinfo info;
            memcpy(&info, CMSG_DATA(c), sizeof info);
            memcpy(s->in_source.local_ip, &info.ipi6_addr, 16);
        }
    }
}

bool vr_socket_next(struct vr_socket *s, struct vr_received *out) {
    while (s->in_next < s->in_count) {
        struct mmsghdr *message = &s->in[s->in_next];
        if (s->in_segment == 0) { /* a message that was not looked at */
            s->in_at = 0;
            s->in_segment = message->msg_len != 0 ? message->msg_len : 1;
            memset(&s->in_source, 0, sizeof s->in_source);
            read_address(&s->in_from[s->in_next], &s->in_source.peer);
            read_control(s, &message->msg_hdr);
            if (message->msg_hdr.msg_flags & MSG_TRUNC) {
                s->counts.truncated++;
                s->in_at = message->msg_len;
            }
        }
        bool empty = message->msg_len == 0 && s->in_at == 0;
        if (s->in_at < message->msg_len || empty) {
            size_t rest = message->msg_len - s->in_at;
            out->bytes = rest < s->in_segment ? rest : s->in_segment;
            out->data = s->in_parts[s->in_next].iov_base;
            out->data += s->in_at;
            out->source = s->in_source;
            s->in_at += empty ? 1 : out->bytes;
            s->counts.received++;
            s->counts.received_bytes += out->bytes;
            return true;
        }
        s->in_next++;
        s->in_segment = 0;
    }
    return false;
}

/* --- sending --------------------------------------------------------------------------------- */

static uint8_t *slot(struct vr_socket *s) {
    return s->out_data + (size_t)s->out_count * VR_DATAGRAM_BYTES + HEADROOM_BYTES;
}

uint8_t *vr_socket_prepare(struct vr_socket *s) {
    if (s->out_count == VR_BATCH_SENDS)
        vr_socket_flush(s);
    return slot(s) + VR_SPP_BYTES;
}

static void write_address(const struct vr_socket *s, const struct vr_addr *to, struct msghdr *out) {
    union address *address = out->msg_name;
    memset(address, 0, sizeof *address);
    if (s->ipv6) {
        address->v6.sin6_family = AF_INET6;
        memcpy(&address->v6.sin6_addr, to->ip, 16);
        address->v6.sin6_port = to->port_be;
        out->msg_namelen = sizeof address->v6;
    } else {
        address->v4.sin_family = AF_INET;
        memcpy(&address->v4.sin_addr, to->ip + 12, 4);
        address->v4.sin_port = to->port_be;
        out->msg_namelen = sizeof address->v4;
    }
}

static void write_control(const struct vr_socket *s, const struct vr_source *source,
                          uint8_t *control, struct msghdr *out) {
    out->msg_control = NULL;
    out->msg_controllen = 0;
    if (!s->wildcard)
        return;
    out->msg_control = control;
    out->msg_controllen = CONTROL_BYTES;
    struct cmsghdr *c = CMSG_FIRSTHDR(out);
    if (s->ipv6) {
        struct in6_pktinfo info = {.ipi6_ifindex = 0};
        memcpy(&info.ipi6_addr, source->local_ip, 16);
        c->cmsg_level = IPPROTO_IPV6;
        c->cmsg_type = IPV6_PKTINFO;
        c->cmsg_len = CMSG_LEN(sizeof info);
        memcpy(CMSG_DATA(c), &info, sizeof info);
        out->msg_controllen = CMSG_SPACE(sizeof info);
    } else {
        struct in_pktinfo info = {.ipi_ifindex = 0};
        memcpy(&info.ipi_spec_dst, source->local_ip + 12, 4);
        c->cmsg_level = IPPROTO_IP;
        c->cmsg_type = IP_PKTINFO;
        c->cmsg_len = CMSG_LEN(sizeof info);
        memcpy(CMSG_DATA(c), &info, sizeof info);
        out->msg_controllen = CMSG_SPACE(sizeof info);
    }
}

void vr_socket_queue(struct vr_socket *s, const struct vr_source *source,
                     const struct vr_flow_key *key, size_t bytes) {
    uint8_t *header = slot(s);
    struct msghdr *message = &s->out[s->out_count].msg_hdr;
    if (source->direct) {
        s->out_parts[s->out_count] = (struct iovec){header + VR_SPP_BYTES, bytes};
    } else {
        vr_spp_write(header, key);
        s->out_parts[s->out_count] = (struct iovec){header, VR_SPP_BYTES + bytes};
    }
    write_address(s, &source->peer, message);
    write_control(s, source, s->out_control[s->out_count], message);
    s->out_count++;
}

void vr_socket_flush(struct vr_socket *s) {
    unsigned done = 0;
    while (done < s->out_count) {
        int sent = sendmmsg(s->fd, s->out + done, s->out_count - done, MSG_DONTWAIT);
        s->counts.send_calls++;
        if (sent > 0) {
            for (int i = 0; i < sent; i++)
                s->counts.sent_bytes += s->out[done + (unsigned)i].msg_len;
            s->counts.sent += (unsigned)sent;
            done += (unsigned)sent;
        } else if (errno == EAGAIN || errno == ENOBUFS) {
            s->counts.send_full += s->out_count - done;
            break;
        } else if (errno != EINTR) {
            s->counts.send_errors++; /* of the first one: the others go on */
            done++;
        }
    }
    s->out_count = 0;
}
