/* ice.h: the ICE-lite agent of one transceiver process, without I/O: checks in, replies and paths out.
 *
 * *Authenticated* means: a check whose MESSAGE-INTEGRITY holds and whose transaction id is new, unreplayed
 * SRTP or SRTCP, or a decrypted DTLS record.
 *
 * 1. Up to 4 sessions share a flow key; every packet that is not STUN is offered to each of them. A
 *    newcomer removes nobody; a session leaves after 30 s without an authenticated packet there, and
 *    a fifth takes the place of the one silent longest.
 * 2. A check is answered only when its USERNAME is exactly ours and its MESSAGE-INTEGRITY holds; everything
 *    else gets silence. A transaction id of the last 60 s that comes back from another flow key is dropped:
 *    a captured check must not move media. From its own flow key it is a retransmission: answered again,
 *    but no proof of anything. At most 16 live flow keys a session are answered. What is left and has an
 *    attribute that must be understood and is not gets 420, what says ICE-CONTROLLED 487, and neither a path.
 * 3. A reply goes to its request's source; everything else to the source of the last authenticated packet
 *    of the session on that flow key.
 * 4. Media goes to the flow key of the newest authenticated SRTP, SRTCP or DTLS, else of the latest
 *    USE-CANDIDATE, else of the first check; never to one without an authenticated packet in the last 10 s.
 * 5. Consent is time (RFC 7675): 30 s without an authenticated packet.
 *
 * tests/support/ice_model.py has the same rules in Python; a property test holds the two together.
 * One thread.
 */
#ifndef VR_ICE_H
#define VR_ICE_H

#include "../wire/addr.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    VR_ICE_SESSIONS_PER_FLOW_KEY = 4,
    VR_ICE_FLOW_KEYS = 16,      /* per session */
    VR_ICE_TRANSACTIONS = 1024, /* remembered per session */
    VR_ICE_REPLY_BYTES = 128,
    VR_ICE_UFRAG_BYTES = 256,
    VR_ICE_PWD_BYTES = 64, /* of ours: what an HMAC-SHA1 block holds */
};

/* Where a datagram came from, which is where a reply goes. */
struct vr_source {
    struct vr_addr peer; /* the relay, or the client itself */
    uint8_t
        local_ip[16]; /* the address that was asked, for sockets bound to a wildcard; else zeros */
    bool direct;      /* came without SPP */
};

struct vr_ice_path {
    struct vr_flow_key key;
    struct vr_source source;
    bool used;
    uint32_t session;
    int32_t next; /* in the same bucket; -1 at its end */
    uint64_t first_check_ns;
    uint64_t authenticated_ns;
    uint64_t nominated_ns; /* 0: never */
    uint64_t media_ns;     /* 0: never */
};

enum vr_ice_status {
    VR_ICE_OK = 0,            /* answered: success */
    VR_ICE_ROLE_CONFLICT,     /* answered: 487 */
    VR_ICE_UNKNOWN_ATTRIBUTE, /* answered: 420 */
    VR_ICE_MALFORMED,         /* not STUN, or a fingerprint that is wrong */
    VR_ICE_NO_CHECK,          /* STUN, but no Binding request with a USERNAME */
    VR_ICE_UNKNOWN_UFRAG,
    VR_ICE_WRONG_USERNAME,
    VR_ICE_WRONG_INTEGRITY,
    VR_ICE_REPLAYED, /* a known transaction from another flow key, or after its own was left */
    VR_ICE_FLOW_KEY_LIMIT, /* a seventeenth live flow key */
    VR_ICE_STATUS_COUNT,
};

struct vr_ice;

struct vr_ice *vr_ice_new(uint32_t max_sessions, uint64_t hash_seed);
void vr_ice_free(struct vr_ice *ice);

/* Opens `session` (0..max_sessions-1, closed before) under credentials that are NUL-terminated.
 * 0, -EEXIST when the ufrag is in use, -EINVAL for a bad length, -ENOMEM. */
int vr_ice_open(struct vr_ice *ice, uint32_t session, const char *ufrag, const char *pwd,
                const char *remote_ufrag, uint64_t now_ns);
void vr_ice_close(struct vr_ice *ice, uint32_t session);

struct vr_ice_check {
    size_t reply_bytes;       /* 0: silence */
    struct vr_ice_path *path; /* validated; NULL but for VR_ICE_OK */
    uint8_t reply[VR_ICE_REPLY_BYTES];
};

enum vr_ice_status vr_ice_check(struct vr_ice *ice, const uint8_t *data, size_t bytes,
                                const struct vr_flow_key *key, const struct vr_source *source,
                                uint64_t now_ns, struct vr_ice_check *out);

/* The live paths of a flow key; returns how many were written. */
unsigned vr_ice_members(struct vr_ice *ice, const struct vr_flow_key *key, uint64_t now_ns,
                        struct vr_ice_path *out[VR_ICE_SESSIONS_PER_FLOW_KEY]);

/* The path of `session` on `key`, live or not, or NULL. */
struct vr_ice_path *vr_ice_find(struct vr_ice *ice, uint32_t session,
                                const struct vr_flow_key *key);

/* Notes an authenticated packet; `media` for SRTP, SRTCP and DTLS. */
void vr_ice_authenticated(struct vr_ice *ice, struct vr_ice_path *path,
                          const struct vr_source *source, uint64_t now_ns, bool media);

/* Where to send now; NULL while the call is paused. */
struct vr_ice_path *vr_ice_media_path(struct vr_ice *ice, uint32_t session, uint64_t now_ns);

bool vr_ice_has_consent(const struct vr_ice *ice, uint32_t session, uint64_t now_ns);

/* Lets the session leave silent flow keys. Call it about each second. */
void vr_ice_expire(struct vr_ice *ice, uint32_t session, uint64_t now_ns);

#endif
