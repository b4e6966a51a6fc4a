#define _GNU_SOURCE
#include "relay/sender.h"
#include "socket_check.h"

#include <errno.h>
#include <sys/syscall.h>

/* The kernel's sendmmsg, with a plan for the next calls: what it answers instead. */
static int planned_errors[8];
static unsigned planned, planned_next;
static unsigned let_through; /* messages before the first planned error */

int sendmmsg(int fd, struct mmsghdr *message, unsigned count, int flags) {
    if (planned_next < planned) {
        if (let_through == 0) {
            errno = planned_errors[planned_next++];
            return -1;
        }
        count = count < let_through ? count : let_through;
        let_through -= count;
    }
    return (int)syscall(SYS_sendmmsg, fd, message, count, flags);
}

static void plan_error(unsigned after, int error) {
    planned_errors[0] = error;
    planned = 1;
    planned_next = 0;
    let_through = after;
}

static void close_fixture(struct fixture *f) {
    fixture_close(f);
    planned = planned_next = let_through = 0;
}

static int receive_one(struct fixture *f) {
    struct pollfd ready = {.fd = f->fd, .events = POLLIN};
    poll(&ready, 1, 2000);
    return vr_socket_receive(f->socket, VR_BATCH_MAX);
}

static void queue(struct fixture *f, const void *data, uint32_t bytes, const struct vr_hop *hop) {
    struct vr_egress egress = {.data = (uint8_t *)data, .data_bytes = bytes};
    vr_socket_queue(f->socket, &egress, hop, &f->stats);
}

static void queue_byte(struct fixture *f, const uint8_t *byte, struct vr_addr to) {
    struct vr_hop hop = {.side = VR_SIDE_PUBLIC, .listen = 3, .destination = to};
    queue(f, byte, 1, &hop);
}

static uint64_t all_drops(const struct vr_stats *stats) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < VR_DROPS; i++)
        sum += stats->drop[i];
    return sum;
}

static void expect_bytes(struct fixture *f, unsigned first, unsigned end) {
    for (unsigned i = first; i < end; i++) {
        uint8_t byte = 0;
        CHECK_EQ(receive_udp(f->peer, &byte, 1, NULL), 1);
        CHECK_EQ(byte, (uint8_t)i);
    }
    CHECK(is_silent(f->peer));
}

TEST(a_datagram_comes_whole_or_is_told_apart) {
    static const struct {
        const char *label;
        size_t bytes;
        bool whole;
    } cases[] = {
        {"empty", 0, true},
        {"one byte", 1, true},
        {"over a usual buffer", 1473, true},
        {"over an Ethernet frame", 1501, true},
        {"just fits", VR_DATAGRAM_MAX_BYTES, true},
        {"one too long", VR_DATAGRAM_MAX_BYTES + 1, false},
        {"a jumbo frame", 9000, false},
        {"the longest UDP datagram", 65507, false},
    };
    static uint8_t data[65507];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 7);
    struct fixture f;
    if (!fixture_open(&f, "127.0.0.1", "127.0.0.1", VR_SIDE_PUBLIC))
        return;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CASE(cases[i].label);
        struct vr_ingress in;
        send_udp(f.peer, &f.addr, data, cases[i].bytes);
        CHECK_EQ(receive_one(&f), 1);
        CHECK_EQ(vr_socket_ingress(f.socket, 0, &in), cases[i].whole);
        if (!cases[i].whole)
            continue;
        CHECK_EQ(in.data_bytes, cases[i].bytes);
        CHECK_MEM(in.data, data, cases[i].bytes);
        CHECK_EQ((uintptr_t)in.data % 8, 0);
        memset(in.data - VR_SPP_BYTES, 0xAA, VR_SPP_BYTES); /* the headroom is ours */
        CHECK(vr_addr_equal(&in.source, &f.peer_addr));
        CHECK_EQ(in.listen, 3);
    }
    close_fixture(&f);
}

