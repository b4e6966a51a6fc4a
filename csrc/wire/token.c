#include "token.h"

#include "aes.h"
#include "bytes.h"
#include "cmac.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>

enum {
    BLOCK_BYTES = VR_AES_BLOCK_BYTES,
    MAC_BYTES = 4,
    MAC_OFFSET = 1 + BLOCK_BYTES,
    KEY_ID_SHIFT = 5,
    KEY_IDS = VR_TOKEN_KEY_ID_MAX + 1,
    NO_HINT = 7,
    FORMAT_MASK = 0x18,
    RANDOM_MASK = 0x07,
    KIND_IPV4 = 4,
    KIND_IPV6 = 6,
};

_Static_assert(MAC_OFFSET + MAC_BYTES == VR_TOKEN_BYTES, "a token is byte 0, a block and a MAC");
_Static_assert(VR_TOKEN_CHARS * 3 == VR_TOKEN_BYTES * 4, "base64 without padding");
_Static_assert(VR_TOKEN_KEY_BYTES == 2 * VR_AES_KEY_BYTES, "k_enc, then k_mac");

/* The offsets inside the plaintext block P. */
enum { P_KIND = 0, P_CLUSTER = 1, P_PORT = 3, P_ADDRESS = 5 };
enum { IPV4_BYTES = 4, INTERFACE_ID_BYTES = 8 };

struct key {
    EVP_CIPHER_CTX *encrypt; /* k_enc */
    EVP_CIPHER_CTX *decrypt; /* k_enc */
    struct vr_cmac cmac;     /* k_mac */
};

struct vr_keyring {
    EVP_CIPHER *aes; /* fetched once; a fetch costs more than ten openings */
    struct key *key[KEY_IDS];
    int sealing_id; /* -1: empty */
};

/* ------------------------------------------------------------------ base64, RFC 4648 4 */

static const char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

#define __ 0xFF /* not an ice-char */
static const uint8_t SEXTET[256] = {
    __, __, __, __, __, __, __, __, __, __, __, __, __, __, __, __, /* 0x00 */
    __, __, __, __, __, __, __, __, __, __, __, __, __, __, __, __, /* 0x10 */
    __, __, __, __, __, __, __, __, __, __, __, 62, __, __, __, 63, /* '+' '/' */
    52, 53, 54, 55, 56, 57, 58, 59, 60, 61, __, __, __, __, __, __, /* '0'..'9' */
    __, 0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, /* 'A'.. */
    15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, __, __, __, __, __, /* ..'Z' */
    __, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, /* 'a'.. */
    41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, __, __, __, __, __, /* ..'z' */
    __, __, __, __, __, __, __, __, __, __, __, __, __, __, __, __, /* 0x80 */
    __, __, __, __, __, __, __, __, __, __, __, __, __, __, __, __, /* 0x90 */
    __, __, __, __, __, __, __, __, __, __, __, __, __, __, __, __, /* 0xA0 */
    __, __, __, __, __, __, __, __, __, __, __, __, __, __, __, __, /* 0xB0 */
    __, __, __, __, __, __, __, __, __, __, __, __, __, __, __, __, /* 0xC0 */
    __, __, __, __, __, __, __, __, __, __, __, __, __, __, __, __, /* 0xD0 */
    __, __, __, __, __, __, __, __, __, __, __, __, __, __, __, __, /* 0xE0 */
    __, __, __, __, __, __, __, __, __, __, __, __, __, __, __, __, /* 0xF0 */
};
#undef __

static bool decode(const uint8_t chars[VR_TOKEN_CHARS], uint8_t bytes[VR_TOKEN_BYTES]) {
    uint8_t invalid = 0;

    for (size_t group = 0; group < VR_TOKEN_CHARS / 4; group++, chars += 4, bytes += 3) {
        uint8_t a = SEXTET[chars[0]], b = SEXTET[chars[1]];
        uint8_t c = SEXTET[chars[2]], d = SEXTET[chars[3]];
        invalid |= a | b | c | d;
        bytes[0] = (uint8_t)(a << 2 | b >> 4);
        bytes[1] = (uint8_t)(b << 4 | c >> 2);
        bytes[2] = (uint8_t)(c << 6 | d);
    }
    return (invalid & 0xC0) == 0;
}

