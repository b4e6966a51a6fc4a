/* SRTP against the vectors of RFC 3711 B.2 and B.3, of RFC 7714 16.1, 16.2, 17.1 and 17.2, and against forgery, replay and wraps. */
#include "../../csrc/media/srtp.h"

#include "../../csrc/media/rtp.h"
#include "../../csrc/wire/bytes.h"
#include "check.h"

TEST(key_derivation_vector) { /* RFC 3711 B.3 */
    uint8_t key[16], salt[14], out[32], want[32];
    from_hex("e1f97a0d3e018be0d64fa32c06de4139", key, sizeof key);
    from_hex("0ec675ad498afeebb6960b3aabe6", salt, sizeof salt);
    static const struct {
        unsigned label;
        const char *hex;
    } vectors[] = {
        {0, "c61e7a93744f39ee10734afe3ff7a087"},
        {2, "30cbbc08863d8c85d49db34a9ae1"},
        {1, "cebe321f6ff7716b6fd4ab49af256a156d38baa48f0a0acf3c34e2359e6cdbce"},
    };
    for (size_t i = 0; i < 3; i++) {
        size_t n = from_hex(vectors[i].hex, want, sizeof want);
        CHECK(vr_srtp_derive(VR_SRTP_AES128_CM_SHA1_80, key, salt, vectors[i].label, out, n) == 0);
        CHECK(memcmp(out, want, n) == 0);
    }
    CHECK(vr_srtp_derive(0x0005, key, salt, 0, out, 16) != 0);
}

static const char gcm_plain[] = "8040f17b8041f8d35501a0b247616c6c696120657374206f6d6e697320646976"
                                "69736120696e207061727465732074726573";
static const char gcm_128[] = "8040f17b8041f8d35501a0b2f24de3a3fb34de6cacba861c9d7e4bcabe633bd50d29"
                              "4e6f42a5f47a51c7d19b36de3adf"
                              "8833899d7f27beb16a9152cf765ee4390cce";
static const char gcm_256[] = "8040f17b8041f8d35501a0b232b1de78a822fe12ef9f78fa332e33aab18012389a58"
                              "e2f3b50b2a0276ffae0f1ba63799"
                              "b87b7aa3db36dfffd6b0f9bb7878d7a76c13";

static struct vr_srtp *rfc7714(unsigned profile) {
    uint8_t key[32], salt[12];
    from_hex("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f", key, sizeof key);
    from_hex("517569642070726f2071756f", salt, sizeof salt);
    return vr_srtp_new_session_keys(profile, key, salt, NULL);
}

TEST(gcm_packet_vectors) { /* RFC 7714 16.1, 16.2 */
    const struct {
        unsigned profile;
        const char *sealed;
    } vectors[] = {{VR_SRTP_AEAD_AES_128_GCM, gcm_128}, {VR_SRTP_AEAD_AES_256_GCM, gcm_256}};
    for (size_t i = 0; i < 2; i++) {
        struct vr_srtp *tx = rfc7714(vectors[i].profile), *rx = rfc7714(vectors[i].profile);
        uint8_t packet[128], sealed[128], plain[128];
        size_t bytes = from_hex(gcm_plain, packet, sizeof packet);
        size_t plain_bytes = from_hex(gcm_plain, plain, sizeof plain);
        size_t sealed_bytes = from_hex(vectors[i].sealed, sealed, sizeof sealed);
        CHECK(vr_srtp_protect(tx, packet, &bytes, sizeof packet) == VR_SRTP_OK);
        CHECK(bytes == sealed_bytes && memcmp(packet, sealed, bytes) == 0);
        CHECK(vr_srtp_unprotect(rx, packet, &bytes) == VR_SRTP_OK);
        CHECK(bytes == plain_bytes && memcmp(packet, plain, bytes) == 0);
        vr_srtp_free(tx);
        vr_srtp_free(rx);
    }
}

static const char gcm_rtcp_plain[] =
    "81c8000d4d6172734e5450314e545032525450200000042a0000e9304c756e61"
    "deadbeefdeadbeefdeadbeefdeadbeefdeadbeef";
static const char gcm_rtcp_128[] =
    "81c8000d4d61727363e94885dcdab67ca727d7662f6b7e997ff5c0f76c06f32dc676a5f1730d6fda"
    "4ce09b4686303ded0bb9275bc84aa45896cf4d2fc5abf87245d9eade800005d4";
