/* aes.h: single AES-128 blocks through libcrypto contexts that are made once.
 *
 * OpenSSL 3 fetches, allocates and locks whenever a context is made or keyed: more than ten times
 * the cost of the block itself. So a context is keyed here once, without padding, and then only
 * updated: one block in, one block out, nothing kept between calls, nothing allocated.
 * A context is used by one thread at a time.
 */
#ifndef VR_AES_H
#define VR_AES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <openssl/evp.h>

enum { VR_AES_BLOCK_BYTES = 16, VR_AES_KEY_BYTES = 16 };

/* `aes` is AES-128-ECB; the context keeps a reference of its own. NULL when memory is not to be
 * had. Free with EVP_CIPHER_CTX_free, which wipes the key. */
static inline EVP_CIPHER_CTX *vr_aes_new(const EVP_CIPHER *aes, const uint8_t key[VR_AES_KEY_BYTES],
                                         bool encrypting) {
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    if (context && EVP_CipherInit_ex2(context, aes, key, NULL, encrypting, NULL) == 1 &&
        EVP_CIPHER_CTX_set_padding(context, 0) == 1)
        return context;
    EVP_CIPHER_CTX_free(context);
    return NULL;
}

/* `out` and `in` are the same block or do not overlap. False only if libcrypto fails. */
static inline bool vr_aes_encrypt(EVP_CIPHER_CTX *context, uint8_t out[VR_AES_BLOCK_BYTES],
                                  const uint8_t in[VR_AES_BLOCK_BYTES]) {
    int out_bytes;
    return EVP_EncryptUpdate(context, out, &out_bytes, in, VR_AES_BLOCK_BYTES) == 1;
}

static inline bool vr_aes_decrypt(EVP_CIPHER_CTX *context, uint8_t out[VR_AES_BLOCK_BYTES],
                                  const uint8_t in[VR_AES_BLOCK_BYTES]) {
    int out_bytes;
    return EVP_DecryptUpdate(context, out, &out_bytes, in, VR_AES_BLOCK_BYTES) == 1;
}

#endif
