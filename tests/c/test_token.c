#include "allocations.h"
#include "check.h"
#include "wire/bytes.h"
#include "wire/cmac.h"
#include "wire/token.h"

#include <errno.h>

#include <openssl/evp.h>

static const uint8_t RANDOM[VR_TOKEN_RANDOM_BYTES] = {0xFF, 1, 2, 3, 4, 5, 6, 7};

static void fill_key(uint8_t key[VR_TOKEN_KEY_BYTES], unsigned seed) {
    for (unsigned i = 0; i < VR_TOKEN_KEY_BYTES; i++)
        key[i] = (uint8_t)(seed * 37 + i);
}

static struct vr_keyring *ring_of(unsigned id) {
    uint8_t key[VR_TOKEN_KEY_BYTES];
    struct vr_keyring *ring = vr_keyring_new();
    fill_key(key, id);
    CHECK_EQ(vr_keyring_add(ring, id, key), 0);
    return ring;
}

static struct vr_token ipv4_token(void) {
    struct vr_token token = {.kind = 4, .cluster_id = 513, .ipv4 = {192, 0, 2, 77}};
    vr_store_be16((uint8_t *)&token.port_be, 40000);
    return token;
}

static struct vr_token ipv6_token(unsigned prefix_index) {
    struct vr_token token = {
        .kind = 6,
        .prefix_index = (uint8_t)prefix_index,
        .cluster_id = 65535,
        .interface_id = {8, 7, 6, 5, 4, 3, 2, 1},
    };
    vr_store_be16((uint8_t *)&token.port_be, 1);
    return token;
}

/* Opens from a guarded copy. */
static enum vr_token_status open_chars(struct vr_keyring *ring, const char *ufrag, size_t chars,
                                       struct vr_token *out) {
    return vr_token_open(ring, guard_copy(ufrag, chars), chars, out);
}

/* 21 bytes as a ufrag, with libcrypto's base64. */
static void to_ufrag(const uint8_t token[VR_TOKEN_BYTES], char ufrag[VR_TOKEN_CHARS]) {
    uint8_t text[VR_TOKEN_CHARS + 1];
    CHECK_EQ(EVP_EncodeBlock(text, token, VR_TOKEN_BYTES), VR_TOKEN_CHARS);
    memcpy(ufrag, text, VR_TOKEN_CHARS);
}

/* A token with any byte 0 and any plaintext under key `id` of ring_of, its MAC good. */
static void forge(unsigned id, uint8_t byte0, const uint8_t plaintext[16],
                  char ufrag[VR_TOKEN_CHARS]) {
    uint8_t key[VR_TOKEN_KEY_BYTES], token[VR_TOKEN_BYTES], mac[VR_AES_BLOCK_BYTES];
    EVP_CIPHER *aes = EVP_CIPHER_fetch(NULL, "AES-128-ECB", NULL);
    struct vr_cmac cmac;
    fill_key(key, id);
    EVP_CIPHER_CTX *encrypt = vr_aes_new(aes, key, true);
    CHECK(vr_cmac_init(&cmac, aes, key + VR_AES_KEY_BYTES));
    token[0] = byte0;
    CHECK(vr_aes_encrypt(encrypt, token + 1, plaintext));
    CHECK(vr_cmac_compute(&cmac, token, 17, mac));
    memcpy(token + 17, mac, 4);
    to_ufrag(token, ufrag);
    vr_cmac_free(&cmac);
    EVP_CIPHER_CTX_free(encrypt);
    EVP_CIPHER_free(aes);
}

static void check_same(const struct vr_token *a, const struct vr_token *b) {
    CHECK_EQ(a->kind, b->kind);
    CHECK_EQ(a->prefix_index, b->prefix_index);
    CHECK_EQ(a->cluster_id, b->cluster_id);
    CHECK_EQ(a->port_be, b->port_be);
    CHECK_MEM(a->ipv4, b->ipv4, sizeof a->ipv4);
    CHECK_MEM(a->interface_id, b->interface_id, sizeof a->interface_id);
}

/* ---------------------------------------------------------------- sealing and opening */