static const char gcm_rtcp_256[] =
    "81c8000d4d617273d50ae4d1f5ce5d304ba297e47d470c282c3ece5dbffe0a50a2eaa5c1110555be"
    "8415f658c61de0476f1b6fad1d1eb30c4446839f57ff6f6cb26ac3be800005d4";

TEST(gcm_rtcp_vectors) { /* RFC 7714 17.1, 17.2: index 0x5d4 */
    const struct {
        unsigned profile;
        const char *sealed;
    } vectors[] = {{VR_SRTP_AEAD_AES_128_GCM, gcm_rtcp_128},
                   {VR_SRTP_AEAD_AES_256_GCM, gcm_rtcp_256}};
    for (size_t i = 0; i < 2; i++) {
        struct vr_srtp *tx = rfc7714(vectors[i].profile), *rx = rfc7714(vectors[i].profile);
        uint8_t packet[128], sealed[128], plain[128];
        size_t bytes = 0, sealed_bytes = from_hex(vectors[i].sealed, sealed, sizeof sealed);
        size_t plain_bytes = from_hex(gcm_rtcp_plain, plain, sizeof plain);
        for (unsigned index = 0; index <= 0x5d4; index++) {
            memcpy(packet, plain, bytes = plain_bytes);
            CHECK(vr_srtp_protect_rtcp(tx, packet, &bytes, sizeof packet) == VR_SRTP_OK);
        }
        CHECK(bytes == sealed_bytes && memcmp(packet, sealed, bytes) == 0);
        CHECK(vr_srtp_unprotect_rtcp(rx, packet, &bytes) == VR_SRTP_OK);
        CHECK(bytes == plain_bytes && memcmp(packet, plain, bytes) == 0);
        vr_srtp_free(tx);
        vr_srtp_free(rx);
    }
}

/* RFC 3711 B.2: SSRC, rollover counter and sequence number are 0, so the packet's IV is the salt's. */
TEST(counter_mode_vector) {
    uint8_t key[16], salt[14], packet[12 + 48 + 10] = {0x80}, want[48];
    static const uint8_t auth_key[20];
    from_hex("2b7e151628aed2a6abf7158809cf4f3c", key, sizeof key);
    from_hex("f0f1f2f3f4f5f6f7f8f9fafbfcfd", salt, sizeof salt);
    from_hex("e03ead0935c95e80e166b16dd92b4eb4d23513162b02d0f72a43a2fe4a5f97ab"
             "41e95b3bb0a2e8dd477901e4fca894c0",
             want, sizeof want);
    struct vr_srtp *tx = vr_srtp_new_session_keys(VR_SRTP_AES128_CM_SHA1_80, key, salt, auth_key);
    size_t bytes = 12 + 48;
    CHECK(vr_srtp_protect(tx, packet, &bytes, sizeof packet) == VR_SRTP_OK);
    CHECK(bytes == sizeof packet && memcmp(packet + 12, want, sizeof want) == 0);
    vr_srtp_free(tx);
}

static struct vr_srtp *fresh(unsigned profile, uint8_t seed) {
    uint8_t key[32], salt[14];
    memset(key, seed, sizeof key);
    memset(salt, seed + 1, sizeof salt);
    return vr_srtp_new(profile, key, salt);
}

static size_t make_rtp(uint8_t *out, uint32_t ssrc, uint16_t sequence) {
    struct vr_rtp rtp = {.ssrc = ssrc, .sequence = sequence, .timestamp = 960u * sequence};
    vr_rtp_write_header(out, &rtp);
    for (int i = 0; i < 40; i++)
        out[12 + i] = (uint8_t)(sequence + i);
    return 52;
}

static enum vr_srtp_status pass(struct vr_srtp *tx, struct vr_srtp *rx, uint32_t ssrc,
                                uint16_t seq) {
    uint8_t packet[128], plain[128];
    size_t bytes = make_rtp(packet, ssrc, seq), plain_bytes = make_rtp(plain, ssrc, seq);
    CHECK(vr_srtp_protect(tx, packet, &bytes, sizeof packet) == VR_SRTP_OK);
    CHECK(memcmp(packet + 12, plain + 12, 40) != 0);
    enum vr_srtp_status status = vr_srtp_unprotect(rx, packet, &bytes);
    if (status == VR_SRTP_OK)
        CHECK(bytes == plain_bytes && memcmp(packet, plain, bytes) == 0);
    return status;
}

