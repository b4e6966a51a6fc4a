#include "srtp.h"

#include "../wire/bytes.h"
#include "hmac.h"
#include "rtcp.h"
#include "rtp.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

enum {
    GCM_TAG_BYTES = 16,
    SHA1_TAG_BYTES = 10,
    AUTH_KEY_BYTES = 20,
    INDEX_BYTES = 4, /* E flag and SRTCP index */
    RTCP_INDEX_MAX = 0x7fffffff,
};

struct profile {
    unsigned id;
    uint8_t key_bytes;
    uint8_t salt_bytes;
    uint8_t tag_bytes;
};

static const struct profile profiles[] = {
    {VR_SRTP_AES128_CM_SHA1_80, 16, 14, SHA1_TAG_BYTES},
    {VR_SRTP_AEAD_AES_128_GCM, 16, 12, GCM_TAG_BYTES},
    {VR_SRTP_AEAD_AES_256_GCM, 32, 12, GCM_TAG_BYTES},
};

/* What the packets of one protocol are made with. */
struct keys {
    EVP_CIPHER_CTX *cipher;
    uint8_t salt[VR_SRTP_SALT_BYTES_MAX];
    struct vr_hmac hmac; /* AES-CM only */
};

/* Packets behind `highest` that came: bit i of the 128 is index highest - i. */
struct window {
    uint64_t highest;
    uint64_t seen[VR_SRTP_REPLAY_PACKETS / 64];
    bool started;
};

struct stream {
    uint32_t ssrc;
    bool used;
    uint64_t used_at; /* counts packets: the smallest gives way */
    struct window rtp;
    struct window rtcp;
    uint32_t rtcp_next; /* index of the next SRTCP packet that we protect */
};

struct vr_srtp {
    const struct profile *profile;
    bool gcm;
    uint64_t packets;
    struct keys rtp;
    struct keys rtcp;
    struct stream streams[VR_SRTP_STREAMS];
};

static const struct profile *find_profile(unsigned id) {
    for (size_t i = 0; i < sizeof profiles / sizeof profiles[0]; i++)
        if (profiles[i].id == id)
            return &profiles[i];
    return NULL;
}

size_t vr_srtp_key_bytes(unsigned profile) {
    const struct profile *p = find_profile(profile);
    return p ? p->key_bytes : 0;
}

size_t vr_srtp_salt_bytes(unsigned profile) {
    const struct profile *p = find_profile(profile);
    return p ? p->salt_bytes : 0;
}

/* --- replay window (RFC 3711 3.3.2) ------------------------------------------------------- */

static enum vr_srtp_status window_check(const struct window *w, uint64_t index) {
    if (!w->started || index > w->highest)
        return VR_SRTP_OK;
    uint64_t behind = w->highest - index;
    if (behind >= VR_SRTP_REPLAY_PACKETS)
        return VR_SRTP_OLD;
    return w->seen[behind / 64] >> (behind % 64) & 1 ? VR_SRTP_REPLAYED : VR_SRTP_OK;
}

static void window_add(struct window *w, uint64_t index) {
    if (!w->started) {
        *w = (struct window){.highest = index, .seen = {1, 0}, .started = true};
        return;
    }
    if (index <= w->highest) {
        uint64_t behind = w->highest - index;
        w->seen[behind / 64] |= (uint64_t)1 << (behind % 64);
        return;
    }
    uint64_t shift = index - w->highest;
    if (shift >= 128)
        w->seen[0] = w->seen[1] = 0;
    else if (shift >= 64) {
        w->seen[1] = w->seen[0] << (shift - 64);
        w->seen[0] = 0;
    } else {
        w->seen[1] = w->seen[1] << shift | w->seen[0] >> (64 - shift);
        w->seen[0] <<= shift;
    }
    w->seen[0] |= 1;
    w->highest = index;
}

/* RFC 3711 3.3.1, appendix A: the index that lies nearest to the highest one. */
static uint64_t guess_index(const struct window *w, uint16_t sequence) {
    if (!w->started)
        return sequence;
    uint64_t candidate = (w->highest & ~(uint64_t)0xffff) | sequence;
    if (candidate + 0x8000 < w->highest)
        return candidate + 0x10000;
    if (candidate > w->highest + 0x8000 && candidate >= 0x10000)
        return candidate - 0x10000;
    return candidate;
}

