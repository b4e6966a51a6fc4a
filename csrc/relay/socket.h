/* socket.h: batches of datagrams between one UDP socket of the kernel and the loop.
 *
 * 1. All memory is allocated when a socket is made; receiving and sending allocate nothing.
 * 2. A datagram is received whole or not at all: what is longer than its slot is told apart
 *    (MSG_TRUNC) and never forwarded. No WebRTC datagram comes near VR_DATAGRAM_MAX_BYTES.
 * 3. A send error costs one datagram, a full send buffer delays a bounded number (sender.h).
 * 4. IPv4 and IPv6 meet here only: above this file every address is a struct vr_addr. Scope ids
 *    are not kept, so a link-local client of a wildcard socket gets no answer.
 * 5. IP_RECVERR stays off: with it, an ICMP error for one peer fails the next send to another.
 * 6. On the inside the kernel may hand over several datagrams of one sender at once (UDP_GRO): a train.
 *    It is taken apart in place, so right behind a datagram lies the next one: nobody writes past its
 *    end. A kernel that does not know how hands them over one by one.
 *
 * Used by one thread. The descriptor is borrowed, and may be shared with other processes.
 */
#ifndef VR_SOCKET_H
#define VR_SOCKET_H

#include "../wire/addr.h"
#include "../wire/spp.h"
#include "forward.h"
#include "stats.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    VR_BATCH_MAX = 256,     /* datagrams of one receive call; what a crash can lose */
    VR_TRAIN_MESSAGES = 32, /* of one receive call on the inside, each a datagram or a train */
    VR_DATAGRAM_MAX_BYTES = 2048, /* payload that fits; on the inside the SPP header comes on top */
    VR_SLOT_PAYLOAD_OFFSET = 48,  /* 8-aligned, so the SPP header before it starts at 2 mod 8 */
    VR_SLOT_HEADER_OFFSET = VR_SLOT_PAYLOAD_OFFSET - VR_SPP_BYTES,
    VR_SLOT_BYTES = 2112,   /* an odd number of cache lines: slots do not share cache sets */
    VR_TRAIN_BYTES = 65600, /* likewise; no UDP datagram is longer, and so no train */
};

_Static_assert(VR_SLOT_PAYLOAD_OFFSET + VR_DATAGRAM_MAX_BYTES <= VR_SLOT_BYTES, "a slot holds it");
_Static_assert(VR_SLOT_BYTES % 64 == 0 && VR_SLOT_BYTES / 64 % 2 == 1, "see above");
_Static_assert(VR_SLOT_HEADER_OFFSET + 65535 <= VR_TRAIN_BYTES, "a train is never cut");

/* VR_BATCH_MAX receive slots and room for VR_TRAIN_MESSAGES trains, shared by the sockets of a loop: one
 * batch is in flight at a time. Pages that no datagram used are no memory. */
struct vr_slots;

struct vr_slots *vr_slots_new(void); /* NULL: no memory */
void vr_slots_free(struct vr_slots *slots);

struct vr_socket_config {
    int fd; /* a bound UDP socket, not connected; borrowed */
    enum vr_side side;
    uint8_t listen;            /* PUBLIC: its index, as in vr_ingress and vr_hop */
    struct vr_addr advertised; /* PUBLIC: what clients are told; port 0: the address they used */
    struct vr_slots *slots;    /* borrowed */
};

struct vr_socket;

/* Prepares the socket's options and buffers. A wildcard public socket learns each datagram's
 * destination (IP_PKTINFO) and replies from it; the inner ones fragment rather than lose
 * (IPv4: PMTUDISC_OMIT; IPv6: what the path takes, at least 1280 bytes, is learnt from its routers). On failure returns NULL and sets errno: EAFNOSUPPORT when the socket is not
 * IPv4 or IPv6, ENOMEM, or what the kernel said. */
struct vr_socket *vr_socket_new(const struct vr_socket_config *config);
void vr_socket_free(struct vr_socket *socket);

int vr_socket_fd(const struct vr_socket *socket);
enum vr_side vr_socket_side(const struct vr_socket *socket);
uint8_t vr_socket_listen(const struct vr_socket *socket);

/* Datagrams that the kernel dropped because the receive buffer was full, since the socket was
 * made (what SO_RXQ_OVFL reports, asked for with SO_MEMINFO so that no packet pays). A train counts
 * once. */
uint32_t vr_socket_kernel_drops(const struct vr_socket *socket);

/* Receives up to `max` (at most VR_BATCH_MAX) datagrams into the slots, without waiting; the
 * previous batch is gone. Their number, 0 when there is none or a transient error was cleared,
 * or -errno when the descriptor is unusable.
 *
 * On the inside it takes at most VR_TRAIN_MESSAGES messages, and so few, when the last ones were trains,
 * that about `max` datagrams come. They may be more: then vr_socket_continue has the others. */
int vr_socket_receive(struct vr_socket *socket, unsigned max);

/* The next up to VR_BATCH_MAX datagrams of the same receive call take the place of those before; their
 * number, 0 when all were had. */
unsigned vr_socket_continue(struct vr_socket *socket);

/* Whether the last receive call took as many messages as it could: more may wait. */
bool vr_socket_was_full(const struct vr_socket *socket);

/* Describes datagram `index` of the last batch. False when it was cut; then only data_bytes, the
 * part that was received, holds. `in->data` has VR_SPP_BYTES of writable headroom (PUBLIC). */
bool vr_socket_ingress(const struct vr_socket *socket, unsigned index, struct vr_ingress *in);

/* Lines up one datagram for one of its hops, for the next flush. Its data must stay until then. At
 * most 2 * VR_BATCH_MAX may wait; what is more counts as VR_DROP_SEND_BUSY. */
void vr_socket_queue(struct vr_socket *socket, const struct vr_egress *egress,
                     const struct vr_hop *hop, struct vr_stats *stats);

/* Sends what was lined up and counts each datagram in `stats`: sent, or dropped by reason. While
 * the socket is blocked it joins the backlog instead, so that nothing is overtaken. Afterwards
 * nothing points at the callers' data. */
void vr_socket_flush(struct vr_socket *socket, struct vr_stats *stats);

/* Sends one datagram at once, past whatever is lined up, and counts nothing. False when the kernel does
 * not take it. */
bool vr_socket_send_now(struct vr_socket *socket, const struct vr_egress *egress,
                        const struct vr_hop *hop);

/* True while a backlog waits for the socket to become writable (EPOLLOUT). */
bool vr_socket_blocked(const struct vr_socket *socket);

/* Sends as much of the backlog as the socket takes; nothing may be lined up. */
void vr_socket_flush_backlog(struct vr_socket *socket, struct vr_stats *stats);

#endif
