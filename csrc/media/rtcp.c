#include "rtcp.h"

#include "../wire/bytes.h"

#include <string.h>

enum { RTCP_SR = 200, RTCP_RR = 201, RTCP_SDES = 202, RTCP_BYE = 203, BLOCK_BYTES = 24 };

/* RFC 3550 A.1 */
enum { MAX_DROPOUT = 3000, MAX_MISORDER = 100 };

static void read_block(const uint8_t *p, struct vr_rtcp_block *out) {
    uint32_t lost = vr_load_be32(p + 4) & 0xffffff;
    *out = (struct vr_rtcp_block){
        .ssrc = vr_load_be32(p),
        .fraction_lost = p[4],
        .lost = lost & 0x800000 ? (int32_t)lost - 0x1000000 : (int32_t)lost,
        .highest_sequence = vr_load_be32(p + 8),
        .jitter = vr_load_be32(p + 12),
        .last_sr = vr_load_be32(p + 16),
        .delay_since_sr = vr_load_be32(p + 20),
    };
}

/* One SR or RR of `bytes` bytes, header included. */
static enum vr_rtcp_status read_report(const uint8_t *p, size_t bytes, uint32_t about_ssrc,
                                       struct vr_rtcp *out) {
    bool sender = p[1] == RTCP_SR;
    size_t offset = sender ? 28 : 8;
    unsigned count = p[0] & 0x1f;
    if (bytes < offset + (size_t)count * BLOCK_BYTES)
        return VR_RTCP_SHORT;
    if (!out->has_report)
        out->sender_ssrc = vr_load_be32(p + 4);
    out->has_report = true;
    if (sender && !out->has_sender_info) {
        out->has_sender_info = true;
        out->ntp = vr_load_be64(p + 8);
        out->rtp_timestamp = vr_load_be32(p + 16);
    }
    for (unsigned i = 0; i < count; i++, offset += BLOCK_BYTES) {
        if (vr_load_be32(p + offset) != about_ssrc)
            continue;
        read_block(p + offset, &out->block);
        out->has_block = true;
    }
    return VR_RTCP_OK;
}

static enum vr_rtcp_status read_part(const uint8_t *p, size_t bytes, uint32_t about_ssrc,
                                     struct vr_rtcp *out) {
    switch (p[1]) {
    case RTCP_SR:
    case RTCP_RR:
        return read_report(p, bytes, about_ssrc, out);
    case RTCP_SDES:
        return VR_RTCP_OK;
    case RTCP_BYE:
        if (bytes < 4 + 4u * (p[0] & 0x1f))
            return VR_RTCP_SHORT;
        out->has_bye = true;
        out->bye_ssrc = p[0] & 0x1f ? vr_load_be32(p + 4) : 0;
        return VR_RTCP_OK;
    default:
        out->unknown_count++;
        return VR_RTCP_OK;
    }
}

enum vr_rtcp_status vr_rtcp_read(const uint8_t *data, size_t bytes, uint32_t about_ssrc,
                                 struct vr_rtcp *out) {
    *out = (struct vr_rtcp){0};
    if (bytes < VR_RTCP_HEADER_BYTES)
        return VR_RTCP_SHORT;
    size_t offset = 0;
    while (offset < bytes) {
        const uint8_t *p = data + offset;
        if (bytes - offset < 4)
            return VR_RTCP_LENGTH;
        if (p[0] >> 6 != 2)
            return VR_RTCP_VERSION;
        size_t part_bytes = 4u * (vr_load_be16(p + 2) + 1u);
        if (part_bytes > bytes - offset)
            return VR_RTCP_LENGTH;
        size_t content_bytes = part_bytes;
        if (p[0] & 0x20) { /* RFC 3550 6.4.1: only the last part of a compound is padded */
            uint8_t padding = p[part_bytes - 1];
            if (offset + part_bytes != bytes || padding == 0 || padding % 4 != 0 ||
                padding > part_bytes - 4)
                return VR_RTCP_PADDING;
            content_bytes -= padding;
        }
        enum vr_rtcp_status status = read_part(p, content_bytes, about_ssrc, out);
        if (status != VR_RTCP_OK)
            return status;
        offset += part_bytes;
    }
    return VR_RTCP_OK;
}

