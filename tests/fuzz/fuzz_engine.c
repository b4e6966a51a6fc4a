/* The media engine's receive path, from the datagram to what Python reads: SPP, ICE, DTLS, SRTP, sound.
 *
 * 1. The engine's inner functions are called without its thread; what it sends goes to a socket on loopback
 *    that nobody reads.
 * 2. The input is a script. A step: op 1, who 1, length 1, that many bytes. Bytes become a datagram as
 *    they are, an SPP payload, the attributes of a good check, or a packet that the session's keys
 *    protect, so that what lies behind authentication is reached too.
 * 3. Session 0 is a pass-through, session 1 decodes, session 2 hands frames to its reader, who says them again;
 *    all know the same keys, as an attacker's would not.
 */
#include "media/engine_state.h"

#include "fuzz.h"
#include "signed_check.h"
#include "wire/spp.h"

#include <netinet/in.h>
#include <sys/socket.h>

enum { SESSIONS = 3, FLOWS = 3, ROOM = 4096 };

static const uint8_t secret[VR_SRTP_KEY_BYTES_MAX] = "a key of thirty-two bytes and no";

static struct vr_srtp *keys(void) {
    return vr_srtp_new(VR_SRTP_AES128_CM_SHA1_80, secret, secret);
}

static int open_socket(struct sockaddr_in *at) {
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    socklen_t length = sizeof *at;
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    HOLDS(fd >= 0 && bind(fd, (struct sockaddr *)at, sizeof *at) == 0);
    HOLDS(getsockname(fd, (struct sockaddr *)at, &length) == 0);
    return fd;
}

static void open_session(struct vr_engine *e, uint32_t n) {
    struct vr_session_config config = {
        .mode = n == 0   ? VR_SESSION_ECHO
                : n == 1 ? VR_SESSION_PCM
                         : VR_SESSION_FRAMES,
        .tap = n != 1,
        .receive = {8000, 111, 0, 8, 101},
        .pacer = {.rate_hz = 8000, .capacity_samples = 8000},
        .encoder = {.codec = VR_CODEC_PCMU, .rate_hz = 8000},
        .ssrc = 99,
    };
    char ufrag[3] = {'u', (char)('0' + n), 0};
    struct vr_session *media = vr_session_new(&config, vr_engine_now_ns());
    HOLDS(media != NULL);
    HOLDS(vr_engine_open(e, n, ufrag, check_password, "cli", media) == 0);
    HOLDS(vr_engine_keys(e, n, keys(), keys()) == 0);
}

static void say_again(struct vr_session *media) {
    struct vr_frames *heard = vr_session_frames(media);
    const struct vr_frame *frame;
    while ((frame = vr_frames_peek(heard)) != NULL) {
        HOLDS(frame->payload_bytes <= VR_SESSION_PACKET_BYTES && frame->side == VR_FRAME_HEARD);
        vr_frame_pacer_write(vr_session_frame_pacer(media), frame->units, frame->payload,
                             frame->payload_bytes);
        vr_frames_pop(heard);
    }
    if (vr_frame_pacer_waiting_ms(vr_session_frame_pacer(media)) > 500)
        vr_frame_pacer_flush(vr_session_frame_pacer(media));
    while (vr_frames_peek(vr_session_frame_tap(media)) != NULL)
        vr_frames_pop(vr_session_frame_tap(media));
}

static void read_events(struct vr_engine *e) {
    const struct vr_engine_event *event;
    vr_engine_awake(e);
    while ((event = vr_engine_peek(e)) != NULL) {
        HOLDS(event->session < SESSIONS);
        HOLDS(event->kind >= VR_ENGINE_CHECKED && event->kind <= VR_ENGINE_CLOSED);
        HOLDS(event->kind != VR_ENGINE_DIGIT || event->payload_bytes == 1);
        if (event->kind == VR_ENGINE_DTLS)
            HOLDS(vr_engine_authenticated(e, event) == 0 &&
                  vr_engine_send(e, event->session, (const uint8_t *)"\x16", 1) == 0);
        if (event->kind == VR_ENGINE_READABLE && event->session == 2) {
            say_again(e->seats[2].media);
            vr_engine_rearm(e, 2);
        } else if (event->kind == VR_ENGINE_READABLE) {
            int16_t pcm[8000];
            HOLDS(vr_session_read(e->seats[event->session].media, pcm, 8000) <= 8000);
            vr_engine_rearm(e, event->session);
        }
        vr_engine_pop(e);
    }
    vr_engine_serve_commands(e, vr_engine_now_ns());
}