static const unsigned all[] = {VR_SRTP_AES128_CM_SHA1_80, VR_SRTP_AEAD_AES_128_GCM,
                               VR_SRTP_AEAD_AES_256_GCM};

static void wraps_and_reordering_with(unsigned profile) {
    struct vr_srtp *tx = fresh(profile, 1), *rx = fresh(profile, 1);
    /* 3 * 65536 packets over three wraps, in steps: the rollover counter follows */
    for (uint32_t i = 60000; i < 3 * 65536u; i += 97)
        CHECK(pass(tx, rx, 5, (uint16_t)i) == VR_SRTP_OK);
    /* a packet before and one after a wrap change places */
    uint8_t a[128], b[128];
    size_t a_bytes, b_bytes;
    for (uint32_t i = 3 * 65536u; i < 4 * 65536u - 1; i += 97)
        CHECK(pass(tx, rx, 5, (uint16_t)i) == VR_SRTP_OK);
    a_bytes = make_rtp(a, 5, 65535);
    b_bytes = make_rtp(b, 5, 0);
    CHECK(vr_srtp_protect(tx, a, &a_bytes, sizeof a) == VR_SRTP_OK);
    CHECK(vr_srtp_protect(tx, b, &b_bytes, sizeof b) == VR_SRTP_OK);
    CHECK(vr_srtp_unprotect(rx, b, &b_bytes) == VR_SRTP_OK);
    CHECK(vr_srtp_unprotect(rx, a, &a_bytes) == VR_SRTP_OK);
    vr_srtp_free(tx);
    vr_srtp_free(rx);
}

static void replay_and_age_with(unsigned profile) {
    struct vr_srtp *tx = fresh(profile, 1), *rx = fresh(profile, 1);
    uint8_t old[300][128], copy[128];
    size_t bytes[300];
    for (uint16_t i = 0; i < 300; i++) {
        bytes[i] = make_rtp(old[i], 5, i);
        CHECK(vr_srtp_protect(tx, old[i], &bytes[i], sizeof old[i]) == VR_SRTP_OK);
    }
    const struct {
        uint16_t packet;
        enum vr_srtp_status status;
    } order[] = {{0, VR_SRTP_OK},         {0, VR_SRTP_REPLAYED}, {2, VR_SRTP_OK},
                 {1, VR_SRTP_OK},         {1, VR_SRTP_REPLAYED}, {130, VR_SRTP_OK},
                 {3, VR_SRTP_OK},         {2, VR_SRTP_OLD},      {3, VR_SRTP_REPLAYED},
                 {194, VR_SRTP_OK},       {66, VR_SRTP_OLD},     {67, VR_SRTP_OK},
                 {130, VR_SRTP_REPLAYED}, {299, VR_SRTP_OK},     {194, VR_SRTP_REPLAYED}};
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        size_t n = bytes[order[i].packet];
        memcpy(copy, old[order[i].packet], n);
        CHECK(vr_srtp_unprotect(rx, copy, &n) == order[i].status);
    }
    /* sending an index twice would give the key stream away */
    uint8_t again[128];
    size_t n = make_rtp(again, 5, 299);
    CHECK(vr_srtp_protect(tx, again, &n, sizeof again) == VR_SRTP_REPLAYED);
    vr_srtp_free(tx);
    vr_srtp_free(rx);
}

static void forgery_changes_nothing_with(unsigned profile) {
    struct vr_srtp *tx = fresh(profile, 1), *rx = fresh(profile, 1), *foreign = fresh(profile, 9);
    uint8_t packet[128], copy[128];
    size_t bytes = make_rtp(packet, 5, 10), n;
    CHECK(vr_srtp_protect(tx, packet, &bytes, sizeof packet) == VR_SRTP_OK);
    for (size_t bit = 0; bit < 8 * bytes; bit++) {
        memcpy(copy, packet, bytes);
        copy[bit / 8] ^= (uint8_t)(1 << bit % 8);
        n = bytes;
        enum vr_srtp_status status = vr_srtp_unprotect(rx, copy, &n);
        CHECK(status == VR_SRTP_FORGED || status == VR_SRTP_SHORT);
    }
    for (n = 0; n < bytes; n++) {
        uint8_t *data = guard_copy(packet, n);
        size_t m = n;
        CHECK(vr_srtp_unprotect(rx, data, &m) != VR_SRTP_OK);
        m = n;
        CHECK(vr_srtp_unprotect_rtcp(rx, data, &m) != VR_SRTP_OK);
    }
    /* forged packets far ahead do not move the window */
    CHECK(pass(foreign, rx, 5, 30000) == VR_SRTP_FORGED);
    n = bytes;
    memcpy(copy, packet, bytes);
    CHECK(vr_srtp_unprotect(rx, copy, &n) == VR_SRTP_OK);
    vr_srtp_free(tx);
    vr_srtp_free(rx);
    vr_srtp_free(foreign);
}

