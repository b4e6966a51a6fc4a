/* cmac.h: AES-128-CMAC (RFC 4493), by hand over single blocks.
 *
 * libcrypto's EVP_MAC costs three times as much, and has to be made anew or re-keyed for each
 * message. Here the subkeys are made once and a MAC is one block operation per 16 bytes.
 */
#ifndef VR_CMAC_H
#define VR_CMAC_H

#include "aes.h"

struct vr_cmac {
    EVP_CIPHER_CTX *aes; /* keyed, encrypting */
    uint8_t subkey1[VR_AES_BLOCK_BYTES];
    uint8_t subkey2[VR_AES_BLOCK_BYTES];
};

/* False, with nothing to free, when memory is not to be had. `aes` is AES-128-ECB. */
bool vr_cmac_init(struct vr_cmac *cmac, const EVP_CIPHER *aes, const uint8_t key[VR_AES_KEY_BYTES]);

/* Wipes and frees. An all-zero struct may be freed. */
void vr_cmac_free(struct vr_cmac *cmac);

/* The whole 16-byte MAC; a caller may use its first bytes (RFC 4493 2.4). False only if libcrypto
 * fails. Any message length, 0 included. */
bool vr_cmac_compute(const struct vr_cmac *cmac, const uint8_t *message, size_t bytes,
                     uint8_t mac[VR_AES_BLOCK_BYTES]);

#endif
