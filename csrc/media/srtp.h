/* srtp.h: SRTP and SRTCP (RFC 3711, RFC 7714) for one direction of one session, in place.
 *
 * 1. All cipher contexts are made by vr_srtp_new; protecting and unprotecting fetch and allocate
 *    nothing. The backend is libcrypto, and this header does not show it.
 * 2. State (rollover counter, replay window) changes only after a packet is authenticated: a forged
 *    packet costs a counter and nothing else.
 * 3. A context serves up to VR_SRTP_STREAMS SSRCs; an authenticated newcomer takes the place of the one
 *    silent longest.
 * 4. No key derivation rate, no MKI, no unencrypted SRTCP: DTLS-SRTP (RFC 5764) as browsers speak it
 *    has none of them. NULL ciphers and 32-bit tags are not offered.
 * 5. A context is used by one thread at a time.
 */
#ifndef VR_SRTP_H
#define VR_SRTP_H

#include <stddef.h>
#include <stdint.h>

/* The DTLS-SRTP protection profile numbers (RFC 5764 4.1.2, RFC 7714 14.2). */
enum vr_srtp_profile {
    VR_SRTP_AES128_CM_SHA1_80 = 0x0001,
    VR_SRTP_AEAD_AES_128_GCM = 0x0007,
    VR_SRTP_AEAD_AES_256_GCM = 0x0008,
};

enum {
    VR_SRTP_STREAMS = 8,
    VR_SRTP_KEY_BYTES_MAX = 32,
    VR_SRTP_SALT_BYTES_MAX = 14,
    VR_SRTP_GROWTH_BYTES = 24, /* what protecting adds at most: a tag, and the SRTCP index */
    VR_SRTP_REPLAY_PACKETS = 128,
};

enum vr_srtp_status {
    VR_SRTP_OK = 0,
    VR_SRTP_SHORT,     /* no room for header and tag, or the header is not RTP or RTCP */
    VR_SRTP_REPLAYED,  /* this index came before */
    VR_SRTP_OLD,       /* older than the replay window */
    VR_SRTP_FORGED,    /* the tag differs: other key, or altered on the way */
    VR_SRTP_CLEAR,     /* SRTCP without encryption */
    VR_SRTP_EXHAUSTED, /* protect: 2^48 RTP or 2^31 RTCP packets under one key (RFC 3711 9.2) */
    VR_SRTP_CAPACITY,  /* protect: the buffer has no room for what is added */
    VR_SRTP_STATUS_COUNT,
};

struct vr_srtp;

/* Length of master key and master salt of a profile; 0 for one that is not supported. */
size_t vr_srtp_key_bytes(unsigned profile);
size_t vr_srtp_salt_bytes(unsigned profile);

/* NULL when the profile is not supported or memory is short. */
struct vr_srtp *vr_srtp_new(unsigned profile, const uint8_t *master_key,
                            const uint8_t *master_salt);
void vr_srtp_free(struct vr_srtp *srtp); /* wipes the keys */

/* Both write `*bytes` only upon VR_SRTP_OK. A buffer that fails to authenticate holds garbage. */
enum vr_srtp_status vr_srtp_unprotect(struct vr_srtp *srtp, uint8_t *packet, size_t *bytes);
enum vr_srtp_status vr_srtp_unprotect_rtcp(struct vr_srtp *srtp, uint8_t *packet, size_t *bytes);

/* Sequence numbers of one SSRC must not go back by more than the replay window. */
enum vr_srtp_status vr_srtp_protect(struct vr_srtp *srtp, uint8_t *packet, size_t *bytes,
                                    size_t capacity_bytes);
enum vr_srtp_status vr_srtp_protect_rtcp(struct vr_srtp *srtp, uint8_t *packet, size_t *bytes,
                                         size_t capacity_bytes);

/* The session key that the key derivation of RFC 3711 4.3 gives for `label`; for tests and tools.
 * 0, or -EINVAL for an unknown profile, -ENOMEM. */
int vr_srtp_derive(unsigned profile, const uint8_t *master_key, const uint8_t *master_salt,
                   unsigned label, uint8_t *out, size_t out_bytes);

/* The same with session keys given, past the derivation: the packet vectors of RFC 7714 16, 17. */
struct vr_srtp *vr_srtp_new_session_keys(unsigned profile, const uint8_t *key, const uint8_t *salt,
                                         const uint8_t *auth_key);

#endif