static struct stream *find_stream(struct vr_srtp *srtp, uint32_t ssrc) {
    for (int i = 0; i < VR_SRTP_STREAMS; i++)
        if (srtp->streams[i].used && srtp->streams[i].ssrc == ssrc)
            return &srtp->streams[i];
    return NULL;
}

/* The stream of an authenticated packet. */
static struct stream *touch_stream(struct vr_srtp *srtp, uint32_t ssrc) {
    struct stream *stream = find_stream(srtp, ssrc);
    if (stream == NULL) {
        stream = &srtp->streams[0];
        for (int i = 0; i < VR_SRTP_STREAMS && stream->used; i++)
            if (!srtp->streams[i].used || srtp->streams[i].used_at < stream->used_at)
                stream = &srtp->streams[i];
        *stream = (struct stream){.ssrc = ssrc, .used = true};
    }
    stream->used_at = ++srtp->packets;
    return stream;
}

/* --- ciphers ------------------------------------------------------------------------------- */

static const EVP_CIPHER *cipher_of(const struct profile *profile) {
    switch (profile->id) {
    case VR_SRTP_AEAD_AES_128_GCM:
        return EVP_aes_128_gcm();
    case VR_SRTP_AEAD_AES_256_GCM:
        return EVP_aes_256_gcm();
    default:
        return EVP_aes_128_ctr();
    }
}

/* RFC 7714 8.1 and 9.1, RFC 3711 4.1.1. RTP: 48-bit index; RTCP: the 31-bit one. */
static void make_iv(const struct vr_srtp *srtp, const struct keys *keys, uint32_t ssrc,
                    uint64_t index, uint8_t iv[16]) {
    memset(iv, 0, 16);
    if (srtp->gcm) {
        vr_store_be32(iv + 2, ssrc);
        vr_store_be16(iv + 6, (uint16_t)(index >> 32));
        vr_store_be32(iv + 8, (uint32_t)index);
    } else {
        vr_store_be32(iv + 4, ssrc);
        vr_store_be16(iv + 8, (uint16_t)(index >> 32));
        vr_store_be32(iv + 10, (uint32_t)index);
    }
    for (int i = 0; i < srtp->profile->salt_bytes; i++)
        iv[i] ^= keys->salt[i];
}

/* AEAD over [aad | extra] and `text` in place; `tag` is written or compared. */
struct aead {
    const uint8_t *aad;
    size_t aad_bytes;
    const uint8_t *extra; /* the SRTCP index word; NULL for RTP */
    uint8_t *text;
    size_t text_bytes;
    uint8_t *tag;
};

static bool gcm_run(EVP_CIPHER_CTX *cipher, const uint8_t *iv, const struct aead *a, int encrypt) {
    int n;
    if (!EVP_CipherInit_ex(cipher, NULL, NULL, NULL, iv, encrypt))
        return false;
    if (!encrypt && !EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_AEAD_SET_TAG, GCM_TAG_BYTES, a->tag))
        return false;
    if (!EVP_CipherUpdate(cipher, NULL, &n, a->aad, (int)a->aad_bytes))
        return false;
    if (a->extra != NULL && !EVP_CipherUpdate(cipher, NULL, &n, a->extra, INDEX_BYTES))
        return false;
    if (a->text_bytes != 0 && !EVP_CipherUpdate(cipher, a->text, &n, a->text, (int)a->text_bytes))
        return false;
    uint8_t none[16];
    if (EVP_CipherFinal_ex(cipher, none, &n) <= 0)
        return false;
    return !encrypt || EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_AEAD_GET_TAG, GCM_TAG_BYTES, a->tag);
}

static bool ctr_run(EVP_CIPHER_CTX *cipher, const uint8_t *iv, uint8_t *text, size_t bytes) {
    int n;
    return EVP_CipherInit_ex(cipher, NULL, NULL, NULL, iv, 1) &&
           (bytes == 0 || EVP_CipherUpdate(cipher, text, &n, text, (int)bytes));
}

/* RFC 3711 4.2: RTP authenticates the rollover counter too, RTCP carries its index. */
static void sha1_tag(struct keys *keys, const uint8_t *data, size_t bytes, const uint32_t *roc,
                     uint8_t out[VR_HMAC_BYTES]) {
    vr_hmac_begin(&keys->hmac);
    vr_hmac_add(&keys->hmac, data, bytes);
    if (roc != NULL) {
        uint8_t word[4];
        vr_store_be32(word, *roc);
        vr_hmac_add(&keys->hmac, word, 4);
    }
    vr_hmac_end(&keys->hmac, out);
}

