/* A whole life of a forwarder: the input is a script of four-byte steps, each a datagram from one of a
 * few clients, transceivers and relays, or waiting, sweeping, probes, a reload, a crash, a damaged table.
 *
 * After every step: one verdict, counted once; what is sent lies in the buffer and goes only where
 * the rules let it. A slow model of who may be an owner is kept beside the table. At the end a new
 * writer has taken every entry over, and the table is sound.
 */
#include "fuzz.h"
#include "relay/audit.h"
#include "relay/forward.h"
#include "wire/bytes.h"
#include "wire/spp.h"

enum { CLIENTS = 4, TRANSCEIVERS = 4, RELAYS = 2, TOKENS = 2, MAX_FLOWS = 16, HEADROOM = 64 };

struct step {
    uint8_t kind, a, b, c;
};

static const uint8_t KEY[VR_TOKEN_KEY_BYTES] = "0123456789abcdefghijklmnopqrstu";
static struct vr_keyring *keyring;
static char ufrag[2][TRANSCEIVERS][TOKENS][VR_TOKEN_CHARS]; /* [far] */
static struct vr_cluster_route route = {.cluster_id = 2, .addrs = RELAYS};
static struct vr_cidr networks[2];
static struct vr_forward_config config;
static struct vr_trailer_keys *backbone_keys;

static _Alignas(64) uint8_t memory[1 << 18];
static size_t memory_bytes;
static struct vr_table table;
static struct vr_stats stats;
static struct vr_forwarder *forwarder;
static uint64_t now_ns = 5000000000;
static uint8_t buffer[HEADROOM + 2048];

/* Whether a success from transceiver t (near or far) was ever sent, or a token ever recovered, for
 * client c: nobody else can be an owner of c's flow. */
static bool may_own[2][CLIENTS][TRANSCEIVERS];
static bool damaged;

static struct vr_addr v4(uint8_t a, uint8_t d, uint16_t port) {
    struct vr_addr addr;
    vr_ip_from_v4(addr.ip, (uint8_t[]){a, 0, 0, d});
    vr_store_be16((uint8_t *)&addr.port_be, port);
    return addr;
}
static struct vr_addr client(unsigned i) {
    return v4(203, (uint8_t)(i % CLIENTS), 5000);
}
static struct vr_addr transceiver(unsigned i) {
    return v4(10, (uint8_t)(i % TRANSCEIVERS), 40000);
}
static struct vr_addr far_relay(unsigned i) {
    return v4(192, (uint8_t)(i % RELAYS), 3479);
}
static struct vr_flow_key key_of(unsigned i) {
    return (struct vr_flow_key){client(i), v4(198, 1, 3478)};
}

static void set_up(void) {
    keyring = vr_keyring_new();
    HOLDS(keyring && vr_keyring_add(keyring, 0, KEY) == 0);
    backbone_keys = vr_trailer_keys_new();
    HOLDS(backbone_keys && vr_trailer_keys_add(backbone_keys, KEY) == 0);
    for (unsigned i = 0; i < 2 * TRANSCEIVERS * TOKENS; i++) {
        unsigned far = i % 2, t = i / 2 % TRANSCEIVERS, serial = i / 2 / TRANSCEIVERS;
        struct vr_addr addr = transceiver(t);
        struct vr_token token = {
            .kind = 4, .cluster_id = (uint16_t)(1 + far), .port_be = addr.port_be};
        memcpy(token.ipv4, addr.ip + 12, 4);
        const uint8_t random[VR_TOKEN_RANDOM_BYTES] = {0, (uint8_t)serial};
        HOLDS(vr_token_seal(keyring, &token, random, ufrag[far][t][serial]) == VR_TOKEN_OK);
    }
    for (unsigned i = 0; i < RELAYS; i++)
        route.addr[i] = far_relay(i);
    networks[0] = (struct vr_cidr){.prefix_bits = 96 + 8, .port_max = 65535};
    networks[1] = networks[0];
    memcpy(networks[0].ip, transceiver(0).ip, 16);
    memcpy(networks[1].ip, far_relay(0).ip, 16);
    memory_bytes = vr_table_bytes(MAX_FLOWS);
    HOLDS(memory_bytes <= sizeof memory);
}

