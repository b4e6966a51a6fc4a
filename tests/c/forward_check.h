/* forward_check.h: a forwarder on a small table, with everything around it that a test needs: tokens,
 * checks, responses, and the exact set of counters that a datagram changed.
 *
 * 1. Client n is 203.0.113.n:50000+n, transceiver n is 10.0.0.n:40000, relay n of another cluster is
 *    192.0.2.n:3479. Our cluster is 1; cluster 2 has a route over relays 1 and 2, cluster 3 has none.
 * 2. Every send_* takes a snapshot of the counters first; CHANGED then lists all that moved.
 * 3. Time stands still until wait_ms.
 */
#ifndef VR_FORWARD_CHECK_H
#define VR_FORWARD_CHECK_H

#include "check.h"
#include "relay/audit.h"
#include "relay/forward.h"
#include "wire/bytes.h"
#include "wire/spp.h"
#include "wire/stun.h"

enum { HEADROOM = 64, DATAGRAM_MAX = 1500, MAX_FLOWS = 64 };

struct bench {
    void *memory;
    size_t memory_bytes;
    struct vr_table table;
    struct vr_stats stats, before;
    struct vr_keyring *keyring;
    struct vr_forward_config config;
    struct vr_forwarder *forwarder;
    uint64_t now_ns;
    struct vr_egress out;
    uint8_t buffer[HEADROOM + DATAGRAM_MAX];
};

/* --- who is who --- */

static inline struct vr_addr v4(unsigned a, unsigned b, unsigned c, unsigned d, unsigned port) {
    struct vr_addr addr;
    vr_ip_from_v4(addr.ip, (uint8_t[]){(uint8_t)a, (uint8_t)b, (uint8_t)c, (uint8_t)d});
    vr_store_be16((uint8_t *)&addr.port_be, (uint16_t)port);
    return addr;
}

static inline struct vr_addr client(unsigned n) {
    return v4(203, 0, 113 + n / 256, n % 256, 50000 + n);
}
static inline struct vr_addr transceiver(unsigned n) {
    return v4(10, 0, 0, n, 40000);
}
static inline struct vr_addr far_relay(unsigned n) {
    return v4(192, 0, 2, n, 3479);
}
static inline struct vr_addr proxy_addr(void) {
    return v4(198, 51, 100, 1, 3478);
}
static inline struct vr_addr local_addr(void) {
    return v4(172, 16, 0, 9, 3478);
}
static inline struct vr_flow_key key_of(struct vr_addr from) {
    return (struct vr_flow_key){from, proxy_addr()};
}

static const uint8_t TEST_HASH_KEY[16] = "a hash key, 16 B";

/* --- life --- */

static const struct vr_cidr *test_networks(void) {
    static struct vr_cidr networks[2];
    networks[0] = (struct vr_cidr){.prefix_bits = 96 + 24, .port_min = 40000, .port_max = 40009};
    vr_ip_from_v4(networks[0].ip, (const uint8_t[]){10, 0, 0, 0}); /* transceivers */
    networks[1] = (struct vr_cidr){.prefix_bits = 96 + 24, .port_max = 65535};
    vr_ip_from_v4(networks[1].ip, (const uint8_t[]){192, 0, 2, 0}); /* backbone peers */
    return networks;
}

static inline struct vr_forward_config test_config(struct vr_keyring *keyring) {
    static struct vr_cluster_route route;
    route = (struct vr_cluster_route){.cluster_id = 2, .addrs = 2};
    route.addr[0] = far_relay(1);
    route.addr[1] = far_relay(2);
    return (struct vr_forward_config){
        .cluster_id = 1,
        .keyring = keyring,
        .allow_transceiver = test_networks(),
        .allow_transceiver_count = 1,
        .backbone_allow = test_networks() + 1,
        .backbone_allow_count = 1,
        .routes = &route,
        .route_count = 1,
        .limits = {20, 16, 50, 2000, 64},
        .idle_timeout_ns = UINT64_C(60000000000),
    };
}

