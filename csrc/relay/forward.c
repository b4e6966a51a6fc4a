#include "forwarder.h"

#include "../wire/demux.h"
#include "../wire/spp.h"

#include <errno.h>
#include <stdlib.h>

enum { CHECKS_MIN = 16384, CHECKS_MAX = 65536 };

/* --- configuration --- */

static void routes_clear(struct vr_routes *routes) {
    free(routes->allow_transceiver);
    free(routes->backbone_allow);
    free(routes->route);
}

/* A copy of `count` items, or NULL; also for none, so that NULL is only ever "no memory". */
static void *copy(const void *items, size_t count, size_t item_bytes) {
    void *made = calloc(count + 1, item_bytes);
    if (made && count > 0)
        memcpy(made, items, count * item_bytes);
    return made;
}

static int routes_copy(struct vr_routes *routes, const struct vr_forward_config *config) {
    *routes = (struct vr_routes){
        .cluster_id = config->cluster_id,
        .ipv6_prefixes = config->ipv6_prefixes,
        .allow_transceiver_count = config->allow_transceiver_count,
        .backbone_allow_count = config->backbone_allow_count,
        .route_count = config->route_count,
    };
    routes->allow_transceiver = copy(config->allow_transceiver, config->allow_transceiver_count,
                                     sizeof *config->allow_transceiver);
    routes->backbone_allow =
        copy(config->backbone_allow, config->backbone_allow_count, sizeof *config->backbone_allow);
    routes->route = copy(config->routes, config->route_count, sizeof *config->routes);
    if (routes->allow_transceiver && routes->backbone_allow && routes->route) {
        vr_routes_prepare(routes);
        return 0;
    }
    routes_clear(routes);
    return -ENOMEM;
}

int vr_forward_configure(struct vr_forwarder *forwarder, const struct vr_forward_config *config,
                         uint64_t now_ns) {
    struct vr_routes routes;
    int status = routes_copy(&routes, config);
    if (status < 0)
        return status;
    struct vr_probes *probes = vr_probes_new(&routes, forwarder->probes, vr_clock_ms(now_ns));
    if (!probes) {
        routes_clear(&routes);
        return -ENOMEM;
    }
    vr_probes_free(forwarder->probes);
    forwarder->probes = probes;
    routes_clear(&forwarder->routes);
    forwarder->routes = routes;
    forwarder->keyring = config->keyring;
    forwarder->backbone_keys = config->backbone_keys;
    forwarder->park_enabled = config->park_enabled;
    forwarder->tracker.idle_timeout_ms = (uint32_t)(config->idle_timeout_ns / 1000000);
    vr_caps_configure(forwarder->caps, &config->limits);
    return 0;
}

/* --- life --- */

static size_t checks_remembered(uint32_t max_flows) {
    size_t checks = max_flows / 2;
    return checks < CHECKS_MIN ? CHECKS_MIN : checks > CHECKS_MAX ? CHECKS_MAX : checks;
}

struct vr_forwarder *vr_forwarder_new(const struct vr_forward_config *config,
                                      struct vr_table *table, struct vr_stats *stats,
                                      uint64_t now_ns) {
    struct vr_forwarder *forwarder = calloc(1, sizeof *forwarder);
    if (!forwarder)
        return NULL;
    forwarder->table = table;
    forwarder->stats = stats;
    forwarder->caps = vr_caps_new(&config->limits, table);
    forwarder->transactions =
        vr_transactions_new(checks_remembered(table->max_flows), &table->hash_key);
    forwarder->tracker =
        (struct vr_tracker){.table = table, .caps = forwarder->caps, .stats = stats};
    if (!forwarder->caps || !forwarder->transactions ||
        vr_forward_configure(forwarder, config, now_ns) < 0) {
        vr_forwarder_free(forwarder);
        return NULL;
    }
    forwarder->echoes.hash_key = table->hash_key;
    vr_probes_restore(forwarder->probes, stats);
    vr_probes_show(forwarder->probes, stats);
    vr_table_take(table);
    vr_tracker_start(&forwarder->tracker);
    return forwarder;
}

