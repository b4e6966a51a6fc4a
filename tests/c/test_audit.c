/* What a reader sees of a table that is being written, is damaged, or holds anything at all. */
#include "check.h"
#include "relay/audit.h"
#include "relay/flow.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

static struct vr_table table;
static void *memory;
static size_t memory_bytes;

static void open_table(void) {
    memory_bytes = vr_table_bytes(100);
    memory = mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK_EQ(vr_table_format(memory, memory_bytes, 100, (const uint8_t *)"0123456789abcdef"),
             VR_TABLE_OK);
    CHECK_EQ(vr_table_attach(&table, memory, memory_bytes), VR_TABLE_OK);
    vr_table_take(&table);
}

static uint32_t insert(enum vr_pool pool, uint8_t i, unsigned owners) {
    struct vr_flow flow = {.key = {{{i}, 7}, {{9}, 9}}};
    struct vr_flow_rest rest = {.path = {.listen = 3}};
    uint64_t hash = vr_flow_hash(&table, &flow.key);
    flow.valid = (uint8_t)(owners | VR_VALID_PATH);
    flow.half[0].owner.cluster_id = i;
    flow.half[1].owner.cluster_id = (uint16_t)(i + 1);
    memset(rest.token[0].sealed, 5, VR_TOKEN_BYTES);
    uint32_t slot = vr_flow_place(&table, pool, hash, 0);
    vr_flow_insert(&table, slot, hash, &flow, &rest);
    return slot;
}

/* The one fault of the table, or VR_FAULT_KINDS for none. */
static enum vr_fault_kind fault(uint32_t slot) {
    struct vr_fault faults[4];
    size_t count = vr_table_audit(&table, faults, 4);
    if (count == 0)
        return VR_FAULT_KINDS;
    CHECK_EQ(count, 1);
    CHECK_EQ(faults[0].slot, slot);
    return faults[0].kind;
}

TEST(a_sound_table_has_no_faults) {
    open_table();
    for (uint8_t i = 0; i < 50; i++)
        insert(VR_POOL_ESTABLISHED, i, 1 + i % 3);
    for (uint8_t i = 100; i < 150; i++)
        insert(VR_POOL_HALF_OPEN, i, i % 4);
    CHECK_EQ(fault(0), VR_FAULT_KINDS);
    munmap(memory, memory_bytes);
}

TEST(each_fault_is_found) {
    open_table();
    uint32_t slot = insert(VR_POOL_ESTABLISHED, 1, 3);
    insert(VR_POOL_ESTABLISHED, 2, 1);
    struct vr_flow *flow = &table.flow[slot], whole = *flow;
    flow->key.client.ip[3] ^= 1;
    CHECK_EQ(fault(slot), VR_FAULT_KEY);
    *flow = whole;
    flow->half[1].owner.address.ip[0] ^= 1;
    CHECK_EQ(fault(slot), VR_FAULT_OWNER);
    *flow = whole;
    flow->valid = VR_VALID_PATH;
    CHECK_EQ(fault(slot), VR_FAULT_OWNERLESS);
    *flow = whole;
    table.rest[slot].path.listen ^= 1;
    CHECK_EQ(fault(slot), VR_FAULT_PATH);
    table.rest[slot].path.listen ^= 1;
    vr_flow_set_owner(&table, slot, 1, &(struct vr_claim){whole.half[0].owner, {0}}, 0);
    CHECK_EQ(fault(slot), VR_FAULT_SAME_OWNER);
    *flow = whole;
    uint32_t half_open = insert(VR_POOL_HALF_OPEN, 1, 0);
    CHECK_EQ(fault(half_open), VR_FAULT_BOTH_POOLS);
    vr_flow_remove(&table, half_open);
    uint32_t third = 0; /* a free slot outside the buckets of key 1 */
    while (table.tag[third] || third / VR_BUCKET_SLOTS == slot / VR_BUCKET_SLOTS)
        third++;
    table.flow[third] = *flow;
    table.rest[third] = table.rest[slot];
    table.tag[third] = table.tag[slot];
    struct vr_fault faults[4];
    size_t count = vr_table_audit(&table, faults, 4);
    bool is_bucket = false;
    for (size_t i = 0; i < count; i++)
        is_bucket |= faults[i].slot == third &&
                     (faults[i].kind == VR_FAULT_BUCKET || faults[i].kind == VR_FAULT_TWICE);
    CHECK(is_bucket);
    munmap(memory, memory_bytes);
}

TEST(reading_gives_only_what_holds) {
    open_table();
    struct vr_flow flow;
    struct vr_flow_rest rest;
    static const uint8_t zero[sizeof rest.token[0]];
    uint32_t slot = insert(VR_POOL_ESTABLISHED, 1, 3);
    CHECK(vr_flow_read(&table, slot, &flow, &rest));
    CHECK_EQ(flow.valid, 3 | VR_VALID_PATH);
    CHECK_EQ(rest.token[0].sealed[0], 5);
    table.flow[slot].half[0].owner.cluster_id ^= 1;
    table.rest[slot].path.address.port_be ^= 1;
    table.rest[slot].token[0].sealed[3] ^= 1;
    CHECK(vr_flow_read(&table, slot, &flow, &rest));
    CHECK_EQ(flow.valid, 2);
    CHECK_MEM(&rest.token[0], zero, sizeof zero);
    table.flow[slot].key.proxy.port_be ^= 1;
    CHECK(!vr_flow_read(&table, slot, &flow, &rest));
    CHECK(!vr_flow_read(&table, slot == 0 ? 1 : 0, &flow, &rest));
    munmap(memory, memory_bytes);
}

