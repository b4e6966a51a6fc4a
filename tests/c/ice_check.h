/* ice_check.h: an agent with a few sessions, checks that may lie, and replies that are read again.
 *
 * 1. Session n has the ufrag "ufrag<n>" and the client ufrag "cli"; all have the same password.
 * 2. Flow key n is the client 203.0.113.7:5000+n at the proxy 192.0.2.1:3478; relay n is 127.0.0.1:4000+n.
 * 3. Time stands still until it is moved: `now_ns` is the test's.
 */
#ifndef VR_ICE_CHECK_H
#define VR_ICE_CHECK_H

#include "check.h"
#include "media/hmac.h"
#include "media/ice.h"
#include "wire/bytes.h"
#include "wire/crc32.h"
#include "wire/stun.h"

#include <errno.h>

#define MS ((uint64_t)1000000)
#define SECOND (1000 * MS)

enum { SESSIONS = 6, BINDING = 0x0001 };

static const char ice_password[] = "passwordpassword12345678";

struct bench {
    struct vr_ice *ice;
    uint64_t now_ns;
    struct vr_ice_check out; /* of the last check */
};

static inline struct vr_addr v4(unsigned a, unsigned b, unsigned c, unsigned d, unsigned port) {
    struct vr_addr addr;
    vr_ip_from_v4(addr.ip, (uint8_t[]){(uint8_t)a, (uint8_t)b, (uint8_t)c, (uint8_t)d});
    vr_store_be16((uint8_t *)&addr.port_be, (uint16_t)port);
    return addr;
}

static inline struct vr_flow_key flow(unsigned n) {
    return (struct vr_flow_key){v4(203, 0, 113, 7, 5000 + n), v4(192, 0, 2, 1, 3478)};
}

static inline struct vr_source relay(unsigned n) {
    return (struct vr_source){.peer = v4(127, 0, 0, 1, 4000 + n)};
}

static inline struct bench bench_open(unsigned sessions) {
    struct bench b = {.ice = vr_ice_new(SESSIONS, 1), .now_ns = 1000 * SECOND};
    char ufrag[16];
    for (unsigned i = 0; i < sessions; i++) {
        snprintf(ufrag, sizeof ufrag, "ufrag%u", i);
        CHECK_EQ(vr_ice_open(b.ice, i, ufrag, ice_password, "cli", b.now_ns), 0);
    }
    return b;
}

static inline void bench_close(struct bench *b) {
    vr_ice_free(b->ice);
}

/* --- messages */

struct message {
    uint8_t data[1200];
    size_t bytes;
};

static inline void message_put(struct message *m, unsigned type, const void *value, size_t bytes) {
    vr_store_be16(m->data + m->bytes, (uint16_t)type);
    vr_store_be16(m->data + m->bytes + 2, (uint16_t)bytes);
    memset(m->data + m->bytes + 4, 0, (bytes + 3) & ~(size_t)3);
    if (bytes > 0)
        memcpy(m->data + m->bytes + 4, value, bytes);
    m->bytes += 4 + ((bytes + 3) & ~(size_t)3);
    vr_store_be16(m->data + 2, (uint16_t)(m->bytes - VR_STUN_HEADER_BYTES));
}

static inline struct message message_begin(unsigned type, const uint8_t tid[VR_STUN_TID_BYTES]) {
    struct message m = {.bytes = VR_STUN_HEADER_BYTES};
    vr_store_be16(m.data, (uint16_t)type);
    vr_store_be32(m.data + 4, 0x2112A442);
    memcpy(m.data + 8, tid, VR_STUN_TID_BYTES);
    return m;
}

static inline void hmac_of(const char *password, const struct message *m,
                           uint8_t out[VR_HMAC_BYTES]) {
    struct vr_hmac hmac;
    CHECK_EQ(vr_hmac_init(&hmac, (const uint8_t *)password, strlen(password)), 0);
    vr_hmac_begin(&hmac);
    vr_hmac_add(&hmac, m->data, m->bytes);
    vr_hmac_end(&hmac, out);
    vr_hmac_free(&hmac);
}

/* MESSAGE-INTEGRITY (RFC 8489 14.5). */
static inline void message_sign(struct message *m, const char *password) {
    uint8_t tag[VR_HMAC_BYTES];
    vr_store_be16(m->data + 2, (uint16_t)(m->bytes + 24 - VR_STUN_HEADER_BYTES));
    hmac_of(password, m, tag);
    message_put(m, 0x0008, tag, sizeof tag);
}

