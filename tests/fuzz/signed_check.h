/* signed_check.h: a connectivity check whose attributes are the fuzzer's and whose integrity is right. */
#ifndef VR_SIGNED_CHECK_H
#define VR_SIGNED_CHECK_H

#include "fuzz.h"
#include "media/hmac.h"
#include "wire/bytes.h"
#include "wire/crc32.h"

enum { SIGNED_CHECK_MORE_BYTES = 32 + 24 + 8 };

static const char check_password[] = "passwordpassword12345678";

/* To the session "u<n>" from "cli", with these attributes behind its USERNAME; returns its length, at
 * most SIGNED_CHECK_MORE_BYTES more than `bytes`. */
static inline size_t signed_check(unsigned n, uint32_t transaction, const uint8_t *attributes,
                                  size_t bytes, uint8_t *out) {
    const uint8_t username[12] = {0, 6, 0, 6, 'u', (uint8_t)('0' + n), ':', 'c', 'l', 'i'};
    struct vr_hmac hmac;
    bytes &= ~(size_t)3;
    vr_store_be32(out, 0x00010000);
    vr_store_be32(out + 4, 0x2112A442);
    memset(out + 8, 0, 8);
    vr_store_be32(out + 16, transaction);
    memcpy(out + 20, username, sizeof username);
    if (bytes != 0)
        memcpy(out + 32, attributes, bytes);
    size_t at = 32 + bytes;
    vr_store_be16(out + 2, (uint16_t)(at + 24 - 20));
    HOLDS(vr_hmac_init(&hmac, (const uint8_t *)check_password, sizeof check_password - 1) == 0);
    vr_hmac_begin(&hmac);
    vr_hmac_add(&hmac, out, at);
    vr_store_be32(out + at, 0x00080014);
    vr_hmac_end(&hmac, out + at + 4);
    vr_hmac_free(&hmac);
    at += 24;
    vr_store_be16(out + 2, (uint16_t)(at + 8 - 20));
    vr_store_be32(out + at, 0x80280004);
    vr_store_be32(out + at + 4, vr_crc32(out, at) ^ 0x5354554E);
    return at + 8;
}

#endif
