/* loadgen: clients on one side of a relay and transceivers on the other, in one process.
 *
 *     loadgen TRANSCEIVERS
 *
 * Prints the UDP ports of its transceivers (on 127.0.0.1), then obeys one command a line and
 * answers each with one line. Nothing is sent that no command asked for, and it ends with its input.
 *
 *     establish PORT UFRAG FLOWS...   through the relay on 127.0.0.1:PORT: a check for each flow, the
 *                                     transceiver's success back. One UFRAG for each transceiver, in
 *                                     order; flow i goes to transceiver i mod TRANSCEIVERS.
 *                                     -> the number of flows that got their success
 *     up PORT COUNT BYTES             COUNT media datagrams of BYTES bytes to 127.0.0.1:PORT, from
 *                                     the established flows in turn -> the number sent
 *     down PORT COUNT BYTES           the same from the transceivers, in SPP, to the internal socket
 *     collect                         empties all sockets -> datagrams and bytes that were in the
 *                                     transceivers', datagrams and bytes in the clients'
 *
 * A client is an address of 127/8 (IP_PKTINFO): a million flows need one socket and no setup.
 */
#define _GNU_SOURCE
#include "../csrc/wire/bytes.h"
#include "../csrc/wire/spp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum {
    TRANSCEIVERS_MAX = 64,
    BATCH = 64,
    SLOT_BYTES = 2048,
    BUFFER_BYTES = 64 << 20,
    ANSWER_WAIT_MS = 1000,
};

struct batch {
    struct mmsghdr message[BATCH];
    struct iovec part[BATCH];
    struct sockaddr_in name[BATCH];
    union {
        struct cmsghdr align;
        uint8_t bytes[CMSG_SPACE(sizeof(struct in_pktinfo))];
    } control[BATCH];
    uint8_t data[BATCH][SLOT_BYTES];
};

static int clients;
static uint16_t clients_port_be;
static int transceiver[TRANSCEIVERS_MAX];
static unsigned transceivers;
static unsigned flows;
static uint16_t relay_port; /* the one that the flows were established with */
static struct batch tx, rx;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int open_socket(uint32_t ip, uint16_t *port_be) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(ip)};
    socklen_t name_bytes = sizeof name;
    int bytes = BUFFER_BYTES;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) < 0)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    if (fd < 0 || bind(fd, (struct sockaddr *)&name, sizeof name) < 0 ||
        getsockname(fd, (struct sockaddr *)&name, &name_bytes) < 0)
        fail("loadgen: socket");
    *port_be = name.sin_port;
    return fd;
}

static uint32_t client_ip(unsigned flow) {
    return htonl(0x7f010000u + flow); /* 127.1.0.0 and on */
}

/* Fills message `i` of the transmit batch: to 127.0.0.1:port, from the flow's client if any. */
static uint8_t *line_up(unsigned i, uint16_t port, size_t bytes, const unsigned *flow) {
    struct msghdr *header = &tx.message[i].msg_hdr;
    tx.name[i] = (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    tx.part[i] = (struct iovec){tx.data[i], bytes};
    *header = (struct msghdr){.msg_name = &tx.name[i],
                              .msg_namelen = sizeof tx.name[i],
                              .msg_iov = &tx.part[i],
                              .msg_iovlen = 1};
    if (flow) {
        struct in_pktinfo info = {.ipi_spec_dst.s_addr = client_ip(*flow)};
        header->msg_control = &tx.control[i];
        header->msg_controllen = sizeof tx.control[i];
        tx.control[i].align = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(sizeof info), .cmsg_level = IPPROTO_IP, .cmsg_type = IP_PKTINFO};
        memcpy(CMSG_DATA(&tx.control[i].align), &info, sizeof info);
    }
    return tx.data[i];
}

static void send_lined_up(int fd, unsigned count) {
    for (unsigned done = 0; done < count;) {
        int sent = sendmmsg(fd, tx.message + done, count - done, 0);
        if (sent < 0 && errno != EINTR)
            fail("loadgen: sendmmsg");
        done += sent > 0 ? (unsigned)sent : 0;
    }
}

/* Up to BATCH datagrams, 0 when none comes within `wait_ms`. */
static unsigned receive(int fd, int wait_ms) {
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    if (wait_ms > 0 && poll(&ready, 1, wait_ms) <= 0)
        return 0;
    for (unsigned i = 0; i < BATCH; i++) {
        rx.part[i] = (struct iovec){rx.data[i], SLOT_BYTES};
        rx.message[i].msg_hdr = (struct msghdr){.msg_name = &rx.name[i],
                                                .msg_namelen = sizeof rx.name[i],
                                                .msg_iov = &rx.part[i],
                                                .msg_iovlen = 1};
    }
    int received = recvmmsg(fd, rx.message, BATCH, MSG_DONTWAIT, NULL);
    return received > 0 ? (unsigned)received : 0;
}

static size_t write_check(uint8_t *data, unsigned flow, const char *ufrag) {
    size_t name_bytes = strlen(ufrag) + 5, padded = (name_bytes + 3) & ~(size_t)3;
    memset(data, 0, 24 + padded);
    vr_store_be16(data, 0x0001);
    vr_store_be16(data + 2, (uint16_t)(4 + padded));
    vr_store_be32(data + 4, 0x2112A442);
    vr_store_be32(data + 8, flow);
    vr_store_be16(data + 20, 0x0006);
    vr_store_be16(data + 22, (uint16_t)name_bytes);
    memcpy(data + 24, ufrag, strlen(ufrag));
    memcpy(data + 24 + strlen(ufrag), ":load", 5);
    return 24 + padded;
}

