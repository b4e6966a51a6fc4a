/* caps.h: the five caps of design rule 3, per worker. What a peer can make happen, he can make happen
 * only so often; what an honest client does stays far below.
 *
 * 1. Budgets belong to what an attacker cannot spend for others: a token's to whoever holds the
 *    token. Of a flow's checks each token that the flow holds has a budget, and all others together
 *    have one: nobody who spoofs a client's address with tokens of his own uses up the client's.
 * 2. Of a source only what waits for its first response counts: a carrier NAT puts thousands of honest
 *    users behind one address.
 * 3. A refused packet spends nothing further down: a token over its own cap does not use up its
 *    transceiver's.
 * 4. A table under pressure lets through rather than refuse (rate.h, tally.h).
 */
#ifndef VR_CAPS_H
#define VR_CAPS_H

#include "stats.h"
#include "table.h"

/* 0: no cap. Rates of 65,535 and more are none either. */
struct vr_limits {
    uint32_t token_new_flows_per_s;       /* 20 */
    uint32_t token_established_flows;     /* 16 */
    uint32_t flow_checks_per_s;           /* 50 */
    uint32_t transceiver_new_flows_per_s; /* 2,000 */
    uint32_t source_unanswered;           /* 64 per IPv4 address or IPv6 /64 */
};

struct vr_caps;

/* For the writer of `table`, whose hash key and sizes are taken; 20 bytes a flow. NULL when memory is
 * not to be had. */
struct vr_caps *vr_caps_new(const struct vr_limits *limits, const struct vr_table *table);
void vr_caps_free(struct vr_caps *caps);
void vr_caps_configure(struct vr_caps *caps, const struct vr_limits *limits);

/* Each returns VR_DROPS (no reason to drop) or the cap that is reached. */

/* One check on this flow, with the token `sealed` that it holds, or NULL: with one that it does not. */
enum vr_drop vr_caps_check(struct vr_caps *caps, const struct vr_flow_key *key,
                           const uint8_t *sealed, uint32_t now_ms);

/* A token that the flow does not hold yet: as good as a new flow key for the token. `owner` NULL:
 * the flow exists, its transceiver's cap is not asked. */
enum vr_drop vr_caps_new_token(struct vr_caps *caps, const uint8_t *sealed,
                               const struct vr_owner *owner, uint32_t now_ms);

/* Another established flow for the token. */
enum vr_drop vr_caps_established(const struct vr_caps *caps, const uint8_t *sealed);

/* Another unanswered first packet of the client. */
enum vr_drop vr_caps_unanswered(const struct vr_caps *caps, const struct vr_addr *client);

/* What is there now. */
void vr_caps_add_established(struct vr_caps *caps, const uint8_t *sealed);
void vr_caps_remove_established(struct vr_caps *caps, const uint8_t *sealed);
void vr_caps_add_unanswered(struct vr_caps *caps, const struct vr_addr *client);
void vr_caps_remove_unanswered(struct vr_caps *caps, const struct vr_addr *client);

#endif
