#include "load.h"

#include "../../csrc/wire/bytes.h"
#include "../../csrc/wire/spp.h"

#include <errno.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    BUFFER_BYTES = 64 << 20,
    ANSWER_WAIT_MS = 5000,
    FIRST_CLIENT = 0x7f010000, /* 127.1.0.0 */
};

struct ends ends;

void fail(const char *what) {
    perror(what);
    exit(1);
}

uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static int open_socket(uint32_t ip, uint16_t *port_be) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(ip)};
    socklen_t name_bytes = sizeof name;
    int bytes = BUFFER_BYTES, on = 1;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) < 0)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on) < 0 ||
        bind(fd, (struct sockaddr *)&name, sizeof name) < 0 ||
        getsockname(fd, (struct sockaddr *)&name, &name_bytes) < 0)
        fail("loadgen: socket");
    *port_be = name.sin_port;
    return fd;
}

void open_ends(unsigned transceivers) {
    ends.transceivers = transceivers;
    ends.clients = open_socket(INADDR_ANY, &ends.clients_port_be);
    for (unsigned t = 0; t < transceivers; t++) {
        uint16_t port_be;
        ends.transceiver[t] = open_socket(INADDR_LOOPBACK, &port_be);
        ends.transceiver_port[t] = ntohs(port_be);
    }
}

uint32_t client_ip(unsigned flow) {
    return htonl(FIRST_CLIENT + flow);
}

/* --- lines --- */

uint8_t *line_add(struct line *line, uint16_t port, size_t bytes, uint32_t source_ip) {
    unsigned i = line->count++;
    struct msghdr *header = &line->message[i].msg_hdr;
    line->name[i] = (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    line->part[i] = (struct iovec){line->data[i], bytes};
    *header = (struct msghdr){.msg_name = &line->name[i],
                              .msg_namelen = sizeof line->name[i],
                              .msg_iov = &line->part[i],
                              .msg_iovlen = 1};
    if (source_ip) {
        struct in_pktinfo info = {.ipi_spec_dst.s_addr = source_ip};
        header->msg_control = &line->control[i];
        header->msg_controllen = sizeof line->control[i];
        line->control[i].align = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(sizeof info), .cmsg_level = IPPROTO_IP, .cmsg_type = IP_PKTINFO};
        memcpy(CMSG_DATA(&line->control[i].align), &info, sizeof info);
    }
    return line->data[i];
}

/* Whether item `i` may follow in the run that `first` begins: none of them names its source. */
static bool joins(const struct line *line, unsigned first, unsigned i) {
    return i < line->count && line->name[i].sin_port == line->name[first].sin_port &&
           line->part[i].iov_len <= line->part[first].iov_len;
}

/* Makes one message of neighbours that the kernel cuts apart again (UDP_SEGMENT): equal sizes, the last may
 * be shorter. */
static void merge_runs(struct line *line) {
    unsigned messages = 0;
    for (unsigned i = 0, items; i < line->count; i += items, messages++) {
        uint16_t bytes = (uint16_t)line->part[i].iov_len;
        struct msghdr *header = &line->message[messages].msg_hdr;
        for (items = 1; joins(line, i, i + items) && line->part[i + items - 1].iov_len == bytes;)
            items++;
        *header = (struct msghdr){.msg_name = &line->name[i],
                                  .msg_namelen = sizeof line->name[i],
                                  .msg_iov = &line->part[i],
                                  .msg_iovlen = items};
        if (items == 1)
            continue;
        header->msg_control = &line->control[messages];
        header->msg_controllen = CMSG_SPACE(sizeof bytes);
        line->control[messages].align = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof bytes),
                                                         .cmsg_level = IPPROTO_UDP,
                                                         .cmsg_type = UDP_SEGMENT};
        memcpy(CMSG_DATA(&line->control[messages].align), &bytes, sizeof bytes);
    }
    line->count = messages;
}

void line_send(struct line *line, int fd) {
    if (line->makes_runs)
        merge_runs(line);
    for (unsigned done = 0; done < line->count;) {
        int sent = sendmmsg(fd, line->message + done, line->count - done, 0);
        if (sent < 0 && errno != EINTR)
            fail("loadgen: sendmmsg");
        done += sent > 0 ? (unsigned)sent : 0;
    }
    line->count = 0;
}

