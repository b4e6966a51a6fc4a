/* stats.h: the counters of one worker, written by it alone and read by anybody who maps them.
 *
 * 1. Every drop has one reason, one counter and one name; the name is the label of
 *    relay_drop_packets_total{reason}.
 * 2. One block per worker slot, page-aligned: workers share no cache line.
 * 3. Only relaxed 64-bit stores by the owner; a reader may see counters of different moments.
 */
#ifndef VR_STATS_H
#define VR_STATS_H

#include <stdint.h>

enum vr_side {
    VR_SIDE_PUBLIC,   /* clients */
    VR_SIDE_INTERNAL, /* transceivers, and other clusters' relays that answer us */
    VR_SIDE_BACKBONE, /* entry relays of other clusters */
    VR_SIDES,
};

/* X(symbol, "label", "one sentence for --help, HELP lines and the README") */
#define VR_DROP_REASONS(X)                                                                         \
    X(EMPTY, "empty", "a datagram of no bytes")                                                    \
    X(TRUNCATED, "truncated", "longer than the receive buffer; cut packets are never forwarded")   \
    X(SOURCE_UNANSWERABLE, "source_unanswerable",                                                  \
      "from port 0 or a link-local IPv6 address, which no answer can reach")                       \
    X(PROTOCOL, "protocol", "the first byte is not STUN, DTLS, RTP or RTCP (RFC 7983)")            \
    X(STUN_MALFORMED, "stun_malformed", "not a well-formed STUN message (RFC 8489)")               \
    X(STUN_FINGERPRINT, "stun_fingerprint", "FINGERPRINT present and wrong")                       \
    X(STUN_USERNAME, "stun_username", "USERNAME of 0 or over 508 bytes, or without two parts")     \
    X(STUN_METHOD, "stun_method", "a STUN method other than Binding, such as TURN Allocate")       \
    X(TOKEN_MALFORMED, "token_malformed", "the ufrag is not 28 ice-chars in a known format")       \
    X(TOKEN_NO_HINT, "token_no_hint", "the ufrag says that it carries no hint")                    \
    X(TOKEN_UNKNOWN_KEY, "token_unknown_key", "sealed under a key that the keyring lacks")         \
    X(TOKEN_FORGED, "token_forged", "the token's MAC does not hold")                               \
    X(CLUSTER_UNKNOWN, "cluster_unknown", "a token of a cluster to which there is no route")       \
    X(TRANSCEIVER_NOT_ALLOWED, "transceiver_not_allowed",                                          \
      "the transceiver is not in --allow-transceiver")                                             \
    X(NO_FLOW, "no_flow", "not a check, and no flow is known for it")                              \
    X(HALF_OPEN, "half_open", "nothing but checks passes before the first success")                \
    X(CAP_TOKEN_FLOWS_RATE, "cap_token_flows_rate",                                                \
      "too many new flow keys of a token in a second")                                             \
    X(CAP_TOKEN_FLOWS, "cap_token_flows", "too many established flow keys of a token")             \
    X(CAP_FLOW_CHECKS, "cap_flow_checks", "too many checks of a flow in a second")                 \
    X(CAP_TRANSCEIVER_FLOWS, "cap_transceiver_flows",                                              \
      "too many new flow keys of a transceiver in a second")                                       \
    X(CAP_SOURCE_UNANSWERED, "cap_source_unanswered",                                              \
      "too many unanswered first packets of an address")                                           \
    X(TABLE_FULL, "table_full", "no room for an established flow in its buckets")                  \
    X(SPP_MALFORMED, "spp_malformed", "from inside or the backbone, without a good SPP header")    \
    X(SENDER_NOT_OWNER, "sender_not_owner",                                                        \
      "from the internal side, not from an owner of the flow")                                     \
    X(RESPONSE_UNMATCHED, "response_unmatched", "a Binding response to no remembered check")       \
    X(BACKBONE_PEER, "backbone_peer", "on the backbone, not from --backbone-allow")                \
    X(BACKBONE_LOOP, "backbone_loop", "came over the backbone and would leave over it again")      \
    X(BACKBONE_KEY, "backbone_key",                                                                \
      "no good trailer of --backbone-key, which both tiers have or none")                          \
    X(BACKBONE_STALE, "backbone_stale",                                                            \
      "the trailer's time is over 30 s off: a replay, or clocks that differ")                      \
    X(PROBE_MALFORMED, "probe_malformed", "a probe of a route, or its echo, of a wrong length")    \
    X(PROBE_UNMATCHED, "probe_unmatched", "the echo of no probe, from elsewhere, late or twice")   \
    X(PROBE_REPEATED, "probe_repeated",                                                            \
      "a probe that was echoed already, or too many in a second")                                  \
    X(PARK_FULL, "park_full", "no room to wait for the cache")                                     \
    X(PARK_EXPIRED, "park_expired", "waited for the cache in vain")                                \
    X(SEND_BUSY, "send_busy", "the send buffer stayed full (EAGAIN, ENOBUFS)")                     \
    X(SEND_SIZE, "send_size", "longer than the path carries (EMSGSIZE)")                           \
    X(SEND_ERROR, "send_error", "the kernel refused this datagram for another reason")

enum vr_drop {
#define X(symbol, label, help) VR_DROP_##symbol,
    VR_DROP_REASONS(X)
#undef X
        VR_DROPS,
};

struct vr_side_stats {
    uint64_t rx_packets;
    uint64_t rx_bytes; /* UDP payload */
    uint64_t tx_packets;
    uint64_t tx_bytes;      /* UDP payload */
    uint64_t tx_fragmented; /* INTERNAL, BACKBONE: of tx_packets, longer than the path's MTU */
};

enum { VR_ROUTE_ADDRS_SHOWN = 512 }; /* of all routes; what a relay is configured with at most */

struct vr_stats {
    uint64_t progress;    /* loop iterations; stale = hung */
    uint64_t progress_ns; /* CLOCK_MONOTONIC of the last iteration */
    uint64_t worker_pid;  /* who writes here */
    struct vr_side_stats side[VR_SIDES];
    uint64_t drop[VR_DROPS];
    uint64_t kernel_drops;        /* SO_RXQ_OVFL, summed over the sockets */
    uint64_t flows_half_open;     /* now */
    uint64_t flows_established;   /* now */
    uint64_t flows_created;       /* half-open made, ever */
    uint64_t flows_promoted;      /* became established, ever */
    uint64_t flows_expired;       /* idle, ever */
    uint64_t half_open_displaced; /* gave way to a newcomer, ever */
    uint64_t probes_sent;         /* of route addresses; probes are no side's datagrams */
    uint64_t probes_answered;     /* of those, their echoes came back */
    uint64_t probes_echoed;       /* of other relays */
    uint64_t route_falls;         /* times that a route address went down, ever */
    uint64_t route_digest;        /* of the routes that the next field is about */
    uint64_t route_down[VR_ROUTE_ADDRS_SHOWN / 64]; /* bit i: the i-th address of all is down */
};

enum { VR_STATS_SLOT_BYTES = 4096 };
_Static_assert(sizeof(struct vr_stats) <= VR_STATS_SLOT_BYTES, "a block fits its page");

static inline void vr_count_add(uint64_t *counter, uint64_t n) {
    __atomic_store_n(counter, *counter + n, __ATOMIC_RELAXED);
}

#endif
