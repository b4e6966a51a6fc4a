/* The flow table without a forwarder: finding, placing, filling up, removing. */
#include "check.h"
#include "relay/audit.h"
#include "relay/flow.h"

static struct vr_table table;
static void *memory;
static size_t memory_bytes;

static void open_table(uint32_t max_flows) {
    memory_bytes = vr_table_bytes(max_flows);
    memory = aligned_alloc(64, (memory_bytes + 63) / 64 * 64);
    memset(memory, 0, memory_bytes);
    CHECK_EQ(vr_table_format(memory, memory_bytes, max_flows, (const uint8_t *)"0123456789abcdef"),
             VR_TABLE_OK);
    CHECK_EQ(vr_table_attach(&table, memory, memory_bytes), VR_TABLE_OK);
    vr_table_take(&table);
}

static void close_table(void) {
    struct vr_fault fault;
    CHECK_EQ(vr_table_audit(&table, &fault, 1), 0);
    free(memory);
}

static struct vr_flow_key key_of(uint32_t i) {
    struct vr_flow_key key = {{{0x20, 1}, 7}, {{0x20, 2}, 9}};
    memcpy(key.client.ip + 8, &i, sizeof i);
    return key;
}

static uint32_t find(enum vr_pool pool, uint32_t i) {
    struct vr_flow_key key = key_of(i);
    return vr_flow_find(&table, pool, &key, vr_flow_hash(&table, &key));
}

/* Inserts key i; for the half-open pool as the caller of vr_flow_place has to. */
static uint32_t insert(enum vr_pool pool, uint32_t i, uint32_t now_ms) {
    struct vr_flow flow = {.key = key_of(i), .created_ms = now_ms};
    struct vr_flow_rest rest = {.path = {.listen = 3}};
    uint64_t hash = vr_flow_hash(&table, &flow.key);
    flow.valid = pool == VR_POOL_ESTABLISHED ? 1 | VR_VALID_PATH : VR_VALID_PATH;
    flow.half[0].owner.cluster_id = (uint16_t)i;
    uint32_t slot = vr_flow_place(&table, pool, hash, now_ms);
    if (slot == VR_NO_SLOT)
        return slot;
    if (vr_flow_in_use(&table, slot))
        vr_flow_remove(&table, slot);
    vr_flow_insert(&table, slot, hash, &flow, &rest);
    return slot;
}

TEST(what_was_inserted_is_found_and_what_was_removed_is_not) {
    open_table(1000);
    for (uint32_t i = 0; i < 1000; i++)
        CHECK(insert(VR_POOL_ESTABLISHED, i, 0) != VR_NO_SLOT);
    for (uint32_t i = 0; i < 1000; i++) {
        uint32_t slot = find(VR_POOL_ESTABLISHED, i);
        CHECK(slot != VR_NO_SLOT && table.flow[slot].half[0].owner.cluster_id == i);
        CHECK_EQ(vr_flow_pool(&table, slot), VR_POOL_ESTABLISHED);
        CHECK_EQ(find(VR_POOL_HALF_OPEN, i), VR_NO_SLOT);
        if (i % 2)
            vr_flow_remove(&table, slot);
    }
    CHECK_EQ(table.counts[VR_POOL_ESTABLISHED], 500);
    for (uint32_t i = 0; i < 1000; i++)
        CHECK_EQ(find(VR_POOL_ESTABLISHED, i) != VR_NO_SLOT, i % 2 == 0);
    close_table();
}

TEST(the_promised_number_fits) {
    open_table(20000);
    for (uint32_t i = 0; i < 20000; i++)
        CHECK(insert(VR_POOL_ESTABLISHED, i, 0) != VR_NO_SLOT);
    CASE("and beyond it refuses, some day, and breaks nothing");
    uint32_t i = 20000;
    while (insert(VR_POOL_ESTABLISHED, i, 0) != VR_NO_SLOT)
        i++;
    CHECK(i > 21000 && i <= table.slots);
    for (uint32_t j = 0; j < i; j++)
        CHECK(find(VR_POOL_ESTABLISHED, j) != VR_NO_SLOT);
    close_table();
}

TEST(the_half_open_pool_takes_everybody_and_forgets_the_oldest) {
    open_table(1);
    uint32_t capacity = table.slots - table.first_slot[VR_POOL_HALF_OPEN];
    for (uint32_t i = 0; i < 10 * capacity; i++)
        CHECK(insert(VR_POOL_HALF_OPEN, i, 1000 + i) != VR_NO_SLOT);
    CHECK(table.counts[VR_POOL_HALF_OPEN] > capacity * 9 / 10);
    for (uint32_t i = 0; i < capacity / 4; i++)
        CHECK(find(VR_POOL_HALF_OPEN, 10 * capacity - 1 - i) != VR_NO_SLOT);
    for (uint32_t i = 0; i < 6 * capacity; i++)
        CHECK_EQ(find(VR_POOL_HALF_OPEN, i), VR_NO_SLOT);
    close_table();
}

TEST(prefetching_touches_nothing) {
    open_table(100);
    for (uint32_t i = 0; i < 100; i++) {
        struct vr_flow_key key = key_of(i);
        if (i < 50)
            insert(VR_POOL_ESTABLISHED, i, 0);
        vr_flow_prefetch_tags(&table, vr_flow_hash(&table, &key));
        vr_flow_prefetch_entry(&table, vr_flow_hash(&table, &key), i % 2);
    }
    close_table();
}

TEST(a_token_is_read_back_unless_it_is_torn) {
    open_table(10);
    uint8_t sealed[VR_TOKEN_BYTES] = {1, 2, 3};
    uint32_t slot = insert(VR_POOL_ESTABLISHED, 1, 0);
    CHECK(vr_flow_token(&table, slot, 0) != NULL);
    vr_flow_set_token(&table, slot, 0, sealed);
    CHECK_MEM(vr_flow_token(&table, slot, 0), sealed, VR_TOKEN_BYTES);
    table.rest[slot].token[0].sealed[20] ^= 1;
    CHECK(vr_flow_token(&table, slot, 0) == NULL);
    CASE("and it belongs to its place");
    vr_flow_set_token(&table, slot, 0, sealed);
    memcpy(&table.rest[slot].token[1], &table.rest[slot].token[0],
           sizeof table.rest[slot].token[0]);
    CHECK(vr_flow_token(&table, slot, 1) == NULL);
    close_table();
}
