/* instructions: does one thing COUNT times, for a tool that counts instructions (callgrind).
 *
 *     instructions CASE COUNT
 *
 * What COUNT and twice COUNT cost differ by COUNT times the thing itself: all else is the same.
 */
#include "../csrc/relay/forward.h"
#include "../csrc/relay/runs.h"
#include "../csrc/wire/bytes.h"
#include "../csrc/wire/spp.h"
#include "../csrc/wire/stun.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FLOWS = 64, MAX_FLOWS = 4096, LINE = 256, SIZE = 172, BUFFER = 512, PAYLOAD = 48 };

static struct vr_table table;
static struct vr_stats stats;
static struct vr_forwarder *forwarder;
static struct vr_keyring *keyring;
static uint64_t now_ns = UINT64_C(1000000000000);
static struct vr_egress out;
static char ufrag[VR_TOKEN_CHARS], forged[VR_TOKEN_CHARS];
static uint8_t buffer[LINE][BUFFER] __attribute__((aligned(64)));
static struct vr_ingress in[LINE];

static void must(bool holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "instructions: %s\n", what);
    exit(1);
}

static struct vr_addr address(unsigned last, uint16_t port) {
    struct vr_addr addr = {.port_be = (uint16_t)(port >> 8 | port << 8)};
    vr_ip_from_v4(addr.ip, (uint8_t[]){10, 0, (uint8_t)(last >> 8), (uint8_t)last});
    return addr;
}

static struct vr_addr transceiver(void) {
    return address(9, 40000);
}

static struct vr_flow_key flow_key(unsigned flow) {
    return (struct vr_flow_key){address(1000 + flow, 50000), address(1, 3478)};
}

/* --- datagrams, in buffer i --- */

static void arrive_public(unsigned i, unsigned flow, uint32_t bytes) {
    in[i] = (struct vr_ingress){.side = VR_SIDE_PUBLIC,
                                .source = flow_key(flow).client,
                                .local = address(1, 3478),
                                .proxy = address(1, 3478),
                                .data = buffer[i] + PAYLOAD,
                                .data_bytes = bytes};
}

static void arrive_internal(unsigned i, unsigned flow, uint32_t bytes) {
    struct vr_flow_key key = flow_key(flow);
    uint8_t *data = buffer[i] + PAYLOAD - VR_SPP_BYTES;
    vr_spp_write(data, &key);
    in[i] = (struct vr_ingress){.side = VR_SIDE_INTERNAL,
                                .source = transceiver(),
                                .data = data,
                                .data_bytes = bytes + VR_SPP_BYTES};
}

static uint32_t write_stun(unsigned i, uint16_t type, const char *name) {
    uint8_t *data = buffer[i] + PAYLOAD;
    uint32_t bytes = name ? 20 + 4 + 32 : 20;
    memset(data, 0, bytes);
    vr_store_be16(data, type);
    vr_store_be16(data + 2, (uint16_t)(bytes - 20));
    vr_store_be32(data + 4, 0x2112A442);
    if (name) {
        vr_store_be32(data + 20, 0x00060000 | 32);
        memcpy(data + 24, name, VR_TOKEN_CHARS);
        memcpy(data + 24 + VR_TOKEN_CHARS, ":abc", 4);
    }
    return bytes;
}

static enum vr_verdict forward(unsigned i) {
    return vr_forward(forwarder, &in[i], now_ns, &out);
}

/* --- the things --- */

static void prepare_media(bool up) {
    for (unsigned i = 0; i < LINE; i++) {
        memset(buffer[i], 0x80, BUFFER);
        (up ? arrive_public : arrive_internal)(i, i % FLOWS, SIZE);
    }
}

/* In batches, with the prefetching of the loop. */
static void forward_media(unsigned count, enum vr_verdict verdict) {
    for (unsigned done = 0; done < count; done += LINE) {
        vr_forward_prefetch(forwarder, in, LINE);
        for (unsigned i = 0; i < LINE; i++)
            must(forward(i) == verdict, "media");
    }
}

static void media_up(unsigned count) {
    prepare_media(true);
    forward_media(count, VR_VERDICT_SEND);
}

static void media_down(unsigned count) {
    prepare_media(false);
    forward_media(count, VR_VERDICT_SEND);
}

static void media_of_strangers(unsigned count) {
    prepare_media(true);
    for (unsigned i = 0; i < LINE; i++)
        arrive_public(i, 5000 + i, SIZE);
    forward_media(count, VR_VERDICT_DROP);
}

