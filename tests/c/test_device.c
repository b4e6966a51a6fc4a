/* What a network device does to a socket: a full send buffer and a small MTU, for real. The device
 * is a tap in a network namespace of its own; who reads its frames decides what happens to them. */
#define _GNU_SOURCE
#include "net_check.h"
#include "relay/socket.h"

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

enum { ETHERNET_BYTES = 14, IP_BYTES = 20, UDP_BYTES = 8, SKIPPED = 77, DATAGRAMS = 100 };

static bool set_address(int control, const char *device, unsigned long request, const char *ip) {
    struct ifreq interface = {0};
    struct sockaddr_in *name = (struct sockaddr_in *)&interface.ifr_addr;
    strncpy(interface.ifr_name, device, IFNAMSIZ - 1);
    name->sin_family = AF_INET;
    inet_pton(AF_INET, ip, &name->sin_addr);
    return ioctl(control, request, &interface) == 0;
}

/* A tap device with 10.9.0.1/24 in a new network namespace, or -1 when this process may not. */
static int open_tap(int mtu) {
    struct ifreq interface = {.ifr_name = "vrtap", .ifr_flags = IFF_TAP | IFF_NO_PI};
    if (unshare(CLONE_NEWNET) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0)
        return -1;
    int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    int control = socket(AF_INET, SOCK_DGRAM, 0);
    if (tap < 0 || ioctl(tap, TUNSETIFF, &interface) < 0 ||
        !set_address(control, "vrtap", SIOCSIFADDR, "10.9.0.1") ||
        !set_address(control, "vrtap", SIOCSIFNETMASK, "255.255.255.0"))
        return -1;
    interface.ifr_mtu = mtu;
    if (ioctl(control, SIOCSIFMTU, &interface) < 0)
        return -1;
    interface.ifr_flags = IFF_UP | IFF_RUNNING;
    if (ioctl(control, SIOCSIFFLAGS, &interface) < 0)
        return -1;
    close(control);
    return tap;
}

/* The next frame of this EtherType within two seconds; its length or -1. */
static ssize_t read_frame(int tap, uint16_t type, uint8_t *frame, size_t bytes) {
    struct pollfd ready = {.fd = tap, .events = POLLIN};
    while (poll(&ready, 1, 2000) == 1) {
        ssize_t got = read(tap, frame, bytes);
        if (got > ETHERNET_BYTES && frame[12] == type >> 8 && frame[13] == (type & 0xff))
            return got;
    }
    return -1;
}

/* Answers the ARP request that lies in the device: the asked address is at 02:00:00:00:00:02. */
static void answer_arp(int tap) {
    static const uint8_t mac[6] = {2, 0, 0, 0, 0, 2};
    uint8_t request[128], reply[42];
    CHECK(read_frame(tap, ETHERTYPE_ARP, request, sizeof request) >= (ssize_t)sizeof reply);
    memcpy(reply, request, sizeof reply);
    memcpy(reply, request + 6, 6); /* to who asked */
    memcpy(reply + 6, mac, 6);     /* from us */
    reply[21] = ARPOP_REPLY;
    memcpy(reply + 22, mac, 6);          /* sender: us, */
    memcpy(reply + 28, request + 38, 4); /* at the asked address */
    memcpy(reply + 32, request + 22, 10);
    CHECK_EQ(write(tap, reply, sizeof reply), sizeof reply);
}

struct fixture {
    int fd;
    struct vr_slots *slots;
    struct vr_socket *socket;
    struct vr_stats stats;
};

static void open_fixture(struct fixture *f) {
    memset(f, 0, sizeof *f);
    f->fd = open_udp("0.0.0.0");
    f->slots = vr_slots_new();
    struct vr_socket_config config = {.fd = f->fd, .side = VR_SIDE_INTERNAL, .slots = f->slots};
    f->socket = vr_socket_new(&config);
}