TEST(what_is_sealed_opens_under_every_key_id) {
    for (unsigned id = 0; id <= VR_TOKEN_KEY_ID_MAX; id++) {
        struct vr_keyring *ring = ring_of(id);
        struct vr_token sealed[] = {ipv4_token(), ipv6_token(0), ipv6_token(15)}, opened;
        for (size_t i = 0; i < 3; i++) {
            char ufrag[VR_TOKEN_CHARS];
            CHECK_EQ(vr_token_seal(ring, &sealed[i], RANDOM, ufrag), VR_TOKEN_OK);
            CHECK_EQ(open_chars(ring, ufrag, sizeof ufrag, &opened), VR_TOKEN_OK);
            CHECK_EQ(opened.key_id, id);
            check_same(&opened, &sealed[i]);
        }
        vr_keyring_free(ring);
    }
}

/* The layout of P and of byte 0, from the plaintext up. */
TEST(the_documented_layout_opens) {
    struct vr_keyring *ring = ring_of(5);
    struct vr_token opened, v4 = ipv4_token(), v6 = ipv6_token(9);
    uint8_t plaintext[16];
    char ufrag[VR_TOKEN_CHARS];

    from_hex("40"
             "0201"
             "9c40"
             "c000024d"
             "0a0b0c0d0e0f10",
             plaintext, sizeof plaintext);
    forge(5, 0xA0 | 3, plaintext, ufrag);
    CHECK_EQ(open_chars(ring, ufrag, sizeof ufrag, &opened), VR_TOKEN_OK);
    check_same(&opened, &v4);

    from_hex("69"
             "ffff"
             "0001"
             "0807060504030201"
             "0a0b0c",
             plaintext, sizeof plaintext);
    forge(5, 0xA0, plaintext, ufrag);
    CHECK_EQ(open_chars(ring, ufrag, sizeof ufrag, &opened), VR_TOKEN_OK);
    check_same(&opened, &v6);
    vr_keyring_free(ring);
}

