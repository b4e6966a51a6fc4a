/* mediaload.c: many talking WebRTC clients in one process: ICE checks, DTLS-SRTP, Opus at 50 packets/s.
 *
 * Commands on stdin, one answer line each; while a command waits nothing else runs.
 *   port                                   -> INDEX PORT         a new client with a socket of its own
 *   call INDEX IP PORT UFRAG PWD OUR_UFRAG OUR_PWD PT -> 0       starts its checks
 *   wait COUNT MS                          -> CONNECTED          until COUNT are connected, at most MS
 *   run MS                                 -> SENT RECEIVED AUTHENTIC P50_US P99_US MAX_US
 *   codecs COMPLEXITY SESSIONS ROUNDS      -> ENCODE_NS DECODE_NS    of 20 ms, 24 kHz mono, 24 kbit/s
 * The greeting is the sha-256 fingerprint of the clients' certificate.
 *
 * The jitter of `run` is of what arrives, by client: how much later than its earliest packet, both by
 * their RTP timestamps. One packet in 16 is opened, and must be authentic.
 */
#include "media/hmac.h"
#include "media/ice.h"
#include "media/rtp.h"
#include "media/srtp.h"
#include "wire/bytes.h"
#include "wire/crc32.h"

#include <arpa/inet.h>
#include <math.h>
#include <openssl/ec.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <opus/opus.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_CLIENTS = 2048,
    FRAMES = 500,
    PERIOD_MS = 20,
    CHECK_EVERY_MS = 100,
    CALM_CHECK_MS = 2000,
    DRAIN_MS = 100,
    MAX_SAMPLES = 1 << 22
};

struct client {
    int fd;
    bool calling, connected;
    uint8_t payload_type;
    struct sockaddr_in server;
    char username[600];
    struct vr_hmac integrity; /* under the server's password */
    uint64_t next_check_ms;
    SSL *ssl;
    struct vr_srtp *in, *out;
    uint16_t sequence;
    uint32_t ssrc;
    unsigned frame;
    bool heard;
    uint32_t first_timestamp; /* of this run */
    uint64_t first_ns;
    int64_t earliest_ns;
    uint32_t samples_at, samples;
};

static struct client clients[MAX_CLIENTS];
static unsigned client_count, connected_count;
static struct vr_ice *ice;
static SSL_CTX *context;
static int epoll_fd;
static uint8_t frames[FRAMES][400];
static int frame_bytes[FRAMES];
static uint64_t sent, received, authentic;
static bool talking;
static int64_t *lateness;
static uint32_t *owner;
static unsigned lateness_count;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

/* Something like a voice: harmonics of a moving pitch, in syllables. */
static void voice(int16_t *pcm, unsigned samples, double rate_hz, double from_s) {
    static double phase;
    for (unsigned i = 0; i < samples; i++) {
        double t = from_s + i / rate_hz, pitch = 130 + 30 * sin(2 * M_PI * 0.7 * t), sum = 0;
        phase += 2 * M_PI * pitch / rate_hz;
        for (int h = 1; h <= 12; h++)
            sum += sin(h * phase) / h * (1 + cos(2 * M_PI * (h * 0.13 + t)));
        double syllable = 0.5 + 0.5 * sin(2 * M_PI * 3.5 * t);
        pcm[i] = (int16_t)(2500 * sum * syllable * syllable);
    }
}

static void make_frames(void) {
    OpusEncoder *e = opus_encoder_create(48000, 1, OPUS_APPLICATION_VOIP, NULL);
    opus_encoder_ctl(e, OPUS_SET_BITRATE(32000));
    opus_encoder_ctl(e, OPUS_SET_INBAND_FEC(1));
    opus_encoder_ctl(e, OPUS_SET_PACKET_LOSS_PERC(5));
    for (int i = 0; i < FRAMES; i++) {
        int16_t pcm[960];
        voice(pcm, 960, 48000, i * 0.02);
        frame_bytes[i] = opus_encode(e, pcm, 960, frames[i], sizeof frames[i]);
    }
    opus_encoder_destroy(e);
}

