#include "table.h"

#include <string.h>

#define MAGIC UINT64_C(0x31574f4c46525600) /* "\0VRFLOW1" in memory, little-endian */

enum {
    HEADER_BYTES = 4096,
    HALF_OPEN_SHARE = 40, /* one half-open slot for so many flows */
    HALF_OPEN_MIN = 1024,
};

struct header {
    uint64_t magic;
    uint32_t layout_version;
    uint32_t header_bytes;
    uint32_t flow_bytes;
    uint32_t rest_bytes;
    uint32_t bucket_slots;
    uint32_t max_flows;
    uint32_t buckets[VR_POOLS];
    struct vr_hash_key hash_key;
    uint64_t check;      /* of all before it */
    uint32_t generation; /* of the latest writer */
};

static uint32_t pool_buckets(enum vr_pool pool, uint32_t max_flows) {
    uint64_t flows = max_flows;
    if (pool == VR_POOL_ESTABLISHED) /* 80 % load: 16-way buckets refuse none there */
        return (uint32_t)((flows * 5 + 4 * VR_BUCKET_SLOTS - 1) / (4 * VR_BUCKET_SLOTS)) + 1;
    flows = flows / HALF_OPEN_SHARE > HALF_OPEN_MIN ? flows / HALF_OPEN_SHARE : HALF_OPEN_MIN;
    return (uint32_t)((flows + VR_BUCKET_SLOTS - 1) / VR_BUCKET_SLOTS);
}

static size_t round_up_64(size_t bytes) {
    return (bytes + 63) & ~(size_t)63;
}

/* Sets sizes and pointers for a table of `max_flows` at `memory`; returns its bytes. */
static size_t lay_out(struct vr_table *table, void *memory, uint32_t max_flows) {
    uint8_t *base = memory;
    size_t offset = HEADER_BYTES;
    table->memory = memory;
    table->max_flows = max_flows;
    table->slots = 0;
    for (unsigned pool = 0; pool < VR_POOLS; pool++) {
        table->buckets[pool] = pool_buckets((enum vr_pool)pool, max_flows);
        table->first_slot[pool] = table->slots;
        table->slots += table->buckets[pool] * VR_BUCKET_SLOTS;
    }
    if (memory)
        table->tag = (uint16_t *)(void *)(base + offset);
    offset = round_up_64(offset + table->slots * sizeof *table->tag);
    if (memory)
        table->flow = (struct vr_flow *)(void *)(base + offset);
    offset += table->slots * sizeof *table->flow;
    if (memory)
        table->rest = (struct vr_flow_rest *)(void *)(base + offset);
    return offset + table->slots * sizeof *table->rest;
}

size_t vr_table_bytes(uint32_t max_flows) {
    struct vr_table table = {0};
    return max_flows < 1 || max_flows > VR_FLOWS_MAX ? 0 : lay_out(&table, NULL, max_flows);
}

/* --- header --- */

static uint64_t header_check(const struct header *header) {
    return vr_siphash(&header->hash_key, header, offsetof(struct header, check));
}

enum vr_table_status vr_table_format(void *memory, size_t bytes, uint32_t max_flows,
                                     const uint8_t hash_key[16]) {
    size_t needed = vr_table_bytes(max_flows);
    if (needed == 0 || bytes < needed || (uintptr_t)memory % 64 != 0)
        return VR_TABLE_SIZE;
    struct header header = {
        .magic = MAGIC,
        .layout_version = VR_TABLE_LAYOUT_VERSION,
        .header_bytes = HEADER_BYTES,
        .flow_bytes = sizeof(struct vr_flow),
        .rest_bytes = sizeof(struct vr_flow_rest),
        .bucket_slots = VR_BUCKET_SLOTS,
        .max_flows = max_flows,
    };
    for (unsigned pool = 0; pool < VR_POOLS; pool++)
        header.buckets[pool] = pool_buckets((enum vr_pool)pool, max_flows);
    memcpy(&header.hash_key, hash_key, sizeof header.hash_key);
    header.check = header_check(&header);
    memcpy(memory, &header, sizeof header);
    return VR_TABLE_OK;
}

enum vr_table_status vr_table_attach(struct vr_table *table, void *memory, size_t bytes) {
    struct header header;
    if (bytes < HEADER_BYTES || (uintptr_t)memory % 64 != 0)
        return VR_TABLE_SIZE;
    memcpy(&header, memory, sizeof header);
    if (header.magic != MAGIC)
        return VR_TABLE_MAGIC;
    if (header.layout_version != VR_TABLE_LAYOUT_VERSION || header.header_bytes != HEADER_BYTES ||
        header.flow_bytes != sizeof(struct vr_flow) ||
        header.rest_bytes != sizeof(struct vr_flow_rest) || header.bucket_slots != VR_BUCKET_SLOTS)
        return VR_TABLE_LAYOUT;
    size_t needed = vr_table_bytes(header.max_flows);
    if (header.check != header_check(&header) || needed == 0)
        return VR_TABLE_HEADER;
    if (bytes < needed)
        return VR_TABLE_SIZE;
    *table = (struct vr_table){.hash_key = header.hash_key};
    lay_out(table, memory, header.max_flows);
    for (unsigned pool = 0; pool < VR_POOLS; pool++)
        if (header.buckets[pool] != table->buckets[pool])
            return VR_TABLE_LAYOUT;
    return VR_TABLE_OK;
}

void vr_table_count(const struct vr_table *table, uint32_t counts[VR_POOLS]) {
    for (unsigned pool = 0; pool < VR_POOLS; pool++) {
        uint32_t slot = table->first_slot[pool];
        uint32_t end = slot + table->buckets[pool] * VR_BUCKET_SLOTS;
        counts[pool] = 0;
        for (; slot < end; slot++)
            counts[pool] += __atomic_load_n(&table->tag[slot], __ATOMIC_RELAXED) != 0;
    }
}

void vr_table_take(struct vr_table *table) {
    struct header *header = table->memory;
    uint32_t generation = header->generation + 1;
    table->generation = generation ? generation : 1; /* 0 is a reader's */
    __atomic_store_n(&header->generation, table->generation, __ATOMIC_RELAXED);
    vr_table_count(table, table->counts);
}
