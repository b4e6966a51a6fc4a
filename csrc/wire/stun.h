/* stun.h: bounds-safe reading of one STUN message (RFC 8489), without allocation.
 *
 * The view points into the caller's buffer and lives as long as it. Reading never writes,
 * never looks past `bytes`, and visits each attribute once.
 *
 * 1. The datagram is the message: nothing before it, nothing after it.
 * 2. The first occurrence of an attribute counts (RFC 8489 14). After MESSAGE-INTEGRITY or
 *    MESSAGE-INTEGRITY-SHA256 only FINGERPRINT is looked at (RFC 8489 14.5, 14.6).
 * 3. An attribute that is read here and has the wrong size makes the message malformed; every
 *    other attribute, known or not, is skipped silently. The view names those that a receiver has
 *    to understand (types under 0x8000, RFC 8489 14) and that neither RFC 8489 nor RFC 8445 has.
 * 4. Padding may hold any value (RFC 8489 14; RFC 5769 2.1 pads with spaces).
 * 5. MESSAGE-INTEGRITY is found, not verified: the relay has no password.
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
    VR_STUN_UNKNOWN_MAX = 8, /* unknown attributes that a view names */
};

/* RFC 8489 5: the bits C1 C0 of the message type. */
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
    VR_STUN_ATTRIBUTE,   /* an attribute runs past the message, or has a wrong size */
    VR_STUN_USERNAME,    /* USERNAME of 0 or more than 508 bytes */
    VR_STUN_FINGERPRINT, /* present and wrong, of a wrong size, or not last (RFC 8489 14.7) */
};

/* What ICE (RFC 8445 16.1), the relay and the transceiver ask about. */
struct vr_stun {
    const uint8_t *tid;        /* transaction id, VR_STUN_TID_BYTES */
    const uint8_t *username;   /* NULL when absent */
    uint64_t tie_breaker;      /* of the first of ICE-CONTROLLING and ICE-CONTROLLED; 0: neither */
    uint32_t priority;         /* valid when has_priority */
    uint16_t method;           /* 12 bits; VR_STUN_METHOD_BINDING for checks */
    uint16_t username_bytes;   /* 1..508 when present, padding not counted */
    uint16_t integrity_offset; /* of the MESSAGE-INTEGRITY attribute's header from the start of
                                * the message; 0 when absent. Its 24 bytes are all there. */
    uint16_t unknown[VR_STUN_UNKNOWN_MAX]; /* types to be understood, the first `unknown_count` */
    uint8_t unknown_count;
    enum vr_stun_class class_;
    bool has_fingerprint;     /* present, and already checked */
    bool has_use_candidate;   /* the sender nominates */
    bool has_ice_controlling; /* the sender says it controls */
    bool has_ice_controlled;  /* the sender says it is controlled */
    bool has_priority;
};

/* Reads the datagram `data` of `bytes` bytes into `out`. On any status but VR_STUN_OK the
 * contents of `out` are undefined. `data` may be NULL when `bytes` is 0. */
enum vr_stun_status vr_stun_read(const uint8_t *data, size_t bytes, struct vr_stun *out);

/* The part of USERNAME before its first colon: the receiver's own ufrag (RFC 8445 7.2.2).
 * Returns its length, 0 when there is no username, no colon, or nothing before or after it. */
size_t vr_stun_local_ufrag(const struct vr_stun *message);

#endif
