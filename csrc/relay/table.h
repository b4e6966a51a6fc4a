/* table.h: the memory of a flow table: header, tags, entries, and how one process sees it.
 *
 *     header, one page | tags of all slots | struct vr_flow of all slots | struct vr_flow_rest of all
 *
 * 1. The header is written once, by vr_table_format; later only the writer's generation changes.
 * 2. Sizes are checked once, in vr_table_attach, and copied: nothing reads them from the memory again.
 * 3. First the buckets of the established pool, then those of the half-open pool; one numbering.
 *
 * What may be done with the entries is in flow.h (the writer) and audit.h (everybody).
 * Times are milliseconds of CLOCK_MONOTONIC modulo 2^32; ages come from vr_age_ms.
 */
#ifndef VR_TABLE_H
#define VR_TABLE_H

#include "../wire/addr.h"
#include "../wire/token.h"
#include "siphash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    VR_FLOWS_MAX = 1 << 24, /* what vr_table_bytes takes at most */
    VR_BUCKET_SLOTS = 16,
    VR_FLOW_OWNERS = 2,
    VR_TABLE_LAYOUT_VERSION = 1,
};

#define VR_NO_SLOT UINT32_MAX

enum vr_pool {
    VR_POOL_ESTABLISHED,
    VR_POOL_HALF_OPEN, /* without an owner: half-open; with one: provisional, from the cache */
    VR_POOLS,
};

/* Design rule 4: the transceiver that a token names. In another cluster the address is only a name
 * (an IPv6 token's prefix is known there alone); packets go to that cluster's route. */
struct vr_owner {
    uint16_t cluster_id; /* host order */
    struct vr_addr address;
};

/* An owner, and the token that names it. */
struct vr_claim {
    struct vr_owner owner;
    uint8_t sealed[VR_TOKEN_BYTES];
};

/* Where replies to the client leave from. */
struct vr_path {
    uint8_t side;           /* VR_SIDE_PUBLIC or VR_SIDE_BACKBONE */
    uint8_t listen;         /* PUBLIC: index of the --listen socket */
    struct vr_addr address; /* PUBLIC: the local address that was asked; BACKBONE: the peer */
};

/* Bits of vr_flow.valid. Owner half i has bit i. */
enum {
    VR_VALID_OWNERS = 3,
    VR_VALID_NEWER = 4, /* of two owners, half 1 joined later */
    VR_VALID_PATH = 8,
};

/* Bits of vr_flow.flags. */
enum { VR_FLOW_UNANSWERED = 1 }; /* half-open, and no response has passed yet */

struct vr_owner_half {
    uint32_t check;
    struct vr_owner owner;
};

/* What every packet touches: two cache lines. */
struct vr_flow {
    struct vr_flow_key key;
    uint8_t valid;
    uint8_t flags;
    uint8_t via[VR_FLOW_OWNERS]; /* routes.h 5: where each owner's last success came from */
    uint32_t generation;         /* of the writer that made or checked it */
    uint32_t up_seen_ms;         /* last packet of the client that passed */
    uint32_t owner_seen_ms;      /* last packet of an owner that passed: the idle clock (rule 8) */
    uint32_t up_packets;         /* modulo 2^32, like down_packets */
    uint64_t up_bytes;           /* UDP payload, SPP header not counted; like down_bytes */

    struct vr_owner_half half[VR_FLOW_OWNERS];
    uint32_t created_ms;
    uint32_t down_packets;
    uint64_t down_bytes;
};

/* What checks and replies touch. */
struct vr_flow_rest {
    uint32_t path_check;
    struct vr_path path;
    uint32_t success_ms[VR_FLOW_OWNERS]; /* last Binding success of each owner */
    struct {
        uint8_t sealed[VR_TOKEN_BYTES]; /* a half-open flow has the token that made it in [0] */
        uint8_t check[3];               /* a torn token reads as none */
    } token[VR_FLOW_OWNERS];
};

_Static_assert(sizeof(struct vr_owner) == 20 && sizeof(struct vr_path) == 20, "no padding");
_Static_assert(offsetof(struct vr_flow, half) == 64 && sizeof(struct vr_flow) == 128, "two lines");
_Static_assert(sizeof(struct vr_flow_rest) == 80, "no padding");

/* One process's view of a table. Sizes are its own copies. Tools read; only functions write. */
struct vr_table {
    void *memory;
    uint16_t *tag; /* 0: free */
    struct vr_flow *flow;
    struct vr_flow_rest *rest;
    struct vr_hash_key hash_key;
    uint32_t max_flows;
    uint32_t buckets[VR_POOLS];
    uint32_t first_slot[VR_POOLS];
    uint32_t slots;            /* of both pools */
    uint32_t generation;       /* writer: its own; reader: 0 */
    uint32_t counts[VR_POOLS]; /* writer: entries in each pool */
};

enum vr_table_status {
    VR_TABLE_OK = 0,
    VR_TABLE_SIZE,   /* memory too small, not 64-aligned, or max_flows out of range */
    VR_TABLE_MAGIC,  /* no table lies here */
    VR_TABLE_LAYOUT, /* a table of another layout version or entry size */
    VR_TABLE_HEADER, /* the header contradicts itself */
};

/* Bytes of memory for `max_flows` (1..VR_FLOWS_MAX) established flows and the half-open pool that
 * goes with them; 0 when out of range. One million take 255.4 MiB. */
size_t vr_table_bytes(uint32_t max_flows);

/* Makes an empty table in zeroed, 64-aligned memory of vr_table_bytes(max_flows) or more. The
 * hash key is 16 random bytes. Only the header is written. */
enum vr_table_status vr_table_format(void *memory, size_t bytes, uint32_t max_flows,
                                     const uint8_t hash_key[16]);

/* A view of the table at `memory`, which may be mapped read-only and may hold anything. */
enum vr_table_status vr_table_attach(struct vr_table *table, void *memory, size_t bytes);

/* Makes this view the writer, as a new generation, and recounts the pools. The caller knows that
 * the former writer is dead. */
void vr_table_take(struct vr_table *table);

static inline uint32_t vr_clock_ms(uint64_t now_ns) {
    return (uint32_t)(now_ns / 1000000);
}

/* Milliseconds from `then` to `now`. 0 when `then` is up to ten seconds ahead (clocks of two
 * generations may differ a little); UINT32_MAX when it is further ahead: such an entry is damaged
 * or older than 24 days, and lives no longer. */
static inline uint32_t vr_age_ms(uint32_t now_ms, uint32_t then_ms) {
    int32_t age_ms = (int32_t)(now_ms - then_ms);
    return age_ms >= 0 ? (uint32_t)age_ms : age_ms > -10000 ? 0 : UINT32_MAX;
}

static inline bool vr_flow_in_use(const struct vr_table *table, uint32_t slot) {
    return table->tag[slot] != 0;
}

static inline enum vr_pool vr_flow_pool(const struct vr_table *table, uint32_t slot) {
    return slot < table->first_slot[VR_POOL_HALF_OPEN] ? VR_POOL_ESTABLISHED : VR_POOL_HALF_OPEN;
}

static inline uint64_t vr_flow_hash(const struct vr_table *table, const struct vr_flow_key *key) {
    return vr_siphash(&table->hash_key, key, sizeof *key);
}

/* Entries of each pool, counted from the tags. Any process. */
void vr_table_count(const struct vr_table *table, uint32_t counts[VR_POOLS]);

#endif