static inline void bench_open(struct bench *b) {
    static const uint8_t secret[VR_TOKEN_KEY_BYTES] = "the ring key of the C tests, 32";
    memset(b, 0, sizeof *b);
    b->memory_bytes = vr_table_bytes(MAX_FLOWS);
    b->memory = aligned_alloc(64, (b->memory_bytes + 63) / 64 * 64);
    memset(b->memory, 0, b->memory_bytes);
    CHECK_EQ(vr_table_format(b->memory, b->memory_bytes, MAX_FLOWS, TEST_HASH_KEY), VR_TABLE_OK);
    CHECK_EQ(vr_table_attach(&b->table, b->memory, b->memory_bytes), VR_TABLE_OK);
    b->keyring = vr_keyring_new();
    CHECK_EQ(vr_keyring_add(b->keyring, 3, secret), 0);
    b->config = test_config(b->keyring);
    b->now_ns = UINT64_C(1000000000000);
    b->forwarder = vr_forwarder_new(&b->config, &b->table, &b->stats, b->now_ns);
    CHECK(b->forwarder != NULL);
}

/* Every flow of the table is as a writer leaves it, and the counters say how many there are. */
static inline void check_sound(struct bench *b) {
    struct vr_fault fault[1];
    uint32_t counts[VR_POOLS];
    if (vr_table_audit(&b->table, fault, 1) != 0)
        check_fail(__FILE__, __LINE__, "audit", vr_fault_text(fault[0].kind));
    vr_table_count(&b->table, counts);
    CHECK_EQ(b->stats.flows_half_open, counts[VR_POOL_HALF_OPEN]);
    CHECK_EQ(b->stats.flows_established, counts[VR_POOL_ESTABLISHED]);
}

static inline void bench_close(struct bench *b) {
    check_sound(b);
    vr_forwarder_free(b->forwarder);
    vr_keyring_free(b->keyring);
    free(b->memory);
}

/* A new writer on the same table, as after a crash of the first. */
static inline void bench_restart(struct bench *b) {
    vr_forwarder_free(b->forwarder);
    CHECK_EQ(vr_table_attach(&b->table, b->memory, b->memory_bytes), VR_TABLE_OK);
    b->forwarder = vr_forwarder_new(&b->config, &b->table, &b->stats, b->now_ns);
    CHECK(b->forwarder != NULL);
}

static inline void bench_configure(struct bench *b) {
    CHECK_EQ(vr_forward_configure(b->forwarder, &b->config, b->now_ns), 0);
}

/* A tenth of a second of sweeping at a time, as the loop does it. */
static inline void wait_ms(struct bench *b, uint64_t ms) {
    b->now_ns += ms * 1000000;
}
static inline void sweep_all(struct bench *b) {
    for (unsigned i = 0; i < 100; i++)
        vr_forward_sweep(b->forwarder, b->now_ns);
}

/* --- what is sent --- */

struct ufrag {
    char chars[VR_TOKEN_CHARS];
};

/* Token number `serial` of transceiver `n` in `cluster`. */
static inline struct ufrag ufrag_of(struct bench *b, unsigned cluster, unsigned n,
                                    unsigned serial) {
    struct ufrag ufrag;
    uint8_t random[VR_TOKEN_RANDOM_BYTES] = {0};
    struct vr_addr addr = transceiver(n);
    struct vr_token token = {.kind = 4, .cluster_id = (uint16_t)cluster, .port_be = addr.port_be};
    memcpy(token.ipv4, addr.ip + 12, 4);
    vr_store_be32(random + 4, serial);
    CHECK_EQ(vr_token_seal(b->keyring, &token, random, ufrag.chars), VR_TOKEN_OK);
    return ufrag;
}

struct message {
    uint8_t bytes[256];
    uint32_t size;
};

/* A STUN message of `type` with transaction id `tid` and, unless NULL, USERNAME `name`. */
static inline struct message stun_of(uint16_t type, unsigned tid, const char *name,
                                     size_t name_bytes) {
    struct message m = {.size = VR_STUN_HEADER_BYTES};
    vr_store_be16(m.bytes, type);
    vr_store_be32(m.bytes + 4, 0x2112A442);
    vr_store_be32(m.bytes + 16, tid);
    if (name) {
        vr_store_be16(m.bytes + m.size, 0x0006);
        vr_store_be16(m.bytes + m.size + 2, (uint16_t)name_bytes);
        memcpy(m.bytes + m.size + 4, name, name_bytes);
        m.size += 4 + ((uint32_t)name_bytes + 3) / 4 * 4;
    }
    vr_store_be16(m.bytes + 2, (uint16_t)(m.size - VR_STUN_HEADER_BYTES));
    return m;
}

