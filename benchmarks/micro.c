/* micro: what the parts of a packet's way cost by themselves, in picoseconds of CPU time each.
 *
 *     micro CASE [REPEATS]
 *
 * Prints the median over REPEATS (15), and the fastest. A table of a million flows is 255 MiB, which no
 * cache holds: `cold` cases look up flows in random order.
 */
#include "../csrc/relay/flow.h"
#include "../csrc/wire/bytes.h"
#include "../csrc/wire/spp.h"
#include "../csrc/wire/stun.h"
#include "../csrc/wire/token.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum {
    MILLION = 1 << 20,
    HOT = 256,
    BATCH = 256,
    COUNT = 65536,
    REPEATS_MAX = 1000,
    CHECK_BYTES = 72
};

static struct vr_table table;
static struct vr_flow_key *keys; /* COUNT of them, in the order of asking */
static struct vr_keyring *keyring;
static char ufrag[VR_TOKEN_CHARS], forged[VR_TOKEN_CHARS];
static uint8_t check[CHECK_BYTES];
static volatile uint64_t sink; /* so that nothing is optimised away */

static void must(bool holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "micro: %s\n", what);
    exit(1);
}

/* --- the table --- */

static struct vr_flow_key key_of(uint32_t flow) {
    struct vr_flow_key key = {.client.port_be = (uint16_t)flow, .proxy.port_be = 1};
    flow *= UINT32_C(0x9E3779B1); /* neighbours are not neighbours anywhere */
    vr_ip_from_v4(key.client.ip, (const uint8_t *)&flow);
    vr_ip_from_v4(key.proxy.ip, (uint8_t[]){192, 0, 2, 1});
    return key;
}

static void fill_table(uint32_t flows) {
    static const uint8_t hash_key[16] = "always the same";
    size_t bytes = vr_table_bytes(MILLION);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(memory != MAP_FAILED && vr_table_format(memory, bytes, MILLION, hash_key) == VR_TABLE_OK &&
             vr_table_attach(&table, memory, bytes) == VR_TABLE_OK,
         "no memory for the table");
    vr_table_take(&table);
    for (uint32_t i = 0; i < flows; i++) {
        struct vr_flow flow = {.key = key_of(i), .valid = 1 | VR_VALID_PATH};
        struct vr_flow_rest rest = {.path = {.listen = 3}};
        uint64_t hash = vr_flow_hash(&table, &flow.key);
        uint32_t slot = vr_flow_place(&table, VR_POOL_ESTABLISHED, hash, 0);
        must(slot != VR_NO_SLOT, "the table is full");
        vr_flow_insert(&table, slot, hash, &flow, &rest);
    }
}

/* COUNT keys of `flows` flows from number `first` on; none comes again before all the others. */
static void choose_keys(uint32_t first, uint32_t flows) {
    keys = calloc(COUNT, sizeof *keys);
    must(keys != NULL, "no memory");
    for (uint32_t i = 0; i < COUNT; i++)
        keys[i] = key_of(first + (uint32_t)(i * UINT64_C(2654435761) % flows));
}

static uint64_t look_up(uint32_t i, uint64_t hash) {
    uint32_t slot = vr_flow_find(&table, VR_POOL_ESTABLISHED, &keys[i], hash);
    return slot == VR_NO_SLOT ? 1 : table.flow[slot].half[0].owner.address.port_be;
}

static void look_up_all(void) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < COUNT; i++)
        sum += look_up(i, vr_flow_hash(&table, &keys[i]));
    sink += sum;
}

/* As the loop does: hashes and tags of a whole batch, its entries, then one after the other. */
static void look_up_batches(void) {
    uint64_t sum = 0, hash[BATCH];
    for (uint32_t first = 0; first < COUNT; first += BATCH) {
        for (uint32_t i = 0; i < BATCH; i++) {
            hash[i] = vr_flow_hash(&table, &keys[first + i]);
            vr_flow_prefetch_tags(&table, hash[i]);
        }
        for (uint32_t i = 0; i < BATCH; i++)
            vr_flow_prefetch_entry(&table, hash[i], false);
        for (uint32_t i = 0; i < BATCH; i++)
            sum += look_up(first + i, hash[i]);
    }
    sink += sum;
}

static void hash_all(void) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < COUNT; i++)
        sum += vr_flow_hash(&table, &keys[i]);
    sink += sum;
}

static void prepare_hot(void) {
    fill_table(HOT);
    choose_keys(0, HOT);
}