/* What the datagram of a step is; 0 bytes and more. */
static size_t make(unsigned op, unsigned session, const uint8_t *payload, size_t length,
                   struct vr_srtp *client, uint8_t *out) {
    static uint32_t transaction;
    struct vr_flow_key key = {.client.port_be = (uint16_t)(op / 8 % FLOWS)};
    size_t bytes = length;
    if (op % 8 == 0) {
        memcpy(out, payload, length);
        return length;
    }
    vr_spp_write(out, &key);
    uint8_t *inner = out + VR_SPP_BYTES;
    memcpy(inner, payload, length);
    if (op % 8 == 2)
        bytes = signed_check(session, ++transaction, payload, length, inner);
    if (op % 8 == 3 && vr_srtp_protect(client, inner, &bytes, ROOM / 2) != VR_SRTP_OK)
        bytes = length;
    if (op % 8 == 4 && vr_srtp_protect_rtcp(client, inner, &bytes, ROOM / 2) != VR_SRTP_OK)
        bytes = length;
    return VR_SPP_BYTES + bytes;
}

static uint64_t outcomes(const struct vr_engine *e) {
    uint64_t sum = e->counts.rtp_in + e->counts.rtcp_in + e->counts.dtls_in;
    for (int i = 0; i < VR_ENGINE_DROP_COUNT; i++)
        sum += e->counts.drops[i];
    for (int i = 0; i < VR_ICE_STATUS_COUNT; i++)
        sum += e->counts.checks[i];
    return sum;
}

static struct vr_engine *make_engine(void) {
    struct sockaddr_in at;
    struct vr_engine_config config = {.fd = open_socket(&at), .max_sessions = SESSIONS};
    config.wake_ms = 20;
    config.relay_count = 1;
    vr_ip_from_v4(config.relays[0].ip, (const uint8_t[]){127, 0, 0, 1});
    config.relays[0].prefix_bits = 128;
    struct vr_engine *e = vr_engine_new(&config);
    HOLDS(e != NULL);
    return e;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static struct vr_engine *e; /* one for all inputs: each leaves it without sessions */
    static int sink;
    static struct sockaddr_in there;
    if (e == NULL) {
        sink = open_socket(&there);
        e = make_engine();
    }
    struct vr_srtp *client = keys();
    HOLDS(client != NULL);
    for (uint32_t i = 0; i < SESSIONS; i++)
        open_session(e, i);
    vr_engine_serve_commands(e, vr_engine_now_ns());
    uint64_t now_ns = vr_engine_now_ns();
    for (size_t i = 0; i + 3 <= bytes;) {
        unsigned op = data[i], session = data[i + 1] % SESSIONS;
        size_t length = data[i + 2], rest = bytes - i - 3;
        length = length < rest ? length : rest;
        now_ns += (uint64_t)(data[i + 1] / SESSIONS) * VR_MS_NS;
        if (op % 8 <= 5) {
            uint8_t made[ROOM];
            struct vr_received in = {.source.peer.port_be = there.sin_port};
            vr_ip_from_v4(in.source.peer.ip, (const uint8_t[]){127, 0, 0, (uint8_t)(1 + op / 128)});
            in.bytes = make(op, session, data + i + 3, length, client, made);
            uint8_t *copy = exact_copy(made, in.bytes);
            uint64_t before = outcomes(e);
            in.data = copy;
            vr_engine_on_datagram(e, &in, now_ns);
            HOLDS(outcomes(e) > before); /* nothing goes without a count */
            free(copy);
            i += length;
        } else if (op % 8 == 6) {
            for (uint32_t n = 0; n < SESSIONS; n++)
                vr_engine_tick(e, n, now_ns, now_ns);
            now_ns += 20 * VR_MS_NS;
        } else {
            vr_engine_close(e, session);
            read_events(e);
            open_session(e, session);
        }
        vr_socket_flush(e->socket);
        read_events(e);
        i += 3;
    }
    uint8_t heard[VR_DATAGRAM_BYTES];
    while (recv(sink, heard, sizeof heard, 0) > 0)
        ;
    for (uint32_t i = 0; i < SESSIONS; i++)
        vr_engine_close(e, i);
    read_events(e);
    read_events(e);
    HOLDS(e->counts.sessions == 0);
    vr_srtp_free(client);
    return 0;
}
