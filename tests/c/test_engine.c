/* The engine as a thread with a real socket: checks, echo and sound over SPP, trains of datagrams, and sessions that
 * come and go while others run. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "../../csrc/media/engine.h"

#include "../../csrc/media/engine_state.h"
#include "../../csrc/media/hmac.h"
#include "../../csrc/wire/bytes.h"
#include "../../csrc/wire/crc32.h"
#include "../../csrc/wire/spp.h"
#include "check.h"

#include <arpa/inet.h>
#include <netinet/udp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

enum { RATE = 8000 };

struct bench {
    int fd;
    struct sockaddr_in at;
    struct vr_engine *engine;
    pthread_t thread;
};

static void *run(void *engine) {
    CHECK_EQ(vr_engine_run(engine), 0);
    return NULL;
}

static int bound_socket(struct sockaddr_in *at) {
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    socklen_t length = sizeof *at;
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK(bind(fd, (struct sockaddr *)at, sizeof *at) == 0);
    getsockname(fd, (struct sockaddr *)at, &length);
    return fd;
}

static struct bench start(uint32_t max_sessions) {
    struct bench b;
    b.fd = bound_socket(&b.at);
    struct vr_engine_config config = {
        .fd = b.fd, .max_sessions = max_sessions, .wake_ms = 20, .relay_count = 1};
    vr_ip_from_v4(config.relays[0].ip, (uint8_t[]){127, 0, 0, 0});
    config.relays[0].prefix_bits = 96 + 8;
    b.engine = vr_engine_new(&config);
    CHECK(b.engine != NULL);
    pthread_create(&b.thread, NULL, run, b.engine);
    return b;
}

static void stop(struct bench *b) {
    vr_engine_stop(b->engine);
    pthread_join(b->thread, NULL);
    vr_engine_free(b->engine);
    close(b->fd);
}

static struct vr_srtp *key(uint8_t seed) {
    uint8_t bytes[32], salt[14];
    memset(bytes, seed, sizeof bytes);
    memset(salt, seed, sizeof salt);
    return vr_srtp_new(VR_SRTP_AEAD_AES_128_GCM, bytes, salt);
}

static void open_session(struct bench *b, uint32_t index, enum vr_session_mode mode) {
    char ufrag[16];
    struct vr_session_config config = {
        .mode = mode,
        .receive = {RATE, VR_NO_PAYLOAD_TYPE, 0, VR_NO_PAYLOAD_TYPE, VR_NO_PAYLOAD_TYPE},
        .pacer = {.rate_hz = RATE, .capacity_samples = 10 * RATE},
        .encoder = {.codec = VR_CODEC_PCMU, .rate_hz = RATE},
        .ssrc = 100 + index,
        .cname = "engine",
    };
    snprintf(ufrag, sizeof ufrag, "ufrag%u", index);
    struct vr_session *session = vr_session_new(&config, vr_engine_now_ns());
    CHECK_EQ(vr_engine_open(b->engine, index, ufrag, "password-of-a-session", "cli", session), 0);
    CHECK_EQ(vr_engine_keys(b->engine, index, key(1), key(2)), 0);
}

struct client {
    int fd;
    struct sockaddr_in at, to;
    struct vr_flow_key flow;
    struct vr_srtp *tx, *rx;
    uint16_t sequence;
};

static struct client make_client(const struct bench *b, uint16_t port) {
    struct client c = {.to = b->at, .tx = key(1), .rx = key(2)};
    c.fd = bound_socket(&c.at);
    vr_ip_from_v4(c.flow.client.ip, (uint8_t[]){203, 0, 113, 7});
    vr_ip_from_v4(c.flow.proxy.ip, (uint8_t[]){192, 0, 2, 1});
    c.flow.client.port_be = htons(port);
    c.flow.proxy.port_be = htons(3478);
    return c;
}

static void free_client(struct client *c) {
    close(c->fd);
    vr_srtp_free(c->tx);
    vr_srtp_free(c->rx);
}

static void send_wrapped(struct client *c, const uint8_t *payload, size_t bytes) {
    uint8_t datagram[1600];
    vr_spp_write(datagram, &c->flow);
    memcpy(datagram + VR_SPP_BYTES, payload, bytes);
    CHECK(sendto(c->fd, datagram, VR_SPP_BYTES + bytes, 0, (struct sockaddr *)&c->to,
                 sizeof c->to) > 0);
}

/* The next payload for this client within a second; 0 when none comes. */
static size_t receive(struct client *c, uint8_t *out, size_t capacity) {
    uint8_t datagram[2048];
    struct vr_flow_key flow;
    struct pollfd wait = {.fd = c->fd, .events = POLLIN};
    if (poll(&wait, 1, 3000) <= 0)
        return 0;
    ssize_t bytes = recv(c->fd, datagram, sizeof datagram, 0);
    CHECK(bytes > VR_SPP_BYTES && vr_spp_read(datagram, (size_t)bytes, &flow));
    CHECK(vr_flow_key_equal(&flow, &c->flow));
    size_t n = (size_t)bytes - VR_SPP_BYTES < capacity ? (size_t)bytes - VR_SPP_BYTES : capacity;
    memcpy(out, datagram + VR_SPP_BYTES, n);
    return n;
}

