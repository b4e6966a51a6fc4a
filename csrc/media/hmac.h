/* hmac.h: HMAC-SHA1 (RFC 2104) with a key that is set once, for SRTP and for STUN's MESSAGE-INTEGRITY.
 *
 * A digest context is made by vr_hmac_init; computing fetches and allocates nothing (OpenSSL's own
 * HMAC allocates when a keyed context is used again). One thread at a time.
 */
#ifndef VR_HMAC_H
#define VR_HMAC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { VR_HMAC_BYTES = 20, VR_HMAC_BLOCK_BYTES = 64 };

struct evp_md_ctx_st;

struct vr_hmac {
    struct evp_md_ctx_st *digest;
    uint8_t inner_pad[VR_HMAC_BLOCK_BYTES];
    uint8_t outer_pad[VR_HMAC_BLOCK_BYTES];
};

/* 0 or -ENOMEM. A key over 64 bytes is -EINVAL: nobody here has one. */
int vr_hmac_init(struct vr_hmac *hmac, const uint8_t *key, size_t key_bytes);
void vr_hmac_free(struct vr_hmac *hmac);

/* Three steps, so that a message may lie in pieces. */
void vr_hmac_begin(struct vr_hmac *hmac);
void vr_hmac_add(struct vr_hmac *hmac, const uint8_t *data, size_t bytes);
void vr_hmac_end(struct vr_hmac *hmac, uint8_t out[VR_HMAC_BYTES]);

/* Equal in constant time. */
bool vr_hmac_equal(const uint8_t *a, const uint8_t *b, size_t bytes);

#endif
