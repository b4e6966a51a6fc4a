#include "probes.h"

#include <stdlib.h>
#include <string.h>

struct target {
    struct vr_cluster_route *route;
    unsigned index;   /* of the address in its route */
    uint32_t due_ms;  /* when the next probe leaves */
    unsigned next;    /* where the next probe's nonce goes */
    uint8_t pending;  /* bit i: of the last probe but i, the echo may still come */
    uint8_t answered; /* bit i: it came; forgotten when the address goes down */
    uint8_t sent;     /* bit i: there was such a probe */
    uint8_t nonce[VR_PROBE_MEMORY][VR_PROBE_NONCE_BYTES];
};

_Static_assert(VR_PROBE_MEMORY == 8, "bits of a byte");

struct vr_probes {
    uint64_t digest; /* of all clusters and addresses, in order */
    unsigned falls;  /* addresses that went down and have not been counted yet */
    size_t count;
    struct target target[];
};

static const struct vr_addr *address_of(const struct target *target) {
    return &target->route->addr[target->index];
}

static bool is_down(const struct target *target) {
    return target->route->down_mask >> target->index & 1;
}

static void set_down(struct target *target, bool down) {
    target->route->down_mask &= ~(1U << target->index);
    target->route->down_mask |= (unsigned)down << target->index;
}

/* --- life --- */

static void take_over(struct target *target, const struct vr_probes *former) {
    for (size_t i = 0; former && i < former->count; i++) {
        const struct target *known = &former->target[i];
        if (known->route->cluster_id != target->route->cluster_id ||
            !vr_addr_equal(address_of(known), address_of(target)))
            continue;
        struct vr_cluster_route *route = target->route;
        unsigned index = target->index;
        *target = *known;
        target->route = route;
        target->index = index;
        set_down(target, is_down(known));
        return;
    }
}

uint64_t vr_probes_digest(const struct vr_cluster_route *route, size_t routes) {
    static const struct vr_hash_key key;
    uint64_t digest = 0;
    for (size_t i = 0; i < routes; i++) {
        for (unsigned a = 0; a < route[i].addrs; a++) {
            struct {
                uint64_t before;
                struct vr_addr address;
                uint16_t cluster_id;
                uint8_t zero[4];
            } item = {digest, route[i].addr[a], route[i].cluster_id, {0}};
            digest = vr_siphash(&key, &item, sizeof item);
        }
    }
    return digest;
}

struct vr_probes *vr_probes_new(struct vr_routes *routes, const struct vr_probes *former,
                                uint32_t now_ms) {
    size_t count = 0;
    for (size_t i = 0; i < routes->route_count; i++)
        count += routes->route[i].addrs;
    struct vr_probes *probes = calloc(1, sizeof *probes + count * sizeof probes->target[0]);
    if (!probes)
        return NULL;
    probes->digest = vr_probes_digest(routes->route, routes->route_count);
    for (size_t i = 0; i < routes->route_count; i++) {
        for (unsigned a = 0; a < routes->route[i].addrs; a++) {
            struct target *target = &probes->target[probes->count];
            target->route = &routes->route[i];
            target->index = a;
            /* Spread over the interval: no bursts. */
            target->due_ms = now_ms + (uint32_t)(probes->count * VR_PROBE_INTERVAL_MS / count);
            take_over(target, former);
            probes->count++;
        }
    }
    return probes;
}

void vr_probes_free(struct vr_probes *probes) {
    free(probes);
}

/* --- sending --- */

static bool is_due(const struct target *target, uint32_t now_ms) {
    return (int32_t)(now_ms - target->due_ms) >= 0;
}

bool vr_probes_are_due(const struct vr_probes *probes, uint32_t now_ms) {
    for (size_t i = 0; i < probes->count; i++)
        if (is_due(&probes->target[i], now_ms))
            return true;
    return false;
}

/* Before another probe leaves: what the last ones have shown. */
static void judge(struct vr_probes *probes, struct target *target) {
    const uint8_t row = (1U << VR_PROBES_LOST) - 1;
    if ((target->sent & row) != row || (target->answered & row) != 0 || is_down(target))
        return;
    set_down(target, true);
    target->answered = 0;
    probes->falls++;
}

