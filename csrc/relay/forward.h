/* forward.h: from one datagram and the time to a verdict (design rules 1-8). Sans-IO: no
 * syscall, no clock, no allocation after vr_forwarder_new.
 *
 * 1. A Binding request with a USERNAME is routed by its own token, never by the flow table.
 * 2. Everything else follows the established owners of its flow key, or is dropped.
 * 3. Downstream passes only from an owner, only to the client of a known flow.
 * 4. While a flow is half-open only checks go up and only matching responses come down.
 *
 * One forwarder per worker, used by one thread. It is the only writer of its flow table and stats.
 */
#ifndef VR_FORWARD_H
#define VR_FORWARD_H

#include "allow.h"
#include "caps.h"
#include "flow.h"
#include "probes.h"
#include "routes.h"
#include "stats.h"

#include "../wire/trailer.h"

#include <stddef.h>
#include <stdint.h>

/* Where a datagram came in. */
struct vr_ingress {
    enum vr_side side;
    uint8_t listen;        /* PUBLIC: index of the --listen socket it came in on */
    struct vr_addr source; /* who sent it */
    struct vr_addr local;  /* PUBLIC: the address it was sent to (IP_PKTINFO); else ignored */
    struct vr_addr proxy;  /* PUBLIC: that address as advertised; else ignored */
    uint8_t *data;         /* PUBLIC: VR_SPP_BYTES of writable headroom lie before it */
    uint32_t data_bytes;
    uint8_t tos; /* DSCP and ECN, or the traffic class of IPv6 */
    bool parked; /* a second try after VR_VERDICT_PARK: not counted as received again,
                             * and not parked again */
};

struct vr_hop {
    enum vr_side side; /* the socket that sends */
    uint8_t listen;    /* PUBLIC: index of the --listen socket */
    struct vr_addr destination;
    bool is_relay;         /* of another cluster: the trailer goes after the data */
    uint8_t source_ip[16]; /* PUBLIC: leave from this address (IP_PKTINFO); all zero: any */
};

/* What to send: the same bytes to one or two destinations. */
struct vr_egress {
    uint8_t *data; /* inside the ingress buffer (headroom included) */
    uint32_t data_bytes;
    uint8_t trailer_bytes; /* VR_TRAILER_BYTES, or 0: no keyed backbone */
    uint8_t trailer[VR_TRAILER_BYTES];
    unsigned hops; /* 1 or 2 */
    struct vr_hop hop[2];
    uint32_t flow;   /* part of the key's hash: what has one flow keeps its order */
    uint8_t tos;     /* as it came in */
    bool is_probe;   /* or an echo: to be sent at once, and counted as such */
    bool owners_due; /* a cache should hear of the flow's owners (vr_forward_owners) */
};

enum vr_verdict {
    VR_VERDICT_SEND,  /* egress is filled */
    VR_VERDICT_DROP,  /* counted; nothing to send */
    VR_VERDICT_TAKEN, /* an echo of our own probe: counted as such, nothing to send */
    VR_VERDICT_PARK,  /* ask the cache for vr_forward_key, then vr_forward_recover, then try again
                      * with `parked` (only with park_enabled) */
};

struct vr_forward_config {
    uint16_t cluster_id;
    struct vr_keyring *keyring; /* borrowed */
    struct vr_ipv6_prefixes ipv6_prefixes;
    const struct vr_cidr *allow_transceiver; /* copied, like all below */
    size_t allow_transceiver_count;
    const struct vr_cidr *backbone_allow;
    size_t backbone_allow_count;
    const struct vr_cluster_route *routes; /* cluster_id, addrs and addr */
    size_t route_count;
    struct vr_trailer_keys *backbone_keys; /* borrowed; NULL: the backbone is trusted */
    struct vr_limits limits;
    uint64_t idle_timeout_ns; /* owners silent this long: the flow expires */
    bool park_enabled;        /* a cache is configured */
};

struct vr_forwarder;

/* `table` is an attached flow table (table.h), `stats` its worker's block; both are borrowed. This
 * takes the table over (vr_table_take): its former writer must be dead. Flows are kept. NULL when
 * memory is not to be had. */
struct vr_forwarder *vr_forwarder_new(const struct vr_forward_config *config,
                                      struct vr_table *table, struct vr_stats *stats,
                                      uint64_t now_ns);
void vr_forwarder_free(struct vr_forwarder *forwarder);

/* One datagram. Counts it (rx, drops), updates flows; the caller counts tx, or probes, once sent.
 * `now_ns` is CLOCK_MONOTONIC and never goes back. */
enum vr_verdict vr_forward(struct vr_forwarder *forwarder, const struct vr_ingress *in,
                           uint64_t now_ns, struct vr_egress *out);

/* The wall clock, in seconds since 1970, which only trailers are compared with. Before the first
 * datagram, and at least once a second. */
void vr_forward_set_clock(struct vr_forwarder *forwarder, uint64_t unix_s);

/* A hint: these `count` datagrams (at most VR_PREFETCH_MAX count) go to vr_forward next, in this
 * order. Any other order, or leaving some out, costs time and nothing else. */
enum { VR_PREFETCH_MAX = 256 };
void vr_forward_prefetch(struct vr_forwarder *forwarder, const struct vr_ingress *in,
                         unsigned count);

/* The flow key of a datagram; false when it has none (no SPP header from inside). */
bool vr_forward_key(const struct vr_ingress *in, struct vr_flow_key *key);

/* What the cache holds for the flow of the parked datagram `in`: `count` tokens as text. They
 * are opened and checked like tokens from the wire; those that hold make the flow provisional: both
 * directions pass, for 10 s, or until a success establishes it. What came over the backbone gets no
 * owner in another cluster (rule 7). Returns how many owners they name; an established flow stays as
 * it is. */
struct vr_cached_token {
    const uint8_t *chars;
    size_t bytes;
};
unsigned vr_forward_recover(struct vr_forwarder *forwarder, const struct vr_ingress *in,
                            const struct vr_cached_token *tokens, unsigned count, uint64_t now_ns);

/* The sealed tokens of the established flow `key`, those of its owners that have one: 0 to 2. They are
 * due when an owner is new, and every VR_OWNERS_REFRESH_MS while successes pass. */
enum { VR_OWNERS_REFRESH_MS = 15000 };
unsigned vr_forward_owners(struct vr_forwarder *forwarder, const struct vr_flow_key *key,
                           uint64_t now_ns, uint8_t sealed[VR_FLOW_OWNERS][VR_TOKEN_BYTES]);

/* Probes of the cluster routes (probes.h): whether one should leave now, and the next one, which lies at
 * `buffer`. False when none is due. `nonce`: fresh random bytes. */
bool vr_forward_probes_are_due(const struct vr_forwarder *forwarder, uint64_t now_ns);
bool vr_forward_next_probe(struct vr_forwarder *forwarder, uint64_t now_ns,
                           const uint8_t nonce[VR_PROBE_NONCE_BYTES],
                           uint8_t buffer[VR_PROBE_BYTES], struct vr_egress *out);

/* Expires idle and half-open flows, a bounded number of buckets per call; call it every few
 * milliseconds. Every bucket is visited at least once a second when called every 10 ms. */
void vr_forward_sweep(struct vr_forwarder *forwarder, uint64_t now_ns);

/* Replaces what a reload may change; flows stay, also those whose transceiver a new allow list lacks.
 * 0 or -ENOMEM, the old configuration kept. The former keys are not used any more. */
int vr_forward_configure(struct vr_forwarder *forwarder, const struct vr_forward_config *config,
                         uint64_t now_ns);

#endif
