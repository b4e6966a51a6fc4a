/* parking.h: datagrams of unknown flows that wait, shortly, for what the cache says (design rule 5).
 *
 * 1. At most VR_PARKED_PACKETS datagrams of a flow, VR_PARKED_MS after its first one; the flow is asked
 *    for once in that time.
 * 2. Memory is bounded and set-associative: strangers' noise fills it and then is dropped, at the
 *    price of one comparison of tags.
 * 3. Sans-IO: time is an argument, and the caller counts and sends.
 */
#ifndef VR_PARKING_H
#define VR_PARKING_H

#include "forward.h"

enum {
    VR_PARKED_FLOWS = 256,
    VR_PARKED_PACKETS = 4,
    VR_PARKED_MS = 50,
    VR_PARKED_BYTES_MAX = 2048 + 38, /* the longest datagram that waits; longer ones do not */
};

struct vr_parking;

/* One flow's waiting datagrams, in the order in which they came. Their data lies in the parking, with
 * VR_SPP_BYTES of headroom like any ingress. */
struct vr_parked {
    unsigned count;
    struct vr_ingress in[VR_PARKED_PACKETS]; /* `parked` is set */
};

enum vr_park {
    VR_PARK_ASK,  /* it waits, the first of its flow: ask for it */
    VR_PARK_WAIT, /* it waits with others of its flow */
    VR_PARK_FULL, /* there is no room: drop it */
};

struct vr_parking *vr_parking_new(void); /* NULL: no memory */
void vr_parking_free(struct vr_parking *parking);

/* Copies a datagram of the flow `key`, whose hash is `hash` (vr_flow_hash). */
enum vr_park vr_parking_put(struct vr_parking *parking, const struct vr_flow_key *key,
                            uint64_t hash, const struct vr_ingress *in, uint64_t now_ns);

/* Takes the datagrams of a flow out; they stay readable until the next put. False: none waits. */
bool vr_parking_take(struct vr_parking *parking, const struct vr_flow_key *key, uint64_t hash,
                     struct vr_parked *parked);

/* Gives up what has waited too long; how many datagrams that were. */
unsigned vr_parking_sweep(struct vr_parking *parking, uint64_t now_ns);

/* Flows that wait now. */
unsigned vr_parking_flows(const struct vr_parking *parking);

#endif