bool vr_probes_next(struct vr_probes *probes, uint32_t now_ms,
                    const uint8_t nonce[VR_PROBE_NONCE_BYTES], uint8_t *datagram,
                    struct vr_addr *destination) {
    static const struct vr_flow_key nobody;
    for (size_t i = 0; i < probes->count; i++) {
        struct target *target = &probes->target[i];
        if (!is_due(target, now_ms))
            continue;
        judge(probes, target);
        target->due_ms += VR_PROBE_INTERVAL_MS;
        if (is_due(target, now_ms)) /* the loop was held up: what was missed is not made up for */
            target->due_ms = now_ms + VR_PROBE_INTERVAL_MS;
        memcpy(target->nonce[target->next], nonce, VR_PROBE_NONCE_BYTES);
        target->next = (target->next + 1) % VR_PROBE_MEMORY;
        target->pending = (uint8_t)(target->pending << 1 | 1);
        target->answered = (uint8_t)(target->answered << 1);
        target->sent = (uint8_t)(target->sent << 1 | 1);
        vr_spp_write(datagram, &nobody);
        memcpy(datagram + VR_SPP_BYTES, nonce, VR_PROBE_NONCE_BYTES);
        *destination = *address_of(target);
        return true;
    }
    return false;
}

/* --- echoes --- */

static bool has_row(uint8_t answered) {
    uint8_t rows = answered;
    for (unsigned i = 1; i < VR_PROBES_BACK; i++)
        rows &= (uint8_t)(answered >> i);
    return rows != 0;
}

static bool answers(struct target *target, const uint8_t nonce[VR_PROBE_NONCE_BYTES]) {
    for (unsigned later = 0; later < VR_PROBE_MEMORY; later++) {
        unsigned place = (target->next - 1 - later) % VR_PROBE_MEMORY;
        if (!(target->pending >> later & 1) ||
            memcmp(target->nonce[place], nonce, VR_PROBE_NONCE_BYTES) != 0)
            continue;
        target->pending &= (uint8_t)~(1U << later);
        target->answered |= (uint8_t)(1U << later);
        if (has_row(target->answered))
            set_down(target, false);
        return true;
    }
    return false;
}

bool vr_probes_take_echo(struct vr_probes *probes, const struct vr_addr *sender,
                         const uint8_t nonce[VR_PROBE_NONCE_BYTES]) {
    for (size_t i = 0; i < probes->count; i++)
        if (vr_addr_equal(address_of(&probes->target[i]), sender) &&
            answers(&probes->target[i], nonce))
            return true;
    return false;
}

/* --- what others see --- */

void vr_probes_show(struct vr_probes *probes, struct vr_stats *stats) {
    uint64_t down[VR_ROUTE_ADDRS_SHOWN / 64] = {0};
    for (size_t i = 0; i < probes->count && i < VR_ROUTE_ADDRS_SHOWN; i++)
        down[i / 64] |= (uint64_t)is_down(&probes->target[i]) << i % 64;
    for (size_t i = 0; i < VR_ROUTE_ADDRS_SHOWN / 64; i++)
        __atomic_store_n(&stats->route_down[i], down[i], __ATOMIC_RELAXED);
    __atomic_store_n(&stats->route_digest, probes->digest, __ATOMIC_RELAXED);
    vr_count_add(&stats->route_falls, probes->falls);
    probes->falls = 0;
}

void vr_probes_restore(struct vr_probes *probes, const struct vr_stats *stats) {
    if (stats->route_digest != probes->digest)
        return;
    for (size_t i = 0; i < probes->count && i < VR_ROUTE_ADDRS_SHOWN; i++)
        set_down(&probes->target[i], stats->route_down[i / 64] >> i % 64 & 1);
}

/* --- the other side --- */

bool vr_echoes_may(struct vr_echoes *echoes, const struct vr_addr *sender,
                   const uint8_t nonce[VR_PROBE_NONCE_BYTES], uint32_t now_ms) {
    uint64_t hash = vr_siphash(&echoes->hash_key, nonce, VR_PROBE_NONCE_BYTES);
    uint64_t *seen = &echoes->seen[hash % VR_ECHO_MEMORY];
    uint64_t peer = vr_siphash(&echoes->hash_key, sender->ip, sizeof sender->ip);
    uint16_t *in_second = &echoes->in_second[peer % VR_ECHO_PEERS];
    if (now_ms - echoes->second >= 1000) {
        echoes->second = now_ms;
        memset(echoes->in_second, 0, sizeof echoes->in_second);
    }
    if (*seen == hash || *in_second >= VR_ECHOES_PER_S)
        return false;
    ++*in_second;
    *seen = hash;
    return true;
}