/* The next packet that is no report. */
static size_t receive_rtp(struct client *c, uint8_t *out, size_t capacity) {
    size_t bytes;
    do
        bytes = receive(c, out, capacity);
    while (bytes != 0 && vr_rtp_is_rtcp(out, bytes));
    return bytes;
}

static void send_check(struct client *c, uint32_t index) {
    uint8_t m[128] = {0, 1}, tag[VR_HMAC_BYTES];
    static uint32_t tid;
    struct vr_hmac hmac;
    char name[32];
    size_t name_bytes = (size_t)snprintf(name, sizeof name, "ufrag%u:cli", index), at = 20;
    vr_store_be32(m + 4, 0x2112A442);
    vr_store_be32(m + 8, ++tid);
    vr_store_be16(m + at, 6);
    vr_store_be16(m + at + 2, (uint16_t)name_bytes);
    memcpy(m + at + 4, name, name_bytes);
    at += 4 + (name_bytes + 3) / 4 * 4;
    vr_store_be16(m + 2, (uint16_t)(at + 24 - 20));
    vr_hmac_init(&hmac, (const uint8_t *)"password-of-a-session", 21);
    vr_hmac_begin(&hmac);
    vr_hmac_add(&hmac, m, at);
    vr_hmac_end(&hmac, tag);
    vr_hmac_free(&hmac);
    vr_store_be16(m + at, 8);
    vr_store_be16(m + at + 2, 20);
    memcpy(m + at + 4, tag, 20);
    send_wrapped(c, m, at + 24);
}

static size_t make_rtp(struct client *c, uint8_t *out) {
    struct vr_rtp rtp = {.ssrc = 7, .sequence = ++c->sequence, .timestamp = 160u * c->sequence};
    size_t bytes = 12 + 160;
    vr_rtp_write_header(out, &rtp);
    memset(out + 12, 0x20, 160);
    CHECK_EQ(vr_srtp_protect(c->tx, out, &bytes, 300), VR_SRTP_OK);
    return bytes;
}

/* Drains events until one of `kind` comes; false after three seconds. */
static bool wait_event(struct bench *b, uint32_t kind) {
    struct pollfd wait = {.fd = vr_engine_notify_fd(b->engine), .events = POLLIN};
    for (int tries = 0; tries < 300; tries++) {
        const struct vr_engine_event *event;
        vr_engine_awake(b->engine);
        while ((event = vr_engine_peek(b->engine)) != NULL) {
            bool found = event->kind == kind;
            vr_engine_pop(b->engine);
            if (found)
                return true;
        }
        poll(&wait, 1, 10);
    }
    return false;
}

