/* socket.h: batches of datagrams between the media socket and SPP flow keys.
 *
 * 1. Receiving takes UDP_GRO apart: one call gives each datagram by itself, in place, with its source.
 * 2. A datagram that the kernel does not take is counted and costs only itself; when the socket is full the
 *    rest of the batch is dropped: late sound is worth nothing.
 * 3. Replies of a socket bound to a wildcard leave from the address that was asked (PKTINFO).
 */
#ifndef VR_MEDIA_SOCKET_H
#define VR_MEDIA_SOCKET_H

#include "ice.h"

enum {
    VR_BATCH_MESSAGES = 32,   /* of one receive call; each may hold a train of datagrams */
    VR_BATCH_SENDS = 64,      /* of one send call */
    VR_DATAGRAM_BYTES = 2048, /* room to send one, SPP header included */
};

struct vr_received {
    struct vr_source source; /* `direct` is not set */
    uint8_t *data;           /* may be written to; valid until the next receive */
    size_t bytes;
};

struct vr_socket_counts {
    uint64_t received, received_bytes, receive_errors, truncated;
    uint64_t messages; /* that these came in: trains where UDP_GRO put some together */
    uint64_t sent, sent_bytes, send_errors, send_full;
    uint64_t receive_calls, send_calls;
};

struct vr_socket;

/* Does not own `fd`, which is bound and non-blocking. NULL when memory is short or getsockname fails. */
struct vr_socket *vr_socket_new(int fd);
void vr_socket_free(struct vr_socket *socket);

/* The address that the socket is bound to; with a wildcard its IP is zeros. */
const struct vr_addr *vr_socket_bound(const struct vr_socket *socket);

/* One recvmmsg; returns the messages taken, 0 when none waits. Then vr_socket_next until it is false. */
unsigned vr_socket_receive(struct vr_socket *socket);
bool vr_socket_next(struct vr_socket *socket, struct vr_received *out);

/* Room for the payload (VR_DATAGRAM_BYTES less the header) of the next datagram; the batch is sent first
 * if it is full. */
uint8_t *vr_socket_prepare(struct vr_socket *socket);

/* Puts the `bytes` at vr_socket_prepare's place into the batch, wrapped in `key` unless the source is direct. */
void vr_socket_queue(struct vr_socket *socket, const struct vr_source *source,
                     const struct vr_flow_key *key, size_t bytes);
void vr_socket_flush(struct vr_socket *socket);

const struct vr_socket_counts *vr_socket_read_counts(const struct vr_socket *socket);

#endif