/* The codecs alone, for as many sessions in turn (their state does not stay in the cache): what no
 * server that decodes and encodes can go below. */
static void measure_codecs(int complexity, unsigned sessions, unsigned rounds, uint64_t *encode_ns,
                           uint64_t *decode_ns) {
    OpusEncoder **e = calloc(sessions, sizeof(OpusEncoder *));
    OpusDecoder **d = calloc(sessions, sizeof(OpusDecoder *));
    for (unsigned s = 0; s < sessions; s++) {
        e[s] = opus_encoder_create(24000, 1, OPUS_APPLICATION_VOIP, NULL);
        d[s] = opus_decoder_create(24000, 1, NULL);
        opus_encoder_ctl(e[s], OPUS_SET_BITRATE(24000));
        opus_encoder_ctl(e[s], OPUS_SET_COMPLEXITY(complexity));
        opus_encoder_ctl(e[s], OPUS_SET_SIGNAL(OPUS_SIGNAL_VOICE));
    }
    *encode_ns = *decode_ns = 0;
    struct timespec t[3];
    for (unsigned i = 0; i < rounds * sessions; i++) {
        int16_t pcm[480];
        uint8_t out[400];
        unsigned s = i % sessions, frame = (i / sessions + 7 * s) % FRAMES;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t[0]);
        if (opus_decode(d[s], frames[frame], frame_bytes[frame], pcm, 480, 0) != 480)
            die("opus_decode");
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t[1]);
        if (opus_encode(e[s], pcm, 480, out, sizeof out) <= 0)
            die("opus_encode");
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t[2]);
        *decode_ns +=
            (uint64_t)((t[1].tv_sec - t[0].tv_sec) * 1000000000 + t[1].tv_nsec - t[0].tv_nsec);
        *encode_ns +=
            (uint64_t)((t[2].tv_sec - t[1].tv_sec) * 1000000000 + t[2].tv_nsec - t[1].tv_nsec);
    }
    *encode_ns /= rounds * sessions;
    *decode_ns /= rounds * sessions;
    for (unsigned s = 0; s < sessions; s++) {
        opus_encoder_destroy(e[s]);
        opus_decoder_destroy(d[s]);
    }
    free(e);
    free(d);
}

static int accept_any(int ok, X509_STORE_CTX *store) {
    (void)ok, (void)store;
    return 1;
}

static void make_context(void) {
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert), 86400);
    X509_set_pubkey(cert, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC,
                               (const uint8_t *)"load", -1, -1, 0);
    X509_set_issuer_name(cert, X509_get_subject_name(cert));
    X509_sign(cert, key, EVP_sha256());
    context = SSL_CTX_new(DTLS_server_method());
    SSL_CTX_use_certificate(context, cert);
    SSL_CTX_use_PrivateKey(context, key);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, accept_any);
    SSL_CTX_set_tlsext_use_srtp(context, "SRTP_AEAD_AES_128_GCM:SRTP_AES128_CM_SHA1_80");
    uint8_t digest[32];
    unsigned bytes;
    X509_digest(cert, EVP_sha256(), digest, &bytes);
    for (unsigned i = 0; i < bytes; i++)
        printf(i == 0 ? "%02X" : ":%02X", digest[i]);
    printf("\n");
}

static void send_to_server(struct client *c, const void *data, size_t bytes) {
    sendto(c->fd, data, bytes, MSG_DONTWAIT, (struct sockaddr *)&c->server, sizeof c->server);
}