static void encode(const uint8_t bytes[VR_TOKEN_BYTES], char chars[VR_TOKEN_CHARS]) {
    for (size_t group = 0; group < VR_TOKEN_CHARS / 4; group++, chars += 4, bytes += 3) {
        chars[0] = ALPHABET[bytes[0] >> 2];
        chars[1] = ALPHABET[(bytes[0] << 4 | bytes[1] >> 4) & 63];
        chars[2] = ALPHABET[(bytes[1] << 2 | bytes[2] >> 6) & 63];
        chars[3] = ALPHABET[bytes[2] & 63];
    }
}

/* ------------------------------------------------------------------ keyring */

static void key_free(struct key *key) {
    if (!key)
        return;
    EVP_CIPHER_CTX_free(key->encrypt);
    EVP_CIPHER_CTX_free(key->decrypt);
    vr_cmac_free(&key->cmac);
    free(key);
}

static struct key *key_new(const EVP_CIPHER *aes, const uint8_t secret[VR_TOKEN_KEY_BYTES]) {
    struct key *key = calloc(1, sizeof *key);
    if (!key)
        return NULL;
    key->encrypt = vr_aes_new(aes, secret, true);
    key->decrypt = vr_aes_new(aes, secret, false);
    if (vr_cmac_init(&key->cmac, aes, secret + VR_AES_KEY_BYTES) && key->encrypt && key->decrypt)
        return key;
    key_free(key);
    return NULL;
}

struct vr_keyring *vr_keyring_new(void) {
    struct vr_keyring *ring = calloc(1, sizeof *ring);
    if (!ring)
        return NULL;
    ring->sealing_id = -1;
    ring->aes = EVP_CIPHER_fetch(NULL, "AES-128-ECB", NULL);
    if (!ring->aes) {
        free(ring);
        return NULL;
    }
    return ring;
}

void vr_keyring_free(struct vr_keyring *ring) {
    if (!ring)
        return;
    for (size_t id = 0; id < KEY_IDS; id++)
        key_free(ring->key[id]);
    EVP_CIPHER_free(ring->aes);
    free(ring);
}

int vr_keyring_add(struct vr_keyring *ring, unsigned id, const uint8_t key[VR_TOKEN_KEY_BYTES]) {
    if (id > VR_TOKEN_KEY_ID_MAX)
        return -EINVAL;
    struct key *added = key_new(ring->aes, key);
    if (!added)
        return -ENOMEM;
    key_free(ring->key[id]);
    ring->key[id] = added;
    if (ring->sealing_id < 0)
        ring->sealing_id = (int)id;
    return 0;
}

/* ------------------------------------------------------------------ tokens */

/* Reads P. False when it is none that vr_token_seal writes. */
static bool read_plaintext(const uint8_t p[BLOCK_BYTES], struct vr_token *out) {
    struct vr_token token = {
        .kind = p[P_KIND] >> 4,
        .prefix_index = p[P_KIND] & 0x0F,
        .cluster_id = vr_load_be16(p + P_CLUSTER),
    };
    memcpy(&token.port_be, p + P_PORT, sizeof token.port_be);

    if (token.port_be == 0)
        return false;
    if (token.kind == KIND_IPV4 && token.prefix_index == 0)
        memcpy(token.ipv4, p + P_ADDRESS, IPV4_BYTES);
    else if (token.kind == KIND_IPV6)
        memcpy(token.interface_id, p + P_ADDRESS, INTERFACE_ID_BYTES);
    else
        return false;
    *out = token;
    return true;
}

