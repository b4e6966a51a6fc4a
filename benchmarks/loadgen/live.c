#include "load.h"

#include "../../csrc/wire/bytes.h"
#include "../../csrc/wire/spp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKET_NS = 100, BUCKETS = 1 << 20, QUIET_NS = 300000000 };

/* One direction of traffic: so many a second since the start, whatever becomes of them. */
struct stream {
    uint64_t pps;
    uint64_t sent;
    uint64_t received;
    uint64_t astray;             /* at a transceiver that is not the flow's first owner */
    uint32_t delay[BUCKETS + 1]; /* datagrams by delay, BUCKET_NS each; the last: longer */
};

static struct stream up, down;
static struct {
    const struct attack *attack;
    uint64_t pps;
    uint64_t sent;
    const char *ufrag;
} evil;
static uint64_t checks_answered, responses;
static struct line line;
static struct inbox inbox;

/* How many are owed by now, at most a batch. */
static unsigned due(uint64_t pps, uint64_t sent, uint64_t elapsed_ns) {
    double owed = (double)elapsed_ns * (double)pps / 1e9 - (double)sent;
    return owed < 1 ? 0 : owed > BATCH ? BATCH : (unsigned)owed;
}

/* --- sending --- */

static void send_up(uint16_t port, struct sizes sizes, uint64_t elapsed_ns) {
    unsigned n = due(up.pps, up.sent, elapsed_ns);
    for (unsigned i = 0; i < n; i++, up.sent++)
        add_up(&line, port, (unsigned)(up.sent % ends.flows), sizes, up.sent);
    line_send(&line, ends.clients);
}

/* One transceiver at a time, each with what is due for its next flows. */
static void send_down(uint16_t port, struct sizes sizes, uint64_t elapsed_ns) {
    static unsigned t;
    static unsigned next[TRANSCEIVERS_MAX];
    unsigned own_flows = (ends.flows - t + ends.transceivers - 1) / ends.transceivers;
    unsigned n = due(down.pps, down.sent, elapsed_ns);
    if (n == 0 || own_flows == 0)
        return;
    for (unsigned i = 0; i < n; i++, down.sent++, next[t]++)
        add_down(&line, port, t + next[t] % own_flows * ends.transceivers, sizes, down.sent);
    line_send(&line, ends.transceiver[t]);
    t = (t + 1) % ends.transceivers;
}

static void send_evil(uint16_t port, uint64_t elapsed_ns) {
    unsigned n = due(evil.pps, evil.sent, elapsed_ns);
    for (unsigned i = 0; i < n; i++, evil.sent++)
        attack_add(&line, evil.attack, port, evil.ufrag, evil.sent);
    line_send(&line, ends.clients);
}

/* --- receiving --- */

static void take_media(struct stream *stream, const uint8_t *media, unsigned at, bool is_own) {
    uint64_t arrived_ns = inbox_arrival_ns(&inbox, at), sent_ns = vr_load_be64(media + 8);
    uint64_t bucket = arrived_ns > sent_ns ? (arrived_ns - sent_ns) / BUCKET_NS : 0;
    if (!is_own) {
        stream->astray++;
        return;
    }
    stream->received++;
    stream->delay[bucket < BUCKETS ? bucket : BUCKETS]++;
}

static unsigned receive_up(unsigned t) {
    unsigned received = inbox_fill(&inbox, ends.transceiver[t], 0);
    for (unsigned i = 0; i < received; i++) {
        const uint8_t *data = inbox.data[i];
        bool wrapped = data[0] == 0x56; /* else a null forwarder sent it, or nobody between */
        const uint8_t *payload = wrapped ? data + VR_SPP_BYTES : data;
        if (payload[0] == 0x80) {
            take_media(&up, payload, i,
                       !wrapped || vr_load_be32(payload + 4) % ends.transceivers == t);
        } else if (!wrapped) {
            up.received++; /* a check, to which there is no way back */
        } else if (payload[1] == 1 && (attack_is_answered(data) ||
                                       memcmp(payload + 24 + UFRAG_CHARS, ":load", 5) == 0)) {
            up.received += !attack_is_answered(data);
            checks_answered++;
            answer_check(&line, ntohs(inbox.name[i].sin_port), data);
        }
    }
    line_send(&line, ends.transceiver[t]);
    return received;
}

static unsigned receive_down(void) {
    unsigned received = inbox_fill(&inbox, ends.clients, 0);
    for (unsigned i = 0; i < received; i++) {
        const uint8_t *data = inbox.data[i];
        const uint8_t *payload = data[0] == 0x56 ? data + VR_SPP_BYTES : data; /* nobody between */
        if (payload[0] == 0x80)
            take_media(&down, payload, i, true);
        else if (payload[1] == 0x11) /* an indication of the mix */
            down.received++;
        else
            responses++;
    }
    return received;
}

static unsigned receive_next(void) {
    static unsigned socket;
    socket = (socket + 1) % (ends.transceivers + 1);
    return socket < ends.transceivers ? receive_up(socket) : receive_down();
}

/* --- the report --- */

static uint64_t quantile_ns(const struct stream *stream, double q) {
    uint64_t all = 0, seen = 0;
    for (unsigned i = 0; i <= BUCKETS; i++)
        all += stream->delay[i];
    for (unsigned i = 0; i <= BUCKETS; i++) {
        seen += stream->delay[i];
        if (all > 0 && (double)seen >= q * (double)all)
            return (uint64_t)(i + 1) * BUCKET_NS;
    }
    return 0;
}

static void report(const struct stream *stream) {
    printf("%lu %lu %lu %lu %lu %lu ", stream->sent, stream->received, stream->astray,
           quantile_ns(stream, 0.5), quantile_ns(stream, 0.99), quantile_ns(stream, 0.999));
}

bool live(char **word, unsigned words) {
    struct sizes sizes;
    if (words < 9 || ends.flows == 0 || !sizes_parse(&sizes, word[6]))
        return false;
    uint64_t for_ns = (uint64_t)atoi(word[1]) * 1000000;
    uint16_t up_port = (uint16_t)atoi(word[2]), down_port = (uint16_t)atoi(word[4]);
    memset(&up, 0, sizeof up);
    memset(&down, 0, sizeof down);
    up.pps = (uint64_t)atol(word[3]);
    down.pps = (uint64_t)atol(word[5]);
    evil.attack = attack_named(word[7]);
    evil.pps = evil.attack ? (uint64_t)atol(word[8]) : 0;
    evil.ufrag = words > 9 ? word[9] : ends.ufrag[0];
    evil.sent = checks_answered = responses = 0;

    uint64_t start_ns = now_ns(), heard_ns = start_ns, now = start_ns;
    while (now - start_ns < for_ns || now - heard_ns < QUIET_NS) {
        if (now - start_ns < for_ns) {
            send_up(up_port, sizes, now - start_ns);
            send_down(down_port, sizes, now - start_ns);
            send_evil(up_port, now - start_ns);
        }
        if (receive_next() > 0)
            heard_ns = now;
        now = now_ns();
    }
    report(&up);
    report(&down);
    printf("%lu %lu %lu\n", evil.sent, checks_answered, responses);
    return true;
}