static void send_check(struct client *c) {
    uint8_t m[700] = {0, 1};
    uint8_t tag[VR_HMAC_BYTES];
    size_t name_bytes = strlen(c->username), at = 20;
    vr_store_be32(m + 4, 0x2112A442);
    if (getrandom(m + 8, 12, 0) != 12)
        die("getrandom");
    vr_store_be16(m + at, 0x0006);
    vr_store_be16(m + at + 2, (uint16_t)name_bytes);
    memcpy(m + at + 4, c->username, name_bytes);
    at += 4 + (name_bytes + 3) / 4 * 4;
    static const uint8_t rest[] = {0x80, 0x2a, 0, 8, 1,    2, 3, 4,
                                   5,    6,    7, 8,                    /* ICE-CONTROLLING */
                                   0x00, 0x25, 0, 0,                    /* USE-CANDIDATE */
                                   0x00, 0x24, 0, 4, 0x6e, 0, 1, 0xff}; /* PRIORITY */
    memcpy(m + at, rest, sizeof rest);
    at += sizeof rest;
    vr_store_be16(m + 2, (uint16_t)(at + 24 - 20));
    vr_hmac_begin(&c->integrity);
    vr_hmac_add(&c->integrity, m, at);
    vr_hmac_end(&c->integrity, tag);
    vr_store_be16(m + at, 0x0008);
    vr_store_be16(m + at + 2, 20);
    memcpy(m + at + 4, tag, 20);
    at += 24;
    vr_store_be16(m + 2, (uint16_t)(at + 8 - 20));
    uint32_t crc = vr_crc32(m, at) ^ 0x5354554E;
    vr_store_be16(m + at, 0x8028);
    vr_store_be16(m + at + 2, 4);
    vr_store_be32(m + at + 4, crc);
    send_to_server(c, m, at + 8);
}

static void take_keys(struct client *c) {
    SRTP_PROTECTION_PROFILE *chosen = SSL_get_selected_srtp_profile(c->ssl);
    if (chosen == NULL) {
        fprintf(stderr, "no SRTP profile\n");
        return;
    }
    size_t key = vr_srtp_key_bytes((unsigned)chosen->id),
           salt = vr_srtp_salt_bytes((unsigned)chosen->id);
    uint8_t material[2 * (32 + 14)];
    SSL_export_keying_material(c->ssl, material, 2 * (key + salt), "EXTRACTOR-dtls_srtp", 19, NULL,
                               0, 0);
    c->in = vr_srtp_new((unsigned)chosen->id, material, material + 2 * key);
    c->out = vr_srtp_new((unsigned)chosen->id, material + key, material + 2 * key + salt);
    c->connected = true;
    c->next_check_ms = now_ns() / 1000000 + (uint64_t)rand() % CALM_CHECK_MS;
    connected_count++;
}

static void dtls_out(struct client *c) {
    uint8_t data[4096];
    int bytes;
    while ((bytes = BIO_read(SSL_get_wbio(c->ssl), data, sizeof data)) > 0)
        for (int at = 0; at < bytes;) { /* one record a datagram */
            int record = 13 + (data[at + 11] << 8 | data[at + 12]);
            send_to_server(c, data + at, (size_t)record);
            at += record;
        }
}