static inline struct message check_of(struct ufrag ufrag, unsigned tid) {
    char name[VR_TOKEN_CHARS + 4];
    memcpy(name, ufrag.chars, VR_TOKEN_CHARS);
    memcpy(name + VR_TOKEN_CHARS, ":abc", 4);
    return stun_of(0x0001, tid, name, sizeof name);
}
static inline struct message success_of(unsigned tid) {
    return stun_of(0x0101, tid, NULL, 0);
}
static inline struct message error_of(unsigned tid) {
    return stun_of(0x0111, tid, NULL, 0);
}
static inline struct message bytes_of(uint8_t first, uint32_t size) {
    struct message m = {.size = size};
    m.bytes[0] = first;
    return m;
}
static inline struct message rtp(void) {
    return bytes_of(128, 172);
}
static inline struct message dtls(void) {
    return bytes_of(22, 100);
}

/* --- sending --- */

static inline enum vr_verdict submit(struct bench *b, struct vr_ingress *in) {
    memset(&b->out, 0xAA, sizeof b->out);
    b->before = b->stats;
    return vr_forward(b->forwarder, in, b->now_ns, &b->out);
}

static inline struct vr_ingress public_ingress(struct bench *b, struct vr_addr from,
                                               const struct message *m) {
    memcpy(b->buffer + HEADROOM, m->bytes, m->size);
    return (struct vr_ingress){.side = VR_SIDE_PUBLIC,
                               .listen = 2,
                               .source = from,
                               .local = local_addr(),
                               .proxy = proxy_addr(),
                               .data = b->buffer + HEADROOM,
                               .data_bytes = m->size};
}

static inline enum vr_verdict send_public(struct bench *b, struct vr_addr from, struct message m) {
    struct vr_ingress in = public_ingress(b, from, &m);
    return submit(b, &in);
}

static inline struct vr_ingress wrapped_ingress(struct bench *b, enum vr_side side,
                                                struct vr_addr from, struct vr_addr about,
                                                const struct message *m) {
    struct vr_flow_key key = key_of(about);
    vr_spp_write(b->buffer + HEADROOM, &key);
    memcpy(b->buffer + HEADROOM + VR_SPP_BYTES, m->bytes, m->size);
    return (struct vr_ingress){.side = side,
                               .source = from,
                               .data = b->buffer + HEADROOM,
                               .data_bytes = VR_SPP_BYTES + m->size};
}

/* From inside, about client `about`. */
static inline enum vr_verdict send_internal(struct bench *b, struct vr_addr from,
                                            struct vr_addr about, struct message m) {
    struct vr_ingress in = wrapped_ingress(b, VR_SIDE_INTERNAL, from, about, &m);
    return submit(b, &in);
}
static inline enum vr_verdict send_backbone(struct bench *b, struct vr_addr peer,
                                            struct vr_addr about, struct message m) {
    struct vr_ingress in = wrapped_ingress(b, VR_SIDE_BACKBONE, peer, about, &m);
    return submit(b, &in);
}

/* Client `c` becomes established at transceiver `t`: check 1000, success. */
static inline void establish(struct bench *b, unsigned c, unsigned t, struct ufrag ufrag) {
    CHECK_EQ(send_public(b, client(c), check_of(ufrag, 1000)), VR_VERDICT_SEND);
    CHECK_EQ(send_internal(b, transceiver(t), client(c), success_of(1000)), VR_VERDICT_SEND);
}

/* --- what came of it --- */

struct change {
    size_t word;
    uint64_t by;
};