/* --- receiving ------------------------------------------------------------------------------- */

enum vr_srtp_status vr_srtp_unprotect(struct vr_srtp *srtp, uint8_t *packet, size_t *bytes) {
    struct vr_rtp rtp;
    size_t tag_bytes = srtp->profile->tag_bytes;
    if (*bytes < tag_bytes || vr_rtp_read_header(packet, *bytes - tag_bytes, &rtp) != VR_RTP_OK)
        return VR_SRTP_SHORT;
    static const struct window fresh;
    struct stream *stream = find_stream(srtp, rtp.ssrc);
    const struct window *window = stream ? &stream->rtp : &fresh;
    uint64_t index = guess_index(window, rtp.sequence);
    enum vr_srtp_status status = window_check(window, index);
    if (status != VR_SRTP_OK)
        return status;

    uint8_t iv[16];
    make_iv(srtp, &srtp->rtp, rtp.ssrc, index, iv);
    size_t clear_bytes = *bytes - tag_bytes;
    uint8_t *text = packet + rtp.header_bytes;
    size_t text_bytes = clear_bytes - rtp.header_bytes;
    if (srtp->gcm) {
        struct aead a = {packet, rtp.header_bytes, NULL, text, text_bytes, packet + clear_bytes};
        if (!gcm_run(srtp->rtp.cipher, iv, &a, 0))
            return VR_SRTP_FORGED;
    } else {
        uint8_t tag[VR_HMAC_BYTES];
        uint32_t roc = (uint32_t)(index >> 16);
        sha1_tag(&srtp->rtp, packet, clear_bytes, &roc, tag);
        if (!vr_hmac_equal(tag, packet + clear_bytes, tag_bytes) ||
            !ctr_run(srtp->rtp.cipher, iv, text, text_bytes))
            return VR_SRTP_FORGED;
    }
    window_add(&touch_stream(srtp, rtp.ssrc)->rtp, index);
    *bytes = clear_bytes;
    return VR_SRTP_OK;
}

enum vr_srtp_status vr_srtp_unprotect_rtcp(struct vr_srtp *srtp, uint8_t *packet, size_t *bytes) {
    size_t tag_bytes = srtp->profile->tag_bytes;
    if (*bytes < VR_RTCP_HEADER_BYTES + tag_bytes + INDEX_BYTES || packet[0] >> 6 != 2)
        return VR_SRTP_SHORT;
    /* GCM: text, tag, index word (RFC 7714 9.2); CM: text, index word, tag (RFC 3711 3.4) */
    uint8_t *word = packet + *bytes - INDEX_BYTES - (srtp->gcm ? 0 : tag_bytes);
    uint32_t index = vr_load_be32(word) & RTCP_INDEX_MAX;
    if (!(word[0] & 0x80))
        return VR_SRTP_CLEAR;
    uint32_t ssrc = vr_load_be32(packet + 4);
    struct stream *stream = find_stream(srtp, ssrc);
    enum vr_srtp_status status = stream ? window_check(&stream->rtcp, index) : VR_SRTP_OK;
    if (status != VR_SRTP_OK)
        return status;

    uint8_t iv[16];
    make_iv(srtp, &srtp->rtcp, ssrc, index, iv);
    size_t clear_bytes = *bytes - tag_bytes - INDEX_BYTES;
    uint8_t *text = packet + VR_RTCP_HEADER_BYTES;
    size_t text_bytes = clear_bytes - VR_RTCP_HEADER_BYTES;
    if (srtp->gcm) {
        struct aead a = {packet, VR_RTCP_HEADER_BYTES, word,
                         text,   text_bytes,           packet + clear_bytes};
        if (!gcm_run(srtp->rtcp.cipher, iv, &a, 0))
            return VR_SRTP_FORGED;
    } else {
        uint8_t tag[VR_HMAC_BYTES];
        sha1_tag(&srtp->rtcp, packet, clear_bytes + INDEX_BYTES, NULL, tag);
        if (!vr_hmac_equal(tag, word + INDEX_BYTES, tag_bytes) ||
            !ctr_run(srtp->rtcp.cipher, iv, text, text_bytes))
            return VR_SRTP_FORGED;
    }
    window_add(&touch_stream(srtp, ssrc)->rtcp, index);
    *bytes = clear_bytes;
    return VR_SRTP_OK;
}