unsigned inbox_fill(struct inbox *inbox, int fd, int wait_ms) {
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    if (wait_ms > 0 && poll(&ready, 1, wait_ms) <= 0)
        return 0;
    for (unsigned i = 0; i < BATCH; i++) {
        inbox->part[i] = (struct iovec){inbox->data[i], SLOT_BYTES};
        inbox->message[i].msg_hdr = (struct msghdr){.msg_name = &inbox->name[i],
                                                    .msg_namelen = sizeof inbox->name[i],
                                                    .msg_iov = &inbox->part[i],
                                                    .msg_iovlen = 1,
                                                    .msg_control = &inbox->control[i],
                                                    .msg_controllen = sizeof inbox->control[i]};
    }
    int received = recvmmsg(fd, inbox->message, BATCH, MSG_DONTWAIT, NULL);
    return received > 0 ? (unsigned)received : 0;
}

uint64_t inbox_arrival_ns(const struct inbox *inbox, unsigned i) {
    struct timespec at;
    const struct cmsghdr *part = &inbox->control[i].align;
    if (inbox->message[i].msg_hdr.msg_controllen == 0 || part->cmsg_type != SCM_TIMESTAMPNS)
        return 0;
    memcpy(&at, CMSG_DATA(part), sizeof at);
    return (uint64_t)at.tv_sec * 1000000000 + (uint64_t)at.tv_nsec;
}

/* --- establishing --- */

void answer_check(struct line *line, uint16_t port, const uint8_t *datagram) {
    uint8_t *data = line_add(line, port, VR_SPP_BYTES + 20, 0);
    memcpy(data, datagram, VR_SPP_BYTES + 20);
    vr_store_be16(data + VR_SPP_BYTES, 0x0101);
    vr_store_be16(data + VR_SPP_BYTES + 2, 0);
}

static unsigned flow_of(const struct vr_flow_key *key) {
    return (vr_load_be32(key->client.ip + 12) - FIRST_CLIENT) % FLOWS_MAX;
}

static unsigned answer_all(struct line *line, struct inbox *inbox, unsigned t, unsigned expected) {
    unsigned answered = 0, received;
    while (answered < expected &&
           (received = inbox_fill(inbox, ends.transceiver[t], ANSWER_WAIT_MS)) > 0) {
        for (unsigned i = 0; i < received; i++) {
            struct vr_flow_key key;
            uint16_t port = ntohs(inbox->name[i].sin_port);
            if (vr_spp_read(inbox->data[i], VR_SPP_BYTES, &key))
                ends.worker_port[flow_of(&key)] = port;
            answer_check(line, port, inbox->data[i]);
        }
        line_send(line, ends.transceiver[t]);
        answered += received;
    }
    return answered;
}

unsigned establish(uint16_t relay_port, unsigned count) {
    static struct line line;
    static struct inbox inbox;
    unsigned established = 0;
    ends.relay_port = relay_port;
    ends.flows = count;
    for (unsigned first = 0; first < count; first += BATCH) {
        unsigned n = count - first < BATCH ? count - first : BATCH, answered = 0, received;
        unsigned expected[TRANSCEIVERS_MAX] = {0};
        for (unsigned flow = first; flow < first + n; flow++) {
            uint8_t *data = line_add(&line, relay_port, 0, client_ip(flow));
            line.part[flow - first].iov_len =
                write_check(data, ends.ufrag[flow % ends.ufrags], "load", flow);
            expected[flow % ends.transceivers]++;
        }
        line_send(&line, ends.clients);
        for (unsigned t = 0; t < ends.transceivers; t++)
            answered += answer_all(&line, &inbox, t, expected[t]);
        for (unsigned left = answered; left > 0; left -= received < left ? received : left) {
            if ((received = inbox_fill(&inbox, ends.clients, ANSWER_WAIT_MS)) == 0)
                break;
            established += received;
        }
    }
    return established;
}
