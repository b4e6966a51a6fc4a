/* Checks of any content through the ICE agent: a script of checks, packets and waiting.
 *
 * A step: op 1, flow key 1, length 1, that many bytes. Bytes become a datagram as they are, or the
 * attributes of a check that is signed with the session's password. After each step the rules of
 * ice.h that do not depend on the history hold.
 */
#include "fuzz.h"
#include "media/ice.h"
#include "signed_check.h"

enum { SESSIONS = 6, FLOWS = 20 };

#define SECOND_NS ((uint64_t)1000000000)

static struct vr_flow_key flow(unsigned n) {
    struct vr_flow_key key = {0};
    vr_ip_from_v4(key.client.ip, (const uint8_t[]){203, 0, 113, (uint8_t)(n % FLOWS)});
    key.client.ip[0] = n % 2 ? 0x20 : 0;
    return key;
}

static void open_session(struct vr_ice *ice, unsigned n, uint64_t now_ns) {
    char ufrag[3] = {'u', (char)('0' + n), 0};
    HOLDS(vr_ice_open(ice, n, ufrag, check_password, "cli", now_ns) == 0);
}

static void check(struct vr_ice *ice, const uint8_t *data, size_t bytes, unsigned flow_n,
                  uint64_t now_ns) {
    struct vr_ice_check out;
    struct vr_flow_key key = flow(flow_n);
    struct vr_source source = {.peer = key.proxy, .direct = true};
    uint8_t *copy = exact_copy(data, bytes);
    enum vr_ice_status status = vr_ice_check(ice, copy, bytes, &key, &source, now_ns, &out);
    free(copy);
    HOLDS(status < VR_ICE_STATUS_COUNT);
    HOLDS((out.reply_bytes != 0) == (status == VR_ICE_OK || status == VR_ICE_ROLE_CONFLICT ||
                                     status == VR_ICE_UNKNOWN_ATTRIBUTE));
    HOLDS(out.reply_bytes <= VR_ICE_REPLY_BYTES);
    HOLDS((out.path != NULL) == (status == VR_ICE_OK));
    if (out.path != NULL)
        HOLDS(vr_flow_key_equal(&out.path->key, &key) && out.path->used);
}

static void audit(struct vr_ice *ice, uint64_t now_ns) {
    unsigned keys_of[SESSIONS] = {0};
    for (unsigned n = 0; n < FLOWS; n++) {
        struct vr_ice_path *paths[VR_ICE_SESSIONS_PER_FLOW_KEY];
        struct vr_flow_key key = flow(n);
        unsigned count = vr_ice_members(ice, &key, now_ns, paths);
        HOLDS(count <= VR_ICE_SESSIONS_PER_FLOW_KEY);
        for (unsigned i = 0; i < count; i++) {
            HOLDS(paths[i]->session < SESSIONS);
            HOLDS(vr_ice_find(ice, paths[i]->session, &key) == paths[i]);
            keys_of[paths[i]->session]++;
        }
    }
    for (unsigned i = 0; i < SESSIONS; i++) {
        struct vr_ice_path *path = vr_ice_media_path(ice, i, now_ns);
        HOLDS(keys_of[i] <= VR_ICE_FLOW_KEYS);
        HOLDS(path == NULL || now_ns - path->authenticated_ns < 10 * SECOND_NS);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    uint64_t now_ns = 1000 * SECOND_NS;
    struct vr_ice *ice = vr_ice_new(SESSIONS, 1);
    HOLDS(ice != NULL);
    for (unsigned i = 0; i < SESSIONS; i++)
        open_session(ice, i, now_ns);
    for (size_t at = 0; at + 3 <= bytes;) {
        unsigned op = data[at] / 8 % 8, session = data[at] % 8 % SESSIONS, flow_n = data[at + 1];
        size_t length = data[at + 2], rest = bytes - at - 3;
        const uint8_t *payload = data + at + 3;
        length = length < rest ? length : rest;
        now_ns++;
        if (op == 0) {
            check(ice, payload, length, flow_n, now_ns);
        } else if (op <= 4) {
            uint8_t message[256 + SIGNED_CHECK_MORE_BYTES];
            uint32_t transaction = length != 0 ? payload[length - 1] : 0; /* few: they come again */
            size_t size = signed_check(session, transaction, payload, length, message);
            check(ice, message, size, flow_n, now_ns);
        } else if (op == 5) {
            struct vr_flow_key key = flow(flow_n);
            struct vr_source source = {.peer = key.client};
            struct vr_ice_path *path = vr_ice_find(ice, session, &key);
            if (path != NULL)
                vr_ice_authenticated(ice, path, &source, now_ns, length % 2 == 0);
        } else if (op == 6) {
            now_ns += data[at + 2] * SECOND_NS / 4;
            vr_ice_expire(ice, session, now_ns);
        } else {
            vr_ice_close(ice, session);
            HOLDS(vr_ice_media_path(ice, session, now_ns) == NULL);
            open_session(ice, session, now_ns);
        }
        at += 3 + (op <= 4 ? length : 0);
        audit(ice, now_ns);
    }
    vr_ice_free(ice);
    return 0;
}