#define COUNT(field, by) {offsetof(struct vr_stats, field) / sizeof(uint64_t), (uint64_t)(by)}
#define RX(side_name, bytes)                                                                       \
    COUNT(side[VR_SIDE_##side_name].rx_packets, 1), COUNT(side[VR_SIDE_##side_name].rx_bytes, bytes)
#define DROP(reason) COUNT(drop[VR_DROP_##reason], 1)

/* Exactly these counters changed with the last datagram, by exactly so much. */
#define CHANGED(b, ...)                                                                            \
    check_changes(b, (const struct change[]){__VA_ARGS__},                                         \
                  sizeof (const struct change[]){__VA_ARGS__} / sizeof(struct change), __LINE__)

static inline void check_changes(const struct bench *b, const struct change *changes, size_t count,
                                 int line) {
    enum { WORDS = sizeof(struct vr_stats) / sizeof(uint64_t) };
    static const char *const labels[] = {
#define X(symbol, label, help) label,
        VR_DROP_REASONS(X)
#undef X
    };
    const uint64_t *before = (const uint64_t *)&b->before, *after = (const uint64_t *)&b->stats;
    size_t first_drop = offsetof(struct vr_stats, drop) / sizeof(uint64_t);
    for (size_t word = 0; word < WORDS; word++) {
        uint64_t expected = 0, actual = after[word] - before[word];
        for (size_t i = 0; i < count; i++)
            if (changes[i].word == word)
                expected += changes[i].by;
        if (expected == actual)
            continue;
        char text[96];
        bool is_drop = word >= first_drop && word < first_drop + VR_DROPS;
        snprintf(text, sizeof text, "moved by %lld, not %lld (%s)", (long long)actual,
                 (long long)expected, is_drop ? labels[word - first_drop] : "not a drop");
        check_fail("CHANGED", line, is_drop ? "drop" : "counter", text);
    }
}

/* The last datagram went up to transceiver or relay `to`, alone, in the client's SPP header. */
static inline void check_went_up(struct bench *b, struct vr_addr to, struct vr_addr about,
                                 uint32_t payload_bytes) {
    struct vr_flow_key key, expected = key_of(about);
    CHECK_EQ(b->out.hops, 1);
    CHECK_EQ(b->out.hop[0].side, VR_SIDE_INTERNAL);
    CHECK(vr_addr_equal(&b->out.hop[0].destination, &to));
    CHECK_EQ(b->out.data_bytes, payload_bytes + VR_SPP_BYTES);
    if (b->out.data_bytes != payload_bytes + VR_SPP_BYTES)
        return;
    CHECK(vr_spp_read(b->out.data, b->out.data_bytes, &key));
    CHECK(vr_flow_key_equal(&key, &expected));
}

/* ... to both of two transceivers, in any order. */
static inline void check_went_to_both(struct bench *b, struct vr_addr one, struct vr_addr two) {
    CHECK_EQ(b->out.hops, 2);
    bool in_order = vr_addr_equal(&b->out.hop[0].destination, &one);
    CHECK(in_order || vr_addr_equal(&b->out.hop[1].destination, &one));
    CHECK(vr_addr_equal(&b->out.hop[in_order ? 1 : 0].destination, &two));
}

/* ... down to client `to`, unwrapped, from the address that it had asked. */
static inline void check_went_down(struct bench *b, struct vr_addr to, uint32_t payload_bytes) {
    struct vr_addr local = local_addr();
    CHECK_EQ(b->out.hops, 1);
    CHECK_EQ(b->out.hop[0].side, VR_SIDE_PUBLIC);
    CHECK_EQ(b->out.hop[0].listen, 2);
    CHECK(vr_addr_equal(&b->out.hop[0].destination, &to));
    CHECK_MEM(b->out.hop[0].source_ip, local.ip, 16);
    CHECK_EQ(b->out.data_bytes, payload_bytes);
    CHECK(b->out.data == b->buffer + HEADROOM + VR_SPP_BYTES);
}

/* The slot of a client's flow in `pool`, or VR_NO_SLOT. */
static inline uint32_t slot_of(const struct bench *b, enum vr_pool pool, struct vr_addr from) {
    struct vr_flow_key key = key_of(from);
    return vr_flow_find(&b->table, pool, &key, vr_flow_hash(&b->table, &key));
}

#endif