/* Answers each check with a success of the same transaction, in the same SPP header. */
static unsigned answer_checks(int fd) {
    unsigned received = receive(fd, ANSWER_WAIT_MS);
    for (unsigned i = 0; i < received; i++) {
        uint8_t *data = line_up(i, ntohs(rx.name[i].sin_port), VR_SPP_BYTES + 20, NULL);
        memcpy(data, rx.data[i], VR_SPP_BYTES + 20);
        vr_store_be16(data + VR_SPP_BYTES, 0x0101);
        vr_store_be16(data + VR_SPP_BYTES + 2, 0);
    }
    send_lined_up(fd, received);
    return received;
}

static unsigned count_at_clients(void) {
    unsigned received = 0, now;
    while ((now = receive(clients, 20)) > 0)
        received += now;
    return received;
}

static unsigned establish(uint16_t port, char **ufrag, unsigned count) {
    unsigned established = 0;
    relay_port = port;
    flows = count;
    for (unsigned first = 0; first < count; first += BATCH) {
        unsigned n = count - first < BATCH ? count - first : BATCH;
        unsigned expected[TRANSCEIVERS_MAX] = {0};
        for (unsigned i = 0; i < n; i++) {
            unsigned flow = first + i;
            uint8_t *data = line_up(i, port, 0, &flow);
            tx.part[i].iov_len = write_check(data, flow, ufrag[flow % transceivers]);
            expected[flow % transceivers]++;
        }
        send_lined_up(clients, n);
        for (unsigned t = 0; t < transceivers; t++)
            for (unsigned got, missing = expected[t]; missing > 0; missing -= got)
                if ((got = answer_checks(transceiver[t])) == 0)
                    break;
        established += count_at_clients();
    }
    return established;
}

static unsigned send_media(bool up, uint16_t port, unsigned count, size_t bytes) {
    static unsigned next;
    size_t header_bytes = up ? 0 : VR_SPP_BYTES;
    for (unsigned first = 0; first < count;) {
        unsigned t = next % transceivers, n = 0;
        for (; n < BATCH && first < count; n++, first++) {
            unsigned flow = next % flows;
            uint8_t *data = line_up(n, port, header_bytes + bytes, up ? &flow : NULL);
            if (!up) { /* one socket a batch: only flows of transceiver t */
                struct vr_flow_key key = {.client.port_be = clients_port_be,
                                          .proxy.port_be = htons(relay_port)};
                uint32_t client = client_ip(flow), proxy = htonl(INADDR_LOOPBACK);
                vr_ip_from_v4(key.client.ip, (uint8_t *)&client);
                vr_ip_from_v4(key.proxy.ip, (uint8_t *)&proxy);
                vr_spp_write(data, &key);
            }
            memset(data + header_bytes, 0x80, bytes);
            next += up ? 1 : transceivers;
        }
        send_lined_up(up ? clients : transceiver[t], n);
        next += up ? 0 : 1;
    }
    return count;
}

static void collect(void) {
    unsigned long datagrams[2] = {0}, bytes[2] = {0};
    for (unsigned s = 0; s <= transceivers; s++) {
        unsigned side = s == transceivers, received;
        while ((received = receive(side ? clients : transceiver[s], 0)) > 0)
            for (unsigned i = 0; i < received; i++) {
                datagrams[side]++;
                bytes[side] += rx.message[i].msg_len;
            }
    }
    printf("%lu %lu %lu %lu\n", datagrams[0], bytes[0], datagrams[1], bytes[1]);
}

static void obey(char *line) {
    char *word[TRANSCEIVERS_MAX + 4];
    unsigned words = 0;
    for (char *w = strtok(line, " \n"); w && words < TRANSCEIVERS_MAX + 4; w = strtok(NULL, " \n"))
        word[words++] = w;
    if (words == 3 + transceivers && strcmp(word[0], "establish") == 0)
        printf("%u\n",
               establish((uint16_t)atoi(word[1]), word + 2, (unsigned)atoi(word[words - 1])));
    else if (words == 4 && flows && (strcmp(word[0], "up") == 0 || strcmp(word[0], "down") == 0))
        printf("%u\n", send_media(word[0][0] == 'u', (uint16_t)atoi(word[1]),
                                  (unsigned)atoi(word[2]), (size_t)atoi(word[3])));
    else if (words == 1 && strcmp(word[0], "collect") == 0)
        collect();
    else
        printf("what?\n");
    fflush(stdout);
}

int main(int argc, char **argv) {
    static char line[TRANSCEIVERS_MAX * 64];
    transceivers = argc == 2 ? (unsigned)atoi(argv[1]) : 0;
    if (transceivers < 1 || transceivers > TRANSCEIVERS_MAX) {
        fprintf(stderr, "usage: loadgen TRANSCEIVERS (1 to %d)\n", TRANSCEIVERS_MAX);
        return 2;
    }
    clients = open_socket(INADDR_ANY, &clients_port_be);
    for (unsigned t = 0; t < transceivers; t++) {
        uint16_t port_be;
        transceiver[t] = open_socket(INADDR_LOOPBACK, &port_be);
        printf("%u%c", ntohs(port_be), t + 1 < transceivers ? ' ' : '\n');
    }
    fflush(stdout);
    while (fgets(line, sizeof line, stdin))
        obey(line);
    return 0;
}
