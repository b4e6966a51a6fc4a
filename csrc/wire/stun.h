/* stun.h: bounds-safe reading of one STUN message (RFC 8489), without allocation.
 *
 * The view points into the caller's buffer and lives as long as it. Reading never writes,
 * never looks past `bytes`, and visits each attribute once.
 */
#ifndef VR_STUN_H
#define VR_STUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    VR_STUN_HEADER_BYTES = 20,
    VR_STUN_TID_BYTES = 12,
    VR_STUN_USERNAME_MAX_BYTES = 508, /* RFC 8489 14.3: under 509 bytes */
    VR_STUN_METHOD_BINDING = 0x001,
};

enum vr_stun_class {
    VR_STUN_REQUEST = 0,
    VR_STUN_INDICATION = 1,
    VR_STUN_SUCCESS = 2,
    VR_STUN_ERROR = 3,
};

enum vr_stun_status {
    VR_STUN_OK = 0,
    VR_STUN_SHORT,       /* under 20 bytes, or fewer than the header's length says */
    VR_STUN_NOT_STUN,    /* first two bits set, or no magic cookie (RFC 3489 client) */
    VR_STUN_LENGTH,      /* length not a multiple of 4, or bytes after the message */
    VR_STUN_ATTRIBUTE,   /* an attribute runs past the message */
    VR_STUN_USERNAME,    /* USERNAME of 0 or more than 508 bytes */
    VR_STUN_FINGERPRINT, /* present and wrong, of a wrong size, or not last (RFC 8489 14.7) */
};

/* Presence of what ICE (RFC 8445 16.1) and the transceiver ask about. The first
 * occurrence of an attribute counts (RFC 8489 14); what follows MESSAGE-INTEGRITY counts only
 * if it is MESSAGE-INTEGRITY-SHA256 or FINGERPRINT (RFC 8489 14.5). */
struct vr_stun {
    uint16_t method;              /* 12 bits; VR_STUN_METHOD_BINDING for checks */
    enum vr_stun_class class_;    /* request, indication, success, error */
    const uint8_t *tid;           /* VR_STUN_TID_BYTES transaction id */
    const uint8_t *username;      /* NULL when absent */
    uint16_t username_bytes;      /* 1..508 when present, padding not counted */
    uint16_t integrity_offset;    /* of the MESSAGE-INTEGRITY attribute from the message start; 0 when absent */
    bool has_fingerprint;         /* present, and already checked */
    bool has_use_candidate;       /* RFC 8445 16.1 */
    bool has_ice_controlling;     /* the sender says it controls */
    bool has_ice_controlled;      /* the sender says it is controlled */
    bool has_priority;            /* PRIORITY present with 4 bytes */
    uint32_t priority;            /* valid when has_priority */
    uint64_t tie_breaker;         /* of ICE-CONTROLLING or ICE-CONTROLLED, 0 when neither */
};

/* Reads the datagram `data` of `bytes` bytes into `out`. On any status but VR_STUN_OK the
 * contents of `out` are undefined. Unknown attributes are skipped silently. */
enum vr_stun_status vr_stun_read(const uint8_t *data, size_t bytes, struct vr_stun *out);

/* The part of USERNAME before its first colon: the receiver's own ufrag (RFC 8445 7.2.2).
 * Returns its length, 0 when there is no username, no colon, or nothing before or after it. */
size_t vr_stun_local_ufrag(const struct vr_stun *message);

/* CRC-32 of RFC 8489 14.7 before the XOR with 0x5354554E. */
uint32_t vr_stun_crc32(const uint8_t *data, size_t bytes);

#endif