static void connect_client(struct bench *b, struct client *c, uint32_t index) {
    uint8_t reply[200];
    send_check(c, index);
    CHECK(wait_event(b, VR_ENGINE_CHECKED));
    CHECK(receive(c, reply, sizeof reply) == 64 && reply[0] == 1 && reply[1] == 1);
}

TEST(a_check_is_answered_and_media_comes_back) {
    struct bench b = start(4);
    struct client c = make_client(&b, 5000);
    open_session(&b, 2, VR_SESSION_ECHO);
    connect_client(&b, &c, 2);
    unsigned echoed = 0;
    for (int i = 0; i < 20; i++) {
        uint8_t packet[300];
        send_wrapped(&c, packet, make_rtp(&c, packet));
        size_t bytes = receive_rtp(&c, packet, sizeof packet);
        if (bytes != 0) {
            CHECK_EQ(vr_srtp_unprotect(c.rx, packet, &bytes), VR_SRTP_OK);
            CHECK_EQ(bytes, 172);
            echoed++;
        }
    }
    CHECK_EQ(echoed, 20);
    free_client(&c);
    stop(&b);
}

TEST(a_train_of_datagrams_is_taken_apart) { /* what a relay with UDP_SEGMENT sends */
    struct bench b = start(4);
    struct client c = make_client(&b, 5000);
    open_session(&b, 0, VR_SESSION_ECHO);
    connect_client(&b, &c, 0);
    uint8_t train[10 * 300];
    size_t one = 0, bytes = 0;
    for (int i = 0; i < 10; i++) {
        vr_spp_write(train + bytes, &c.flow);
        one = VR_SPP_BYTES + make_rtp(&c, train + bytes + VR_SPP_BYTES);
        bytes += one;
    }
    int segment = (int)one;
    if (setsockopt(c.fd, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment) == 0) {
        CHECK(sendto(c.fd, train, bytes, 0, (struct sockaddr *)&c.to, sizeof c.to) ==
              (ssize_t)bytes);
        unsigned echoed = 0;
        uint8_t packet[300];
        for (int i = 0; i < 10; i++)
            echoed += receive_rtp(&c, packet, sizeof packet) != 0;
        CHECK_EQ(echoed, 10);
        struct vr_engine_counts counts;
        vr_engine_read_counts(b.engine, &counts);
        CHECK_EQ(counts.socket.received, 11); /* with the check */
        CHECK_EQ(counts.socket.messages, 2);  /* UDP_GRO leaves the train together */
    }
    free_client(&c);
    stop(&b);
}

TEST(two_sessions_share_a_flow_key_and_the_keys_decide) {
    struct bench b = start(4);
    struct client c = make_client(&b, 5000);
    open_session(&b, 0, VR_SESSION_ECHO);
    open_session(&b, 1, VR_SESSION_ECHO);
    CHECK_EQ(vr_engine_keys(b.engine, 0, key(8), key(9)), 0); /* somebody else's */
    connect_client(&b, &c, 0);
    connect_client(&b, &c, 1);
    uint8_t packet[300];
    send_wrapped(&c, packet, make_rtp(&c, packet));
    size_t bytes = receive_rtp(&c, packet, sizeof packet);
    CHECK_EQ(vr_srtp_unprotect(c.rx, packet, &bytes), VR_SRTP_OK);
    struct vr_engine_counts counts;
    vr_engine_read_counts(b.engine, &counts);
    CHECK_EQ(counts.drops[VR_ENGINE_NOT_AUTHENTIC], 0);
    free_client(&c);
    stop(&b);
}

/* Of all sessions so far, served or left out. */
static uint64_t ticks_of(const struct bench *b) {
    struct vr_engine_counts counts;
    vr_engine_read_counts(b->engine, &counts);
    return counts.ticks + counts.skipped_ticks;
}

