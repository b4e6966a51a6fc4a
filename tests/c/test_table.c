#include "check.h"
#include "relay/table.h"

static const uint8_t HASH_KEY[16] = "a hash key, 16 B";

static void *memory_of(size_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    memset(memory, 0, bytes);
    return memory;
}

TEST(a_million_flows_in_256_mib) {
    CHECK(vr_table_bytes(1000000) <= (size_t)256 << 20);
    CASE("summed over 64 workers");
    CHECK(64 * vr_table_bytes(1000000 / 64) <= (size_t)256 << 20 || 64 * 1024 > 1000000 / 40);
}

TEST(sizes_out_of_range) {
    CHECK_EQ(vr_table_bytes(0), 0);
    CHECK_EQ(vr_table_bytes(VR_FLOWS_MAX + 1), 0);
    CHECK(vr_table_bytes(1) > 0);
    CHECK(vr_table_bytes(VR_FLOWS_MAX) > vr_table_bytes(VR_FLOWS_MAX - 1000));
    uint8_t *memory = memory_of(vr_table_bytes(1));
    CHECK_EQ(vr_table_format(memory, vr_table_bytes(1), 0, HASH_KEY), VR_TABLE_SIZE);
    CHECK_EQ(vr_table_format(memory, vr_table_bytes(1) - 1, 1, HASH_KEY), VR_TABLE_SIZE);
    CHECK_EQ(vr_table_format(memory + 8, vr_table_bytes(1), 1, HASH_KEY), VR_TABLE_SIZE);
    free(memory);
}

TEST(attach_believes_no_header) {
    size_t bytes = vr_table_bytes(100);
    uint8_t *memory = memory_of(bytes);
    struct vr_table table;
    CHECK_EQ(vr_table_attach(&table, memory, bytes), VR_TABLE_MAGIC);
    CHECK_EQ(vr_table_attach(&table, memory, 100), VR_TABLE_SIZE);
    CHECK_EQ(vr_table_format(memory, bytes, 100, HASH_KEY), VR_TABLE_OK);
    CHECK_EQ(vr_table_attach(&table, memory, bytes), VR_TABLE_OK);
    CHECK_EQ(vr_table_attach(&table, memory, bytes - 1), VR_TABLE_SIZE);
    for (unsigned i = 0; i < 64; i++) { /* every bit of the header but the generation */
        for (unsigned bit = 0; bit < 8; bit++) {
            memory[i] ^= (uint8_t)(1u << bit);
            CHECK(vr_table_attach(&table, memory, bytes) != VR_TABLE_OK);
            memory[i] ^= (uint8_t)(1u << bit);
        }
    }
    memory[8]++;
    CHECK_EQ(vr_table_attach(&table, memory, bytes), VR_TABLE_LAYOUT);
    free(memory);
}

TEST(each_writer_is_a_new_generation_and_recounts) {
    size_t bytes = vr_table_bytes(100);
    void *memory = memory_of(bytes);
    struct vr_table table, again;
    vr_table_format(memory, bytes, 100, HASH_KEY);
    vr_table_attach(&table, memory, bytes);
    CHECK_EQ(table.generation, 0);
    vr_table_take(&table);
    CHECK(table.generation != 0);
    table.tag[3] = 77;
    table.tag[table.first_slot[VR_POOL_HALF_OPEN]] = 78;
    table.tag[table.slots - 1] = 79;
    vr_table_attach(&again, memory, bytes);
    vr_table_take(&again);
    CHECK(again.generation != table.generation && again.generation != 0);
    CHECK_EQ(again.counts[VR_POOL_ESTABLISHED], 1);
    CHECK_EQ(again.counts[VR_POOL_HALF_OPEN], 2);
    free(memory);
}

TEST(ages_know_of_wrapping_and_of_clocks_that_differ) {
    CHECK_EQ(vr_age_ms(5, 5), 0);
    CHECK_EQ(vr_age_ms(70000, 10000), 60000);
    CHECK_EQ(vr_age_ms(5, UINT32_MAX - 4), 10);
    CHECK_EQ(vr_age_ms(1000, 1004), 0);
    CHECK_EQ(vr_age_ms(1000, 10999), 0);
    CHECK_EQ(vr_age_ms(1000, 11000), UINT32_MAX);
    CHECK_EQ(vr_age_ms(0, 1u << 31), UINT32_MAX);
    CHECK_EQ(vr_clock_ms(UINT64_C(1999999)), 1);
}
