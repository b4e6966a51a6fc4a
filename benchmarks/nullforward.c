/* nullforward: the least that a forwarder can do: recvmmsg, then send the same bytes. No parsing, no
 * lookup, no counters, no event loop. The measure of the others.
 *
 *     nullforward LISTEN_IP PORT BATCH [plain|runs|single|fanout]
 *
 * Prints the port that it listens on, and forwards until it is killed.
 *
 *     plain   sendmmsg to 127.0.0.1:PORT (the default)
 *     runs    equal neighbours leave as one message that the kernel cuts apart (UDP_SEGMENT)
 *     single  one datagram a call: recvfrom, sendto
 *     fanout  what comes in an SPP header leaves without it, to the client that it names and from the
 *             address that it names (IP_PKTINFO): the kernel's work of a relay's way down
 */
#include "../csrc/wire/spp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { BATCH_MAX = 256, SLOT_BYTES = 2112, RECEIVE_BUFFER_BYTES = 32 << 20, SEGMENTS_MAX = 64 };

static uint8_t slots[BATCH_MAX][SLOT_BYTES];
static struct iovec part[BATCH_MAX], out_part[BATCH_MAX];
static struct mmsghdr in[BATCH_MAX], out[BATCH_MAX];
static struct sockaddr_in name[BATCH_MAX];
static union {
    struct cmsghdr align;
    uint8_t bytes[CMSG_SPACE(sizeof(struct in_pktinfo))];
} control[BATCH_MAX];

static int listen_socket(const char *ip) {
    struct sockaddr_in bound = {.sin_family = AF_INET};
    socklen_t bound_bytes = sizeof bound;
    int bytes = RECEIVE_BUFFER_BYTES;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (inet_pton(AF_INET, ip, &bound.sin_addr) != 1) {
        fprintf(stderr, "nullforward: not an IPv4 address: %s\n", ip);
        exit(2);
    }
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) < 0)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    if (fd < 0 || bind(fd, (struct sockaddr *)&bound, sizeof bound) < 0 ||
        getsockname(fd, (struct sockaddr *)&bound, &bound_bytes) < 0) {
        perror("nullforward");
        exit(1);
    }
    printf("%u\n", ntohs(bound.sin_port));
    fflush(stdout);
    return fd;
}

static void add_control(struct msghdr *header, unsigned i, int level, int type, const void *data,
                        size_t data_bytes) {
    header->msg_control = &control[i];
    header->msg_controllen = CMSG_SPACE(data_bytes);
    control[i].align =
        (struct cmsghdr){.cmsg_len = CMSG_LEN(data_bytes), .cmsg_level = level, .cmsg_type = type};
    memcpy(CMSG_DATA(&control[i].align), data, data_bytes);
}

/* --- what to send: each fills `out` from the `received` datagrams, and returns the messages --- */

static struct msghdr *make_message(unsigned message, unsigned first, unsigned items, unsigned to) {
    struct msghdr *header = &out[message].msg_hdr;
    memset(header, 0, sizeof *header);
    header->msg_iov = &out_part[first];
    header->msg_iovlen = items;
    header->msg_name = &name[to];
    header->msg_namelen = sizeof name[to];
    return header;
}

static unsigned make_plain(unsigned received) {
    for (unsigned i = 0; i < received; i++)
        make_message(i, i, 1, 0);
    return received;
}

static unsigned run_length(unsigned first, unsigned received) {
    unsigned items = 1;
    while (first + items < received && items < SEGMENTS_MAX &&
           out_part[first + items].iov_len == out_part[first].iov_len)
        items++;
    return items;
}

static unsigned make_runs(unsigned received) {
    unsigned messages = 0;
    for (unsigned i = 0; i < received; messages++) {
        unsigned items = run_length(i, received);
        uint16_t segment_bytes = (uint16_t)out_part[i].iov_len;
        struct msghdr *header = make_message(messages, i, items, 0);
        if (items > 1)
            add_control(header, messages, IPPROTO_UDP, UDP_SEGMENT, &segment_bytes, 2);
        i += items;
    }
    return messages;
}

static unsigned make_fanout(unsigned received) {
    for (unsigned i = 0; i < received; i++) {
        struct vr_flow_key key = {.client.port_be = 0};
        struct in_pktinfo from = {0};
        vr_spp_read(slots[i], out_part[i].iov_len, &key);
        out_part[i].iov_base = slots[i] + VR_SPP_BYTES;
        out_part[i].iov_len -= VR_SPP_BYTES;
        name[i].sin_family = AF_INET;
        name[i].sin_port = key.client.port_be;
        memcpy(&name[i].sin_addr, key.client.ip + 12, 4);
        memcpy(&from.ipi_spec_dst, key.proxy.ip + 12, 4);
        add_control(make_message(i, i, 1, i), i, IPPROTO_IP, IP_PKTINFO, &from, sizeof from);
    }
    return received;
}

static void forward_batches(int fd, unsigned batch, unsigned (*make)(unsigned)) {
    for (;;) {
        for (unsigned i = 0; i < batch; i++) {
            part[i] = (struct iovec){slots[i], SLOT_BYTES};
            in[i].msg_hdr = (struct msghdr){.msg_iov = &part[i], .msg_iovlen = 1};
        }
        int received = recvmmsg(fd, in, batch, MSG_WAITFORONE, NULL);
        if (received < 0 && errno != EINTR)
            return;
        for (int i = 0; i < received; i++)
            out_part[i] = (struct iovec){slots[i], in[i].msg_len};
        int messages = received > 0 ? (int)make((unsigned)received) : 0;
        for (int done = 0; done < messages;) {
            int sent = sendmmsg(fd, out + done, (unsigned)(messages - done), 0);
            done += sent > 0 ? sent : 1;
        }
    }
}

static void forward_singly(int fd) {
    for (;;) {
        ssize_t bytes = recv(fd, slots[0], SLOT_BYTES, 0);
        if (bytes < 0 && errno != EINTR)
            return;
        if (bytes >= 0)
            sendto(fd, slots[0], (size_t)bytes, 0, (struct sockaddr *)&name[0], sizeof name[0]);
    }
}

int main(int argc, char **argv) {
    const char *mode = argc == 5 ? argv[4] : "plain";
    unsigned batch = argc >= 4 ? (unsigned)atoi(argv[3]) : 0;
    if (argc > 5 || batch < 1 || batch > BATCH_MAX) {
        fprintf(stderr, "usage: nullforward LISTEN_IP PORT BATCH [plain|runs|single|fanout]\n");
        return 2;
    }
    name[0] = (struct sockaddr_in){.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)atoi(argv[2])),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = listen_socket(argv[1]);
    if (strcmp(mode, "single") == 0)
        forward_singly(fd);
    else
        forward_batches(fd, batch,
                        strcmp(mode, "runs") == 0     ? make_runs
                        : strcmp(mode, "fanout") == 0 ? make_fanout
                                                      : make_plain);
    perror("nullforward");
    return 1;
}