TEST(the_clock_is_absolute) {
    struct bench b = start(40);
    for (uint32_t i = 0; i < 40; i++)
        open_session(&b, i, VR_SESSION_PCM);
    poll(NULL, 0, 200);
    uint64_t began_ns = vr_engine_now_ns(), before = ticks_of(&b);
    poll(NULL, 0, 2000);
    double expected = (double)(vr_engine_now_ns() - began_ns) / 20e6 * 40;
    for (int tries = 0; (double)(ticks_of(&b) - before) <= expected - 250 && tries < 300; tries++)
        poll(NULL, 0, 10); /* a thread that got no CPU catches up */
    double ticks = (double)(ticks_of(&b) - before);
    CHECK(ticks > expected - 250);
    CHECK(ticks < (double)(vr_engine_now_ns() - began_ns) / 20e6 * 40 + 250);
    stop(&b);
}

TEST(sessions_come_and_go_while_others_talk) {
    struct bench b = start(8);
    struct client c = make_client(&b, 5000);
    open_session(&b, 0, VR_SESSION_ECHO);
    connect_client(&b, &c, 0);
    unsigned sent = 0, echoed = 0;
    for (int round = 0; round < 50; round++) {
        uint8_t packet[300];
        for (uint32_t i = 1; i < 8; i++)
            open_session(&b, i, i % 2 ? VR_SESSION_PCM : VR_SESSION_ECHO);
        send_wrapped(&c, packet, make_rtp(&c, packet));
        sent++;
        size_t bytes = receive(&c, packet, sizeof packet);
        echoed += bytes != 0 && !vr_rtp_is_rtcp(packet, bytes);
        for (uint32_t i = 1; i < 8; i++)
            vr_engine_close(b.engine, i);
        for (int i = 0; i < 7; i++)
            CHECK(wait_event(&b, VR_ENGINE_CLOSED));
    }
    CHECK(echoed + 10 >= sent);
    free_client(&c);
    stop(&b);
}

/* Without its thread, in simulated time: wherever its session has joined, its tick goes to where the client's
 * sound is due, 25 ms after each packet. */
TEST(a_tick_moves_to_where_sound_is_due) {
    for (uint64_t phase_ms = 0; phase_ms < 20; phase_ms += 6) {
        struct bench b = {.fd = bound_socket(&b.at)};
        struct vr_engine_config config = {.fd = b.fd, .max_sessions = 1, .wake_ms = 20};
        struct vr_engine *e = b.engine = vr_engine_new(&config);
        struct client c = make_client(&b, 5000);
        open_session(&b, 0, VR_SESSION_PCM);
        vr_engine_serve_commands(e, vr_engine_now_ns());
        uint64_t began_ms = vr_engine_now_ns() / VR_MS_NS;
        for (uint64_t ms = began_ms; ms < began_ms + 3000; ms++) {
            uint32_t cursor = 0, session;
            if (ms % 20 == phase_ms) {
                uint8_t packet[300], none[VR_SESSION_PACKET_BYTES];
                size_t none_bytes, bytes = make_rtp(&c, packet);
                CHECK_EQ(vr_session_packet(e->seats[0].media, packet, bytes, ms * VR_MS_NS, none,
                                           &none_bytes),
                         VR_SESSION_OK);
            }
            while (vr_wheel_take(&e->wheel, ms, &cursor, &session)) {
                uint64_t late_ns = ms % 7 * VR_MS_NS; /* a busy thread does not mislead it */
                int shift_ms = vr_engine_tick(e, 0, ms * VR_MS_NS, ms * VR_MS_NS + late_ns);
                vr_wheel_again(&e->wheel, 0, ms, shift_ms);
            }
        }
        struct vr_session_counts counts;
        vr_session_read_counts(e->seats[0].media, &counts);
        CHECK_EQ(counts.target_ns, 25 * VR_MS_NS);
        CHECK((e->wheel.due_ms[0] + 40 - phase_ms - 25) % 20 <= 2);
        free_client(&c);
        vr_engine_free(e);
        close(b.fd);
    }
}