static void start(void) {
    HOLDS(vr_table_attach(&table, memory, memory_bytes) == VR_TABLE_OK);
    forwarder = vr_forwarder_new(&config, &table, &stats, now_ns);
    HOLDS(forwarder != NULL);
    vr_forward_set_clock(forwarder, now_ns / 1000000000);
}

/* --- what may be sent --- */

/* Whether `addr` may be asked about client c, as an owner or by its token. */
static void check_up(const struct vr_hop *hop, unsigned c, int asked_far, unsigned asked) {
    bool found = false;
    HOLDS(hop->side == VR_SIDE_INTERNAL);
    for (unsigned t = 0; t < TRANSCEIVERS; t++) {
        struct vr_addr addr = transceiver(t);
        bool allowed = asked_far < 0 ? may_own[0][c][t] : !asked_far && asked == t;
        found |= allowed && vr_addr_equal(&hop->destination, &addr);
    }
    for (unsigned r = 0; r < RELAYS; r++) {
        bool allowed = asked_far == 1;
        struct vr_addr addr = far_relay(r);
        for (unsigned t = 0; asked_far < 0 && t < TRANSCEIVERS; t++)
            allowed |= may_own[1][c][t];
        found |= allowed && vr_addr_equal(&hop->destination, &addr);
    }
    HOLDS(found);
}

static void check_down(const struct vr_hop *hop, unsigned c) {
    struct vr_addr to = client(c);
    if (hop->side == VR_SIDE_PUBLIC) {
        HOLDS(vr_addr_equal(&hop->destination, &to));
    } else {
        HOLDS(hop->side == VR_SIDE_BACKBONE);
        HOLDS(vr_allow_match(config.backbone_allow, 1, &hop->destination));
    }
}

static uint64_t drops(void) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < VR_DROPS; i++)
        sum += stats.drop[i];
    return sum;
}

/* With a keyed backbone, what a relay sends has its trailer; `data` has room for it. */
static void sign(struct vr_ingress *in) {
    bool from_relay = in->side == VR_SIDE_BACKBONE ||
                      (in->side == VR_SIDE_INTERNAL && in->source.ip[12] == far_relay(0).ip[12]);
    if (!config.backbone_keys || !from_relay)
        return;
    HOLDS(
        vr_trailer_write(backbone_keys, in->data, now_ns / 1000000000, in->data + in->data_bytes));
    in->data_bytes += VR_TRAILER_BYTES;
}

/* Relays get a trailer, nobody else does. */
static void check_trailer(const struct vr_egress *out) {
    bool to_relay = false;
    for (unsigned i = 0; i < out->hops; i++) {
        const struct vr_hop *hop = &out->hop[i];
        HOLDS(hop->is_relay ==
              (hop->side == VR_SIDE_BACKBONE ||
               (hop->side == VR_SIDE_INTERNAL && hop->destination.ip[12] == far_relay(0).ip[12])));
        to_relay |= hop->is_relay;
    }
    HOLDS(out->trailer_bytes == (config.backbone_keys && to_relay ? VR_TRAILER_BYTES : 0));
}

/* `asked`: the transceiver that a check's token names, -1 for anything else. */
static void submit(struct vr_ingress *in, unsigned c, int asked_far, unsigned asked) {
    struct vr_egress out = {0};
    uint64_t received = stats.side[in->side].rx_packets, dropped = drops();
    sign(in);
    if (asked & 1)
        vr_forward_prefetch(forwarder, in, 1);
    enum vr_verdict verdict = vr_forward(forwarder, in, now_ns, &out);
    HOLDS(stats.side[in->side].rx_packets == received + 1);
    HOLDS(drops() == dropped + (verdict == VR_VERDICT_DROP));
    HOLDS(verdict != VR_VERDICT_PARK || config.park_enabled);
    HOLDS(stats.flows_established == table.counts[VR_POOL_ESTABLISHED]);
    HOLDS(stats.flows_half_open == table.counts[VR_POOL_HALF_OPEN]);
    if (verdict != VR_VERDICT_SEND)
        return;
    HOLDS(out.hops >= 1 && out.hops <= 2);
    check_trailer(&out);
    HOLDS(out.data >= buffer && out.data + out.data_bytes <= in->data + in->data_bytes);
    HOLDS(out.hops == 1 || !vr_addr_equal(&out.hop[0].destination, &out.hop[1].destination));
    for (unsigned i = 0; i < out.hops; i++) {
        if (in->side == VR_SIDE_INTERNAL) {
            check_down(&out.hop[i], c);
        } else {
            check_up(&out.hop[i], c, asked_far, asked);
            HOLDS(in->side != VR_SIDE_BACKBONE || out.hop[i].destination.ip[12] == 10); /* rule 7 */
        }
    }
}