void vr_forwarder_free(struct vr_forwarder *forwarder) {
    if (!forwarder)
        return;
    vr_probes_free(forwarder->probes);
    routes_clear(&forwarder->routes);
    vr_caps_free(forwarder->caps);
    vr_transactions_free(forwarder->transactions);
    free(forwarder);
}

void vr_forward_sweep(struct vr_forwarder *forwarder, uint64_t now_ns) {
    vr_tracker_sweep(&forwarder->tracker, vr_clock_ms(now_ns));
}

/* --- keys, ahead of time and in time --- */

bool vr_forward_key(const struct vr_ingress *in, struct vr_flow_key *key) {
    if (in->side != VR_SIDE_PUBLIC)
        return vr_spp_read(in->data, in->data_bytes, key);
    key->client = in->source;
    key->proxy = in->proxy;
    return true;
}

void vr_forward_prefetch(struct vr_forwarder *forwarder, const struct vr_ingress *in,
                         unsigned count) {
    forwarder->expected = count < VR_PREFETCH_MAX ? count : VR_PREFETCH_MAX;
    forwarder->next_expected = 0;
    for (unsigned i = 0; i < forwarder->expected; i++) {
        struct vr_flow_key *key = &forwarder->hashed[i].key;
        if (!vr_forward_key(&in[i], key))
            memset(key, 0, sizeof *key);
        forwarder->hashed[i].hash = vr_flow_hash(forwarder->table, key);
        vr_flow_prefetch_tags(forwarder->table, forwarder->hashed[i].hash);
    }
    for (unsigned i = 0; i < forwarder->expected; i++)
        vr_flow_prefetch_entry(forwarder->table, forwarder->hashed[i].hash,
                               in[i].side == VR_SIDE_INTERNAL);
}

/* The key's hash: the one that was made ahead, when this is the datagram that it was made for. */
static uint64_t hash_of(const struct vr_forwarder *forwarder, unsigned expected,
                        const struct vr_flow_key *key) {
    if (expected < forwarder->expected && vr_flow_key_equal(&forwarder->hashed[expected].key, key))
        return forwarder->hashed[expected].hash;
    return vr_flow_hash(forwarder->table, key);
}

/* --- trailers of a keyed backbone --- */

void vr_forward_set_clock(struct vr_forwarder *forwarder, uint64_t unix_s) {
    forwarder->unix_s = unix_s;
}

/* Checks the trailer of what comes from a relay of another cluster, and takes it off. */
static enum vr_drop take_trailer(const struct vr_forwarder *forwarder, struct vr_arrival *arrival) {
    const struct vr_ingress *in = arrival->in;
    if (in->side == VR_SIDE_PUBLIC ||
        (in->side == VR_SIDE_INTERNAL && !vr_routes_has(&forwarder->routes, &in->source)))
        return VR_DROPS;
    if (arrival->payload_bytes <= VR_TRAILER_BYTES)
        return VR_DROP_BACKBONE_KEY;
    arrival->payload_bytes -= VR_TRAILER_BYTES;
    switch (vr_trailer_check(forwarder->backbone_keys, in->data,
                             arrival->payload + arrival->payload_bytes, forwarder->unix_s)) {
    case VR_TRAILER_OK:
        return VR_DROPS;
    case VR_TRAILER_STALE:
        return VR_DROP_BACKBONE_STALE;
    default:
        return VR_DROP_BACKBONE_KEY;
    }
}

/* Makes the trailer of what goes to a relay of another cluster; its SPP header lies at out->data. */
static enum vr_drop add_trailer(const struct vr_forwarder *forwarder, struct vr_egress *out) {
    out->trailer_bytes = 0;
    if (!forwarder->backbone_keys ||
        !(out->hop[0].is_relay || (out->hops == 2 && out->hop[1].is_relay)))
        return VR_DROPS;
    if (!vr_trailer_write(forwarder->backbone_keys, out->data, forwarder->unix_s, out->trailer))
        return VR_DROP_SEND_ERROR;
    out->trailer_bytes = VR_TRAILER_BYTES;
    return VR_DROPS;
}

/* --- probes of the cluster routes --- */