/* --- sending --------------------------------------------------------------------------------- */

enum vr_srtp_status vr_srtp_protect(struct vr_srtp *srtp, uint8_t *packet, size_t *bytes,
                                    size_t capacity_bytes) {
    struct vr_rtp rtp;
    size_t tag_bytes = srtp->profile->tag_bytes;
    if (vr_rtp_read_header(packet, *bytes, &rtp) != VR_RTP_OK)
        return VR_SRTP_SHORT;
    if (capacity_bytes < *bytes + tag_bytes)
        return VR_SRTP_CAPACITY;
    struct stream *stream = touch_stream(srtp, rtp.ssrc);
    uint64_t index = guess_index(&stream->rtp, rtp.sequence);
    if (index >> 48)
        return VR_SRTP_EXHAUSTED;
    /* an index used twice would give away the key stream (RFC 3711 9.1) */
    enum vr_srtp_status status = window_check(&stream->rtp, index);
    if (status != VR_SRTP_OK)
        return status;

    uint8_t iv[16];
    make_iv(srtp, &srtp->rtp, rtp.ssrc, index, iv);
    uint8_t *text = packet + rtp.header_bytes;
    size_t text_bytes = *bytes - rtp.header_bytes;
    if (srtp->gcm) {
        struct aead a = {packet, rtp.header_bytes, NULL, text, text_bytes, packet + *bytes};
        if (!gcm_run(srtp->rtp.cipher, iv, &a, 1))
            return VR_SRTP_FORGED;
    } else {
        uint8_t tag[VR_HMAC_BYTES];
        uint32_t roc = (uint32_t)(index >> 16);
        if (!ctr_run(srtp->rtp.cipher, iv, text, text_bytes))
            return VR_SRTP_FORGED;
        sha1_tag(&srtp->rtp, packet, *bytes, &roc, tag);
        memcpy(packet + *bytes, tag, tag_bytes);
    }
    window_add(&stream->rtp, index);
    *bytes += tag_bytes;
    return VR_SRTP_OK;
}

enum vr_srtp_status vr_srtp_protect_rtcp(struct vr_srtp *srtp, uint8_t *packet, size_t *bytes,
                                         size_t capacity_bytes) {
    size_t tag_bytes = srtp->profile->tag_bytes;
    if (*bytes < VR_RTCP_HEADER_BYTES)
        return VR_SRTP_SHORT;
    if (capacity_bytes < *bytes + tag_bytes + INDEX_BYTES)
        return VR_SRTP_CAPACITY;
    uint32_t ssrc = vr_load_be32(packet + 4);
    struct stream *stream = touch_stream(srtp, ssrc);
    if (stream->rtcp_next > RTCP_INDEX_MAX)
        return VR_SRTP_EXHAUSTED;

    uint8_t iv[16], word[INDEX_BYTES];
    make_iv(srtp, &srtp->rtcp, ssrc, stream->rtcp_next, iv);
    vr_store_be32(word, stream->rtcp_next | 0x80000000u);
    uint8_t *text = packet + VR_RTCP_HEADER_BYTES;
    size_t text_bytes = *bytes - VR_RTCP_HEADER_BYTES;
    if (srtp->gcm) {
        struct aead a = {packet, VR_RTCP_HEADER_BYTES, word, text, text_bytes, packet + *bytes};
        if (!gcm_run(srtp->rtcp.cipher, iv, &a, 1))
            return VR_SRTP_FORGED;
        memcpy(packet + *bytes + tag_bytes, word, INDEX_BYTES);
    } else {
        uint8_t tag[VR_HMAC_BYTES];
        if (!ctr_run(srtp->rtcp.cipher, iv, text, text_bytes))
            return VR_SRTP_FORGED;
        memcpy(packet + *bytes, word, INDEX_BYTES);
        sha1_tag(&srtp->rtcp, packet, *bytes + INDEX_BYTES, NULL, tag);
        memcpy(packet + *bytes + INDEX_BYTES, tag, tag_bytes);
    }
    stream->rtcp_next++;
    *bytes += tag_bytes + INDEX_BYTES;
    return VR_SRTP_OK;
}

/* --- making ---------------------------------------------------------------------------------- */