/* --- steps --- */

static struct vr_ingress ingress(enum vr_side side, struct vr_addr source, unsigned c,
                                 const uint8_t *payload, uint32_t bytes) {
    struct vr_flow_key key = key_of(c);
    struct vr_ingress in = {.side = side,
                            .listen = (uint8_t)(c & 1),
                            .source = side == VR_SIDE_PUBLIC ? key.client : source,
                            .local = v4(172, (uint8_t)c, 3478),
                            .proxy = key.proxy,
                            .data = buffer + HEADROOM,
                            .data_bytes = bytes};
    uint8_t *at = in.data;
    if (side != VR_SIDE_PUBLIC) {
        vr_spp_write(at, &key);
        at += VR_SPP_BYTES;
        in.data_bytes += VR_SPP_BYTES;
    }
    memcpy(at, payload, bytes);
    return in;
}

static uint32_t stun(uint8_t *out, uint16_t type, uint8_t tid, const char *token) {
    uint32_t bytes = token ? 4 + VR_TOKEN_CHARS + 4 : 0;
    memset(out, 0, 20);
    vr_store_be16(out, type);
    vr_store_be16(out + 2, (uint16_t)bytes);
    vr_store_be32(out + 4, 0x2112A442);
    out[19] = tid;
    if (token) {
        vr_store_be32(out + 20, 0x00060000 | (VR_TOKEN_CHARS + 4));
        memcpy(out + 24, token, VR_TOKEN_CHARS);
        memcpy(out + 24 + VR_TOKEN_CHARS, ":abc", 4);
    }
    return 20 + bytes;
}

/* a: client and side; b: transceiver, token, cluster; c: transaction */
static void check(struct step s) {
    uint8_t payload[64];
    unsigned far = s.b >> 4 & 1, t = s.b % TRANSCEIVERS, c = s.a % CLIENTS;
    enum vr_side side = s.a & 0x80 ? VR_SIDE_BACKBONE : VR_SIDE_PUBLIC;
    uint32_t bytes = stun(payload, 0x0001, s.c, ufrag[far][t][s.b >> 5 & 1]);
    struct vr_ingress in = ingress(side, far_relay(s.a >> 4), c, payload, bytes);
    submit(&in, c, (int)far, t);
}

/* a: client; b: sender, success or error; c: transaction */
static void response(struct step s) {
    uint8_t payload[64];
    unsigned c = s.a % CLIENTS, t = s.b % TRANSCEIVERS, far = s.b >> 4 & 1;
    bool success = !(s.b & 0x80);
    uint32_t bytes = stun(payload, success ? 0x0101 : 0x0111, s.c, NULL);
    struct vr_ingress in =
        ingress(VR_SIDE_INTERNAL, far ? far_relay(t) : transceiver(t), c, payload, bytes);
    for (unsigned i = 0; success && far && i < TRANSCEIVERS; i++)
        may_own[1][c][i] = true;
    if (success && !far)
        may_own[0][c][t] = true;
    submit(&in, c, -1, 0);
}

/* a: client; b: side and sender; c: first byte */
static void media(struct step s) {
    uint8_t payload[64] = {s.c};
    unsigned c = s.a % CLIENTS;
    enum vr_side side = (enum vr_side)(s.b % VR_SIDES);
    struct vr_addr source =
        side == VR_SIDE_INTERNAL && !(s.b & 0x40) ? transceiver(s.b >> 2) : far_relay(s.b >> 2);
    struct vr_ingress in = ingress(side, source, c, payload, 1 + s.a / CLIENTS % 60);
    submit(&in, c, -1, s.b >> 7);
}

