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

#include "flow.h"
#include "stats.h"
#include "../wire/addr.h"
#include "../wire/token.h"

#include <stddef.h>
#include <stdint.h>

/* Where a datagram came in. */
struct vr_ingress {
    enum vr_side side;
    uint8_t listen;         /* PUBLIC: index of the --listen socket it came in on */
    struct vr_addr source;  /* who sent it */
    struct vr_addr local;   /* PUBLIC: the address it was sent to (IP_PKTINFO); else ignored */
    struct vr_addr proxy;   /* PUBLIC: that address as advertised; else ignored */
    uint8_t *data;          /* PUBLIC: VR_SPP_BYTES of writable headroom lie before it */
    uint32_t data_bytes;
};

struct vr_hop {
    enum vr_side side;           /* the socket that sends */
    uint8_t listen;              /* PUBLIC: index of the --listen socket */
    struct vr_addr destination;
    uint8_t source_ip[16];       /* PUBLIC: leave from this address (IP_PKTINFO); all zero: any */
};

/* What to send: the same bytes to one or two destinations. */
struct vr_egress {
    uint8_t *data; /* inside the ingress buffer (headroom included) */
    uint32_t data_bytes;
    unsigned hops; /* 1 or 2 */
    struct vr_hop hop[2];
};

enum vr_verdict {
    VR_VERDICT_SEND, /* egress is filled */
    VR_VERDICT_DROP, /* counted; nothing to send */
    VR_VERDICT_PARK, /* ask the cache for `flow key`, then try again (only with park_enabled) */
};

struct vr_cidr {
    uint8_t ip[16];
    uint8_t prefix_bits;    /* 0..128; an IPv4 /n is stored mapped, as 96 + n */
    uint16_t port_min;      /* host order; 0 and 65535: any */
    uint16_t port_max;
};

enum { VR_CLUSTER_ROUTE_ADDRS = 8 };

struct vr_cluster_route {
    uint16_t cluster_id;
    unsigned addrs;
    struct vr_addr addr[VR_CLUSTER_ROUTE_ADDRS];
};

/* Caps of design rule 3, per worker. */
struct vr_limits {
    uint32_t token_new_flows_per_s;       /* 20 */
    uint32_t token_established_flows;     /* 16 */
    uint32_t flow_checks_per_s;           /* 50 */
    uint32_t transceiver_new_flows_per_s; /* 2,000 */
    uint32_t source_unanswered;           /* 64 per IPv4 address or IPv6 /64 */
};

struct vr_forward_config {
    uint16_t cluster_id;
    struct vr_keyring *keyring;             /* borrowed */
    struct vr_ipv6_prefixes ipv6_prefixes;
    const struct vr_cidr *allow_transceiver; /* copied */
    size_t allow_transceiver_count;
    const struct vr_cidr *backbone_allow;    /* copied */
    size_t backbone_allow_count;
    const struct vr_cluster_route *routes;   /* copied */
    size_t route_count;
    struct vr_limits limits;
    uint64_t idle_timeout_ns;               /* owners silent this long: the flow expires */
    bool park_enabled;                      /* a cache is configured */
};

struct vr_forwarder;

/* `table` is a mapped flow table (flow.h), `stats` its worker's block; both are borrowed.
 * NULL when memory is not to be had. */
struct vr_forwarder *vr_forwarder_new(const struct vr_forward_config *config, struct vr_table *table,
                                      struct vr_stats *stats, uint64_t now_ns);
void vr_forwarder_free(struct vr_forwarder *forwarder);

/* One datagram. Counts it (rx, drops), updates flows; the caller counts tx once sent.
 * `now_ns` is CLOCK_MONOTONIC and never goes back. */
enum vr_verdict vr_forward(struct vr_forwarder *forwarder, const struct vr_ingress *in,
                           uint64_t now_ns, struct vr_egress *out);

/* Expires idle and half-open flows, a bounded number of buckets per call; call it every few
 * milliseconds. Every bucket is visited at least once a second when called every 10 ms. */
void vr_forward_sweep(struct vr_forwarder *forwarder, uint64_t now_ns);

/* Replaces what a reload may change; flows stay. 0 or -ENOMEM, the old configuration kept. */
int vr_forward_configure(struct vr_forwarder *forwarder, const struct vr_forward_config *config);

#endif