TEST(behind_an_spp_header_the_payload_is_aligned) {
    static uint8_t data[VR_SPP_BYTES + VR_DATAGRAM_MAX_BYTES + 1];
    struct fixture f;
    if (!fixture_open(&f, "127.0.0.1", "127.0.0.1", VR_SIDE_INTERNAL))
        return;
    struct vr_ingress in;
    send_udp(f.peer, &f.addr, data, sizeof data - 1);
    send_udp(f.peer, &f.addr, data, sizeof data);
    CHECK_EQ(receive_one(&f), 2);
    CHECK(vr_socket_ingress(f.socket, 0, &in));
    CHECK_EQ(in.data_bytes, sizeof data - 1);
    CHECK_EQ((uintptr_t)in.data % 8, 2);
    CHECK_EQ((uintptr_t)(in.data + VR_SPP_BYTES) % 8, 0);
    CHECK(!vr_socket_ingress(f.socket, 1, &in));
    close_fixture(&f);
}

TEST(a_batch_is_capped_and_the_rest_stays) {
    struct fixture f;
    if (!fixture_open(&f, "127.0.0.1", "127.0.0.1", VR_SIDE_PUBLIC))
        return;
    for (uint8_t i = 0; i < 10; i++)
        send_udp(f.peer, &f.addr, &i, 1);
    uint8_t expected = 0;
    for (int left = 10; left > 0; left -= 4) {
        int received = vr_socket_receive(f.socket, 4);
        CHECK_EQ(received, left < 4 ? left : 4);
        for (int i = 0; i < received; i++) {
            struct vr_ingress in;
            CHECK(vr_socket_ingress(f.socket, (unsigned)i, &in));
            CHECK_EQ(in.data[0], expected++);
        }
    }
    CHECK_EQ(vr_socket_receive(f.socket, 4), 0);
    close_fixture(&f);
}

static void check_wildcard(const char *any, const char *peer_ip, const char *asked_ip) {
    struct fixture f;
    if (!fixture_open(&f, any, peer_ip, VR_SIDE_PUBLIC))
        return;
    struct vr_addr asked = addr_of(asked_ip, ntohs(f.addr.port_be)), from;
    struct vr_ingress in;
    uint8_t byte = 9;
    send_udp(f.peer, &asked, &byte, 1);
    CHECK_EQ(receive_one(&f), 1);
    CHECK(vr_socket_ingress(f.socket, 0, &in));
    CHECK(vr_addr_equal(&in.local, &asked));
    CHECK(vr_addr_equal(&in.proxy, &asked));
    struct vr_hop hop = {.side = VR_SIDE_PUBLIC, .listen = 3, .destination = in.source};
    memcpy(hop.source_ip, in.local.ip, 16);
    queue(&f, in.data, in.data_bytes, &hop);
    vr_socket_flush(f.socket, &f.stats);
    CHECK_EQ(receive_udp(f.peer, &byte, 1, &from), 1);
    CHECK(vr_addr_equal(&from, &asked));
    CHECK_EQ(f.stats.side[VR_SIDE_PUBLIC].tx_packets, 1);
    CHECK_EQ(all_drops(&f.stats), 0);
    close_fixture(&f);
}

TEST(a_wildcard_socket_answers_from_the_address_that_was_asked) {
    CASE("the usual loopback address");
    check_wildcard("0.0.0.0", "127.0.0.1", "127.0.0.1");
    CASE("another address of 127/8");
    check_wildcard("0.0.0.0", "127.0.0.1", "127.99.3.7");
    CASE("IPv6");
    check_wildcard("::", "::1", "::1");
}

TEST(an_advertised_address_is_the_proxy_address) {
    struct fixture f;
    if (!fixture_open(&f, "127.0.0.1", "127.0.0.1", VR_SIDE_PUBLIC))
        return;
    struct vr_socket_config config = {.fd = f.fd,
                                      .side = VR_SIDE_PUBLIC,
                                      .advertised = addr_of("192.0.2.7", 3478),
                                      .slots = f.slots};
    vr_socket_free(f.socket);
    f.socket = vr_socket_new(&config);
    struct vr_ingress in;
    send_udp(f.peer, &f.addr, "x", 1);
    CHECK_EQ(receive_one(&f), 1);
    CHECK(vr_socket_ingress(f.socket, 0, &in));
    CHECK(vr_addr_equal(&in.local, &f.addr));
    CHECK(vr_addr_equal(&in.proxy, &config.advertised));
    close_fixture(&f);
}

