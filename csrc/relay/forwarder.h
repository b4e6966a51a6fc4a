/* forwarder.h: what forward.c, upstream.c and downstream.c share; nobody else includes it. */
#ifndef VR_FORWARDER_H
#define VR_FORWARDER_H

#include "forward.h"
#include "tracker.h"
#include "transactions.h"

#include "../wire/stun.h"

struct vr_forwarder {
    struct vr_tracker tracker;
    struct vr_table *table;
    struct vr_stats *stats;
    struct vr_caps *caps;
    struct vr_transactions *transactions;
    struct vr_routes routes;
    struct vr_probes *probes;
    struct vr_keyring *keyring;            /* borrowed */
    struct vr_trailer_keys *backbone_keys; /* borrowed, or NULL */
    uint64_t unix_s;
    bool park_enabled;

    unsigned expected;      /* datagrams that vr_forward_prefetch saw */
    unsigned next_expected; /* of them, the one that comes next */
    struct {
        struct vr_flow_key key;
        uint64_t hash;
    } hashed[VR_PREFETCH_MAX];

    struct vr_echoes echoes;
};

/* One datagram with its key found and its wrapping off. */
struct vr_arrival {
    const struct vr_ingress *in;
    struct vr_flow_at at;
    uint8_t *payload; /* what the client sent or gets; never empty */
    uint32_t payload_bytes;
};

/* Each returns VR_DROPS and fills `out`, or the reason to drop. VR_DROP_NO_FLOW_PARK is upstream's
 * wish to ask the cache. */
enum { VR_DROP_NO_FLOW_PARK = VR_DROPS + 1 };

int vr_upstream(struct vr_forwarder *forwarder, const struct vr_arrival *arrival,
                struct vr_egress *out);
int vr_downstream(struct vr_forwarder *forwarder, const struct vr_arrival *arrival,
                  struct vr_egress *out);

/* The reason for which a STUN message or a token is not taken; VR_DROPS when it is. */
enum vr_drop vr_stun_drop(const uint8_t *payload, uint32_t payload_bytes, struct vr_stun *message);
enum vr_drop vr_token_drop(enum vr_token_status status);

/* Where a datagram of the client came in. */
struct vr_path vr_arrival_path(const struct vr_arrival *arrival);

#endif
