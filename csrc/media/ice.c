#include "ice.h"

#include "../wire/bytes.h"
#include "../wire/crc32.h"
#include "../wire/stun.h"
#include "hmac.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SECOND_NS ((uint64_t)1000000000)
#define SILENT_FLOW_KEY_NS (30 * SECOND_NS)
#define CONSENT_NS (30 * SECOND_NS)
#define MEDIA_SILENCE_NS (10 * SECOND_NS)
#define TRANSACTION_MEMORY_NS (60 * SECOND_NS)

enum {
    FIRST_TRANSACTIONS = 32,
    STUN_UNKNOWN_ATTRIBUTE = 420,
    STUN_ROLE_CONFLICT = 487,
    ATTRIBUTE_MESSAGE_INTEGRITY = 0x0008,
    ATTRIBUTE_ERROR_CODE = 0x0009,
    ATTRIBUTE_UNKNOWN_ATTRIBUTES = 0x000A,
    ATTRIBUTE_XOR_MAPPED_ADDRESS = 0x0020,
    ATTRIBUTE_FINGERPRINT = 0x8028,
    TYPE_BINDING_SUCCESS = 0x0101,
    TYPE_BINDING_ERROR = 0x0111,
    MAGIC_COOKIE = 0x2112A442,
};

struct transaction {
    uint8_t tid[VR_STUN_TID_BYTES];
    struct vr_flow_key key;
    uint64_t seen_ns;
};

struct ice_session {
    bool open;
    uint16_t ufrag_bytes;
    uint16_t username_bytes;
    uint32_t next;  /* in the same ufrag bucket: index + 1, 0 at its end */
    char *username; /* ours, a colon, theirs */
    uint64_t authenticated_ns;
    struct vr_hmac integrity;
    struct transaction *transactions; /* a ring, the oldest at `oldest` once it is full */
    uint32_t transactions_capacity, transactions_count, oldest;
};

struct vr_ice {
    uint32_t max_sessions;
    uint32_t bucket_mask;
    uint64_t seed;
    struct ice_session *sessions;
    struct vr_ice_path *paths; /* VR_ICE_FLOW_KEYS each session */
    uint32_t *ufrag_buckets;   /* session + 1 */
    int32_t *flow_buckets;     /* index into paths, -1 */
};

/* Keyed, since who is let in chooses his flow keys: each round mixes all bits (splitmix64). */
static uint64_t hash(const struct vr_ice *ice, const uint8_t *data, size_t bytes) {
    uint64_t h = ice->seed;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, data + i, bytes - i < 8 ? bytes - i : 8);
        h = (h ^ word) + 0x9e3779b97f4a7c15u;
        h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
        h = (h ^ h >> 27) * 0x94d049bb133111ebu;
        h ^= h >> 31;
    }
    return h;
}

static uint32_t *ufrag_bucket(const struct vr_ice *ice, const uint8_t *ufrag, size_t bytes) {
    return &ice->ufrag_buckets[hash(ice, ufrag, bytes) & ice->bucket_mask];
}

static int32_t *flow_bucket(const struct vr_ice *ice, const struct vr_flow_key *key) {
    return &ice->flow_buckets[hash(ice, (const uint8_t *)key, sizeof *key) & ice->bucket_mask];
}

struct vr_ice *vr_ice_new(uint32_t max_sessions, uint64_t hash_seed) {
    struct vr_ice *ice = calloc(1, sizeof *ice);
    if (ice == NULL)
        return NULL;
    uint32_t buckets = 16;
    while (buckets < 4 * max_sessions && buckets < 1u << 24)
        buckets *= 2;
    ice->max_sessions = max_sessions;
    ice->bucket_mask = buckets - 1;
    ice->seed = hash_seed;
    ice->sessions = calloc(max_sessions, sizeof *ice->sessions);
    ice->paths = calloc((size_t)max_sessions * VR_ICE_FLOW_KEYS, sizeof *ice->paths);
    ice->ufrag_buckets = calloc(buckets, sizeof *ice->ufrag_buckets);
    ice->flow_buckets = malloc(buckets * sizeof *ice->flow_buckets);
    if (!ice->sessions || !ice->paths || !ice->ufrag_buckets || !ice->flow_buckets) {
        vr_ice_free(ice);
        return NULL;
    }
    memset(ice->flow_buckets, 0xff, buckets * sizeof *ice->flow_buckets);
    return ice;
}