static void rtcp_round_trip_with(unsigned profile) {
    struct vr_srtp *tx = fresh(profile, 1), *rx = fresh(profile, 1);
    uint8_t plain[128], packet[128];
    size_t plain_bytes =
        from_hex("80c90001000000aa81ca0002000000aa0101610000", plain, sizeof plain) - 1;
    for (int i = 0; i < 300; i++) {
        size_t bytes = plain_bytes;
        memcpy(packet, plain, bytes);
        CHECK(vr_srtp_protect_rtcp(tx, packet, &bytes, sizeof packet) == VR_SRTP_OK);
        CHECK(bytes == plain_bytes + (profile == VR_SRTP_AES128_CM_SHA1_80 ? 14 : 20));
        uint8_t copy[128];
        size_t n = bytes;
        memcpy(copy, packet, bytes);
        copy[12] ^= 1;
        CHECK(vr_srtp_unprotect_rtcp(rx, copy, &n) == VR_SRTP_FORGED);
        n = bytes;
        memcpy(copy, packet, bytes);
        copy[profile == VR_SRTP_AES128_CM_SHA1_80 ? bytes - 14 : bytes - 4] &= 0x7f;
        CHECK(vr_srtp_unprotect_rtcp(rx, copy, &n) == VR_SRTP_CLEAR);
        memcpy(copy, packet, bytes);
        n = bytes;
        CHECK(vr_srtp_unprotect_rtcp(rx, copy, &n) == VR_SRTP_OK);
        CHECK(n == plain_bytes && memcmp(copy, plain, n) == 0);
        n = bytes;
        CHECK(vr_srtp_unprotect_rtcp(rx, packet, &n) == VR_SRTP_REPLAYED);
    }
    vr_srtp_free(tx);
    vr_srtp_free(rx);
}

static void many_streams_with(unsigned profile) {
    struct vr_srtp *tx[20], *rx = fresh(profile, 1);
    for (uint32_t i = 0; i < 20; i++) {
        tx[i] = fresh(profile, 1);
        CHECK(pass(tx[i], rx, i, 7) == VR_SRTP_OK);
        CHECK(pass(tx[0], rx, 1000, (uint16_t)(i + 1)) == VR_SRTP_OK); /* stays, for it speaks */
    }
    uint8_t packet[128];
    size_t bytes = make_rtp(packet, 19, 8);
    CHECK(vr_srtp_protect(tx[19], packet, &bytes, bytes) == VR_SRTP_CAPACITY);
    for (int i = 0; i < 20; i++)
        vr_srtp_free(tx[i]);
    vr_srtp_free(rx);
}

TEST(wraps_and_reordering) {
    for (size_t i = 0; i < 3; i++)
        wraps_and_reordering_with(all[i]);
}

TEST(replay_and_age) {
    for (size_t i = 0; i < 3; i++)
        replay_and_age_with(all[i]);
}

TEST(forgery_changes_nothing) {
    for (size_t i = 0; i < 3; i++)
        forgery_changes_nothing_with(all[i]);
}

TEST(rtcp_round_trip) {
    for (size_t i = 0; i < 3; i++)
        rtcp_round_trip_with(all[i]);
}

TEST(many_streams) {
    for (size_t i = 0; i < 3; i++)
        many_streams_with(all[i]);
}

/* C10: what browsers may offer and we do not take. */
TEST(other_profiles_are_refused) {
    CHECK(fresh(0x0002, 1) == NULL && fresh(0x0005, 1) == NULL);
    CHECK(vr_srtp_key_bytes(0x0006) == 0);
}