TEST(random_goes_into_three_bits_and_the_nonce) {
    struct vr_keyring *ring = ring_of(1);
    struct vr_token token = ipv4_token();
    char first[VR_TOKEN_CHARS], second[VR_TOKEN_CHARS];
    CHECK_EQ(vr_token_seal(ring, &token, RANDOM, first), VR_TOKEN_OK);
    for (unsigned bit = 0; bit < VR_TOKEN_RANDOM_BYTES * 8; bit++) {
        uint8_t random[VR_TOKEN_RANDOM_BYTES];
        memcpy(random, RANDOM, sizeof random);
        random[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK_EQ(vr_token_seal(ring, &token, random, second), VR_TOKEN_OK);
        CHECK((memcmp(first, second, sizeof first) != 0) == (bit < 3 || bit >= 8));
    }
    vr_keyring_free(ring);
}

TEST(what_cannot_be_opened_is_not_sealed) {
    struct vr_keyring *ring = ring_of(0), *empty = vr_keyring_new();
    char ufrag[VR_TOKEN_CHARS];
    struct vr_token token = ipv4_token();

    CHECK_EQ(vr_token_seal(empty, &token, RANDOM, ufrag), VR_TOKEN_NO_KEY);
    token.port_be = 0;
    CHECK_EQ(vr_token_seal(ring, &token, RANDOM, ufrag), VR_TOKEN_KIND);
    token = ipv4_token();
    token.prefix_index = 1;
    CHECK_EQ(vr_token_seal(ring, &token, RANDOM, ufrag), VR_TOKEN_KIND);
    token = ipv6_token(16);
    CHECK_EQ(vr_token_seal(ring, &token, RANDOM, ufrag), VR_TOKEN_KIND);
    for (unsigned kind = 0; kind < 256; kind++) {
        token = ipv4_token();
        token.kind = (uint8_t)kind;
        CHECK_EQ(vr_token_seal(ring, &token, RANDOM, ufrag),
                 kind == 4 || kind == 6 ? VR_TOKEN_OK : VR_TOKEN_KIND);
    }
    vr_keyring_free(ring);
    vr_keyring_free(empty);
}

/* ---------------------------------------------------------------- refusing */

TEST(every_length_but_28_is_refused) {
    struct vr_keyring *ring = ring_of(0);
    struct vr_token token = ipv4_token(), opened;
    char ufrag[64];
    memset(ufrag, 'A', sizeof ufrag);
    CHECK_EQ(vr_token_seal(ring, &token, RANDOM, ufrag), VR_TOKEN_OK);
    for (size_t chars = 0; chars <= sizeof ufrag; chars++)
        CHECK_EQ(open_chars(ring, ufrag, chars, &opened),
                 chars == VR_TOKEN_CHARS ? VR_TOKEN_OK : VR_TOKEN_LENGTH);
    CHECK_EQ(vr_token_open(ring, NULL, 0, &opened), VR_TOKEN_LENGTH);
    vr_keyring_free(ring);
}

TEST(a14_every_byte_value_at_every_place) {
    static const char ICE_CHARS[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    struct vr_keyring *ring = ring_of(0);
    struct vr_token token = ipv4_token(), opened;
    char ufrag[VR_TOKEN_CHARS];
    CHECK_EQ(vr_token_seal(ring, &token, RANDOM, ufrag), VR_TOKEN_OK);
    for (size_t place = 0; place < sizeof ufrag; place++) {
        for (unsigned value = 0; value < 256; value++) {
            char changed[VR_TOKEN_CHARS];
            memcpy(changed, ufrag, sizeof changed);
            changed[place] = (char)value;
            enum vr_token_status status = open_chars(ring, changed, sizeof changed, &opened);
            bool ice_char = value != 0 && strchr(ICE_CHARS, (int)value) != NULL;
            CHECK((status == VR_TOKEN_ALPHABET) == !ice_char);
            CHECK((status == VR_TOKEN_OK) == (changed[place] == ufrag[place]));
        }
    }
    vr_keyring_free(ring);
}

TEST(every_flipped_bit_is_refused_with_its_reason) {
    struct vr_keyring *ring = ring_of(2);
    struct vr_token token = ipv4_token(), opened;
    uint8_t bytes[VR_TOKEN_BYTES + 3];
    char ufrag[VR_TOKEN_CHARS];
    CHECK_EQ(vr_token_seal(ring, &token, RANDOM, ufrag), VR_TOKEN_OK);
    CHECK_EQ(EVP_DecodeBlock(bytes, (const uint8_t *)ufrag, VR_TOKEN_CHARS), VR_TOKEN_BYTES);
    for (unsigned bit = 0; bit < VR_TOKEN_BYTES * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(0x80 >> bit % 8);
        to_ufrag(bytes, ufrag);
        CHECK_EQ(open_chars(ring, ufrag, sizeof ufrag, &opened), bit < 3   ? VR_TOKEN_UNKNOWN_KEY
                                                                 : bit < 5 ? VR_TOKEN_FORMAT
                                                                           : VR_TOKEN_FORGED);
        bytes[bit / 8] ^= (uint8_t)(0x80 >> bit % 8);
    }
    vr_keyring_free(ring);
}

TEST(key_id_7_says_no_hint_whatever_follows) {
    struct vr_keyring *ring = ring_of(0);
    struct vr_token opened;
    for (unsigned low = 0; low < 32; low++) {
        uint8_t bytes[VR_TOKEN_BYTES] = {(uint8_t)(0xE0 | low)};
        char ufrag[VR_TOKEN_CHARS];
        to_ufrag(bytes, ufrag);
        CHECK_EQ(open_chars(ring, ufrag, sizeof ufrag, &opened), VR_TOKEN_NO_HINT);
    }
    vr_keyring_free(ring);
}

TEST(a_good_mac_over_another_plaintext_is_refused) {
    static const struct {
        const char *label, *plaintext;
        enum vr_token_status status;
    } CASES[] = {
        {"IPv4", "40000100017f0000010000000000000a", VR_TOKEN_OK},
        {"IPv6", "6f000100010000000000000001000000", VR_TOKEN_OK},
        {"kind 0", "00000100017f00000100000000000000", VR_TOKEN_KIND},
        {"kind 5", "50000100017f00000100000000000000", VR_TOKEN_KIND},
        {"kind 15", "f0000100017f00000100000000000000", VR_TOKEN_KIND},
        {"IPv4 with an index", "41000100017f00000100000000000000", VR_TOKEN_KIND},
        {"IPv4, port 0", "40000100007f00000100000000000000", VR_TOKEN_KIND},
        {"IPv6, port 0", "60000100000000000000000001000000", VR_TOKEN_KIND},
    };
    struct vr_keyring *ring = ring_of(0);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        uint8_t plaintext[16];
        char ufrag[VR_TOKEN_CHARS];
        struct vr_token opened, untouched;
        CASE(CASES[i].label);
        memset(&untouched, 0xAA, sizeof untouched);
        opened = untouched;
        from_hex(CASES[i].plaintext, plaintext, sizeof plaintext);
        forge(0, 0x07, plaintext, ufrag);
        CHECK_EQ(open_chars(ring, ufrag, sizeof ufrag, &opened), CASES[i].status);
        if (CASES[i].status != VR_TOKEN_OK)
            CHECK_MEM(&opened, &untouched, sizeof opened);
    }
    vr_keyring_free(ring);
}

/* ---------------------------------------------------------------- keyring */

/* Case E21: two keys open at once, the first seals; the retired key's tokens are refused. */
TEST(rotation) {
    uint8_t key[VR_TOKEN_KEY_BYTES];
    struct vr_keyring *old_ring = ring_of(3), *both = ring_of(3), *turned = ring_of(4);
    struct vr_token token = ipv4_token(), opened;
    char from_old[VR_TOKEN_CHARS], from_both[VR_TOKEN_CHARS], from_turned[VR_TOKEN_CHARS];

    fill_key(key, 4);
    CHECK_EQ(vr_keyring_add(both, 4, key), 0);
    fill_key(key, 3);
    CHECK_EQ(vr_keyring_add(turned, 3, key), 0);
    CHECK_EQ(vr_token_seal(old_ring, &token, RANDOM, from_old), VR_TOKEN_OK);
    CHECK_EQ(vr_token_seal(both, &token, RANDOM, from_both), VR_TOKEN_OK);
    CHECK_EQ(vr_token_seal(turned, &token, RANDOM, from_turned), VR_TOKEN_OK);

    CHECK_MEM(from_old, from_both, VR_TOKEN_CHARS);
    CHECK_EQ(open_chars(both, from_turned, VR_TOKEN_CHARS, &opened), VR_TOKEN_OK);
    CHECK_EQ(opened.key_id, 4);
    CHECK_EQ(open_chars(turned, from_old, VR_TOKEN_CHARS, &opened), VR_TOKEN_OK);
    CHECK_EQ(opened.key_id, 3);
    CHECK_EQ(open_chars(old_ring, from_turned, VR_TOKEN_CHARS, &opened), VR_TOKEN_UNKNOWN_KEY);

    fill_key(key, 99); /* the same id, another key */
    CHECK_EQ(vr_keyring_add(both, 3, key), 0);
    CHECK_EQ(open_chars(both, from_old, VR_TOKEN_CHARS, &opened), VR_TOKEN_FORGED);
    vr_keyring_free(old_ring);
    vr_keyring_free(both);
    vr_keyring_free(turned);
}

TEST(key_ids_over_6_are_refused) {
    uint8_t key[VR_TOKEN_KEY_BYTES] = {0};
    struct vr_keyring *ring = vr_keyring_new();
    CHECK_EQ(vr_keyring_add(ring, 7, key), -EINVAL);
    CHECK_EQ(vr_keyring_add(ring, ~0u, key), -EINVAL);
    vr_keyring_free(ring);
    vr_keyring_free(NULL);
}

/* ---------------------------------------------------------------- address */

TEST(addresses) {
    struct vr_ipv6_prefixes prefixes = {.known_mask = 1 << 9};
    struct vr_token v4 = ipv4_token(), known = ipv6_token(9), unknown = ipv6_token(8);
    struct vr_addr address, untouched;
    uint8_t expected[16];

    from_hex("20010db800000001", prefixes.prefix[9], 8);
    CHECK(vr_token_address(&v4, &prefixes, &address));
    from_hex("00000000000000000000ffffc000024d", expected, 16);
    CHECK_MEM(address.ip, expected, 16);
    CHECK_EQ(address.port_be, v4.port_be);

    CHECK(vr_token_address(&known, &prefixes, &address));
    from_hex("20010db8000000010807060504030201", expected, 16);
    CHECK_MEM(address.ip, expected, 16);

    untouched = address;
    CHECK(!vr_token_address(&unknown, &prefixes, &address));
    CHECK(vr_addr_equal(&address, &untouched));
}

/* ---------------------------------------------------------------- cost */

TEST(neither_opening_nor_sealing_allocates) {
    struct vr_keyring *ring = ring_of(0);
    struct vr_token token = ipv4_token(), opened;
    char ufrag[VR_TOKEN_CHARS];
    allocations_start();
    unsigned refused = 0;
    for (unsigned i = 0; i < 1000; i++) {
        refused += vr_token_seal(ring, &token, RANDOM, ufrag) != VR_TOKEN_OK;
        refused +=
            vr_token_open(ring, (const uint8_t *)ufrag, sizeof ufrag, &opened) != VR_TOKEN_OK;
        ufrag[27] ^= 1;
        vr_token_open(ring, (const uint8_t *)ufrag, sizeof ufrag, &opened);
    }
    CHECK_EQ(allocations, 0);
    CHECK_EQ(refused, 0);
    vr_keyring_free(ring);
}