void vr_ice_free(struct vr_ice *ice) {
    if (ice == NULL)
        return;
    for (uint32_t i = 0; ice->sessions != NULL && i < ice->max_sessions; i++)
        vr_ice_close(ice, i);
    free(ice->sessions);
    free(ice->paths);
    free(ice->ufrag_buckets);
    free(ice->flow_buckets);
    free(ice);
}

/* --- sessions -------------------------------------------------------------------------------- */

static struct ice_session *find_session(const struct vr_ice *ice, const uint8_t *ufrag,
                                        size_t bytes) {
    for (uint32_t i = *ufrag_bucket(ice, ufrag, bytes); i != 0; i = ice->sessions[i - 1].next) {
        struct ice_session *s = &ice->sessions[i - 1];
        if (s->ufrag_bytes == bytes && memcmp(s->username, ufrag, bytes) == 0)
            return s;
    }
    return NULL;
}

int vr_ice_open(struct vr_ice *ice, uint32_t session, const char *ufrag, const char *pwd,
                const char *remote_ufrag, uint64_t now_ns) {
    size_t ours = strlen(ufrag), theirs = strlen(remote_ufrag);
    if (session >= ice->max_sessions || ice->sessions[session].open || ours == 0 || theirs == 0 ||
        ours > VR_ICE_UFRAG_BYTES || theirs > VR_ICE_UFRAG_BYTES || strlen(pwd) > VR_ICE_PWD_BYTES)
        return -EINVAL;
    if (find_session(ice, (const uint8_t *)ufrag, ours) != NULL)
        return -EEXIST;
    struct ice_session *s = &ice->sessions[session];
    memset(s, 0, sizeof *s);
    s->username = malloc(ours + 1 + theirs);
    if (s->username == NULL ||
        vr_hmac_init(&s->integrity, (const uint8_t *)pwd, strlen(pwd)) != 0) {
        free(s->username);
        return -ENOMEM;
    }
    memcpy(s->username, ufrag, ours);
    s->username[ours] = ':';
    memcpy(s->username + ours + 1, remote_ufrag, theirs);
    s->ufrag_bytes = (uint16_t)ours;
    s->username_bytes = (uint16_t)(ours + 1 + theirs);
    s->authenticated_ns = now_ns;
    s->open = true;
    uint32_t *bucket = ufrag_bucket(ice, (const uint8_t *)ufrag, ours);
    s->next = *bucket;
    *bucket = session + 1;
    return 0;
}

static void leave(struct vr_ice *ice, struct vr_ice_path *path) {
    int32_t index = (int32_t)(path - ice->paths);
    int32_t *link = flow_bucket(ice, &path->key);
    while (*link != index)
        link = &ice->paths[*link].next;
    *link = path->next;
    path->used = false;
}

void vr_ice_close(struct vr_ice *ice, uint32_t session) {
    struct ice_session *s = &ice->sessions[session];
    if (!s->open)
        return;
    for (int i = 0; i < VR_ICE_FLOW_KEYS; i++)
        if (ice->paths[session * VR_ICE_FLOW_KEYS + (uint32_t)i].used)
            leave(ice, &ice->paths[session * VR_ICE_FLOW_KEYS + (uint32_t)i]);
    uint32_t *link = ufrag_bucket(ice, (const uint8_t *)s->username, s->ufrag_bytes);
    while (*link != session + 1)
        link = &ice->sessions[*link - 1].next;
    *link = s->next;
    vr_hmac_free(&s->integrity);
    free(s->username);
    free(s->transactions);
    memset(s, 0, sizeof *s);
}

