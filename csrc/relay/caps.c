#include "caps.h"

#include "rate.h"
#include "tally.h"

#include <stdlib.h>

enum { KEYS_MIN = 4096 };

struct vr_caps {
    struct vr_limits limits;
    struct vr_hash_key hash_key;
    struct vr_rate *rate;         /* new flows of tokens and transceivers, checks of flows */
    struct vr_tally *established; /* by token */
    struct vr_tally *unanswered;  /* by source */
};

struct vr_caps *vr_caps_new(const struct vr_limits *limits, const struct vr_table *table) {
    struct vr_caps *caps = calloc(1, sizeof *caps);
    if (!caps)
        return NULL;
    caps->limits = *limits;
    caps->hash_key = table->hash_key;
    caps->rate = vr_rate_new(KEYS_MIN + table->max_flows / 2);
    caps->established = vr_tally_new((size_t)KEYS_MIN + table->max_flows);
    caps->unanswered = vr_tally_new(table->slots - table->first_slot[VR_POOL_HALF_OPEN]);
    if (!caps->rate || !caps->established || !caps->unanswered) {
        vr_caps_free(caps);
        return NULL;
    }
    return caps;
}

void vr_caps_free(struct vr_caps *caps) {
    if (!caps)
        return;
    vr_rate_free(caps->rate);
    vr_tally_free(caps->established);
    vr_tally_free(caps->unanswered);
    free(caps);
}

void vr_caps_configure(struct vr_caps *caps, const struct vr_limits *limits) {
    caps->limits = *limits;
}

/* --- what is counted, each under a letter of its own --- */

static uint64_t token_hash(const struct vr_caps *caps, const uint8_t *sealed) {
    uint8_t covered[1 + VR_TOKEN_BYTES] = {'T'};
    memcpy(covered + 1, sealed, VR_TOKEN_BYTES);
    return vr_siphash(&caps->hash_key, covered, sizeof covered);
}

static uint64_t flow_token_hash(const struct vr_caps *caps, const struct vr_flow_key *key,
                                const uint8_t *sealed) {
    uint8_t covered[1 + sizeof *key + VR_TOKEN_BYTES] = {'F'};
    memcpy(covered + 1, key, sizeof *key);
    if (sealed)
        memcpy(covered + 1 + sizeof *key, sealed, VR_TOKEN_BYTES);
    return vr_siphash(&caps->hash_key, covered, sizeof covered);
}

static uint64_t owner_hash(const struct vr_caps *caps, const struct vr_owner *owner) {
    uint8_t covered[1 + sizeof *owner] = {'O'};
    memcpy(covered + 1, owner, sizeof *owner);
    return vr_siphash(&caps->hash_key, covered, sizeof covered);
}

/* An IPv4 address, or the /64 of an IPv6 address: what one subscriber is given. */
static uint64_t source_hash(const struct vr_caps *caps, const struct vr_addr *client) {
    uint8_t covered[1 + 16] = {'S'};
    memcpy(covered + 1, client->ip, vr_ip_is_v4(client->ip) ? 16 : 8);
    return vr_siphash(&caps->hash_key, covered, sizeof covered);
}

/* --- asking --- */

enum vr_drop vr_caps_check(struct vr_caps *caps, const struct vr_flow_key *key,
                           const uint8_t *sealed, uint32_t now_ms) {
    return vr_rate_take(caps->rate, flow_token_hash(caps, key, sealed),
                        caps->limits.flow_checks_per_s, now_ms)
               ? VR_DROPS
               : VR_DROP_CAP_FLOW_CHECKS;
}

enum vr_drop vr_caps_new_token(struct vr_caps *caps, const uint8_t *sealed,
                               const struct vr_owner *owner, uint32_t now_ms) {
    if (!vr_rate_take(caps->rate, token_hash(caps, sealed), caps->limits.token_new_flows_per_s,
                      now_ms))
        return VR_DROP_CAP_TOKEN_FLOWS_RATE;
    if (owner && !vr_rate_take(caps->rate, owner_hash(caps, owner),
                               caps->limits.transceiver_new_flows_per_s, now_ms))
        return VR_DROP_CAP_TRANSCEIVER_FLOWS;
    return VR_DROPS;
}

enum vr_drop vr_caps_established(const struct vr_caps *caps, const uint8_t *sealed) {
    uint32_t limit = caps->limits.token_established_flows;
    return limit && vr_tally_get(caps->established, token_hash(caps, sealed)) >= limit
               ? VR_DROP_CAP_TOKEN_FLOWS
               : VR_DROPS;
}

enum vr_drop vr_caps_unanswered(const struct vr_caps *caps, const struct vr_addr *client) {
    uint32_t limit = caps->limits.source_unanswered;
    return limit && vr_tally_get(caps->unanswered, source_hash(caps, client)) >= limit
               ? VR_DROP_CAP_SOURCE_UNANSWERED
               : VR_DROPS;
}

/* --- counting --- */

void vr_caps_add_established(struct vr_caps *caps, const uint8_t *sealed) {
    vr_tally_add(caps->established, token_hash(caps, sealed));
}

void vr_caps_remove_established(struct vr_caps *caps, const uint8_t *sealed) {
    vr_tally_remove(caps->established, token_hash(caps, sealed));
}

void vr_caps_add_unanswered(struct vr_caps *caps, const struct vr_addr *client) {
    vr_tally_add(caps->unanswered, source_hash(caps, client));
}

void vr_caps_remove_unanswered(struct vr_caps *caps, const struct vr_addr *client) {
    vr_tally_remove(caps->unanswered, source_hash(caps, client));
}
