/* siphash.h: SipHash-1-3 with 64 bits of output, for tables that strangers write keys into.
 *
 * Whoever does not know the 128-bit key can neither fill one bucket nor find two inputs that
 * collide. Not a MAC for the wire: tokens have CMAC. (Aumasson, Bernstein: "SipHash", 2012; one
 * compression and three finalisation rounds, as hash tables use it.)
 */
#ifndef VR_SIPHASH_H
#define VR_SIPHASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct vr_hash_key {
    uint64_t word[2];
};

static inline uint64_t vr_siphash_rotate(uint64_t value, unsigned bits) {
    return value << bits | value >> (64 - bits);
}

static inline void vr_siphash_round(uint64_t v[4]) {
    v[0] += v[1];
    v[2] += v[3];
    v[1] = vr_siphash_rotate(v[1], 13) ^ v[0];
    v[3] = vr_siphash_rotate(v[3], 16) ^ v[2];
    v[0] = vr_siphash_rotate(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = vr_siphash_rotate(v[1], 17) ^ v[2];
    v[3] = vr_siphash_rotate(v[3], 21) ^ v[0];
    v[2] = vr_siphash_rotate(v[2], 32);
}

/* Words are taken in the machine's byte order: the result never leaves the machine. Inlined, so
 * that a constant `bytes` unrolls. */
static inline __attribute__((always_inline)) uint64_t vr_siphash(const struct vr_hash_key *key,
                                                                 const void *data, size_t bytes) {
    const uint8_t *p = data;
    uint64_t v[4] = {key->word[0] ^ 0x736f6d6570736575, key->word[1] ^ 0x646f72616e646f6d,
                     key->word[0] ^ 0x6c7967656e657261, key->word[1] ^ 0x7465646279746573};
    uint64_t word;
    for (size_t left = bytes; left >= 8; left -= 8, p += 8) {
        memcpy(&word, p, 8);
        v[3] ^= word;
        vr_siphash_round(v);
        v[0] ^= word;
    }
    word = 0;
    memcpy(&word, p, bytes & 7);
    word |= (uint64_t)bytes << 56;
    v[3] ^= word;
    vr_siphash_round(v);
    v[0] ^= word;
    v[2] ^= 0xff;
    vr_siphash_round(v);
    vr_siphash_round(v);
    vr_siphash_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