static uint8_t *write_head(uint8_t *p, unsigned count, unsigned type, size_t bytes) {
    p[0] = (uint8_t)(0x80 | count);
    p[1] = (uint8_t)type;
    vr_store_be16(p + 2, (uint16_t)(bytes / 4 - 1));
    return p + 4;
}

static void write_block(uint8_t *p, const struct vr_rtcp_block *block) {
    int32_t lost = block->lost > 0x7fffff ? 0x7fffff : block->lost;
    vr_store_be32(p, block->ssrc);
    vr_store_be32(p + 4, (uint32_t)block->fraction_lost << 24 | ((uint32_t)lost & 0xffffff));
    vr_store_be32(p + 8, block->highest_sequence);
    vr_store_be32(p + 12, block->jitter);
    vr_store_be32(p + 16, block->last_sr);
    vr_store_be32(p + 20, block->delay_since_sr);
}

static uint8_t *write_sdes(uint8_t *p, uint32_t ssrc, const char *cname) {
    size_t length = 0;
    while (length < VR_RTCP_CNAME_BYTES && cname[length] != 0)
        length++;
    size_t chunk_bytes = (4 + 2 + length + 1 + 3) & ~(size_t)3; /* SSRC, item head, text, end */
    uint8_t *body = write_head(p, 1, RTCP_SDES, 4 + chunk_bytes);
    memset(body, 0, chunk_bytes);
    vr_store_be32(body, ssrc);
    body[4] = 1; /* CNAME */
    body[5] = (uint8_t)length;
    memcpy(body + 6, cname, length);
    return body + chunk_bytes;
}

size_t vr_rtcp_write(uint8_t *out, const struct vr_rtcp_report *report) {
    bool sender = report->sent_packets != 0;
    size_t block_bytes = report->has_block ? BLOCK_BYTES : 0;
    uint8_t *p = write_head(out, report->has_block, sender ? RTCP_SR : RTCP_RR,
                            (sender ? 28u : 8u) + block_bytes);
    vr_store_be32(p, report->ssrc);
    p += 4;
    if (sender) {
        vr_store_be64(p, report->ntp);
        vr_store_be32(p + 8, report->rtp_timestamp);
        vr_store_be32(p + 12, report->sent_packets);
        vr_store_be32(p + 16, report->sent_bytes);
        p += 20;
    }
    if (report->has_block)
        write_block(p, &report->block);
    p = write_sdes(p + block_bytes, report->ssrc, report->cname);
    if (report->bye) {
        p = write_head(p, 1, RTCP_BYE, 8);
        vr_store_be32(p, report->ssrc);
        p += 4;
    }
    return (size_t)(p - out);
}

uint64_t vr_rtcp_round_trip_ns(const struct vr_rtcp_block *block, uint64_t ntp_now) {
    if (block->last_sr == 0)
        return 0;
    int32_t units = (int32_t)((uint32_t)(ntp_now >> 16) - block->last_sr - block->delay_since_sr);
    return units <= 0 || units > VR_RTCP_ROUND_TRIP_MAX_S << 16
               ? 0
               : (uint64_t)units * 1000000000u >> 16;
}

void vr_reception_start(struct vr_reception *r, uint32_t ssrc, uint16_t sequence,
                        uint32_t clock_hz) {
    *r = (struct vr_reception){
        .started = true,
        .ssrc = ssrc,
        .clock_hz = clock_hz,
        .highest_sequence = (uint16_t)(sequence - 1),
        .cycles =
            sequence == 0 ? 0xffff0000u : 0, /* so that the first packet counts as a wrap to 0 */
        .base_sequence = sequence,
    };
}

/* Goes on from `sequence`; what was lost until now stays lost. */
static void resume(struct vr_reception *r, uint16_t sequence) {
    uint32_t lost = vr_reception_lost(r);
    r->highest_sequence = (uint16_t)(sequence - 1);
    r->cycles = sequence == 0 ? 0xffff0000u : 0;
    r->base_sequence = sequence;
    r->received = r->received_prior = r->expected_prior = 0;
    r->lost_before = lost;
}

