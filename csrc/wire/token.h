/* token.h: the routing token, which is the server's ICE ufrag (28 ice-chars, RFC 8839 5.4).
 *
 *     byte 0        key id (3 bits, 7 = "no hint") | format (2 bits, 0) | 3 random bits
 *     bytes 1..16   AES-128-ECB(k_enc, P)
 *     bytes 17..20  first 4 bytes of AES-CMAC(k_mac, bytes 0..16), checked before decrypting
 *
 *     P: kind and prefix index 1 | cluster 2 | port 2 | IPv4 address 4 | nonce 7
 *     or kind and prefix index 1 | cluster 2 | port 2 | interface id 8 | nonce 3
 *
 * 21 bytes make 28 characters of base64 (RFC 4648 4) without padding or spare bits, so a token has
 * one spelling. Cipher contexts are made once, by vr_keyring_new and vr_keyring_add; opening
 * allocates and fetches nothing. A keyring is used by one thread at a time.
 */
#ifndef VR_TOKEN_H
#define VR_TOKEN_H

#include "addr.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    VR_TOKEN_CHARS = 28,
    VR_TOKEN_BYTES = 21,
    VR_TOKEN_KEY_BYTES = 32, /* k_enc 16, k_mac 16 */
    VR_TOKEN_KEY_ID_MAX = 6,
    VR_TOKEN_RANDOM_BYTES = 8, /* what vr_token_seal consumes: 3 bits and up to 56 */
};

enum vr_token_status {
    VR_TOKEN_OK = 0,
    VR_TOKEN_LENGTH,      /* not 28 characters */
    VR_TOKEN_ALPHABET,    /* a character outside A-Za-z0-9+/ */
    VR_TOKEN_NO_HINT,     /* key id 7 */
    VR_TOKEN_FORMAT,      /* format bits not 0 */
    VR_TOKEN_UNKNOWN_KEY, /* no such id in the keyring */
    VR_TOKEN_FORGED,      /* the MAC differs */
    VR_TOKEN_KIND,        /* MAC good, but kind, prefix index or port are none that can be sealed */
    VR_TOKEN_NO_KEY,      /* seal: the keyring is empty */
};

/* What a token says. Kind 6 carries an interface id under a /64 that only the token's own
 * cluster knows, so the address is resolved apart, with vr_token_address. */
struct vr_token {
    uint8_t key_id;                 /* 0..6, the key that opened it; sealing ignores it */
    uint8_t kind;                   /* 4 or 6 */
    uint8_t prefix_index;           /* 0..15, kind 6; 0 for kind 4 */
    uint16_t cluster_id;            /* host order */
    uint16_t port_be;               /* UDP port of the transceiver */
    uint8_t ipv4[4];                /* kind 4 */
    uint8_t interface_id[8];        /* kind 6 */
    uint8_t sealed[VR_TOKEN_BYTES]; /* the token itself, as opened; sealing ignores it */
};

/* The /64 prefixes of this cluster, by index. */
struct vr_ipv6_prefixes {
    uint16_t known_mask;   /* bit i: prefix[i] is set */
    uint8_t prefix[16][8]; /* the first 8 bytes of an address */
};

struct vr_keyring;

/* NULL when memory or AES-128-ECB is not to be had (OpenSSL 3.0 or newer). */
struct vr_keyring *vr_keyring_new(void);
void vr_keyring_free(struct vr_keyring *ring);

/* Adds or replaces key `id` (0..6); `key` is copied. The first key added seals. 0, or -EINVAL for
 * another id, -ENOMEM with the ring as it was. */
int vr_keyring_add(struct vr_keyring *ring, unsigned id, const uint8_t key[VR_TOKEN_KEY_BYTES]);

/* Opens `chars` characters at `ufrag`; at most 1 µs. `out` is written only on VR_TOKEN_OK. */
enum vr_token_status vr_token_open(struct vr_keyring *ring, const uint8_t *ufrag, size_t chars,
                                   struct vr_token *out);

/* Seals `token` under the ring's first key into 28 characters, no terminator. `random` must be
 * fresh for every token, from a cryptographic source. VR_TOKEN_KIND for a kind other than 4 and 6,
 * a prefix index over 15 (kind 4: over 0) or port 0. */
enum vr_token_status vr_token_seal(struct vr_keyring *ring, const struct vr_token *token,
                                   const uint8_t random[VR_TOKEN_RANDOM_BYTES],
                                   char ufrag[VR_TOKEN_CHARS]);

/* The transceiver's address. False, `out` untouched, when a kind-6 prefix index is not known. */
bool vr_token_address(const struct vr_token *token, const struct vr_ipv6_prefixes *prefixes,
                      struct vr_addr *out);

#endif