static void queue_datagrams(struct fixture *f, unsigned count, uint32_t bytes) {
    static uint8_t data[DATAGRAMS][1400];
    struct vr_hop hop = {.side = VR_SIDE_INTERNAL, .destination = addr_of("10.9.0.2", 4000)};
    for (unsigned i = 0; i < count; i++) {
        data[i][0] = (uint8_t)i;
        struct vr_egress egress = {.data = data[i], .data_bytes = bytes, .flow = i};
        vr_socket_queue(f->socket, &egress, &hop, &f->stats);
    }
}

static void check_sent(struct fixture *f, unsigned count) {
    CHECK_EQ(f->stats.side[VR_SIDE_INTERNAL].tx_packets, count);
    for (unsigned i = 0; i < VR_DROPS; i++)
        CHECK_EQ(f->stats.drop[i], 0);
}

static void close_fixture(struct fixture *f) {
    vr_socket_free(f->socket);
    vr_slots_free(f->slots);
    close(f->fd);
}

/* Datagrams wait for the answer to an ARP request, which the test holds back: they fill the buffer. */
static void check_backpressure(int tap) {
    int small = 1;
    struct fixture f;
    open_fixture(&f);
    setsockopt(f.fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    queue_datagrams(&f, DATAGRAMS, 400);
    vr_socket_flush(f.socket, &f.stats);
    CHECK(f.stats.side[VR_SIDE_INTERNAL].tx_packets < DATAGRAMS);
    CHECK(vr_socket_blocked(f.socket));
    struct pollfd writable = {.fd = f.fd, .events = POLLOUT};
    CHECK_EQ(poll(&writable, 1, 0), 0);

    answer_arp(tap);
    for (unsigned turns = 0; vr_socket_blocked(f.socket) && turns < DATAGRAMS; turns++) {
        CHECK_EQ(poll(&writable, 1, 2000), 1);
        vr_socket_flush_backlog(f.socket, &f.stats);
    }
    check_sent(&f, DATAGRAMS);
    for (unsigned i = 0; i < DATAGRAMS; i++) {
        uint8_t frame[1600] = {0};
        CHECK_EQ(read_frame(tap, ETHERTYPE_IP, frame, sizeof frame),
                 ETHERNET_BYTES + IP_BYTES + UDP_BYTES + 400);
        CHECK_EQ(frame[ETHERNET_BYTES + IP_BYTES + UDP_BYTES], i);
    }
    close_fixture(&f);
}

/* The kernel refuses the run for its segments' size, and takes and fragments the single datagrams. */
static void check_small_mtu(int tap) {
    struct fixture f;
    open_fixture(&f);
    queue_datagrams(&f, 5, 1350);
    vr_socket_flush(f.socket, &f.stats);
    check_sent(&f, 5);
    CHECK_EQ(f.stats.side[VR_SIDE_INTERNAL].tx_fragmented, 5);
    queue_datagrams(&f, 2, 1280 - IP_BYTES - UDP_BYTES);
    vr_socket_flush(f.socket, &f.stats);
    CHECK_EQ(f.stats.side[VR_SIDE_INTERNAL].tx_fragmented, 5);
    answer_arp(tap);
    for (unsigned i = 0; i < 10; i++) {
        uint8_t frame[1600];
        ssize_t bytes = read_frame(tap, ETHERTYPE_IP, frame, sizeof frame);
        CHECK(bytes > 0 && bytes <= ETHERNET_BYTES + 1280);
    }
    close_fixture(&f);
}

static void with_tap(int mtu, void (*check)(int tap)) {
    pid_t child = fork();
    if (child == 0) {
        int tap = open_tap(mtu);
        if (tap < 0)
            _exit(SKIPPED);
        check(tap);
        _exit(check_failures > 0);
    }
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED)
        printf("SKIPPED: no network namespace or no tap device here\n");
    else
        CHECK_EQ(status, 0);
}

TEST(a_full_send_buffer_keeps_the_order_and_loses_nothing) {
    with_tap(1500, check_backpressure);
}

TEST(a_small_mtu_inside_fragments_and_loses_nothing) {
    with_tap(1280, check_small_mtu);
}
