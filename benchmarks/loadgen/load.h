/* load.h: what the parts of the load generator share: its sockets, lines of datagrams, traffic.
 *
 * Clients are one wildcard socket that sends from any address of 127/8 (IP_PKTINFO): a million flows
 * need no setup. Flow i is client 127.1.0.0 + i and belongs to transceiver i mod `transceivers`.
 */
#ifndef LOAD_H
#define LOAD_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum {
    TRANSCEIVERS_MAX = 64,
    UFRAGS_MAX = 4096,
    FLOWS_MAX = 1 << 20,
    UFRAG_CHARS = 28,
    BATCH = 64,
    SLOT_BYTES = 2048,
};

/* --- ends.c: who sends and receives --- */

struct ends {
    int clients;
    uint16_t clients_port_be;
    unsigned transceivers;
    int transceiver[TRANSCEIVERS_MAX];
    uint16_t transceiver_port[TRANSCEIVERS_MAX];
    unsigned flows;      /* established */
    uint16_t relay_port; /* the one that they were established with */
    unsigned ufrags;     /* a multiple of `transceivers`; flow i has number i mod `ufrags` */
    char ufrag[UFRAGS_MAX][UFRAG_CHARS + 1];
    uint16_t
        worker_port[FLOWS_MAX]; /* of each flow: the internal socket of the worker that has it */
};

extern struct ends ends;

/* Datagrams that are sent together. */
struct line {
    unsigned count;
    bool makes_runs; /* equal neighbours to one destination leave together (UDP_SEGMENT) */
    struct mmsghdr message[BATCH];
    struct iovec part[BATCH];
    struct sockaddr_in name[BATCH];
    union {
        struct cmsghdr align;
        uint8_t bytes[CMSG_SPACE(sizeof(struct in_pktinfo))];
    } control[BATCH];
    uint8_t data[BATCH][SLOT_BYTES];
};

/* Datagrams that were received together, and when they reached the socket (CLOCK_REALTIME). */
struct inbox {
    struct mmsghdr message[BATCH];
    struct iovec part[BATCH];
    struct sockaddr_in name[BATCH];
    union {
        struct cmsghdr align;
        uint8_t bytes[64];
    } control[BATCH];
    uint8_t data[BATCH][SLOT_BYTES];
};

void fail(const char *what);
void open_ends(unsigned transceivers);
uint64_t now_ns(void); /* CLOCK_REALTIME, as the kernel's receive timestamps */

uint32_t client_ip(unsigned flow); /* network order */

/* Adds a datagram of `bytes` bytes to 127.0.0.1:port, `source_ip` 0: from the socket's own address.
 * The caller fills what is returned. The line must not be full. */
uint8_t *line_add(struct line *line, uint16_t port, size_t bytes, uint32_t source_ip);
void line_send(struct line *line, int fd); /* all of it; empties the line */

/* Up to BATCH datagrams, 0 when none comes within `wait_ms`. */
unsigned inbox_fill(struct inbox *inbox, int fd, int wait_ms);
uint64_t inbox_arrival_ns(const struct inbox *inbox, unsigned i);

/* A success for the check in an SPP datagram, added to the line towards `port`. */
void answer_check(struct line *line, uint16_t port, const uint8_t *datagram);

/* Lets the first `count` flows be established through the relay; how many were. */
unsigned establish(uint16_t relay_port, unsigned count);

/* --- traffic.c: what is sent --- */

/* A Binding request; returns its bytes. `tail` is the client's part of USERNAME. */
size_t write_check(uint8_t *data, const char *ufrag, const char *tail, uint64_t serial);

/* Bytes of a datagram, "172" or "mix": Opus at a variable bit rate, 1 % STUN, 2 % RTCP. */
struct sizes {
    size_t fixed; /* 0: the mix */
};
bool sizes_parse(struct sizes *sizes, const char *text);

/* Adds datagram number `serial` of `flow`, up from its client, or down in an SPP header. The first
 * 16 bytes of media are 0x80, flow and the time of sending. */
void add_up(struct line *line, uint16_t port, unsigned flow, struct sizes sizes, uint64_t serial);
void add_down(struct line *line, uint16_t port, unsigned flow, struct sizes sizes, uint64_t serial);

/* --- live.c --- */

/* `live MS PORT UP_PPS DOWN_PORT DOWN_PPS SIZES ATTACK ATTACK_PPS [UFRAG]`; prints the report. */
bool live(char **word, unsigned words);

/* --- attack.c --- */

struct attack; /* one of the table in attack.c */

const struct attack *attack_named(const char *name);
/* Whether the check in an SPP datagram is the attacker's own, which his transceiver answers. */
bool attack_is_answered(const uint8_t *datagram);
void attack_add(struct line *line, const struct attack *attack, uint16_t port, const char *ufrag,
                uint64_t serial);

#endif