static void on_dtls(struct client *c, const uint8_t *data, size_t bytes) {
    if (c->ssl == NULL) {
        c->ssl = SSL_new(context);
        SSL_set_options(c->ssl, SSL_OP_NO_QUERY_MTU);
        SSL_set_mtu(c->ssl, 1200);
        SSL_set_bio(c->ssl, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
        SSL_set_accept_state(c->ssl);
    }
    BIO_write(SSL_get_rbio(c->ssl), data, (int)bytes);
    if (!c->connected && SSL_do_handshake(c->ssl) == 1)
        take_keys(c);
    else if (c->connected) {
        uint8_t none[2048];
        while (SSL_read(c->ssl, none, sizeof none) > 0)
            ;
    }
    dtls_out(c);
}

static void on_rtp(struct client *c, uint8_t *data, size_t bytes, uint64_t at_ns) {
    if (vr_rtp_is_rtcp(data, bytes) || c->in == NULL)
        return;
    uint32_t timestamp = vr_load_be32(data + 4);
    if (!talking)
        return;
    if (received++ % 16 == 0)
        authentic += vr_srtp_unprotect(c->in, data, &bytes) == VR_SRTP_OK;
    if (!c->heard) {
        c->heard = true;
        c->first_timestamp = timestamp;
        c->first_ns = at_ns;
        c->earliest_ns = 0;
    }
    int64_t media_ns = (int64_t)(int32_t)(timestamp - c->first_timestamp) * 1000000 / 48;
    int64_t late = (int64_t)(at_ns - c->first_ns) - media_ns;
    if (late < c->earliest_ns)
        c->earliest_ns = late;
    if (lateness_count < MAX_SAMPLES) {
        owner[lateness_count] = (uint32_t)(c - clients);
        lateness[lateness_count++] = late;
    }
}

static void on_readable(struct client *c) {
    uint8_t data[2048];
    struct sockaddr_in from;
    for (;;) {
        socklen_t length = sizeof from;
        ssize_t bytes =
            recvfrom(c->fd, data, sizeof data, MSG_DONTWAIT, (struct sockaddr *)&from, &length);
        if (bytes <= 0)
            return;
        uint64_t at_ns = now_ns();
        if (data[0] <= 3 && data[0] == 0 && data[1] == 1) { /* a full ICE agent checks us too */
            struct vr_flow_key key = {0};
            struct vr_source source = {.direct = true};
            struct vr_ice_check check;
            vr_ip_from_v4(key.client.ip, (const uint8_t *)&from.sin_addr);
            key.client.port_be = from.sin_port;
            vr_ice_check(ice, data, (size_t)bytes, &key, &source, at_ns, &check);
            if (check.reply_bytes != 0)
                sendto(c->fd, check.reply, check.reply_bytes, MSG_DONTWAIT,
                       (struct sockaddr *)&from, length);
        } else if (data[0] >= 20 && data[0] <= 63) {
            on_dtls(c, data, (size_t)bytes);
        } else if (data[0] >= 128 && data[0] <= 191 && bytes >= 12) {
            on_rtp(c, data, (size_t)bytes, at_ns);
        }
    }
}

static void say(struct client *c, uint64_t ms) {
    uint8_t packet[600];
    struct vr_rtp rtp = {.ssrc = c->ssrc,
                         .sequence = c->sequence++,
                         .timestamp =
                             (uint32_t)(48 * ms), /* a pause is a gap, as with any client */
                         .payload_type = c->payload_type};
    unsigned frame = c->frame++ % FRAMES;
    size_t bytes = VR_RTP_HEADER_BYTES + (size_t)frame_bytes[frame];
    vr_rtp_write_header(packet, &rtp);
    memcpy(packet + VR_RTP_HEADER_BYTES, frames[frame], (size_t)frame_bytes[frame]);
    if (vr_srtp_protect(c->out, packet, &bytes, sizeof packet) == VR_SRTP_OK) {
        send_to_server(c, packet, bytes);
        sent++;
    }
}

/* One millisecond of everybody's life. */
static void live(uint64_t ms) {
    for (unsigned i = 0; i < client_count; i++) {
        struct client *c = &clients[i];
        if (!c->calling)
            continue;
        if (ms >= c->next_check_ms) {
            send_check(c);
            c->next_check_ms = ms + (c->connected ? CALM_CHECK_MS : CHECK_EVERY_MS);
            if (c->ssl != NULL && !c->connected) {
                DTLSv1_handle_timeout(c->ssl);
                dtls_out(c);
            }
        }
        if (talking && c->connected && ms % PERIOD_MS == i % PERIOD_MS)
            say(c, ms);
    }
}

static void loop(uint64_t for_ms, unsigned until_connected) {
    uint64_t start = now_ns() / 1000000, ms = start;
    struct epoll_event events[256];
    while (ms < start + for_ms && connected_count < until_connected) {
        uint64_t now = now_ns();
        if (now / 1000000 > ms) {
            live(++ms);
            continue;
        }
        struct timespec wait = {.tv_nsec = (long)((ms + 1) * 1000000 - now)};
        int count = epoll_pwait2(epoll_fd, events, 256, &wait, NULL);
        for (int i = 0; i < count; i++)
            on_readable(&clients[events[i].data.u32]);
    }
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void run(uint64_t ms) {
    sent = received = authentic = 0;
    lateness_count = 0;
    for (unsigned i = 0; i < client_count; i++)
        clients[i].heard = false;
    talking = true;
    loop(ms, UINT32_MAX);
    talking = false;
    for (unsigned i = 0; i < lateness_count; i++)
        lateness[i] -= clients[owner[i]].earliest_ns;
    qsort(lateness, lateness_count, sizeof *lateness, by_value);
    unsigned n = lateness_count;
    printf("%lu %lu %lu %ld %ld %ld\n", sent, received, authentic, n ? lateness[n / 2] / 1000 : 0,
           n ? lateness[(uint64_t)n * 99 / 100] / 1000 : 0, n ? lateness[n - 1] / 1000 : 0);
}

static void codecs(int complexity, unsigned sessions, unsigned rounds) {
    uint64_t encode_ns, decode_ns;
    measure_codecs(complexity, sessions, rounds, &encode_ns, &decode_ns);
    loop(DRAIN_MS, UINT32_MAX); /* what came meanwhile is not late in the next run */
    printf("%lu %lu\n", encode_ns, decode_ns);
}

static void add_client(void) {
    struct client *c = &clients[client_count];
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof any;
    int room = 1 << 20;
    c->fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    if (c->fd < 0 || bind(c->fd, (struct sockaddr *)&any, sizeof any) != 0)
        die("socket");
    setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    getsockname(c->fd, (struct sockaddr *)&any, &length);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = client_count};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event);
    printf("%u %u\n", client_count++, ntohs(any.sin_port));
}