/* More ends than the queues hold, and nobody who fetches them: each is told in the end, once. */
TEST(every_place_is_given_back_however_full_the_queues_are) {
    enum { PLACES = 12000 };
    static bool closed[PLACES];
    struct bench b = {.fd = bound_socket(&b.at)};
    struct vr_engine_config engine = {.fd = b.fd, .max_sessions = PLACES, .wake_ms = 20};
    struct vr_engine *e = vr_engine_new(&engine); /* without its thread */
    struct vr_session_config config = {
        .mode = VR_SESSION_ECHO,
        .receive = {RATE, VR_NO_PAYLOAD_TYPE, 0, VR_NO_PAYLOAD_TYPE, VR_NO_PAYLOAD_TYPE},
        .encoder = {.codec = VR_CODEC_PCMU, .rate_hz = RATE},
    };
    for (uint32_t i = 0; i < PLACES; i++) {
        char ufrag[16];
        struct vr_session *session = vr_session_new(&config, vr_engine_now_ns());
        snprintf(ufrag, sizeof ufrag, "ufrag%u", i);
        CHECK_EQ(vr_engine_open(e, i, ufrag, "password-of-a-session", "cli", session), 0);
        vr_engine_serve_commands(e, vr_engine_now_ns());
    }
    uint8_t datagram[1400] = {22};
    while (vr_engine_send(e, 0, datagram, sizeof datagram) == 0)
        ;
    for (uint32_t i = 0; i < PLACES; i++)
        vr_engine_close(e, i);
    vr_engine_serve_commands(e, vr_engine_now_ns());
    CHECK(e->untold > 0 && e->counts.sessions == 0);
    unsigned told = 0;
    for (int rounds = 0; rounds < 3; rounds++) {
        const struct vr_engine_event *event;
        while ((event = vr_engine_peek(e)) != NULL) {
            CHECK(event->kind == VR_ENGINE_CLOSED && !closed[event->session]);
            closed[event->session] = true;
            told++;
            vr_engine_pop(e);
        }
        CHECK_EQ(vr_engine_has_commands(e), e->untold != 0);
        vr_engine_serve_commands(e, vr_engine_now_ns());
    }
    CHECK_EQ(told, PLACES);
    CHECK_EQ(e->untold, 0);
    vr_engine_free(e);
    close(b.fd);
}

TEST(what_waits_at_the_end_is_freed) {
    struct bench b = start(4);
    vr_engine_stop(b.engine);
    pthread_join(b.thread, NULL);
    open_session(&b, 0, VR_SESSION_PCM); /* commands that nobody will read */
    open_session(&b, 1, VR_SESSION_ECHO);
    vr_engine_free(b.engine);
    close(b.fd);
}

/* What the engine's thread does, without one. */
static struct vr_engine *still_engine(int *fd) {
    struct sockaddr_in at;
    *fd = bound_socket(&at);
    struct vr_engine_config config = {.fd = *fd, .max_sessions = 2, .wake_ms = 20, .direct = true};
    struct vr_engine *engine = vr_engine_new(&config);
    CHECK(engine != NULL);
    return engine;
}

TEST(an_event_without_room_is_counted_unless_it_is_told_again) {
    static const struct {
        enum vr_engine_event_kind kind;
        unsigned drops;
    } cases[] = {{VR_ENGINE_CHECKED, 1},  {VR_ENGINE_DTLS, 1},    {VR_ENGINE_DIGIT, 1},
                 {VR_ENGINE_READABLE, 0}, {VR_ENGINE_EXPIRED, 0}, {VR_ENGINE_CLOSED, 0}};
    int fd;
    struct vr_engine *e = still_engine(&fd);
    while (vr_engine_emit(e, VR_ENGINE_CLOSED, 0, 0, NULL, NULL, 0))
        ;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t before = e->counts.drops[VR_ENGINE_EVENTS_FULL];
        CHECK(!vr_engine_emit(e, cases[i].kind, 0, 0, NULL, NULL, 0));
        CHECK_EQ(e->counts.drops[VR_ENGINE_EVENTS_FULL] - before, cases[i].drops);
    }
    vr_engine_free(e);
    close(fd);
}