TEST(any_memory_can_be_read) { /* and read-only: nothing here writes */
    open_table();
    uint32_t seed = 1;
    uint8_t *bytes = memory;
    for (unsigned round = 0; round < 5; round++) {
        mprotect(memory, memory_bytes, PROT_READ | PROT_WRITE);
        for (size_t i = 4096; i < memory_bytes; i++) {
            seed = seed * 1664525 + 1013904223;
            bytes[i] = (uint8_t)(seed >> 24);
        }
        mprotect(memory, memory_bytes, PROT_READ);
        struct vr_fault faults[8];
        struct vr_flow flow;
        struct vr_flow_rest rest;
        uint32_t counts[VR_POOLS];
        unsigned read = 0;
        CHECK(vr_table_audit(&table, faults, 8) > 100);
        for (uint32_t slot = 0; slot < table.slots; slot++)
            read += vr_flow_read(&table, slot, &flow, &rest);
        CHECK(read < 5);
        vr_table_count(&table, counts);
        CHECK(counts[0] + counts[1] > 100);
    }
    munmap(memory, memory_bytes);
}

/* Owners and paths that are made of one byte, repeated: a torn one shows. */
static struct vr_claim claim_of(uint8_t byte) {
    struct vr_claim claim;
    memset(&claim, byte, sizeof claim);
    return claim;
}

/* Changes flows as fast as it can until it is killed. */
static void write_for_ever(void) {
    for (uint32_t turn = 0;; turn++) {
        uint8_t i = (uint8_t)(turn * 2654435761u >> 27); /* 32 flows */
        struct vr_flow_key key = {{{i}, 7}, {{9}, 9}};
        uint64_t hash = vr_flow_hash(&table, &key);
        uint32_t slot = vr_flow_find(&table, VR_POOL_ESTABLISHED, &key, hash);
        struct vr_claim claim = claim_of((uint8_t)turn);
        struct vr_path path;
        memset(&path, (int)turn, sizeof path);
        if (slot == VR_NO_SLOT)
            slot = insert(VR_POOL_ESTABLISHED, i, 0);
        vr_flow_set_owner(&table, slot, turn >> 8 & 1, &claim, turn);
        vr_flow_set_path(&table, slot, &path);
        if (turn % 16 == 0)
            vr_flow_remove(&table, slot);
    }
}

static bool is_one_byte(const void *data, size_t bytes) {
    const uint8_t *p = data;
    return memcmp(p, p + 1, bytes - 1) == 0;
}

TEST(a_reader_beside_a_writer_sees_nothing_torn) {
    open_table();
    munmap(memory, memory_bytes);
    memory = mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    vr_table_format(memory, memory_bytes, 100, (const uint8_t *)"0123456789abcdef");
    vr_table_attach(&table, memory, memory_bytes);
    pid_t writer = fork();
    if (writer == 0) {
        vr_table_take(&table);
        write_for_ever();
    }
    unsigned owners = 0, paths = 0, tokens = 0;
    for (unsigned round = 0; round < 30000 || owners < 10000; round++) {
        struct vr_flow flow;
        struct vr_flow_rest rest;
        if (!vr_flow_read(&table, round % table.first_slot[VR_POOL_HALF_OPEN], &flow, &rest))
            continue;
        for (unsigned i = 0; i < VR_FLOW_OWNERS; i++) {
            static const struct vr_addr none;
            const struct vr_owner *owner = &flow.half[i].owner;
            if (!(flow.valid >> i & 1))
                continue;
            owners++; /* one that insert() made, or a whole one */
            CHECK(is_one_byte(owner, sizeof *owner) || vr_addr_equal(&owner->address, &none));
            tokens += rest.token[i].sealed[0] != 0;
            CHECK(is_one_byte(rest.token[i].sealed, VR_TOKEN_BYTES));
        }
        paths += (flow.valid & VR_VALID_PATH) != 0;
        if (flow.valid & VR_VALID_PATH)
            CHECK(is_one_byte(&rest.path, sizeof rest.path) || rest.path.listen == 3);
    }
    CHECK(owners > 1000 && paths > 1000 && tokens > 1000);
    kill(writer, SIGKILL);
    waitpid(writer, NULL, 0);
    munmap(memory, memory_bytes);
}

TEST(faults_have_texts) {
    for (unsigned kind = 0; kind < VR_FAULT_KINDS; kind++)
        CHECK(strlen(vr_fault_text((enum vr_fault_kind)kind)) > 10);
    CHECK_EQ(strlen(vr_fault_text(VR_FAULT_KINDS)), 0);
}
