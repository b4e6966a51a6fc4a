#include "hmac.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <string.h>

int vr_hmac_init(struct vr_hmac *hmac, const uint8_t *key, size_t key_bytes) {
    if (key_bytes > VR_HMAC_BLOCK_BYTES)
        return -EINVAL;
    hmac->digest = EVP_MD_CTX_new();
    if (hmac->digest == NULL || !EVP_DigestInit_ex(hmac->digest, EVP_sha1(), NULL)) {
        vr_hmac_free(hmac);
        return -ENOMEM;
    }
    memset(hmac->inner_pad, 0x36, VR_HMAC_BLOCK_BYTES);
    memset(hmac->outer_pad, 0x5c, VR_HMAC_BLOCK_BYTES);
    for (size_t i = 0; i < key_bytes; i++) {
        hmac->inner_pad[i] ^= key[i];
        hmac->outer_pad[i] ^= key[i];
    }
    return 0;
}

void vr_hmac_free(struct vr_hmac *hmac) {
    EVP_MD_CTX_free(hmac->digest);
    OPENSSL_cleanse(hmac, sizeof *hmac);
    hmac->digest = NULL;
}

void vr_hmac_begin(struct vr_hmac *hmac) {
    EVP_DigestInit_ex(hmac->digest, NULL, NULL);
    EVP_DigestUpdate(hmac->digest, hmac->inner_pad, VR_HMAC_BLOCK_BYTES);
}

void vr_hmac_add(struct vr_hmac *hmac, const uint8_t *data, size_t bytes) {
    EVP_DigestUpdate(hmac->digest, data, bytes);
}

void vr_hmac_end(struct vr_hmac *hmac, uint8_t out[VR_HMAC_BYTES]) {
    EVP_DigestFinal_ex(hmac->digest, out, NULL);
    EVP_DigestInit_ex(hmac->digest, NULL, NULL);
    EVP_DigestUpdate(hmac->digest, hmac->outer_pad, VR_HMAC_BLOCK_BYTES);
    EVP_DigestUpdate(hmac->digest, out, VR_HMAC_BYTES);
    EVP_DigestFinal_ex(hmac->digest, out, NULL);
}

bool vr_hmac_equal(const uint8_t *a, const uint8_t *b, size_t bytes) {
    return CRYPTO_memcmp(a, b, bytes) == 0;
}