int vr_srtp_derive(unsigned profile_id, const uint8_t *master_key, const uint8_t *master_salt,
                   unsigned label, uint8_t *out, size_t out_bytes) {
    const struct profile *profile = find_profile(profile_id);
    if (profile == NULL)
        return -EINVAL;
    /* RFC 3711 4.3.3: AES-CM over zeros, IV = (salt XOR label * 2^48) * 2^16; a 96-bit salt has
     * zeros behind it (RFC 7714 11). */
    uint8_t iv[16] = {0};
    memcpy(iv, master_salt, profile->salt_bytes);
    iv[7] ^= (uint8_t)label;
    EVP_CIPHER_CTX *cipher = EVP_CIPHER_CTX_new();
    const EVP_CIPHER *ctr = profile->key_bytes == 32 ? EVP_aes_256_ctr() : EVP_aes_128_ctr();
    memset(out, 0, out_bytes);
    bool made = cipher != NULL && EVP_CipherInit_ex(cipher, ctr, NULL, master_key, iv, 1) &&
                ctr_run(cipher, iv, out, out_bytes);
    EVP_CIPHER_CTX_free(cipher);
    return made ? 0 : -ENOMEM;
}

static bool make_keys(const struct vr_srtp *srtp, struct keys *keys, const uint8_t *key,
                      const uint8_t *salt, const uint8_t *auth_key) {
    memcpy(keys->salt, salt, srtp->profile->salt_bytes);
    keys->cipher = EVP_CIPHER_CTX_new();
    if (keys->cipher == NULL ||
        !EVP_CipherInit_ex(keys->cipher, cipher_of(srtp->profile), NULL, key, NULL, 1))
        return false;
    return srtp->gcm || vr_hmac_init(&keys->hmac, auth_key, AUTH_KEY_BYTES) == 0;
}

static struct vr_srtp *new_empty(unsigned profile_id) {
    const struct profile *profile = find_profile(profile_id);
    struct vr_srtp *srtp = profile ? calloc(1, sizeof *srtp) : NULL;
    if (srtp == NULL)
        return NULL;
    srtp->profile = profile;
    srtp->gcm = profile_id != VR_SRTP_AES128_CM_SHA1_80;
    return srtp;
}

struct vr_srtp *vr_srtp_new_session_keys(unsigned profile, const uint8_t *key, const uint8_t *salt,
                                         const uint8_t *auth_key) {
    struct vr_srtp *srtp = new_empty(profile);
    if (srtp != NULL && make_keys(srtp, &srtp->rtp, key, salt, auth_key) &&
        make_keys(srtp, &srtp->rtcp, key, salt, auth_key))
        return srtp;
    vr_srtp_free(srtp);
    return NULL;
}

struct vr_srtp *vr_srtp_new(unsigned profile_id, const uint8_t *master_key,
                            const uint8_t *master_salt) {
    struct vr_srtp *srtp = new_empty(profile_id);
    if (srtp == NULL)
        return NULL;
    /* RFC 3711 4.3.1: labels 0, 1, 2 for RTP, 3, 4, 5 for RTCP */
    struct keys *both[2] = {&srtp->rtp, &srtp->rtcp};
    bool made = true;
    for (unsigned i = 0; i < 2 && made; i++) {
        uint8_t key[VR_SRTP_KEY_BYTES_MAX], auth_key[AUTH_KEY_BYTES], salt[VR_SRTP_SALT_BYTES_MAX];
        made = vr_srtp_derive(profile_id, master_key, master_salt, 3 * i, key,
                              srtp->profile->key_bytes) == 0 &&
               vr_srtp_derive(profile_id, master_key, master_salt, 3 * i + 1, auth_key,
                              sizeof auth_key) == 0 &&
               vr_srtp_derive(profile_id, master_key, master_salt, 3 * i + 2, salt,
                              srtp->profile->salt_bytes) == 0 &&
               make_keys(srtp, both[i], key, salt, auth_key);
        OPENSSL_cleanse(key, sizeof key);
        OPENSSL_cleanse(auth_key, sizeof auth_key);
    }
    if (made)
        return srtp;
    vr_srtp_free(srtp);
    return NULL;
}

void vr_srtp_free(struct vr_srtp *srtp) {
    if (srtp == NULL)
        return;
    EVP_CIPHER_CTX_free(srtp->rtp.cipher);
    EVP_CIPHER_CTX_free(srtp->rtcp.cipher);
    vr_hmac_free(&srtp->rtp.hmac);
    vr_hmac_free(&srtp->rtcp.hmac);
    OPENSSL_cleanse(srtp, sizeof *srtp);
    free(srtp);
}