/* --- transactions (rule 2) ------------------------------------------------------------------- */

static struct transaction *find_transaction(struct ice_session *s, const uint8_t *tid,
                                            uint64_t now_ns) {
    for (uint32_t i = 0; i < s->transactions_count; i++) {
        struct transaction *t = &s->transactions[i];
        if (memcmp(t->tid, tid, sizeof t->tid) == 0 && now_ns - t->seen_ns < TRANSACTION_MEMORY_NS)
            return t;
    }
    return NULL;
}

/* Twice the room, the oldest first. False when the bound is reached or memory is short. */
static bool grow(struct ice_session *s) {
    uint32_t count = s->transactions_count;
    uint32_t capacity = count != 0 ? 2 * count : FIRST_TRANSACTIONS;
    struct transaction *grown =
        capacity <= VR_ICE_TRANSACTIONS ? malloc(capacity * sizeof *grown) : NULL;
    if (grown == NULL)
        return false;
    for (uint32_t i = 0; i < count; i++)
        grown[i] = s->transactions[(s->oldest + i) % count];
    free(s->transactions);
    s->transactions = grown;
    s->transactions_capacity = capacity;
    s->oldest = 0;
    return true;
}

static void remember(struct ice_session *s, const uint8_t *tid, const struct vr_flow_key *key,
                     uint64_t now_ns) {
    uint32_t count = s->transactions_count;
    bool full = count == s->transactions_capacity;
    bool replaces =
        full && count != 0 &&
        (now_ns - s->transactions[s->oldest].seen_ns >= TRANSACTION_MEMORY_NS || !grow(s));
    struct transaction *t;
    if (replaces) {
        t = &s->transactions[s->oldest];
        s->oldest = (s->oldest + 1) % count;
    } else {
        if (count == 0 && full && !grow(s))
            return;
        t = &s->transactions[s->transactions_count++];
    }
    memcpy(t->tid, tid, sizeof t->tid);
    t->key = *key;
    t->seen_ns = now_ns;
}

/* --- paths (rules 1, 3, 4, 5) ---------------------------------------------------------------- */

static bool is_live(const struct vr_ice_path *path, uint64_t now_ns) {
    return now_ns - path->authenticated_ns < SILENT_FLOW_KEY_NS;
}

struct vr_ice_path *vr_ice_find(struct vr_ice *ice, uint32_t session,
                                const struct vr_flow_key *key) {
    for (int i = 0; i < VR_ICE_FLOW_KEYS; i++) {
        struct vr_ice_path *path = &ice->paths[session * VR_ICE_FLOW_KEYS + (uint32_t)i];
        if (path->used && vr_flow_key_equal(&path->key, key))
            return path;
    }
    return NULL;
}

/* All of a flow key, live or not; the one silent longest comes back in `longest`. */
static unsigned sharing(struct vr_ice *ice, const struct vr_flow_key *key,
                        struct vr_ice_path **longest) {
    unsigned count = 0;
    *longest = NULL;
    for (int32_t i = *flow_bucket(ice, key); i >= 0; i = ice->paths[i].next) {
        struct vr_ice_path *path = &ice->paths[i];
        if (!vr_flow_key_equal(&path->key, key))
            continue;
        count++;
        if (*longest == NULL || path->authenticated_ns < (*longest)->authenticated_ns)
            *longest = path;
    }
    return count;
}

unsigned vr_ice_members(struct vr_ice *ice, const struct vr_flow_key *key, uint64_t now_ns,
                        struct vr_ice_path *out[VR_ICE_SESSIONS_PER_FLOW_KEY]) {
    unsigned count = 0;
    for (int32_t i = *flow_bucket(ice, key); i >= 0; i = ice->paths[i].next) {
        struct vr_ice_path *path = &ice->paths[i];
        if (vr_flow_key_equal(&path->key, key) && is_live(path, now_ns) &&
            count < VR_ICE_SESSIONS_PER_FLOW_KEY)
            out[count++] = path;
    }
    return count;
}