static void recover(struct step s) {
    uint8_t payload[1] = {128};
    unsigned c = s.a % CLIENTS, count = 0, t[2] = {s.b % TRANSCEIVERS, s.b / 4 % TRANSCEIVERS};
    struct vr_cached_token tokens[2];
    enum vr_side side = s.a & 0x80 ? VR_SIDE_BACKBONE : VR_SIDE_PUBLIC;
    struct vr_ingress in = ingress(side, far_relay(s.a >> 4), c, payload, 1);
    for (unsigned i = 0; i < 2; i++) {
        unsigned far = s.b >> (4 + i) & 1;
        tokens[count].chars = (const uint8_t *)ufrag[far][t[i]][s.b >> 6 & 1];
        tokens[count++].bytes = s.c & 1u << i ? VR_TOKEN_CHARS : s.c % VR_TOKEN_CHARS;
        may_own[far][c][t[i]] = true;
    }
    vr_forward_recover(forwarder, &in, tokens, count, now_ns);
}

/* A probe's datagram or an echo's: counted as one of them, or dropped; no flow comes of it. */
static void submit_probe(enum vr_side side, struct vr_addr from, const uint8_t *nonce,
                         uint32_t bytes) {
    static const struct vr_flow_key nobody;
    struct vr_ingress in = ingress(side, from, 0, nonce, bytes);
    struct vr_egress out = {0};
    uint64_t answered = stats.probes_answered, dropped = drops(), created = stats.flows_created;
    uint64_t received = stats.side[side].rx_packets;
    vr_spp_write(in.data, &nobody);
    sign(&in);
    enum vr_verdict verdict = vr_forward(forwarder, &in, now_ns, &out);
    HOLDS(stats.flows_created == created);
    HOLDS(drops() == dropped + (verdict == VR_VERDICT_DROP));
    HOLDS(stats.side[side].rx_packets == received + (verdict == VR_VERDICT_DROP));
    HOLDS(stats.probes_answered == answered + (verdict == VR_VERDICT_TAKEN));
    HOLDS(verdict != VR_VERDICT_PARK && (side == VR_SIDE_BACKBONE || verdict != VR_VERDICT_SEND));
    if (verdict != VR_VERDICT_SEND)
        return;
    HOLDS(out.is_probe && out.hops == 1 && out.hop[0].side == VR_SIDE_BACKBONE);
    HOLDS(vr_addr_equal(&out.hop[0].destination, &from));
    HOLDS(out.data == in.data && out.data_bytes + out.trailer_bytes == in.data_bytes);
    check_trailer(&out);
}

/* a: which relays answer; b: how much is left of an echo; c: somebody else's probes */
static void probes(struct step s) {
    static uint64_t serial;
    uint8_t nonce[VR_PROBE_NONCE_BYTES] = {0}, probe[VR_PROBE_BYTES];
    struct vr_egress out;
    while (vr_forward_probes_are_due(forwarder, now_ns)) {
        serial++;
        memcpy(nonce, &serial, sizeof serial);
        HOLDS(vr_forward_next_probe(forwarder, now_ns, nonce, probe, &out));
        HOLDS(out.hops == 1 && out.hop[0].side == VR_SIDE_INTERNAL && out.is_probe);
        check_trailer(&out);
        unsigned relay = out.hop[0].destination.ip[15];
        if (relay < RELAYS && s.a >> relay & 1)
            submit_probe(VR_SIDE_INTERNAL, out.hop[0].destination, nonce,
                         s.b & 1 ? s.b % sizeof nonce : sizeof nonce);
    }
    if (s.c & 1)
        submit_probe(s.c & 2 ? VR_SIDE_BACKBONE : VR_SIDE_INTERNAL, far_relay(s.c >> 2), nonce,
                     sizeof nonce);
}

