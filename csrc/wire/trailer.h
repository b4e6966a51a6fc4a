/* trailer.h: the 16 bytes after a datagram's payload on a backbone that is not trusted
 * (`relay serve --backbone-key`), in both directions.
 *
 *     Unix seconds 8 | first 8 bytes of AES-CMAC(key, SPP header 38 | Unix seconds 8)     (RFC 4493)
 *
 * It shows that a holder of the key has sent something about this client within VR_TRAILER_SKEW_S. It does
 * not cover the payload, which DTLS and SRTP protect: who can read the backbone may use what was seen for
 * another payload of the same client as long.
 *
 * Pure: the time is an argument. A set of keys is used by one thread.
 */
#ifndef VR_TRAILER_H
#define VR_TRAILER_H

#include "aes.h"
#include "spp.h"

enum {
    VR_TRAILER_BYTES = 16,
    VR_TRAILER_SKEW_S = 30,
    VR_TRAILER_KEYS_MAX = 4,
};

struct vr_trailer_keys;

/* An empty set, or NULL: no memory. */
struct vr_trailer_keys *vr_trailer_keys_new(void);
void vr_trailer_keys_free(struct vr_trailer_keys *keys);

/* Adds a key; the first one signs, all verify. 0, -ENOSPC or -ENOMEM. */
int vr_trailer_keys_add(struct vr_trailer_keys *keys, const uint8_t key[VR_AES_KEY_BYTES]);

/* Writes the trailer for a datagram with this SPP header. False only if libcrypto fails. */
bool vr_trailer_write(const struct vr_trailer_keys *keys, const uint8_t header[VR_SPP_BYTES],
                      uint64_t unix_s, uint8_t trailer[VR_TRAILER_BYTES]);

enum vr_trailer_status {
    VR_TRAILER_OK = 0,
    VR_TRAILER_FORGED, /* of none of the keys: missing, altered, or another key */
    VR_TRAILER_STALE,  /* of a key, but more than VR_TRAILER_SKEW_S away from `unix_s` */
};

enum vr_trailer_status vr_trailer_check(const struct vr_trailer_keys *keys,
                                        const uint8_t header[VR_SPP_BYTES],
                                        const uint8_t trailer[VR_TRAILER_BYTES], uint64_t unix_s);

#endif