void vr_reception_add_untimed(struct vr_reception *r, uint16_t sequence) {
    uint16_t ahead = (uint16_t)(sequence - r->highest_sequence);
    if (ahead >= MAX_DROPOUT && ahead <= 0x10000 - MAX_MISORDER) {
        bool confirmed = r->jump_pending && sequence == r->jump_sequence;
        r->jump_pending = !confirmed;
        r->jump_sequence = (uint16_t)(sequence + 1);
        if (!confirmed)
            return;
        resume(r, sequence);
        ahead = 1;
    }
    r->jump_pending = false;
    if (ahead != 0 && ahead < 0x8000) {
        if (sequence < r->highest_sequence)
            r->cycles += 0x10000;
        r->highest_sequence = sequence;
    }
    r->received++;
}

void vr_reception_change_clock(struct vr_reception *r, uint32_t clock_hz) {
    r->jitter_16 = (uint32_t)((uint64_t)r->jitter_16 * clock_hz / r->clock_hz);
    r->clock_hz = clock_hz;
    r->has_transit = false;
}

void vr_reception_add(struct vr_reception *r, uint16_t sequence, uint32_t timestamp,
                      uint64_t now_ns) {
    vr_reception_add_untimed(r, sequence);
    /* RFC 3550 A.8, with the arrival in timestamp units */
    uint64_t seconds = now_ns / 1000000000u, rest_ns = now_ns % 1000000000u;
    uint32_t arrival = (uint32_t)(seconds * r->clock_hz + rest_ns * r->clock_hz / 1000000000u);
    uint32_t transit = arrival - timestamp;
    if (r->has_transit) {
        int32_t d = (int32_t)(transit - r->last_transit);
        uint32_t size = d < 0 ? 0u - (uint32_t)d : (uint32_t)d;
        /* a jump of the timestamp base is no jitter */
        if (size < 10 * r->clock_hz)
            r->jitter_16 += size - ((r->jitter_16 + 8) >> 4);
    }
    r->last_transit = transit;
    r->has_transit = true;
}

void vr_reception_sender_report(struct vr_reception *r, uint64_t ntp, uint64_t now_ns) {
    r->last_sr = (uint32_t)(ntp >> 16);
    r->last_sr_at_ns = now_ns;
}

static uint32_t expected(const struct vr_reception *r) {
    return r->cycles + r->highest_sequence - r->base_sequence + 1;
}

uint32_t vr_reception_lost(const struct vr_reception *r) {
    if (!r->started)
        return 0;
    int32_t lost = (int32_t)(expected(r) - r->received); /* duplicates make it negative */
    return r->lost_before + (lost < 0 ? 0 : (uint32_t)lost);
}

void vr_reception_block(struct vr_reception *r, uint64_t now_ns, struct vr_rtcp_block *out) {
    uint32_t expected_now = expected(r);
    uint32_t expected_interval = expected_now - r->expected_prior;
    int64_t lost_interval =
        (int64_t)expected_interval - (int64_t)(uint32_t)(r->received - r->received_prior);
    r->expected_prior = expected_now;
    r->received_prior = r->received;
    uint64_t since_ns = now_ns - r->last_sr_at_ns;
    *out = (struct vr_rtcp_block){
        .ssrc = r->ssrc,
        .lost = (int32_t)vr_reception_lost(r),
        .highest_sequence = r->cycles + r->highest_sequence,
        .jitter = r->jitter_16 >> 4,
        .last_sr = r->last_sr,
        .delay_since_sr = r->last_sr == 0 ? 0 : (uint32_t)((since_ns << 16) / 1000000000u),
    };
    if (expected_interval != 0 && lost_interval > 0) {
        uint64_t fraction = ((uint64_t)lost_interval << 8) / expected_interval;
        out->fraction_lost = fraction > 255 ? 255 : (uint8_t)fraction;
    }
}