static struct vr_ice_path *free_path_of(struct vr_ice *ice, uint32_t session) {
    for (int i = 0; i < VR_ICE_FLOW_KEYS; i++)
        if (!ice->paths[session * VR_ICE_FLOW_KEYS + (uint32_t)i].used)
            return &ice->paths[session * VR_ICE_FLOW_KEYS + (uint32_t)i];
    return NULL;
}

/* Puts the session on a flow key; it has a free path. */
static struct vr_ice_path *join(struct vr_ice *ice, uint32_t session, const struct vr_flow_key *key,
                                uint64_t now_ns) {
    struct vr_ice_path *free_path = free_path_of(ice, session), *longest;
    if (sharing(ice, key, &longest) >= VR_ICE_SESSIONS_PER_FLOW_KEY)
        leave(ice, longest);
    int32_t *bucket = flow_bucket(ice, key);
    *free_path = (struct vr_ice_path){
        .key = *key, .used = true, .session = session, .next = *bucket, .first_check_ns = now_ns};
    *bucket = (int32_t)(free_path - ice->paths);
    return free_path;
}

void vr_ice_authenticated(struct vr_ice *ice, struct vr_ice_path *path,
                          const struct vr_source *source, uint64_t now_ns, bool media) {
    path->source = *source;
    path->authenticated_ns = now_ns;
    ice->sessions[path->session].authenticated_ns = now_ns;
    if (media)
        path->media_ns = now_ns;
}

/* Whether media goes to `a` rather than to `b`. */
static bool outranks(const struct vr_ice_path *a, const struct vr_ice_path *b) {
    if (a->media_ns != b->media_ns)
        return a->media_ns > b->media_ns;
    if (a->nominated_ns != b->nominated_ns)
        return a->nominated_ns > b->nominated_ns;
    return a->first_check_ns < b->first_check_ns;
}

struct vr_ice_path *vr_ice_media_path(struct vr_ice *ice, uint32_t session, uint64_t now_ns) {
    struct vr_ice_path *best = NULL;
    for (int i = 0; i < VR_ICE_FLOW_KEYS; i++) {
        struct vr_ice_path *path = &ice->paths[session * VR_ICE_FLOW_KEYS + (uint32_t)i];
        if (path->used && now_ns - path->authenticated_ns < MEDIA_SILENCE_NS &&
            (best == NULL || outranks(path, best)))
            best = path;
    }
    return best;
}

bool vr_ice_has_consent(const struct vr_ice *ice, uint32_t session, uint64_t now_ns) {
    return now_ns - ice->sessions[session].authenticated_ns < CONSENT_NS;
}

void vr_ice_expire(struct vr_ice *ice, uint32_t session, uint64_t now_ns) {
    for (int i = 0; i < VR_ICE_FLOW_KEYS; i++) {
        struct vr_ice_path *path = &ice->paths[session * VR_ICE_FLOW_KEYS + (uint32_t)i];
        if (path->used && !is_live(path, now_ns))
            leave(ice, path);
    }
}

/* --- checks ---------------------------------------------------------------------------------- */

/* MESSAGE-INTEGRITY covers what lies before it, with a length that ends right after it (RFC 8489 14.5). */
static void integrity_of(struct ice_session *s, const uint8_t *message, size_t covered_bytes,
                         uint8_t out[VR_HMAC_BYTES]) {
    uint8_t head[4] = {message[0], message[1]};
    vr_store_be16(head + 2, (uint16_t)(covered_bytes + 4 + VR_HMAC_BYTES - VR_STUN_HEADER_BYTES));
    vr_hmac_begin(&s->integrity);
    vr_hmac_add(&s->integrity, head, sizeof head);
    vr_hmac_add(&s->integrity, message + sizeof head, covered_bytes - sizeof head);
    vr_hmac_end(&s->integrity, out);
}

