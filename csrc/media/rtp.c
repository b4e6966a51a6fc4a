#include "rtp.h"

#include "../wire/bytes.h"

enum vr_rtp_status vr_rtp_read_header(const uint8_t *data, size_t bytes, struct vr_rtp *out) {
    if (bytes < VR_RTP_HEADER_BYTES)
        return VR_RTP_SHORT;
    if (data[0] >> 6 != 2)
        return VR_RTP_VERSION;
    size_t header_bytes = VR_RTP_HEADER_BYTES + 4u * (data[0] & 0x0f);
    if (header_bytes > bytes)
        return VR_RTP_SHORT;
    *out = (struct vr_rtp){
        .ssrc = vr_load_be32(data + 8),
        .timestamp = vr_load_be32(data + 4),
        .sequence = vr_load_be16(data + 2),
        .payload_type = data[1] & 0x7f,
        .marker = data[1] >> 7,
    };
    if (data[0] & 0x10) { /* RFC 3550 5.3.1 */
        if (bytes - header_bytes < 4)
            return VR_RTP_EXTENSION;
        size_t extension_bytes = 4u * vr_load_be16(data + header_bytes + 2);
        if (bytes - header_bytes - 4 < extension_bytes)
            return VR_RTP_EXTENSION;
        out->extension_profile = vr_load_be16(data + header_bytes);
        out->extension = data + header_bytes + 4;
        out->extension_bytes = extension_bytes;
        header_bytes += 4 + extension_bytes;
    }
    out->header_bytes = header_bytes;
    return VR_RTP_OK;
}

enum vr_rtp_status vr_rtp_read(const uint8_t *data, size_t bytes, struct vr_rtp *out) {
    enum vr_rtp_status status = vr_rtp_read_header(data, bytes, out);
    if (status != VR_RTP_OK)
        return status;
    size_t payload_bytes = bytes - out->header_bytes;
    if (data[0] & 0x20) { /* RFC 3550 5.1: the last byte counts the padding, itself included */
        if (payload_bytes == 0 || data[bytes - 1] == 0 || data[bytes - 1] > payload_bytes)
            return VR_RTP_PADDING;
        payload_bytes -= data[bytes - 1];
    }
    out->payload = data + out->header_bytes;
    out->payload_bytes = payload_bytes;
    return payload_bytes == 0 ? VR_RTP_EMPTY : VR_RTP_OK;
}

const uint8_t *vr_rtp_extension(const struct vr_rtp *packet, unsigned id, size_t *element_bytes) {
    bool one_byte = packet->extension_profile == 0xBEDE;
    if (!one_byte && packet->extension_profile >> 4 != 0x100)
        return NULL;
    const uint8_t *p = packet->extension;
    const uint8_t *end = p + packet->extension_bytes;
    while (p < end) {
        if (*p == 0) { /* RFC 8285 4.1: padding between elements */
            p++;
            continue;
        }
        unsigned found_id = one_byte ? *p >> 4 : *p;
        size_t length;
        if (one_byte) {
            if (found_id == 15) /* RFC 8285 4.2: reserved, processing stops */
                return NULL;
            length = (*p & 0x0fu) + 1u;
            p += 1;
        } else {
            if (end - p < 2)
                return NULL;
            length = p[1];
            p += 2;
        }
        if (length > (size_t)(end - p))
            return NULL;
        if (found_id == id) {
            *element_bytes = length;
            return p;
        }
        p += length;
    }
    return NULL;
}

void vr_rtp_write_header(uint8_t out[VR_RTP_HEADER_BYTES], const struct vr_rtp *packet) {
    out[0] = 0x80;
    out[1] = (uint8_t)((packet->marker ? 0x80 : 0) | (packet->payload_type & 0x7f));
    vr_store_be16(out + 2, packet->sequence);
    vr_store_be32(out + 4, packet->timestamp);
    vr_store_be32(out + 8, packet->ssrc);
}