/* A check and its success. */
static void check_and_success(unsigned count) {
    arrive_public(0, 0, write_stun(0, 0x0001, ufrag));
    arrive_internal(1, 0, write_stun(1, 0x0101, NULL));
    for (unsigned n = 0; n < count; n++, now_ns += 100000000) {
        vr_store_be32(buffer[0] + PAYLOAD + 16, n);
        vr_store_be32(buffer[1] + PAYLOAD + 16, n);
        must(forward(0) == VR_VERDICT_SEND && forward(1) == VR_VERDICT_SEND, "check");
    }
}

static void forged_checks(unsigned count) {
    arrive_public(0, 6000, write_stun(0, 0x0001, forged));
    for (unsigned n = 0; n < count; n++)
        must(forward(0) == VR_VERDICT_DROP, "forged check");
}

static void stun_read(unsigned count) {
    struct vr_stun message;
    uint32_t bytes = write_stun(0, 0x0001, ufrag);
    for (unsigned n = 0; n < count; n++)
        must(vr_stun_read(buffer[0] + PAYLOAD, bytes, &message) == VR_STUN_OK, "STUN");
}

/* An item of a line of 256 to 16 transceivers, sizes mixed or not. */
static void arrange(unsigned count, bool mixed) {
    static struct vr_runs runs;
    static struct vr_run_item item[LINE];
    for (unsigned i = 0; i < LINE; i++)
        item[i] = (struct vr_run_item){.flow = i * 0x9E3779B1U >> 7,
                                       .bytes = (uint16_t)(mixed ? 100 + i * 37 % 81 : SIZE),
                                       .group = (uint16_t)(i % 16)};
    for (unsigned done = 0; done < count; done += LINE)
        vr_runs_arrange(&runs, item, LINE);
}

static void arrange_equal(unsigned count) {
    arrange(count, false);
}

static void arrange_mix(unsigned count) {
    arrange(count, true);
}

/* --- all else --- */

static void start(void) {
    static const uint8_t hash_key[16] = "always the same", secret[VR_TOKEN_KEY_BYTES] = "a key";
    static struct vr_cidr allowed = {.prefix_bits = 96 + 8, .port_max = 65535};
    static const uint8_t random[VR_TOKEN_RANDOM_BYTES];
    size_t bytes = vr_table_bytes(MAX_FLOWS);
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    memset(memory, 0, bytes);
    vr_ip_from_v4(allowed.ip, (uint8_t[]){10, 0, 0, 0});
    keyring = vr_keyring_new();
    must(vr_keyring_add(keyring, 0, secret) == 0, "key");
    must(vr_table_format(memory, bytes, MAX_FLOWS, hash_key) == VR_TABLE_OK &&
             vr_table_attach(&table, memory, bytes) == VR_TABLE_OK,
         "table");
    struct vr_forward_config config = {.cluster_id = 1,
                                       .keyring = keyring,
                                       .allow_transceiver = &allowed,
                                       .allow_transceiver_count = 1,
                                       .limits = {10000, 10000, 50, 10000, 10000},
                                       .idle_timeout_ns = UINT64_C(1000000000000)};
    forwarder = vr_forwarder_new(&config, &table, &stats, now_ns);
    struct vr_addr to = transceiver();
    struct vr_token token = {.kind = 4, .cluster_id = 1, .port_be = to.port_be};
    memcpy(token.ipv4, to.ip + 12, 4);
    must(vr_token_seal(keyring, &token, random, ufrag) == VR_TOKEN_OK, "token");
    memcpy(forged, ufrag, sizeof forged);
    forged[9] ^= 1;
    for (unsigned flow = 0; flow < FLOWS; flow++) {
        arrive_public(0, flow, write_stun(0, 0x0001, ufrag));
        arrive_internal(1, flow, write_stun(1, 0x0101, NULL));
        must(forward(0) == VR_VERDICT_SEND && forward(1) == VR_VERDICT_SEND, "flow");
    }
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*repeat)(unsigned count);
    } cases[] = {
        {"media_up", media_up},
        {"media_down", media_down},
        {"media_of_strangers", media_of_strangers},
        {"check_and_success", check_and_success},
        {"forged_checks", forged_checks},
        {"stun_read", stun_read},
        {"arrange_equal", arrange_equal},
        {"arrange_mix", arrange_mix},
    };
    start();
    for (size_t i = 0; argc == 3 && i < sizeof cases / sizeof cases[0]; i++)
        if (strcmp(argv[1], cases[i].name) == 0) {
            cases[i].repeat((unsigned)atoi(argv[2]));
            return 0;
        }
    fprintf(stderr, "usage: instructions CASE COUNT\n");
    return 2;
}