/* Takes all events that wait, and returns how many of them are of `kind` and `session`. */
static unsigned take_events(struct vr_engine *e, uint32_t kind, uint32_t session) {
    const struct vr_engine_event *event;
    unsigned found = 0;
    for (; (event = vr_engine_peek(e)) != NULL; vr_engine_pop(e))
        found += event->kind == kind && event->session == session;
    return found;
}

static void fill_events(struct vr_engine *e) { /* with ends of another session */
    while (vr_engine_emit(e, VR_ENGINE_CLOSED, 1, 0, NULL, NULL, 0))
        ;
}

/* Fetches what fills the queue of events; then the end that had no room is told, and told once. */
static void check_told(struct vr_engine *e, enum vr_engine_event_kind kind, uint64_t now_ns) {
    CHECK_EQ(take_events(e, kind, 0), 0);
    CHECK(vr_engine_has_commands(e));
    vr_engine_serve_commands(e, now_ns);
    CHECK_EQ(take_events(e, kind, 0), 1);
    CHECK(!vr_engine_has_commands(e));
}

/* Twice in the same place, so that nothing of the call before keeps an end from being told. */
TEST(the_end_of_a_session_that_could_not_begin_is_told_when_there_is_room) {
    int fd;
    struct bench b = {.engine = still_engine(&fd)};
    struct vr_engine *e = b.engine;
    open_session(&b, 1, VR_SESSION_ECHO);
    for (int round = 0; round < 2; round++) {
        uint64_t now_ns = vr_engine_now_ns();
        CHECK_EQ(vr_engine_open(e, 0, "ufrag1", "password-of-a-session", "cli", NULL), 0);
        fill_events(e);
        vr_engine_serve_commands(e, now_ns);
        check_told(e, VR_ENGINE_EXPIRED, now_ns);
        vr_engine_close(e, 0);
        fill_events(e);
        vr_engine_serve_commands(e, now_ns);
        check_told(e, VR_ENGINE_CLOSED, now_ns);
    }
    vr_engine_free(e);
    close(fd);
}

TEST(the_end_by_consent_is_told_when_there_is_room) {
    int fd;
    struct bench b = {.engine = still_engine(&fd)};
    struct vr_engine *e = b.engine;
    for (int round = 0; round < 2; round++) {
        uint64_t now_ns = vr_engine_now_ns() + 31000 * VR_MS_NS;
        open_session(&b, 0, VR_SESSION_ECHO);
        vr_engine_serve_commands(e, vr_engine_now_ns());
        fill_events(e);
        for (int ticks = 0; ticks < 100; ticks++)
            vr_engine_tick(e, 0, now_ns, now_ns);
        check_told(e, VR_ENGINE_EXPIRED, now_ns);
        for (int ticks = 0; ticks < 100; ticks++)
            vr_engine_tick(e, 0, now_ns, now_ns);
        CHECK_EQ(take_events(e, VR_ENGINE_EXPIRED, 0), 0);
        vr_engine_close(e, 0);
        vr_engine_serve_commands(e, now_ns);
        CHECK_EQ(take_events(e, VR_ENGINE_CLOSED, 0), 1);
    }
    vr_engine_free(e);
    close(fd);
}

/* Who is done with a session hears that its place is free, and no end of it that was untold before. */
TEST(an_end_by_consent_is_not_told_of_a_session_that_was_closed) {
    int fd;
    struct bench b = {.engine = still_engine(&fd)};
    struct vr_engine *e = b.engine;
    uint64_t now_ns = vr_engine_now_ns();
    open_session(&b, 1, VR_SESSION_ECHO);
    CHECK_EQ(vr_engine_open(e, 0, "ufrag1", "password-of-a-session", "cli", NULL), 0);
    fill_events(e);
    vr_engine_serve_commands(e, now_ns);
    vr_engine_close(e, 0);
    vr_engine_serve_commands(e, now_ns);
    take_events(e, VR_ENGINE_CLOSED, 0);
    vr_engine_serve_commands(e, now_ns);
    CHECK_EQ(vr_engine_peek(e)->kind, VR_ENGINE_CLOSED);
    CHECK_EQ(take_events(e, VR_ENGINE_CLOSED, 0), 1);
    CHECK(!vr_engine_has_commands(e));
    vr_engine_free(e);
    close(fd);
}

