#include "load.h"

#include "../../csrc/wire/bytes.h"
#include "../../csrc/wire/spp.h"

#include <stdlib.h>
#include <string.h>

enum { STUN_EVERY = 100, RTCP_EVERY = 50, RTCP_BYTES = 72, INDICATION_BYTES = 20 };

size_t write_check(uint8_t *data, const char *ufrag, const char *tail, uint64_t serial) {
    size_t ufrag_chars = strlen(ufrag), tail_chars = strlen(tail);
    size_t name_bytes = ufrag_chars + 1 + tail_chars, padded = (name_bytes + 3) & ~(size_t)3;
    memset(data, 0, 24 + padded);
    vr_store_be16(data, 0x0001);
    vr_store_be16(data + 2, (uint16_t)(4 + padded));
    vr_store_be32(data + 4, 0x2112A442);
    vr_store_be64(data + 8, serial);
    vr_store_be16(data + 20, 0x0006);
    vr_store_be16(data + 22, (uint16_t)name_bytes);
    memcpy(data + 24, ufrag, ufrag_chars);
    data[24 + ufrag_chars] = ':';
    memcpy(data + 25 + ufrag_chars, tail, tail_chars);
    return 24 + padded;
}

bool sizes_parse(struct sizes *sizes, const char *text) {
    int fixed = atoi(text);
    sizes->fixed = (size_t)fixed;
    return strcmp(text, "mix") == 0 || (fixed >= 16 && fixed <= SLOT_BYTES - VR_SPP_BYTES);
}

static uint64_t mixed(uint64_t serial) {
    return serial * UINT64_C(0x9E3779B97F4A7C15);
}

/* One in STUN_EVERY, not in step with the flows: each of them gets its share. */
static bool is_stun(struct sizes sizes, uint64_t serial) {
    return !sizes.fixed && (mixed(serial) >> 32) % STUN_EVERY == 0;
}

/* SRTP around Opus frames of 20 ms at about 32 kbit/s: 22 bytes of header and tag, 40 to 120 of
 * Opus, in no order. */
static size_t opus_bytes(uint64_t serial) {
    return 22 + 40 + (size_t)((mixed(serial) >> 40) % 41) + (size_t)((mixed(serial) >> 20) % 41);
}

static size_t media_bytes(struct sizes sizes, uint64_t serial) {
    if (sizes.fixed)
        return sizes.fixed;
    return serial % RTCP_EVERY == 1 ? RTCP_BYTES : opus_bytes(serial);
}

static void write_media(uint8_t *data, size_t bytes, unsigned flow) {
    memset(data, 0, bytes);
    data[0] = 0x80;
    vr_store_be32(data + 4, flow);
    vr_store_be64(data + 8, now_ns());
}

void add_up(struct line *line, uint16_t port, unsigned flow, struct sizes sizes, uint64_t serial) {
    size_t bytes = media_bytes(sizes, serial);
    uint8_t *data = line_add(line, port, bytes, client_ip(flow));
    if (is_stun(sizes, serial))
        line->part[line->count - 1].iov_len =
            write_check(data, ends.ufrag[flow % ends.ufrags], "load", serial << 24 | flow);
    else
        write_media(data, bytes, flow);
}

void add_down(struct line *line, uint16_t port, unsigned flow, struct sizes sizes,
              uint64_t serial) {
    bool indication = is_stun(sizes, serial);
    size_t bytes = indication ? INDICATION_BYTES : media_bytes(sizes, serial);
    uint8_t *data = line_add(line, port, VR_SPP_BYTES + bytes, 0);
    struct vr_flow_key key = {.client.port_be = ends.clients_port_be,
                              .proxy.port_be = htons(ends.relay_port)};
    uint32_t client = client_ip(flow), proxy = htonl(INADDR_LOOPBACK);
    vr_ip_from_v4(key.client.ip, (uint8_t *)&client);
    vr_ip_from_v4(key.proxy.ip, (uint8_t *)&proxy);
    vr_spp_write(data, &key);
    write_media(data + VR_SPP_BYTES, bytes, flow);
    if (indication) {
        vr_store_be64(data + VR_SPP_BYTES, UINT64_C(0x001100002112A442));
        vr_store_be64(data + VR_SPP_BYTES + 8, serial);
    }
}