static void wait_and_sweep(struct step s) {
    now_ns += (uint64_t)(s.a * s.a) * 1000000;
    vr_forward_set_clock(forwarder, now_ns / 1000000000);
    for (unsigned i = 0; i < s.b % 8u; i++)
        vr_forward_sweep(forwarder, now_ns);
    if (s.b & 0x80)
        probes((struct step){0, s.b >> 3, s.c >> 4, s.c});
}

static void configure(struct step s) {
    config.route_count = s.a & 1;
    config.park_enabled = s.a & 2;
    config.allow_transceiver_count = !(s.a & 4);
    config.backbone_keys = s.a & 16 ? backbone_keys : NULL;
    config.limits = s.a & 8 ? (struct vr_limits){3, 2, 5, 6, 2} : (struct vr_limits){0};
    HOLDS(vr_forward_configure(forwarder, &config, now_ns) == 0);
}

/* A crash; with b, somebody scribbles into the memory meanwhile: once, or the entry's generation
 * could be made to say that it has been checked. */
static void crash(struct step s) {
    vr_forwarder_free(forwarder);
    if (s.b && !damaged) {
        damaged = true;
        memory[4096 + ((size_t)s.a << 16 | (size_t)s.c << 8 | s.b) * 7 % (memory_bytes - 4096)] ^=
            (uint8_t)(s.b | 1);
    }
    start();
}

static void raw(struct step s, const uint8_t *data, size_t bytes) {
    unsigned c = s.a % CLIENTS;
    uint32_t size = (uint32_t)(bytes < s.b ? bytes : s.b);
    struct vr_ingress in = {.side = (enum vr_side)(s.c % VR_SIDES),
                            .source = s.c & 0x80 ? client(c) : transceiver(c),
                            .proxy = key_of(c).proxy,
                            .data = buffer + HEADROOM,
                            .data_bytes = size};
    struct vr_egress out;
    memcpy(in.data, data, size);
    vr_forward(forwarder, &in, now_ns, &out);
}

static void run(struct step s, const uint8_t *rest, size_t rest_bytes) {
    switch (s.kind % 12) {
    case 0:
    case 1:
    case 2:
        check(s);
        break;
    case 3:
    case 4:
    case 5:
        response(s);
        break;
    case 6:
    case 7:
        media(s);
        break;
    case 8:
        recover(s);
        break;
    case 9:
        wait_and_sweep(s);
        break;
    case 10:
        if (s.kind & 0x80)
            crash(s);
        else
            configure(s);
        break;
    default:
        raw(s, rest, rest_bytes);
    }
}

/* An empty table; the forwarder is kept from input to input, since making one takes far longer than
 * most inputs do. */
static void begin(void) {
    config = (struct vr_forward_config){.cluster_id = 1,
                                        .keyring = keyring,
                                        .allow_transceiver = networks,
                                        .allow_transceiver_count = 1,
                                        .backbone_allow = networks + 1,
                                        .backbone_allow_count = 1,
                                        .routes = &route,
                                        .route_count = 1,
                                        .idle_timeout_ns = 60000000000};
    memset(may_own, 0, sizeof may_own);
    if (forwarder && !damaged) {
        HOLDS(vr_forward_configure(forwarder, &config, now_ns) == 0);
        return;
    }
    damaged = false;
    vr_forwarder_free(forwarder);
    memset(memory, 0, memory_bytes);
    memset(&stats, 0, sizeof stats);
    HOLDS(vr_table_format(memory, memory_bytes, MAX_FLOWS, KEY) == VR_TABLE_OK);
    start();
}

static void sweep_all(void) {
    for (unsigned i = 0; i < 100; i++)
        vr_forward_sweep(forwarder, now_ns);
}

/* Every entry has been taken over, and is sound; when its time is over each is gone. */
static void end(void) {
    struct vr_fault fault;
    sweep_all();
    HOLDS(vr_table_audit(&table, &fault, 1) == 0);
    now_ns += 100000000000;
    sweep_all();
    HOLDS(stats.flows_established == 0 && stats.flows_half_open == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (!keyring)
        set_up();
    begin();
    for (; bytes >= sizeof(struct step); data += 4, bytes -= 4)
        run((struct step){data[0], data[1], data[2], data[3]}, data + 4, bytes - 4);
    end();
    return 0;
}