static void prepare_cold(void) {
    fill_table(MILLION);
    choose_keys(0, MILLION);
}

static void prepare_miss(void) {
    fill_table(MILLION);
    choose_keys(MILLION, MILLION);
}

/* --- bytes --- */

static void prepare_check(void) {
    static const uint8_t secret[VR_TOKEN_KEY_BYTES] = "a key", random[VR_TOKEN_RANDOM_BYTES];
    struct vr_token token = {.kind = 4, .cluster_id = 1, .port_be = 1, .ipv4 = {10, 0, 0, 9}};
    keyring = vr_keyring_new();
    must(keyring && vr_keyring_add(keyring, 0, secret) == 0 &&
             vr_token_seal(keyring, &token, random, ufrag) == VR_TOKEN_OK,
         "token");
    memcpy(forged, ufrag, sizeof forged);
    forged[9] ^= 1;
    /* USERNAME, PRIORITY, USE-CANDIDATE: 20 + 4 + 32 + 8 + 4, and 4 to spare */
    vr_store_be16(check, 0x0001);
    vr_store_be16(check + 2, 48);
    vr_store_be32(check + 4, 0x2112A442);
    vr_store_be32(check + 20, 0x00060000 | 32);
    memcpy(check + 24, ufrag, VR_TOKEN_CHARS);
    memcpy(check + 24 + VR_TOKEN_CHARS, ":abc", 4);
    vr_store_be32(check + 56, 0x00240004);
    vr_store_be32(check + 64, 0x00250000);
}

static void read_checks(void) {
    struct vr_stun message;
    unsigned read = 0;
    for (unsigned i = 0; i < COUNT; i++) {
        check[19] = (uint8_t)i;
        read += vr_stun_read(check, 68, &message) == VR_STUN_OK;
    }
    must(read == COUNT, "not read");
}

static void open_tokens(void) {
    struct vr_token token;
    unsigned opened = 0;
    for (unsigned i = 0; i < COUNT; i++)
        opened += vr_token_open(keyring, (uint8_t *)ufrag, sizeof ufrag, &token) == VR_TOKEN_OK;
    must(opened == COUNT, "not opened");
}

static void refuse_tokens(void) {
    struct vr_token token;
    unsigned refused = 0;
    for (unsigned i = 0; i < COUNT; i++)
        refused +=
            vr_token_open(keyring, (uint8_t *)forged, sizeof forged, &token) == VR_TOKEN_FORGED;
    must(refused == COUNT, "not refused");
}

static void write_headers(void) {
    static uint8_t slot[BATCH][64];
    for (unsigned i = 0; i < COUNT; i++)
        vr_spp_write(slot[i % BATCH] + 2, &keys[i]);
    sink += slot[7][20];
}

/* --- measuring --- */

static uint64_t cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*prepare)(void);
        void (*run)(void);
    } cases[] = {
        {"stun_read", prepare_check, read_checks},
        {"token_open", prepare_check, open_tokens},
        {"token_refuse", prepare_check, refuse_tokens},
        {"spp_write", prepare_hot, write_headers},
        {"flow_hash", prepare_hot, hash_all},
        {"lookup_hot", prepare_hot, look_up_all},
        {"lookup_miss", prepare_miss, look_up_all},
        {"lookup_miss_batch", prepare_miss, look_up_batches},
        {"lookup_cold", prepare_cold, look_up_all},
        {"lookup_cold_batch", prepare_cold, look_up_batches},
    };
    static uint64_t took_ps[REPEATS_MAX];
    unsigned repeats = argc > 2 ? (unsigned)atoi(argv[2]) : 15;
    if (repeats < 1 || repeats > REPEATS_MAX)
        repeats = 15;
    for (size_t i = 0; argc > 1 && i < sizeof cases / sizeof cases[0]; i++) {
        if (strcmp(argv[1], cases[i].name) != 0)
            continue;
        cases[i].prepare();
        cases[i].run();
        for (unsigned n = 0; n < repeats; n++) {
            uint64_t before_ns = cpu_ns();
            cases[i].run();
            took_ps[n] = (cpu_ns() - before_ns) * 1000 / COUNT;
        }
        qsort(took_ps, repeats, sizeof took_ps[0], by_size);
        printf("%lu %lu\n", took_ps[repeats / 2], took_ps[0]);
        return 0;
    }
    fprintf(stderr, "usage: micro CASE [REPEATS]\n");
    return 2;
}
