#include "cmac.h"

#include <string.h>

#include <openssl/crypto.h>

static void xor_block(uint8_t block[VR_AES_BLOCK_BYTES], const uint8_t *with, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        block[i] ^= with[i];
}

/* RFC 4493 2.3: shift left by one; XOR Rb when a one falls out, in constant time. */
static void double_block(uint8_t out[VR_AES_BLOCK_BYTES], const uint8_t in[VR_AES_BLOCK_BYTES]) {
    uint8_t carry = in[0] >> 7;
    for (size_t i = 0; i < VR_AES_BLOCK_BYTES - 1; i++)
        out[i] = (uint8_t)(in[i] << 1 | in[i + 1] >> 7);
    out[VR_AES_BLOCK_BYTES - 1] = (uint8_t)(in[VR_AES_BLOCK_BYTES - 1] << 1 ^ carry * 0x87);
}

bool vr_cmac_init(struct vr_cmac *cmac, const EVP_CIPHER *aes,
                  const uint8_t key[VR_AES_KEY_BYTES]) {
    uint8_t l[VR_AES_BLOCK_BYTES] = {0};

    memset(cmac, 0, sizeof *cmac);
    cmac->aes = vr_aes_new(aes, key, true);
    if (!cmac->aes || !vr_aes_encrypt(cmac->aes, l, l)) {
        vr_cmac_free(cmac);
        return false;
    }
    double_block(cmac->subkey1, l);
    double_block(cmac->subkey2, cmac->subkey1);
    OPENSSL_cleanse(l, sizeof l);
    return true;
}

void vr_cmac_free(struct vr_cmac *cmac) {
    EVP_CIPHER_CTX_free(cmac->aes);
    OPENSSL_cleanse(cmac, sizeof *cmac);
}

bool vr_cmac_compute(const struct vr_cmac *cmac, const uint8_t *message, size_t bytes,
                     uint8_t mac[VR_AES_BLOCK_BYTES]) {
    uint8_t block[VR_AES_BLOCK_BYTES] = {0};

    /* All blocks but the last, which may be partial, and is when the message is empty. */
    for (; bytes > VR_AES_BLOCK_BYTES; message += VR_AES_BLOCK_BYTES, bytes -= VR_AES_BLOCK_BYTES) {
        xor_block(block, message, VR_AES_BLOCK_BYTES);
        if (!vr_aes_encrypt(cmac->aes, block, block))
            return false;
    }
    xor_block(block, message, bytes);
    if (bytes == VR_AES_BLOCK_BYTES) {
        xor_block(block, cmac->subkey1, VR_AES_BLOCK_BYTES);
    } else {
        block[bytes] ^= 0x80;
        xor_block(block, cmac->subkey2, VR_AES_BLOCK_BYTES);
    }
    return vr_aes_encrypt(cmac->aes, mac, block);
}
