/* nullforward: the least that a forwarder can do: recvmmsg, then sendmmsg of the same bytes to one
 * destination. No parsing, no lookup, no counters, no event loop. The measure of the others.
 *
 *     nullforward LISTEN_IP DESTINATION_IP DESTINATION_PORT BATCH
 *
 * Prints the port that it listens on, and forwards until it is killed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { BATCH_MAX = 256, SLOT_BYTES = 2112, RECEIVE_BUFFER_BYTES = 32 << 20 };

static uint8_t slots[BATCH_MAX][SLOT_BYTES];
static struct iovec part[BATCH_MAX];
static struct mmsghdr in[BATCH_MAX], out[BATCH_MAX];

static struct sockaddr_in address(const char *ip, uint16_t port) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (inet_pton(AF_INET, ip, &name.sin_addr) != 1) {
        fprintf(stderr, "nullforward: not an IPv4 address: %s\n", ip);
        exit(2);
    }
    return name;
}

static int listen_socket(const char *ip) {
    struct sockaddr_in name = address(ip, 0);
    socklen_t name_bytes = sizeof name;
    int bytes = RECEIVE_BUFFER_BYTES;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) < 0)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    if (fd < 0 || bind(fd, (struct sockaddr *)&name, sizeof name) < 0 ||
        getsockname(fd, (struct sockaddr *)&name, &name_bytes) < 0) {
        perror("nullforward");
        exit(1);
    }
    printf("%u\n", ntohs(name.sin_port));
    fflush(stdout);
    return fd;
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: nullforward LISTEN_IP DESTINATION_IP DESTINATION_PORT BATCH\n");
        return 2;
    }
    struct sockaddr_in destination = address(argv[2], (uint16_t)atoi(argv[3]));
    unsigned batch = (unsigned)atoi(argv[4]);
    if (batch < 1 || batch > BATCH_MAX) {
        fprintf(stderr, "nullforward: a batch is 1 to %d\n", BATCH_MAX);
        return 2;
    }
    int fd = listen_socket(argv[1]);
    for (unsigned i = 0; i < batch; i++) {
        part[i].iov_base = slots[i];
        in[i].msg_hdr = (struct msghdr){.msg_iov = &part[i], .msg_iovlen = 1};
        out[i].msg_hdr = (struct msghdr){.msg_iov = &part[i],
                                         .msg_iovlen = 1,
                                         .msg_name = &destination,
                                         .msg_namelen = sizeof destination};
    }
    for (;;) {
        for (unsigned i = 0; i < batch; i++)
            part[i].iov_len = SLOT_BYTES;
        int received = recvmmsg(fd, in, batch, MSG_WAITFORONE, NULL);
        if (received < 0 && errno != EINTR) {
            perror("nullforward: recvmmsg");
            return 1;
        }
        for (int i = 0; i < received; i++)
            part[i].iov_len = in[i].msg_len;
        for (int done = 0; done < received;) {
            int sent = sendmmsg(fd, out + done, (unsigned)(received - done), 0);
            done += sent > 0 ? sent : 1;
        }
    }
}