static uint8_t *attribute(uint8_t *p, unsigned type, size_t bytes) {
    vr_store_be16(p, (uint16_t)type);
    vr_store_be16(p + 2, (uint16_t)bytes);
    return p + 4;
}

/* Ends a reply whose attributes so far end at `p`. */
static size_t seal(struct ice_session *s, uint8_t *reply, uint8_t *p) {
    size_t covered = (size_t)(p - reply);
    integrity_of(s, reply, covered, attribute(p, ATTRIBUTE_MESSAGE_INTEGRITY, VR_HMAC_BYTES));
    p += 4 + VR_HMAC_BYTES;
    size_t bytes = (size_t)(p - reply) + 8;
    vr_store_be16(reply + 2, (uint16_t)(bytes - VR_STUN_HEADER_BYTES));
    uint32_t crc = vr_crc32(reply, bytes - 8);
    vr_store_be32(attribute(p, ATTRIBUTE_FINGERPRINT, 4), crc ^ 0x5354554E);
    return bytes;
}

static uint8_t *begin_reply(uint8_t *reply, unsigned type, const uint8_t *tid) {
    vr_store_be16(reply, (uint16_t)type);
    vr_store_be32(reply + 4, MAGIC_COOKIE);
    memcpy(reply + 8, tid, VR_STUN_TID_BYTES);
    return reply + VR_STUN_HEADER_BYTES;
}

static size_t write_success(struct ice_session *s, const struct vr_stun *request,
                            const struct vr_addr *client, uint8_t *reply) {
    uint8_t *p = begin_reply(reply, TYPE_BINDING_SUCCESS, request->tid);
    bool v4 = vr_ip_is_v4(client->ip);
    size_t ip_bytes = v4 ? 4 : 16;
    p = attribute(p, ATTRIBUTE_XOR_MAPPED_ADDRESS, 4 + ip_bytes);
    p[0] = 0;
    p[1] = v4 ? 1 : 2;
    uint8_t port[2];
    memcpy(port, &client->port_be, 2);
    p[2] = port[0] ^ reply[4];
    p[3] = port[1] ^ reply[5];
    const uint8_t *ip = v4 ? client->ip + 12 : client->ip;
    for (size_t i = 0; i < ip_bytes; i++) /* RFC 8489 14.2: cookie, then transaction id */
        p[4 + i] = ip[i] ^ reply[4 + i];
    return seal(s, reply, p + 4 + ip_bytes);
}

static size_t padded(size_t bytes) {
    return (bytes + 3) / 4 * 4;
}

/* RFC 8489 14.8 */
static uint8_t *error_code(uint8_t *p, unsigned code, const char *reason) {
    size_t bytes = 4 + strlen(reason);
    p = attribute(p, ATTRIBUTE_ERROR_CODE, bytes);
    memset(p, 0, padded(bytes));
    p[2] = (uint8_t)(code / 100);
    p[3] = (uint8_t)(code % 100);
    memcpy(p + 4, reason, strlen(reason));
    return p + padded(bytes);
}

static size_t write_role_conflict(struct ice_session *s, const struct vr_stun *request,
                                  uint8_t *reply) {
    uint8_t *p = begin_reply(reply, TYPE_BINDING_ERROR, request->tid);
    return seal(s, reply, error_code(p, STUN_ROLE_CONFLICT, "Role Conflict"));
}