TEST(a_bad_destination_costs_itself_only) {
    static uint8_t huge[70000], good[] = {1, 2, 3, 4, 5};
    struct fixture f;
    if (!fixture_open(&f, "127.0.0.1", "127.0.0.1", VR_SIDE_PUBLIC))
        return;
    struct vr_hop hop = {.side = VR_SIDE_PUBLIC, .destination = f.peer_addr};
    queue_byte(&f, &good[0], f.peer_addr);
    queue_byte(&f, &good[0], addr_of("127.0.0.1", 0)); /* EINVAL */
    queue_byte(&f, &good[1], f.peer_addr);
    queue_byte(&f, &good[0], addr_of("255.255.255.255", 9)); /* EACCES */
    queue_byte(&f, &good[0], addr_of("240.0.0.1", 9));       /* no such class */
    queue_byte(&f, &good[0], addr_of("2001:db8::1", 9));     /* the other family */
    queue_byte(&f, &good[2], f.peer_addr);
    queue(&f, huge, sizeof huge, &hop); /* EMSGSIZE */
    queue_byte(&f, &good[3], f.peer_addr);
    queue_byte(&f, &good[0], addr_of("127.0.0.1", 0));
    vr_socket_flush(f.socket, &f.stats);
    expect_bytes(&f, 1, 5);
    CHECK_EQ(f.stats.side[VR_SIDE_PUBLIC].tx_packets, 4);
    CHECK_EQ(f.stats.side[VR_SIDE_PUBLIC].tx_bytes, 4);
    CHECK_EQ(f.stats.drop[VR_DROP_SEND_SIZE], 1);
    CHECK_EQ(f.stats.drop[VR_DROP_SEND_ERROR], 5);
    CHECK_EQ(all_drops(&f.stats), 6);
    close_fixture(&f);
}

TEST(an_icmp_error_of_one_peer_does_not_fail_the_next) {
    struct fixture f;
    if (!fixture_open(&f, "127.0.0.1", "127.0.0.1", VR_SIDE_PUBLIC))
        return;
    int dead = open_udp("127.0.0.1");
    struct vr_addr dead_addr = bound_addr(dead);
    close(dead);
    uint8_t byte = 5;
    for (unsigned i = 0; i < 20; i++) {
        queue_byte(&f, &byte, dead_addr);
        vr_socket_flush(f.socket, &f.stats);
        queue_byte(&f, &byte, f.peer_addr);
        vr_socket_flush(f.socket, &f.stats);
        CHECK_EQ(receive_udp(f.peer, &byte, 1, NULL), 1);
    }
    CHECK_EQ(vr_socket_receive(f.socket, VR_BATCH_MAX), 0);
    CHECK_EQ(f.stats.side[VR_SIDE_PUBLIC].tx_packets, 40);
    CHECK_EQ(all_drops(&f.stats), 0);
    close_fixture(&f);
}

TEST(a_full_send_buffer_defers_in_order_and_then_drops) {
    static uint8_t data[VR_BATCH_MAX * 2];
    struct fixture f;
    if (!fixture_open(&f, "127.0.0.1", "127.0.0.1", VR_SIDE_PUBLIC))
        return;
    for (unsigned i = 0; i < VR_BATCH_MAX * 2; i++)
        data[i] = (uint8_t)i;
    plan_error(3, EAGAIN);
    for (unsigned i = 0; i < 10; i++)
        queue_byte(&f, &data[i], f.peer_addr);
    vr_socket_flush(f.socket, &f.stats);
    CHECK(vr_socket_blocked(f.socket));
    CHECK_EQ(f.stats.side[VR_SIDE_PUBLIC].tx_packets, 3);
    expect_bytes(&f, 0, 3);
    memset(data, 0xEE, 10); /* the backlog has copies */

    CASE("what comes later waits behind it");
    for (unsigned i = 10; i < 10 + VR_BACKLOG_MAX; i++)
        queue_byte(&f, &data[i], f.peer_addr);
    vr_socket_flush(f.socket, &f.stats);
    CHECK_EQ(f.stats.side[VR_SIDE_PUBLIC].tx_packets, 3);
    CHECK_EQ(f.stats.drop[VR_DROP_SEND_BUSY], 7);

    CASE("still full after some");
    plan_error(5, EAGAIN);
    vr_socket_flush_backlog(f.socket, &f.stats);
    CHECK(vr_socket_blocked(f.socket));
    CHECK_EQ(f.stats.side[VR_SIDE_PUBLIC].tx_packets, 8);

    CASE("room again");
    vr_socket_flush_backlog(f.socket, &f.stats);
    CHECK(!vr_socket_blocked(f.socket));
    CHECK_EQ(f.stats.side[VR_SIDE_PUBLIC].tx_packets, 3 + VR_BACKLOG_MAX);
    CHECK_EQ(all_drops(&f.stats), 7);
    expect_bytes(&f, 3, 3 + VR_BACKLOG_MAX);
    close_fixture(&f);
}