enum vr_token_status vr_token_open(struct vr_keyring *ring, const uint8_t *ufrag, size_t chars,
                                   struct vr_token *out) {
    uint8_t token[VR_TOKEN_BYTES];
    if (chars != VR_TOKEN_CHARS)
        return VR_TOKEN_LENGTH;
    if (!decode(ufrag, token))
        return VR_TOKEN_ALPHABET;

    unsigned id = token[0] >> KEY_ID_SHIFT;
    if (id == NO_HINT)
        return VR_TOKEN_NO_HINT;
    if ((token[0] & FORMAT_MASK) != 0)
        return VR_TOKEN_FORMAT;
    const struct key *key = ring->key[id];
    if (!key)
        return VR_TOKEN_UNKNOWN_KEY;

    uint8_t mac[BLOCK_BYTES], plaintext[BLOCK_BYTES];
    if (!vr_cmac_compute(&key->cmac, token, MAC_OFFSET, mac) ||
        CRYPTO_memcmp(mac, token + MAC_OFFSET, MAC_BYTES) != 0)
        return VR_TOKEN_FORGED;
    if (!vr_aes_decrypt(key->decrypt, plaintext, token + 1) || !read_plaintext(plaintext, out))
        return VR_TOKEN_KIND;
    out->key_id = (uint8_t)id;
    memcpy(out->sealed, token, VR_TOKEN_BYTES);
    return VR_TOKEN_OK;
}

/* Writes P, the rest of which is nonce. False for what read_plaintext would refuse. */
static bool write_plaintext(const struct vr_token *token, const uint8_t *nonce,
                            uint8_t p[BLOCK_BYTES]) {
    size_t address_bytes = token->kind == KIND_IPV4 ? IPV4_BYTES : INTERFACE_ID_BYTES;

    if (token->port_be == 0)
        return false;
    if (token->kind == KIND_IPV4 && token->prefix_index == 0)
        memcpy(p + P_ADDRESS, token->ipv4, IPV4_BYTES);
    else if (token->kind == KIND_IPV6 && token->prefix_index <= 0x0F)
        memcpy(p + P_ADDRESS, token->interface_id, INTERFACE_ID_BYTES);
    else
        return false;
    p[P_KIND] = (uint8_t)(token->kind << 4 | token->prefix_index);
    vr_store_be16(p + P_CLUSTER, token->cluster_id);
    memcpy(p + P_PORT, &token->port_be, sizeof token->port_be);
    memcpy(p + P_ADDRESS + address_bytes, nonce, BLOCK_BYTES - P_ADDRESS - address_bytes);
    return true;
}

enum vr_token_status vr_token_seal(struct vr_keyring *ring, const struct vr_token *token,
                                   const uint8_t random[VR_TOKEN_RANDOM_BYTES],
                                   char ufrag[VR_TOKEN_CHARS]) {
    uint8_t plaintext[BLOCK_BYTES], sealed[VR_TOKEN_BYTES], mac[BLOCK_BYTES];

    if (ring->sealing_id < 0)
        return VR_TOKEN_NO_KEY;
    if (!write_plaintext(token, random + 1, plaintext))
        return VR_TOKEN_KIND;

    const struct key *key = ring->key[ring->sealing_id];
    sealed[0] = (uint8_t)(ring->sealing_id << KEY_ID_SHIFT | (random[0] & RANDOM_MASK));
    if (!vr_aes_encrypt(key->encrypt, sealed + 1, plaintext) ||
        !vr_cmac_compute(&key->cmac, sealed, MAC_OFFSET, mac))
        return VR_TOKEN_NO_KEY;
    memcpy(sealed + MAC_OFFSET, mac, MAC_BYTES);
    encode(sealed, ufrag);
    return VR_TOKEN_OK;
}

bool vr_token_address(const struct vr_token *token, const struct vr_ipv6_prefixes *prefixes,
                      struct vr_addr *out) {
    if (token->kind == KIND_IPV4) {
        vr_ip_from_v4(out->ip, token->ipv4);
    } else {
        if (!(prefixes->known_mask >> token->prefix_index & 1))
            return false;
        memcpy(out->ip, prefixes->prefix[token->prefix_index], 8);
        memcpy(out->ip + 8, token->interface_id, INTERFACE_ID_BYTES);
    }
    out->port_be = token->port_be;
    return true;
}