bool vr_forward_probes_are_due(const struct vr_forwarder *forwarder, uint64_t now_ns) {
    return vr_probes_are_due(forwarder->probes, vr_clock_ms(now_ns));
}

bool vr_forward_next_probe(struct vr_forwarder *forwarder, uint64_t now_ns,
                           const uint8_t nonce[VR_PROBE_NONCE_BYTES],
                           uint8_t buffer[VR_PROBE_BYTES], struct vr_egress *out) {
    *out = (struct vr_egress){.data = buffer, .data_bytes = VR_PROBE_BYTES, .is_probe = true};
    out->hops = 1;
    out->hop[0] = (struct vr_hop){.side = VR_SIDE_INTERNAL, .is_relay = true};
    bool made = vr_probes_next(forwarder->probes, vr_clock_ms(now_ns), nonce, buffer,
                               &out->hop[0].destination);
    vr_probes_show(forwarder->probes, forwarder->stats);
    return made && add_trailer(forwarder, out) == VR_DROPS;
}

/* From inside it is the echo of ours, over the backbone it wants one. */
static enum vr_drop take_probe(struct vr_forwarder *forwarder, const struct vr_arrival *arrival,
                               struct vr_egress *out) {
    const struct vr_ingress *in = arrival->in;
    if (arrival->payload_bytes == VR_PROBE_NONCE_BYTES + VR_TRAILER_BYTES)
        return VR_DROP_BACKBONE_KEY; /* the others have a key, and we do not */
    if (arrival->payload_bytes != VR_PROBE_NONCE_BYTES)
        return VR_DROP_PROBE_MALFORMED;
    if (in->side == VR_SIDE_INTERNAL) {
        if (!vr_probes_take_echo(forwarder->probes, &in->source, arrival->payload))
            return VR_DROP_PROBE_UNMATCHED;
        vr_count_add(&forwarder->stats->probes_answered, 1);
        vr_probes_show(forwarder->probes, forwarder->stats);
        return VR_DROPS;
    }
    if (!vr_echoes_may(&forwarder->echoes, &in->source, arrival->payload, arrival->at.now_ms))
        return VR_DROP_PROBE_REPEATED;
    *out = (struct vr_egress){.data = in->data, .data_bytes = VR_PROBE_BYTES, .is_probe = true};
    out->hops = 1;
    out->hop[0] =
        (struct vr_hop){.side = VR_SIDE_BACKBONE, .destination = in->source, .is_relay = true};
    return add_trailer(forwarder, out);
}

/* --- one datagram --- */

/* Fills `arrival`; VR_DROPS or why the datagram is not even that. */
static enum vr_drop arrive(struct vr_forwarder *forwarder, const struct vr_ingress *in,
                           uint64_t now_ns, struct vr_arrival *arrival) {
    unsigned expected = forwarder->next_expected++;
    uint32_t header_bytes = in->side == VR_SIDE_PUBLIC ? 0 : VR_SPP_BYTES;
    const struct vr_routes *routes = &forwarder->routes;
    if (in->data_bytes == 0)
        return VR_DROP_EMPTY;
    if (in->side == VR_SIDE_BACKBONE &&
        !vr_allow_match(routes->backbone_allow, routes->backbone_allow_count, &in->source))
        return VR_DROP_BACKBONE_PEER;
    if (!vr_forward_key(in, &arrival->at.key))
        return VR_DROP_SPP_MALFORMED;
    if (in->data_bytes == header_bytes)
        return VR_DROP_EMPTY;
    arrival->in = in;
    arrival->payload = in->data + header_bytes;
    arrival->payload_bytes = in->data_bytes - header_bytes;
    arrival->at.now_ms = vr_clock_ms(now_ns);
    arrival->at.hash = hash_of(forwarder, expected, &arrival->at.key);
    return forwarder->backbone_keys ? take_trailer(forwarder, arrival) : VR_DROPS;
}

static void count_received(struct vr_stats *stats, const struct vr_ingress *in) {
    if (in->parked)
        return;
    vr_count_add(&stats->side[in->side].rx_packets, 1);
    vr_count_add(&stats->side[in->side].rx_bytes, in->data_bytes);
}