TEST(a_source_address_survives_the_backlog) {
    struct fixture f;
    if (!fixture_open(&f, "0.0.0.0", "127.0.0.1", VR_SIDE_PUBLIC))
        return;
    struct vr_addr source = addr_of("127.0.0.77", ntohs(f.addr.port_be)), from;
    struct vr_hop hop = {.side = VR_SIDE_PUBLIC, .destination = f.peer_addr};
    memcpy(hop.source_ip, source.ip, 16);
    plan_error(0, EAGAIN);
    queue(&f, "x", 1, &hop);
    vr_socket_flush(f.socket, &f.stats);
    vr_socket_flush_backlog(f.socket, &f.stats);
    uint8_t byte;
    CHECK_EQ(receive_udp(f.peer, &byte, 1, &from), 1);
    CHECK(vr_addr_equal(&from, &source));
    close_fixture(&f);
}

TEST(other_send_errors_are_counted_by_reason) {
    static const struct {
        const char *label;
        int error;
        enum vr_drop reason;
    } cases[] = {
        {"no buffer", ENOBUFS, VR_DROP_SEND_BUSY},
        {"no memory", ENOMEM, VR_DROP_SEND_BUSY},
        {"firewall or full conntrack", EPERM, VR_DROP_SEND_ERROR},
        {"no route", ENETUNREACH, VR_DROP_SEND_ERROR},
        {"no host", EHOSTUNREACH, VR_DROP_SEND_ERROR},
        {"refused", ECONNREFUSED, VR_DROP_SEND_ERROR},
        {"too long", EMSGSIZE, VR_DROP_SEND_SIZE},
        {"broken device", EIO, VR_DROP_SEND_ERROR},
    };
    static uint8_t data[4] = {0, 1, 2, 3};
    struct fixture f;
    if (!fixture_open(&f, "127.0.0.1", "127.0.0.1", VR_SIDE_PUBLIC))
        return;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CASE(cases[i].label);
        memset(&f.stats, 0, sizeof f.stats);
        plan_error(2, cases[i].error);
        for (unsigned j = 0; j < 4; j++)
            queue_byte(&f, &data[j], f.peer_addr);
        vr_socket_flush(f.socket, &f.stats);
        CHECK_EQ(f.stats.drop[cases[i].reason], 1);
        CHECK_EQ(all_drops(&f.stats), 1);
        CHECK_EQ(f.stats.side[VR_SIDE_PUBLIC].tx_packets, 3);
        CHECK(!vr_socket_blocked(f.socket));
        uint8_t byte;
        for (unsigned j = 0; j < 4; j++)
            if (j != 2)
                CHECK(receive_udp(f.peer, &byte, 1, NULL) == 1 && byte == j);
    }
    CASE("interrupted: sent all the same");
    memset(&f.stats, 0, sizeof f.stats);
    plan_error(1, EINTR);
    for (unsigned j = 0; j < 4; j++)
        queue_byte(&f, &data[j], f.peer_addr);
    vr_socket_flush(f.socket, &f.stats);
    CHECK_EQ(f.stats.side[VR_SIDE_PUBLIC].tx_packets, 4);
    CHECK_EQ(all_drops(&f.stats), 0);
    close_fixture(&f);
}

TEST(more_than_fits_a_flush_is_dropped) {
    struct fixture f;
    uint8_t byte = 1;
    if (!fixture_open(&f, "127.0.0.1", "127.0.0.1", VR_SIDE_PUBLIC))
        return;
    for (unsigned i = 0; i < 2 * VR_BATCH_MAX + 3; i++)
        queue_byte(&f, &byte, f.peer_addr);
    vr_socket_flush(f.socket, &f.stats);
    CHECK_EQ(f.stats.side[VR_SIDE_PUBLIC].tx_packets, 2 * VR_BATCH_MAX);
    CHECK_EQ(f.stats.drop[VR_DROP_SEND_BUSY], 3);
    close_fixture(&f);
}

