#include "trailer.h"

#include "bytes.h"
#include "cmac.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>

enum { TIME_BYTES = 8, TAG_BYTES = VR_TRAILER_BYTES - TIME_BYTES };

struct vr_trailer_keys {
    EVP_CIPHER *aes;
    unsigned count;
    struct vr_cmac cmac[VR_TRAILER_KEYS_MAX];
};

struct vr_trailer_keys *vr_trailer_keys_new(void) {
    struct vr_trailer_keys *keys = calloc(1, sizeof *keys);
    if (keys && !(keys->aes = EVP_CIPHER_fetch(NULL, "AES-128-ECB", NULL))) {
        free(keys);
        return NULL;
    }
    return keys;
}

void vr_trailer_keys_free(struct vr_trailer_keys *keys) {
    if (!keys)
        return;
    for (unsigned i = 0; i < keys->count; i++)
        vr_cmac_free(&keys->cmac[i]);
    EVP_CIPHER_free(keys->aes);
    free(keys);
}

int vr_trailer_keys_add(struct vr_trailer_keys *keys, const uint8_t key[VR_AES_KEY_BYTES]) {
    if (keys->count == VR_TRAILER_KEYS_MAX)
        return -ENOSPC;
    if (!vr_cmac_init(&keys->cmac[keys->count], keys->aes, key))
        return -ENOMEM;
    keys->count++;
    return 0;
}

static bool tag_of(const struct vr_cmac *cmac, const uint8_t *header, const uint8_t *sent_be,
                   uint8_t tag[VR_AES_BLOCK_BYTES]) {
    uint8_t covered[VR_SPP_BYTES + TIME_BYTES];
    memcpy(covered, header, VR_SPP_BYTES);
    memcpy(covered + VR_SPP_BYTES, sent_be, TIME_BYTES);
    return vr_cmac_compute(cmac, covered, sizeof covered, tag);
}

bool vr_trailer_write(const struct vr_trailer_keys *keys, const uint8_t header[VR_SPP_BYTES],
                      uint64_t unix_s, uint8_t trailer[VR_TRAILER_BYTES]) {
    uint8_t tag[VR_AES_BLOCK_BYTES];
    vr_store_be64(trailer, unix_s);
    if (keys->count == 0 || !tag_of(&keys->cmac[0], header, trailer, tag))
        return false;
    memcpy(trailer + TIME_BYTES, tag, TAG_BYTES);
    return true;
}

enum vr_trailer_status vr_trailer_check(const struct vr_trailer_keys *keys,
                                        const uint8_t header[VR_SPP_BYTES],
                                        const uint8_t trailer[VR_TRAILER_BYTES], uint64_t unix_s) {
    uint64_t sent_s = vr_load_be64(trailer);
    uint64_t away_s = sent_s > unix_s ? sent_s - unix_s : unix_s - sent_s;
    uint8_t tag[VR_AES_BLOCK_BYTES];
    for (unsigned i = 0; i < keys->count; i++)
        if (tag_of(&keys->cmac[i], header, trailer, tag) &&
            CRYPTO_memcmp(tag, trailer + TIME_BYTES, TAG_BYTES) == 0)
            return away_s <= VR_TRAILER_SKEW_S ? VR_TRAILER_OK : VR_TRAILER_STALE;
    return VR_TRAILER_FORGED;
}
