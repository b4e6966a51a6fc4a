/* What comes: told apart by its first bytes, and brought to the session whose keys open it. */
#include "engine_state.h"

#include "../wire/demux.h"
#include "../wire/spp.h"

#include <string.h>

static bool in_network(const uint8_t ip[16], const struct vr_network *network) {
    unsigned whole = network->prefix_bits / 8, rest = network->prefix_bits % 8;
    if (memcmp(ip, network->ip, whole) != 0)
        return false;
    return rest == 0 || ((ip[whole] ^ network->ip[whole]) >> (8 - rest)) == 0;
}

static bool relay_allowed(struct vr_engine *e, const struct vr_addr *peer) {
    if (e->last_relay_known && memcmp(e->last_relay, peer->ip, 16) == 0)
        return true;
    for (uint32_t i = 0; i < e->config.relay_count; i++)
        if (in_network(peer->ip, &e->config.relays[i])) {
            memcpy(e->last_relay, peer->ip, 16);
            e->last_relay_known = true;
            return true;
        }
    return false;
}

static void on_stun(struct vr_engine *e, const struct vr_received *in,
                    const struct vr_flow_key *key, uint64_t now_ns) {
    struct vr_ice_check check;
    enum vr_ice_status status =
        vr_ice_check(e->ice, in->data, in->bytes, key, &in->source, now_ns, &check);
    e->counts.checks[status]++;
    if (check.reply_bytes == 0)
        return;
    memcpy(vr_socket_prepare(e->socket), check.reply, check.reply_bytes);
    vr_socket_queue(e->socket, &in->source, key, check.reply_bytes);
    if (check.path == NULL)
        return;
    uint32_t session = check.path->session;
    bool was_paused = e->seats[session].path.paused;
    vr_engine_publish_path(e, session, vr_ice_media_path(e->ice, session, now_ns));
    if (check.path->first_check_ns == now_ns || was_paused) {
        struct vr_event_origin origin = {key, &in->source};
        vr_engine_emit(e, VR_ENGINE_CHECKED, session, now_ns, &origin, NULL, 0);
    }
}

static void on_dtls(struct vr_engine *e, const struct vr_received *in,
                    const struct vr_flow_key *key, uint64_t now_ns) {
    struct vr_ice_path *paths[VR_ICE_SESSIONS_PER_FLOW_KEY];
    unsigned count = vr_ice_members(e->ice, key, now_ns, paths);
    struct vr_event_origin origin = {key, &in->source};
    if (count == 0)
        vr_engine_drop(e, VR_ENGINE_NO_MEMBER);
    for (unsigned i = 0; i < count;
         i++) { /* several may be in a handshake: each decides for itself */
        e->counts.dtls_in++;
        vr_engine_emit(e, VR_ENGINE_DTLS, paths[i]->session, now_ns, &origin, in->data, in->bytes);
    }
}

static void on_media(struct vr_engine *e, struct vr_received *in, const struct vr_flow_key *key,
                     uint64_t now_ns) {
    struct vr_ice_path *paths[VR_ICE_SESSIONS_PER_FLOW_KEY];
    unsigned count = vr_ice_members(e->ice, key, now_ns, paths);
    uint8_t copy[VR_DATAGRAM_BYTES];
    bool shared = count > 1, replayed = false;
    if (count == 0) {
        vr_engine_drop(e, VR_ENGINE_NO_MEMBER);
        return;
    }
    if (in->bytes > sizeof copy) {
        vr_engine_drop(e, VR_ENGINE_TOO_BIG);
        return;
    }
    if (shared) /* the wrong keys leave garbage behind */
        memcpy(copy, in->data, in->bytes);
    bool rtcp = vr_rtp_is_rtcp(in->data, in->bytes);
    for (unsigned i = 0; i < count; i++) {
        struct vr_seat *seat = &e->seats[paths[i]->session];
        if (seat->media == NULL)
            continue;
        if (i > 0)
            memcpy(in->data, copy, in->bytes);
        size_t out_bytes;
        enum vr_session_status status = vr_session_packet(seat->media, in->data, in->bytes, now_ns,
                                                          vr_socket_prepare(e->socket), &out_bytes);
        replayed |= status == VR_SESSION_REPLAYED;
        if (!vr_session_authentic(status))
            continue;
        e->counts.rtp_in += !rtcp;
        e->counts.rtcp_in += rtcp;
        vr_ice_authenticated(e->ice, paths[i], &in->source, now_ns, true);
        if (out_bytes != 0) {
            /* the newest authenticated packet came from here, so this is the media path */
            vr_socket_queue(e->socket, &in->source, key, out_bytes);
            e->counts.rtp_out++;
        }
        int digit;
        while ((digit = vr_session_event(seat->media)) >= 0) {
            uint8_t byte = (uint8_t)digit;
            vr_engine_emit(e, VR_ENGINE_DIGIT, paths[i]->session, now_ns, NULL, &byte, 1);
        }
        return;
    }
    vr_engine_drop(e, replayed ? VR_ENGINE_REPLAYED : VR_ENGINE_NOT_AUTHENTIC);
}

void vr_engine_on_datagram(struct vr_engine *e, struct vr_received *in, uint64_t now_ns) {
    struct vr_flow_key key;
    if (vr_spp_read(in->data, in->bytes, &key)) {
        if (!relay_allowed(e, &in->source.peer)) {
            vr_engine_drop(e, VR_ENGINE_FOREIGN_RELAY);
            return;
        }
        in->data += VR_SPP_BYTES;
        in->bytes -= VR_SPP_BYTES;
    } else if (e->config.direct) {
        key.client = in->source.peer;
        key.proxy = *vr_socket_bound(e->socket);
        static const uint8_t zeros[16];
        if (memcmp(in->source.local_ip, zeros, 16) != 0)
            memcpy(key.proxy.ip, in->source.local_ip, 16);
        in->source.direct = true;
    } else {
        vr_engine_drop(e, VR_ENGINE_NOT_WRAPPED);
        return;
    }
    if (in->bytes == 0) {
        vr_engine_drop(e, VR_ENGINE_EMPTY);
        return;
    }
    switch (vr_demux(in->data[0])) {
    case VR_PROTOCOL_STUN:
        on_stun(e, in, &key, now_ns);
        return;
    case VR_PROTOCOL_DTLS:
        on_dtls(e, in, &key, now_ns);
        return;
    case VR_PROTOCOL_MEDIA:
        on_media(e, in, &key, now_ns);
        return;
    case VR_PROTOCOL_OTHER:
        vr_engine_drop(e, VR_ENGINE_UNKNOWN_PROTOCOL);
        return;
    }
}