TEST(kernel_drops_are_seen_without_a_packet) {
    static uint8_t data[1200];
    struct fixture f;
    if (!fixture_open(&f, "127.0.0.1", "127.0.0.1", VR_SIDE_PUBLIC))
        return;
    int small = 8192;
    setsockopt(f.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    for (unsigned i = 0; i < 100; i++)
        send_udp(f.peer, &f.addr, data, sizeof data);
    int kept = vr_socket_receive(f.socket, VR_BATCH_MAX);
    CHECK(kept > 0 && kept < 100);
    CHECK_EQ(vr_socket_kernel_drops(f.socket), 100 - kept);
    close_fixture(&f);
}

TEST(what_is_no_udp_socket_is_refused) {
    struct vr_slots *slots = vr_slots_new();
    struct vr_socket_config config = {.fd = -1, .slots = slots};
    CHECK(vr_socket_new(&config) == NULL);
    CHECK_EQ(errno, EBADF);
    int pair[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair), 0);
    config.fd = pair[0];
    CHECK(vr_socket_new(&config) == NULL);
    CHECK_EQ(errno, EAFNOSUPPORT);
    close(pair[0]);
    close(pair[1]);
    vr_slots_free(slots);
}

/* What a plain socket sends with `tos` reaches in.tos, and what is queued with it reaches a plain
 * socket, also after a wait in the backlog. */
static void check_tos(const char *ip, const char *peer_ip, int tos, enum vr_side side) {
    struct fixture f;
    bool v4 = strcmp(peer_ip, "127.0.0.1") == 0;
    int level = v4 ? IPPROTO_IP : IPPROTO_IPV6, option = v4 ? IP_TOS : IPV6_TCLASS;
    int receive_option = v4 ? IP_RECVTOS : IPV6_RECVTCLASS, on = 1;
    if (!fixture_open(&f, ip, peer_ip, side))
        return;
    memcpy(f.addr.ip, f.peer_addr.ip, sizeof f.addr.ip); /* of a wildcard, too */
    setsockopt(f.peer, level, option, &tos, sizeof tos);
    setsockopt(f.peer, level, receive_option, &on, sizeof on);
    struct vr_ingress in;
    send_udp(f.peer, &f.addr, "x", 1);
    CHECK_EQ(receive_one(&f), 1);
    CHECK(vr_socket_ingress(f.socket, 0, &in));
    CHECK_EQ(in.tos, tos);
    struct vr_hop hop = {.side = side, .destination = in.source};
    struct vr_egress egress = {.data = in.data, .data_bytes = 1, .tos = in.tos};
    for (unsigned blocked = 0; blocked < 2; blocked++) {
        union {
            struct cmsghdr align;
            uint8_t bytes[64];
        } control = {.bytes = {0}};
        uint8_t byte;
        struct iovec part = {&byte, 1};
        struct msghdr header = {.msg_iov = &part,
                                .msg_iovlen = 1,
                                .msg_control = &control,
                                .msg_controllen = sizeof control};
        struct pollfd ready = {.fd = f.peer, .events = POLLIN};
        if (blocked)
            plan_error(0, EAGAIN);
        vr_socket_queue(f.socket, &egress, &hop, &f.stats);
        vr_socket_flush(f.socket, &f.stats);
        vr_socket_flush_backlog(f.socket, &f.stats);
        poll(&ready, 1, 2000);
        CHECK_EQ(recvmsg(f.peer, &header, MSG_DONTWAIT), 1);
        CHECK_EQ(control.align.cmsg_type, option);
        CHECK_EQ(*CMSG_DATA(&control.align), tos);
    }
    close_fixture(&f);
}

TEST(dscp_and_ecn_pass) {
    static const struct {
        const char *ip, *peer_ip;
        enum vr_side side;
    } CASES[] = {
        {"127.0.0.1", "127.0.0.1", VR_SIDE_PUBLIC},
        {"127.0.0.1", "127.0.0.1", VR_SIDE_INTERNAL},
        {"::1", "::1", VR_SIDE_PUBLIC},
        {"::1", "::1", VR_SIDE_INTERNAL},
        {"*", "127.0.0.1", VR_SIDE_INTERNAL},
        {"*", "::1", VR_SIDE_INTERNAL},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        CASE(CASES[i].ip);
        check_tos(CASES[i].ip, CASES[i].peer_ip, 0xb8 | 1, CASES[i].side);
        check_tos(CASES[i].ip, CASES[i].peer_ip, 0x28 | 2, CASES[i].side);
    }
}
