#include "check.h"
#include "wire/cmac.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

static const char KEY[] = "2b7e151628aed2a6abf7158809cf4f3c";
static const char MESSAGE[] = "6bc1bee22e409f96e93d7e117393172a"
                              "ae2d8a571e03ac9c9eb76fac45af8e51"
                              "30c81c46a35ce411e5fbc1191a0a52ef"
                              "f69f2445df4f9b17ad2b417be66c3710";

static struct vr_cmac keyed(const uint8_t key[VR_AES_KEY_BYTES]) {
    struct vr_cmac cmac;
    EVP_CIPHER *aes = EVP_CIPHER_fetch(NULL, "AES-128-ECB", NULL);
    CHECK(vr_cmac_init(&cmac, aes, key));
    EVP_CIPHER_free(aes);
    return cmac;
}

TEST(rfc4493_subkeys) {
    uint8_t key[VR_AES_KEY_BYTES], expected[VR_AES_BLOCK_BYTES];
    from_hex(KEY, key, sizeof key);
    struct vr_cmac cmac = keyed(key);

    from_hex("fbeed618357133667c85e08f7236a8de", expected, sizeof expected);
    CHECK_MEM(cmac.subkey1, expected, sizeof expected);
    from_hex("f7ddac306ae266ccf90bc11ee46d513b", expected, sizeof expected);
    CHECK_MEM(cmac.subkey2, expected, sizeof expected);
    vr_cmac_free(&cmac);
}

TEST(rfc4493_examples_1_to_4) {
    static const struct {
        size_t bytes;
        const char *mac;
    } EXAMPLES[] = {
        {0, "bb1d6929e95937287fa37d129b756746"},
        {16, "070a16b46b4d4144f79bdd9dd04a287c"},
        {40, "dfa66747de9ae63030ca32611497c827"},
        {64, "51f0bebf7e3b9d92fc49741779363cfe"},
    };
    uint8_t key[VR_AES_KEY_BYTES], message[64];
    uint8_t expected[VR_AES_BLOCK_BYTES], mac[VR_AES_BLOCK_BYTES];
    from_hex(KEY, key, sizeof key);
    from_hex(MESSAGE, message, sizeof message);
    struct vr_cmac cmac = keyed(key);

    for (size_t i = 0; i < sizeof EXAMPLES / sizeof *EXAMPLES; i++) {
        from_hex(EXAMPLES[i].mac, expected, sizeof expected);
        const uint8_t *at = guard_copy(message, EXAMPLES[i].bytes);
        CHECK(vr_cmac_compute(&cmac, at, EXAMPLES[i].bytes, mac));
        CHECK_MEM(mac, expected, sizeof expected);
    }
    vr_cmac_free(&cmac);
}

/* libcrypto's own CMAC, the slow way. */
static void reference(const uint8_t *key, const uint8_t *message, size_t bytes, uint8_t *mac) {
    EVP_MAC *algorithm = EVP_MAC_fetch(NULL, "CMAC", NULL);
    EVP_MAC_CTX *context = EVP_MAC_CTX_new(algorithm);
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_CIPHER, "AES-128-CBC", 0),
        OSSL_PARAM_construct_end(),
    };
    size_t mac_bytes;
    CHECK(EVP_MAC_init(context, key, VR_AES_KEY_BYTES, params) == 1);
    CHECK(EVP_MAC_update(context, message, bytes) == 1);
    CHECK(EVP_MAC_final(context, mac, &mac_bytes, VR_AES_BLOCK_BYTES) == 1);
    EVP_MAC_CTX_free(context);
    EVP_MAC_free(algorithm);
}

TEST(equals_libcrypto_at_every_length) {
    uint8_t key[VR_AES_KEY_BYTES], message[64];
    uint8_t expected[VR_AES_BLOCK_BYTES], mac[VR_AES_BLOCK_BYTES];
    from_hex(MESSAGE, message, sizeof message);
    for (size_t bytes = 0; bytes <= sizeof message; bytes++) {
        memset(key, (int)bytes * 7, sizeof key);
        struct vr_cmac cmac = keyed(key);
        CHECK(vr_cmac_compute(&cmac, guard_copy(message, bytes), bytes, mac));
        reference(key, message, bytes, expected);
        CHECK_MEM(mac, expected, sizeof expected);
        vr_cmac_free(&cmac);
    }
}
