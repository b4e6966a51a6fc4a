/* probes.h: which addresses of the cluster routes answer, found out in band (design rule 7).
 *
 *     SPP header with client [::]:0 and proxy [::]:0 | nonce 16
 *
 * 1. Each address gets a probe every VR_PROBE_INTERVAL_MS, from the socket that flows leave by, with 16
 *    fresh random bytes. The other relay's backbone socket echoes it as it is.
 * 2. An echo counts when it comes from the address that its probe went to, within the last
 *    VR_PROBE_MEMORY probes, and once: nobody who has not seen the probe can hold a dead address up.
 * 3. An address is down when VR_PROBES_LOST probes in a row were not answered, and up again when
 *    VR_PROBES_BACK in a row were. It begins as up.
 * 4. Who echoes keeps nothing of a flow and never sends more than it got. It echoes a nonce once, so two
 *    backbones cannot be made to send one back and forth, and VR_ECHOES_PER_S at most for one address,
 *    whatever its port: probes in the name of one entry cost no other entry its echoes.
 *
 * Sans-IO: time and random bytes are arguments. Used by one thread.
 */
#ifndef VR_PROBES_H
#define VR_PROBES_H

#include "../wire/spp.h"
#include "routes.h"
#include "siphash.h"

enum {
    VR_PROBE_INTERVAL_MS = 250,
    VR_PROBE_NONCE_BYTES = 16,
    VR_PROBE_BYTES = VR_SPP_BYTES + VR_PROBE_NONCE_BYTES,
    VR_PROBE_MEMORY = 8, /* power of two; 2 s: no useful way takes longer */
    VR_PROBES_LOST = 5,
    VR_PROBES_BACK = 3,
    VR_ECHOES_PER_S = 1000, /* an entry of 64 workers sends 256 */
    VR_ECHO_PEERS = 256,    /* power of two; addresses of one secret hash share */
    VR_ECHO_MEMORY = 8192,  /* power of two; longer than a datagram is under way */
};

/* --- the entry's side --- */

struct vr_probes;

/* Probes of all addresses of `routes`, in their order, which this borrows and whose down_mask it
 * writes. What `former` (or NULL) knows of an address stays. NULL when memory is not to be had. */
struct vr_probes *vr_probes_new(struct vr_routes *routes, const struct vr_probes *former,
                                uint32_t now_ms);
void vr_probes_free(struct vr_probes *probes);

/* Whether a probe should leave now. */
bool vr_probes_are_due(const struct vr_probes *probes, uint32_t now_ms);

/* The next probe that is due, in VR_PROBE_BYTES at `datagram`; `nonce` is fresh random bytes. False when
 * none is due. Addresses without enough answers go down here. */
bool vr_probes_next(struct vr_probes *probes, uint32_t now_ms,
                    const uint8_t nonce[VR_PROBE_NONCE_BYTES], uint8_t *datagram,
                    struct vr_addr *destination);

/* An echo came from `sender`. False when it answers no probe. */
bool vr_probes_take_echo(struct vr_probes *probes, const struct vr_addr *sender,
                         const uint8_t nonce[VR_PROBE_NONCE_BYTES]);

/* Names these routes: what is shown with the mask of those that are down. 0 for none. */
uint64_t vr_probes_digest(const struct vr_cluster_route *route, size_t routes);

/* Shows in `stats` which addresses are down, and counts those that went down since. Takes over what a
 * former worker with the same routes has shown there. */
void vr_probes_show(struct vr_probes *probes, struct vr_stats *stats);
void vr_probes_restore(struct vr_probes *probes, const struct vr_stats *stats);

/* --- both --- */

/* Whether a datagram with this key is a probe or an echo: no client has port 0. */
static inline bool vr_probe_is(const struct vr_flow_key *key) {
    static const struct vr_addr none;
    return key->client.port_be == 0 && vr_addr_equal(&key->client, &none);
}

/* --- the other side --- */

struct vr_echoes {
    struct vr_hash_key hash_key;
    uint32_t second;
    uint16_t in_second[VR_ECHO_PEERS];
    uint64_t seen[VR_ECHO_MEMORY];
};

/* Whether a probe with this nonce may be echoed to `sender` (rule 4). `echoes` is zeroed, with a secret
 * key. */
bool vr_echoes_may(struct vr_echoes *echoes, const struct vr_addr *sender,
                   const uint8_t nonce[VR_PROBE_NONCE_BYTES], uint32_t now_ms);

#endif