/* RFC 8489 6.3.1, 14.9 */
static size_t write_unknown_attributes(struct ice_session *s, const struct vr_stun *request,
                                       uint8_t *reply) {
    uint8_t *p = begin_reply(reply, TYPE_BINDING_ERROR, request->tid);
    size_t bytes = 2 * (size_t)request->unknown_count;
    p = error_code(p, STUN_UNKNOWN_ATTRIBUTE, "Unknown Attribute");
    p = attribute(p, ATTRIBUTE_UNKNOWN_ATTRIBUTES, bytes);
    memset(p, 0, padded(bytes));
    for (unsigned i = 0; i < request->unknown_count; i++)
        vr_store_be16(p + 2 * i, request->unknown[i]);
    return seal(s, reply, p + padded(bytes));
}

/* Whom a check is for; NULL and the reason when nobody may answer it. */
static struct ice_session *authenticate(struct vr_ice *ice, const uint8_t *data,
                                        const struct vr_stun *m, enum vr_ice_status *status) {
    *status = VR_ICE_NO_CHECK;
    if (m->class_ != VR_STUN_REQUEST || m->method != VR_STUN_METHOD_BINDING)
        return NULL;
    *status = VR_ICE_UNKNOWN_UFRAG;
    size_t ufrag_bytes = vr_stun_local_ufrag(m);
    struct ice_session *s = ufrag_bytes ? find_session(ice, m->username, ufrag_bytes) : NULL;
    if (s == NULL)
        return NULL;
    *status = VR_ICE_WRONG_USERNAME;
    if (m->username_bytes != s->username_bytes ||
        memcmp(m->username, s->username, s->username_bytes) != 0)
        return NULL;
    *status = VR_ICE_WRONG_INTEGRITY;
    uint8_t tag[VR_HMAC_BYTES];
    if (m->integrity_offset == 0)
        return NULL;
    integrity_of(s, data, m->integrity_offset, tag);
    return vr_hmac_equal(tag, data + m->integrity_offset + 4, VR_HMAC_BYTES) ? s : NULL;
}

enum vr_ice_status vr_ice_check(struct vr_ice *ice, const uint8_t *data, size_t bytes,
                                const struct vr_flow_key *key, const struct vr_source *source,
                                uint64_t now_ns, struct vr_ice_check *out) {
    struct vr_stun m;
    enum vr_ice_status status;
    out->reply_bytes = 0;
    out->path = NULL;
    if (vr_stun_read(data, bytes, &m) != VR_STUN_OK)
        return VR_ICE_MALFORMED;
    struct ice_session *s = authenticate(ice, data, &m, &status);
    if (s == NULL)
        return status;
    uint32_t session = (uint32_t)(s - ice->sessions);
    vr_ice_expire(ice, session, now_ns);
    struct vr_ice_path *path = vr_ice_find(ice, session, key);
    struct transaction *seen = find_transaction(s, m.tid, now_ns);
    if (seen != NULL && !vr_flow_key_equal(&seen->key, key))
        return VR_ICE_REPLAYED;
    if (path == NULL && free_path_of(ice, session) == NULL)
        return VR_ICE_FLOW_KEY_LIMIT;
    if (seen == NULL)
        remember(s, m.tid, key, now_ns);
    if (m.unknown_count >
        0) { /* RFC 8489 6.3.1: once it is authenticated, and before it is anything else */
        out->reply_bytes = write_unknown_attributes(s, &m, out->reply);
        return VR_ICE_UNKNOWN_ATTRIBUTE;
    }
    if (m.has_ice_controlled) { /* RFC 8445 7.3.1.1: a lite agent facing a full one is controlled */
        out->reply_bytes = write_role_conflict(s, &m, out->reply);
        return VR_ICE_ROLE_CONFLICT;
    }
    if (seen != NULL && path == NULL)
        return VR_ICE_REPLAYED;
    if (seen == NULL) {
        if (path == NULL)
            path = join(ice, session, key, now_ns);
        if (m.has_use_candidate)
            path->nominated_ns = now_ns;
        vr_ice_authenticated(ice, path, source, now_ns, false);
    }
    out->path = path;
    out->reply_bytes = write_success(s, &m, &key->client, out->reply);
    return VR_ICE_OK;
}
