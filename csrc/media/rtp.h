/* rtp.h: reading and writing one RTP packet (RFC 3550 5.1, extensions by RFC 8285).
 *
 * The view points into the caller's buffer and lives as long as it. Reading never writes and never
 * looks past `bytes`. An encrypted packet has a readable header but no readable padding, so the two
 * are read in two steps: vr_rtp_read_header before SRTP, vr_rtp_read afterwards.
 */
#ifndef VR_RTP_H
#define VR_RTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { VR_RTP_HEADER_BYTES = 12 };

enum vr_rtp_status {
    VR_RTP_OK = 0,
    VR_RTP_SHORT,     /* fewer bytes than the fixed header and its CSRC list */
    VR_RTP_VERSION,   /* version is not 2 */
    VR_RTP_EXTENSION, /* the header extension runs past the packet */
    VR_RTP_PADDING,   /* padding of 0, or longer than what follows the header */
    VR_RTP_EMPTY,     /* no payload is left: keep-alive or bandwidth probe */
};

struct vr_rtp {
    uint32_t ssrc;
    uint32_t timestamp; /* in units of the payload type's clock */
    uint16_t sequence;
    uint16_t extension_profile; /* 0xBEDE: one-byte, 0x100x: two-byte elements; 0 when absent */
    const uint8_t *extension;   /* elements after the 4-byte extension header; NULL when absent */
    size_t extension_bytes;
    size_t header_bytes;    /* fixed header, CSRC list and extension */
    const uint8_t *payload; /* set by vr_rtp_read only */
    size_t payload_bytes;   /* padding not counted */
    uint8_t payload_type;   /* 0..127 */
    bool marker;
};

/* RFC 5761 4: in a shared port, payload types 64..95 of the second byte are RTCP. */
static inline bool vr_rtp_is_rtcp(const uint8_t *data, size_t bytes) {
    return bytes >= 2 && data[1] >= 192 && data[1] <= 223;
}

/* Everything but the payload. `out->payload` is NULL afterwards. */
enum vr_rtp_status vr_rtp_read_header(const uint8_t *data, size_t bytes, struct vr_rtp *out);

/* The whole of a packet in clear. */
enum vr_rtp_status vr_rtp_read(const uint8_t *data, size_t bytes, struct vr_rtp *out);

/* The element `id` (1..14 in the one-byte form, 1..255 in the two-byte form) of the header
 * extension, or NULL; `element_bytes` is written only when found. An element that runs past the
 * extension ends the search. */
const uint8_t *vr_rtp_extension(const struct vr_rtp *packet, unsigned id, size_t *element_bytes);

/* Writes a header without CSRC or extension; the caller puts the payload behind it. */
void vr_rtp_write_header(uint8_t out[VR_RTP_HEADER_BYTES], const struct vr_rtp *packet);

#endif
