/* sender.h: the sending half of a socket: a line of datagrams, sent with as few calls and as few
 * walks through the kernel's stack as it allows; internal to socket.c.
 *
 * 1. Towards transceivers and other relays, datagrams of one destination and one TOS are put together
 *    into runs that the kernel cuts apart again (UDP_SEGMENT, runs.h).
 * 2. What a flow sends with one TOS keeps its order; within a line nothing else does.
 * 3. A run that the kernel or the device refuses is sent as single datagrams, at once. If that
 *    works, and the refusal was not about its size, the socket makes no more runs.
 * 4. A send error costs one datagram: counted by its reason, and the line goes on after it. Only a
 *    full send buffer (EAGAIN) defers: what is left is copied into a bounded backlog, sent in
 *    order once the socket is writable, and dropped when the backlog is full.
 */
#ifndef VR_SENDER_H
#define VR_SENDER_H

#include "pathmtu.h"
#include "runs.h"
#include "sockaddr.h"
#include "socket.h"

enum {
    VR_BACKLOG_MAX = 256, /* datagrams that wait for a full send buffer */
    VR_BACKLOG_BYTES = VR_SPP_BYTES + VR_DATAGRAM_MAX_BYTES + VR_TRAILER_BYTES,
};

_Static_assert(VR_LINE_MAX >= 2 * VR_BATCH_MAX, "a whole batch to two owners each");

/* Room for the source address, UDP_SEGMENT and the TOS. */
struct vr_send_control {
    _Alignas(struct cmsghdr) uint8_t bytes[CMSG_SPACE(sizeof(struct in6_pktinfo)) +
                                           CMSG_SPACE(sizeof(uint16_t)) + CMSG_SPACE(sizeof(int))];
};

/* One datagram in the line. */
struct vr_send_item {
    const uint8_t *data;
    uint32_t data_bytes;
    uint8_t tos;
    uint8_t trailer_bytes;
    bool has_source;
    uint8_t source_ip[16];             /* leave from here */
    uint8_t trailer[VR_TRAILER_BYTES]; /* goes after the data, which other datagrams may follow */
    union vr_sockaddr name;
};

/* What may travel together. */
struct vr_send_group {
    struct vr_addr destination;
    uint8_t tos;
    bool used;
    uint16_t number;
};

struct vr_backlog_item {
    struct vr_send_item item; /* its data is the copy below */
    uint8_t data[VR_BACKLOG_BYTES];
};

struct vr_sender {
    int fd;
    int family;
    enum vr_side side;
    bool chooses_source; /* honours source_ip (IP_PKTINFO) */
    bool makes_runs;

    unsigned count;
    struct vr_send_item item[VR_LINE_MAX];

    struct vr_run_item run_item[VR_LINE_MAX]; /* of each item: what runs.h looks at */
    unsigned groups;                          /* destinations and TOS in the line so far */
    struct vr_send_group group[VR_GROUPS];    /* by hash */

    struct vr_runs runs;
    struct mmsghdr message[VR_LINE_MAX];
    unsigned message_items[VR_LINE_MAX];
    struct iovec part[2 * VR_LINE_MAX]; /* each item's data and trailer */
    struct vr_send_control control[VR_LINE_MAX];

    struct vr_pathmtu pathmtu;

    /* A ring; its pages are touched only when a send buffer was full. */
    unsigned backlog_first;
    unsigned backlog_count;
    struct vr_backlog_item backlog[VR_BACKLOG_MAX];
};

/* `sender` is zeroed memory. */
void vr_sender_init(struct vr_sender *sender, int fd, int family, enum vr_side side,
                    bool chooses_source);

/* As vr_socket_queue, vr_socket_flush and vr_socket_flush_backlog say. */
void vr_sender_queue(struct vr_sender *sender, const struct vr_egress *egress,
                     const struct vr_hop *hop, struct vr_stats *stats);
void vr_sender_flush(struct vr_sender *sender, struct vr_stats *stats);
void vr_sender_flush_backlog(struct vr_sender *sender, struct vr_stats *stats);

#endif
