/* pathmtu.h: how long a datagram to an inner peer may be before the kernel sends it in fragments.
 *
 * 1. The kernel is asked, with a connected socket of a moment: the device's MTU, or what it has learnt of
 *    the path (which IPv4 routers need not tell, since they fragment themselves).
 * 2. It is asked once in VR_PATHMTU_REFRESH_S for a peer, and only about datagrams that may be too long
 *    for some path: VR_PATHMTU_SAFE_BYTES fit the smallest MTU of IPv6, and cost nothing here.
 * 3. A peer has one of VR_PATHMTU_WAYS places. Where all of them are others', asked within that time, it is
 *    not asked about, so that peers cannot push each other out: VR_PATHMTU_PEERS questions in
 *    VR_PATHMTU_REFRESH_S are the most, whatever is sent to whom.
 */
#ifndef VR_PATHMTU_H
#define VR_PATHMTU_H

#include "../wire/addr.h"

enum {
    VR_PATHMTU_SAFE_BYTES = 1280 - 40 - 8, /* RFC 8200 5 */
    VR_PATHMTU_REFRESH_S = 5,
    VR_PATHMTU_PEERS_BITS = 6,
    VR_PATHMTU_PEERS = 1 << VR_PATHMTU_PEERS_BITS,
    VR_PATHMTU_WAYS = 4,
};

struct vr_pathmtu_place {
    struct vr_addr peer;
    uint32_t payload_bytes;
    int64_t asked_s; /* 0: never */
};

struct vr_pathmtu {
    struct vr_pathmtu_place place[VR_PATHMTU_PEERS]; /* by hash */
};

/* The longest UDP payload for `peer` that needs no fragments; UINT32_MAX when the kernel does not say,
 * or was not asked (rule 3). `pathmtu` was zeroed once. */
uint32_t vr_pathmtu_payload(struct vr_pathmtu *pathmtu, const struct vr_addr *peer);

#endif
