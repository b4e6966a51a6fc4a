/* The trailer of a keyed backbone; the MAC is libcrypto's own EVP_MAC. */
#include "check.h"
#include "wire/trailer.h"

#include <errno.h>

#include <openssl/evp.h>

static const uint8_t FIRST[VR_AES_KEY_BYTES] = "the first key 16";
static const uint8_t SECOND[VR_AES_KEY_BYTES] = "the second key 1";
static const uint64_t NOW_S = 0x6543210fe;

static uint8_t header[VR_SPP_BYTES];

static struct vr_trailer_keys *keys_of(const uint8_t *first, const uint8_t *second) {
    struct vr_trailer_keys *keys = vr_trailer_keys_new();
    if (first)
        CHECK_EQ(vr_trailer_keys_add(keys, first), 0);
    if (second)
        CHECK_EQ(vr_trailer_keys_add(keys, second), 0);
    for (uint8_t i = 0; i < sizeof header; i++)
        header[i] = (uint8_t)(i * 7);
    return keys;
}

TEST(it_is_the_time_and_half_a_cmac_over_header_and_time) {
    struct vr_trailer_keys *keys = keys_of(FIRST, NULL);
    uint8_t trailer[VR_TRAILER_BYTES], covered[VR_SPP_BYTES + 8], mac[16];
    const uint8_t time_be[8] = {0, 0, 0, 6, 0x54, 0x32, 0x10, 0xfe};
    size_t mac_bytes;
    OSSL_PARAM cipher[] = {OSSL_PARAM_construct_utf8_string("cipher", "AES-128-CBC", 0),
                           OSSL_PARAM_construct_end()};
    EVP_MAC *cmac = EVP_MAC_fetch(NULL, "CMAC", NULL);
    EVP_MAC_CTX *context = EVP_MAC_CTX_new(cmac);
    CHECK(vr_trailer_write(keys, header, NOW_S, trailer));
    CHECK_MEM(trailer, time_be, 8);
    memcpy(covered, header, sizeof header);
    memcpy(covered + sizeof header, time_be, 8);
    CHECK(EVP_MAC_init(context, FIRST, sizeof FIRST, cipher));
    CHECK(EVP_MAC_update(context, covered, sizeof covered));
    CHECK(EVP_MAC_final(context, mac, &mac_bytes, sizeof mac));
    CHECK_MEM(trailer + 8, mac, 8);
    EVP_MAC_CTX_free(context);
    EVP_MAC_free(cmac);
    vr_trailer_keys_free(keys);
}

TEST(every_bit_counts) {
    struct vr_trailer_keys *keys = keys_of(FIRST, NULL);
    uint8_t trailer[VR_TRAILER_BYTES];
    CHECK(vr_trailer_write(keys, header, NOW_S, trailer));
    CHECK_EQ(vr_trailer_check(keys, header, trailer, NOW_S), VR_TRAILER_OK);
    for (unsigned bit = 0; bit < 8 * VR_TRAILER_BYTES; bit++) {
        trailer[bit / 8] ^= (uint8_t)(1U << bit % 8);
        CHECK_EQ(vr_trailer_check(keys, header, trailer, NOW_S), VR_TRAILER_FORGED);
        trailer[bit / 8] ^= (uint8_t)(1U << bit % 8);
    }
    for (unsigned bit = 0; bit < 8 * VR_SPP_BYTES; bit++) {
        header[bit / 8] ^= (uint8_t)(1U << bit % 8);
        CHECK_EQ(vr_trailer_check(keys, header, trailer, NOW_S), VR_TRAILER_FORGED);
        header[bit / 8] ^= (uint8_t)(1U << bit % 8);
    }
    vr_trailer_keys_free(keys);
}

TEST(thirty_seconds_either_way) {
    struct vr_trailer_keys *keys = keys_of(FIRST, NULL);
    uint8_t trailer[VR_TRAILER_BYTES];
    CHECK(vr_trailer_write(keys, header, NOW_S, trailer));
    CHECK_EQ(vr_trailer_check(keys, header, trailer, NOW_S + 30), VR_TRAILER_OK);
    CHECK_EQ(vr_trailer_check(keys, header, trailer, NOW_S - 30), VR_TRAILER_OK);
    CHECK_EQ(vr_trailer_check(keys, header, trailer, NOW_S + 31), VR_TRAILER_STALE);
    CHECK_EQ(vr_trailer_check(keys, header, trailer, NOW_S - 31), VR_TRAILER_STALE);
    CHECK_EQ(vr_trailer_check(keys, header, trailer, 0), VR_TRAILER_STALE);
    CHECK(vr_trailer_write(keys, header, UINT64_MAX, trailer));
    CHECK_EQ(vr_trailer_check(keys, header, trailer, 5), VR_TRAILER_STALE);
    vr_trailer_keys_free(keys);
}

TEST(the_first_key_signs_and_all_verify) {
    struct vr_trailer_keys *old = keys_of(FIRST, NULL), *both = keys_of(FIRST, SECOND);
    struct vr_trailer_keys *turned = keys_of(SECOND, FIRST), *new = keys_of(SECOND, NULL);
    uint8_t trailer[VR_TRAILER_BYTES];
    CASE("a second key is added everywhere");
    CHECK(vr_trailer_write(both, header, NOW_S, trailer));
    CHECK_EQ(vr_trailer_check(old, header, trailer, NOW_S), VR_TRAILER_OK);
    CASE("then it comes first");
    CHECK(vr_trailer_write(turned, header, NOW_S, trailer));
    CHECK_EQ(vr_trailer_check(both, header, trailer, NOW_S), VR_TRAILER_OK);
    CHECK_EQ(vr_trailer_check(old, header, trailer, NOW_S), VR_TRAILER_FORGED);
    CASE("then the old one goes");
    CHECK_EQ(vr_trailer_check(new, header, trailer, NOW_S), VR_TRAILER_OK);
    CASE("a set is full");
    CHECK_EQ(vr_trailer_keys_add(both, FIRST), 0);
    CHECK_EQ(vr_trailer_keys_add(both, FIRST), 0);
    CHECK_EQ(vr_trailer_keys_add(both, FIRST), -ENOSPC);
    CASE("an empty one signs and accepts nothing");
    struct vr_trailer_keys *none = keys_of(NULL, NULL);
    CHECK(!vr_trailer_write(none, header, NOW_S, trailer));
    CHECK_EQ(vr_trailer_check(none, header, trailer, NOW_S), VR_TRAILER_FORGED);
    vr_trailer_keys_free(none);
    vr_trailer_keys_free(old);
    vr_trailer_keys_free(both);
    vr_trailer_keys_free(turned);
    vr_trailer_keys_free(new);
}