/* FINGERPRINT (RFC 8489 14.7). */
static inline void message_finish(struct message *m) {
    uint8_t value[4];
    vr_store_be16(m->data + 2, (uint16_t)(m->bytes + 8 - VR_STUN_HEADER_BYTES));
    vr_store_be32(value, vr_crc32(m->data, m->bytes) ^ 0x5354554E);
    message_put(m, 0x8028, value, sizeof value);
}

struct options {
    const char *username; /* "ufrag0:cli" */
    const char *password; /* the right one */
    uint32_t transaction; /* 0: a new one */
    bool nominates, controlled;
    uint16_t also; /* type of one attribute more; 0: none */
};

static inline struct message check_message(struct options o) {
    static uint32_t last = 1u << 31;
    uint8_t tid[VR_STUN_TID_BYTES] = "transact", tie_breaker[8] = "12345678";
    vr_store_be32(tid + 8, o.transaction != 0 ? o.transaction : ++last);
    const char *username = o.username ? o.username : "ufrag0:cli";
    struct message m = message_begin(BINDING, tid);
    message_put(&m, 0x0006, username, strlen(username));
    message_put(&m, o.controlled ? 0x8029 : 0x802A, tie_breaker, sizeof tie_breaker);
    message_put(&m, 0x0024, (uint8_t[]){110, 0, 30, 255}, 4);
    if (o.nominates)
        message_put(&m, 0x0025, NULL, 0);
    if (o.also)
        message_put(&m, o.also, "what", 4);
    message_sign(&m, o.password ? o.password : ice_password);
    message_finish(&m);
    return m;
}

/* --- doing */

static inline enum vr_ice_status bench_give(struct bench *b, const uint8_t *data, size_t bytes,
                                            unsigned flow_n, unsigned relay_n) {
    struct vr_flow_key key = flow(flow_n);
    struct vr_source source = relay(relay_n);
    const uint8_t *copy = guard_copy(data, bytes);
    enum vr_ice_status status =
        vr_ice_check(b->ice, copy, bytes, &key, &source, b->now_ns, &b->out);
    bool answered =
        status == VR_ICE_OK || status == VR_ICE_ROLE_CONFLICT || status == VR_ICE_UNKNOWN_ATTRIBUTE;
    CHECK_EQ(b->out.reply_bytes != 0, answered);
    CHECK_EQ(b->out.path != NULL, status == VR_ICE_OK);
    return status;
}

/* A check of `session` from flow key `n` over relay 0. */
static inline enum vr_ice_status bench_check(struct bench *b, unsigned session, unsigned n,
                                             struct options o) {
    char username[32];
    snprintf(username, sizeof username, "ufrag%u:cli", session);
    o.username = username;
    struct message m = check_message(o);
    return bench_give(b, m.data, m.bytes, n, 0);
}

/* The session's path on flow key `n`, validated now. */
static inline struct vr_ice_path *bench_path(struct bench *b, unsigned session, unsigned n) {
    CHECK_EQ(bench_check(b, session, n, (struct options){0}), VR_ICE_OK);
    return b->out.path;
}

static inline void bench_media(struct bench *b, struct vr_ice_path *path, unsigned relay_n) {
    struct vr_source source = relay(relay_n);
    vr_ice_authenticated(b->ice, path, &source, b->now_ns, true);
}

/* --- asking */

enum { NOWHERE = -1 };

/* The flow key that media of `session` goes to, or NOWHERE. */
static inline int bench_target(struct bench *b, unsigned session) {
    struct vr_ice_path *path = vr_ice_media_path(b->ice, session, b->now_ns);
    if (path == NULL)
        return NOWHERE;
    return vr_load_be16((const uint8_t *)&path->key.client.port_be) - 5000;
}

/* The sessions that a packet of flow key `n` is offered to, as bits. */
static inline unsigned bench_members(struct bench *b, unsigned n) {
    struct vr_ice_path *paths[VR_ICE_SESSIONS_PER_FLOW_KEY];
    struct vr_flow_key key = flow(n);
    unsigned count = vr_ice_members(b->ice, &key, b->now_ns, paths), bits = 0;
    for (unsigned i = 0; i < count; i++)
        bits |= 1u << paths[i]->session;
    return bits;
}

static inline bool bench_has_path(struct bench *b, unsigned session, unsigned n) {
    struct vr_flow_key key = flow(n);
    return vr_ice_find(b->ice, session, &key) != NULL;
}

#endif
