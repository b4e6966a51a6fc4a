/* demux.h: what a datagram is, by its first byte (RFC 7983 7, RFC 9443 3). */
#ifndef VR_DEMUX_H
#define VR_DEMUX_H

#include <stdint.h>

enum vr_protocol {
    VR_PROTOCOL_STUN,  /* 0..3 */
    VR_PROTOCOL_DTLS,  /* 20..63 */
    VR_PROTOCOL_MEDIA, /* 128..191: RTP and RTCP, SRTP or not */
    VR_PROTOCOL_OTHER, /* ZRTP, TURN channels, QUIC, SPP (0x56), noise */
};

static inline enum vr_protocol vr_demux(uint8_t first_byte) {
    if (first_byte <= 3)
        return VR_PROTOCOL_STUN;
    if (first_byte >= 20 && first_byte <= 63)
        return VR_PROTOCOL_DTLS;
    if (first_byte >= 128 && first_byte <= 191)
        return VR_PROTOCOL_MEDIA;
    return VR_PROTOCOL_OTHER;
}

#endif