/* Who opens a place reads nothing of the call before, nor half of it. */
TEST(a_place_that_is_given_back_has_no_path) {
    static const struct vr_flow_key none;
    int fd;
    struct bench b = {.engine = still_engine(&fd)};
    struct vr_ice_path path = {.authenticated_ns = 7};
    struct vr_engine_path seen;
    path.key.client.port_be = 42;
    for (int round = 0; round < 2; round++) {
        open_session(&b, 0, VR_SESSION_ECHO);
        CHECK(vr_engine_read_path(b.engine, 0, &seen));
        CHECK(vr_flow_key_equal(&seen.key, &none)); /* before the engine has opened it, too */
        vr_engine_serve_commands(b.engine, vr_engine_now_ns());
        vr_engine_publish_path(b.engine, 0, &path);
        CHECK(vr_engine_read_path(b.engine, 0, &seen));
        CHECK(!seen.paused && vr_flow_key_equal(&seen.key, &path.key));
        uint32_t sequence = b.engine->seats[0].path_sequence;
        vr_engine_close(b.engine, 0);
        vr_engine_serve_commands(b.engine, vr_engine_now_ns());
        CHECK(b.engine->seats[0].path_sequence != sequence); /* a reader in between reads again */
        CHECK(vr_engine_read_path(b.engine, 0, &seen));
        CHECK(seen.paused && vr_flow_key_equal(&seen.key, &none));
    }
    vr_engine_free(b.engine);
    close(fd);
}

/* A thread that overslept by a second: what it catches up with is counted by its lateness, what it leaves out
 * as skipped, and together they are all ticks of that time. */
TEST(a_late_clock_counts_every_tick_once) {
    int fd;
    struct bench b = {.engine = still_engine(&fd)};
    struct vr_engine *e = b.engine;
    uint64_t slept_ms = vr_engine_now_ns() / VR_MS_NS - 1000;
    for (uint32_t i = 0; i < 2; i++)
        open_session(&b, i, VR_SESSION_PCM);
    CHECK_EQ(vr_engine_keys(e, 0, key(1), key(2)), 0);
    vr_engine_serve_commands(e, slept_ms * VR_MS_NS);
    e->clock_ms = slept_ms;
    struct vr_pacer *pacer = vr_session_pacer(e->seats[0].media);
    struct vr_pacer_block block;
    int16_t pcm[VR_BLOCK_MAX_SAMPLES];
    vr_pacer_tick(pacer, pcm, &block);
    uint32_t first = block.timestamp;
    uint64_t due_ms[2] = {e->wheel.due_ms[0], e->wheel.due_ms[1]}, expected = 0;
    vr_engine_serve_clock(e);
    uint64_t took_ns = vr_engine_now_ns() - e->clock_ms * VR_MS_NS;
    for (int i = 0; i < 2; i++)
        expected += (e->clock_ms - due_ms[i]) / 20 + 1;
    CHECK_EQ(e->counts.ticks, 2 * VR_ENGINE_CATCH_UP_MS / 20);
    CHECK_EQ(e->counts.ticks + e->counts.skipped_ticks, expected);

    /* what is said next is said a second later */
    vr_pacer_tick(pacer, pcm, &block);
    CHECK_EQ(block.timestamp - first, 160 * ((e->clock_ms - due_ms[0]) / 20 + 2));

    uint64_t counted = 0, least_ns = 0;
    for (uint64_t i = 0; i < VR_ENGINE_LATENESS; i++) {
        counted += e->counts.lateness[i];
        least_ns += e->counts.lateness[i] * i * 100000;
    }
    CHECK_EQ(counted, e->counts.ticks);
    CHECK(least_ns > 0 && e->counts.late_ns >= least_ns);
    CHECK(e->counts.late_ns <= counted * (VR_ENGINE_CATCH_UP_MS * VR_MS_NS + took_ns));
    vr_engine_free(e);
    close(fd);
}
