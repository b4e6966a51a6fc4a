/* backbone_check.h: what the tests of the backbone ask of the last datagram, and probes. Relay n of cluster 2
 * is both a route address and a backbone peer here. */
#ifndef VR_BACKBONE_CHECK_H
#define VR_BACKBONE_CHECK_H

#include "forward_check.h"

static struct bench b;

/* Either address of cluster 2's route. */
static inline bool went_to_route(void) {
    struct vr_addr one = far_relay(1), two = far_relay(2);
    return b.out.hops == 1 && b.out.hop[0].side == VR_SIDE_INTERNAL &&
           (vr_addr_equal(&b.out.hop[0].destination, &one) ||
            vr_addr_equal(&b.out.hop[0].destination, &two));
}

/* The last datagram went over the backbone to `peer`, its SPP header and all unchanged. */
static inline void check_went_back(struct vr_addr peer, uint32_t payload_bytes) {
    CHECK_EQ(b.out.hops, 1);
    CHECK_EQ(b.out.hop[0].side, VR_SIDE_BACKBONE);
    CHECK(vr_addr_equal(&b.out.hop[0].destination, &peer));
    CHECK(b.out.data == b.buffer + HEADROOM);
    CHECK_EQ(b.out.data_bytes, payload_bytes + VR_SPP_BYTES);
}

static inline struct message probe_of(const uint8_t nonce[VR_PROBE_NONCE_BYTES]) {
    struct message m = {.size = VR_PROBE_NONCE_BYTES};
    memcpy(m.bytes, nonce, VR_PROBE_NONCE_BYTES);
    return m;
}

/* A probe's datagram, or an echo's. */
static inline enum vr_verdict send_probe(enum vr_side side, struct vr_addr from, struct message m) {
    static const struct vr_flow_key nobody;
    struct vr_ingress in = wrapped_ingress(&b, side, from, client(1), &m);
    vr_spp_write(in.data, &nobody);
    return submit(&b, &in);
}

#endif