enum vr_verdict vr_forward(struct vr_forwarder *forwarder, const struct vr_ingress *in,
                           uint64_t now_ns, struct vr_egress *out) {
    struct vr_arrival arrival;
    out->owners_due = false;
    out->is_probe = false;
    int reason = arrive(forwarder, in, now_ns, &arrival);
    if (reason == VR_DROPS && in->side != VR_SIDE_PUBLIC && vr_probe_is(&arrival.at.key)) {
        reason = take_probe(forwarder, &arrival, out);
        if (reason == VR_DROPS)
            return in->side == VR_SIDE_BACKBONE ? VR_VERDICT_SEND : VR_VERDICT_TAKEN;
    } else if (reason == VR_DROPS) {
        reason = in->side == VR_SIDE_INTERNAL ? vr_downstream(forwarder, &arrival, out)
                                              : vr_upstream(forwarder, &arrival, out);
        if (reason == VR_DROPS)
            reason = add_trailer(forwarder, out);
    }
    count_received(forwarder->stats, in);
    if (reason == VR_DROPS) {
        out->flow = (uint32_t)arrival.at.hash;
        out->tos = in->tos;
        return VR_VERDICT_SEND;
    }
    if (reason == VR_DROP_NO_FLOW_PARK)
        return VR_VERDICT_PARK;
    vr_count_add(&forwarder->stats->drop[reason], 1);
    return VR_VERDICT_DROP;
}

unsigned vr_forward_owners(struct vr_forwarder *forwarder, const struct vr_flow_key *key,
                           uint64_t now_ns, uint8_t sealed[VR_FLOW_OWNERS][VR_TOKEN_BYTES]) {
    const struct vr_table *table = forwarder->table;
    const struct vr_flow_at at = {*key, vr_flow_hash(table, key), vr_clock_ms(now_ns)};
    uint32_t slot = vr_tracker_find(&forwarder->tracker, VR_POOL_ESTABLISHED, &at);
    unsigned count = 0;
    if (slot == VR_NO_SLOT)
        return 0;
    for (unsigned i = 0; i < VR_FLOW_OWNERS; i++) {
        bool has_owner = table->flow[slot].valid >> i & 1;
        const uint8_t *token = has_owner ? vr_flow_token(table, slot, i) : NULL;
        if (token)
            memcpy(sealed[count++], token, VR_TOKEN_BYTES);
    }
    return count;
}

/* --- what upstream.c and downstream.c share --- */

enum vr_drop vr_stun_drop(const uint8_t *payload, uint32_t payload_bytes, struct vr_stun *message) {
    switch (vr_stun_read(payload, payload_bytes, message)) {
    case VR_STUN_OK:
        return message->method == VR_STUN_METHOD_BINDING ? VR_DROPS : VR_DROP_STUN_METHOD;
    case VR_STUN_USERNAME:
        return VR_DROP_STUN_USERNAME;
    case VR_STUN_FINGERPRINT:
        return VR_DROP_STUN_FINGERPRINT;
    default:
        return VR_DROP_STUN_MALFORMED;
    }
}

enum vr_drop vr_token_drop(enum vr_token_status status) {
    switch (status) {
    case VR_TOKEN_OK:
        return VR_DROPS;
    case VR_TOKEN_NO_HINT:
        return VR_DROP_TOKEN_NO_HINT;
    case VR_TOKEN_UNKNOWN_KEY:
        return VR_DROP_TOKEN_UNKNOWN_KEY;
    case VR_TOKEN_FORGED:
        return VR_DROP_TOKEN_FORGED;
    default:
        return VR_DROP_TOKEN_MALFORMED;
    }
}

struct vr_path vr_arrival_path(const struct vr_arrival *arrival) {
    const struct vr_ingress *in = arrival->in;
    struct vr_path path = {.side = (uint8_t)in->side};
    if (in->side == VR_SIDE_BACKBONE) {
        path.address = in->source;
    } else {
        path.listen = in->listen;
        memcpy(path.address.ip, in->local.ip, sizeof path.address.ip);
    }
    return path;
}