static void call(const char *line) {
    char ip[64], ufrag[300], pwd[300], our_ufrag[64], our_pwd[65];
    unsigned index, port, payload_type;
    if (sscanf(line, "call %u %63s %u %299s %299s %63s %64s %u", &index, ip, &port, ufrag, pwd,
               our_ufrag, our_pwd, &payload_type) != 8 ||
        index >= client_count)
        die(line);
    struct client *c = &clients[index];
    c->server = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, ip, &c->server.sin_addr);
    snprintf(c->username, sizeof c->username, "%.256s:%s", ufrag, our_ufrag);
    vr_hmac_init(&c->integrity, (const uint8_t *)pwd, strlen(pwd));
    vr_ice_open(ice, index, our_ufrag, our_pwd, ufrag, now_ns());
    c->payload_type = (uint8_t)payload_type;
    c->ssrc = 1000 + index;
    c->frame = (unsigned)rand() % FRAMES;
    c->calling = true;
    printf("0\n");
}

int main(void) {
    char line[2048];
    unsigned a, b, c;
    setvbuf(stdout, NULL, _IOLBF, 0);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    epoll_fd = epoll_create1(0);
    ice = vr_ice_new(MAX_CLIENTS, 1);
    lateness = malloc(sizeof *lateness * MAX_SAMPLES);
    owner = malloc(sizeof *owner * MAX_SAMPLES);
    make_frames();
    make_context();
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (strncmp(line, "port", 4) == 0)
            add_client();
        else if (strncmp(line, "call", 4) == 0)
            call(line);
        else if (sscanf(line, "wait %u %u", &a, &b) == 2) {
            loop(b, a);
            printf("%u\n", connected_count);
        } else if (sscanf(line, "run %u", &a) == 1)
            run(a);
        else if (sscanf(line, "codecs %u %u %u", &a, &b, &c) == 3)
            codecs((int)a, b, c);
    }
    return 0;
}
