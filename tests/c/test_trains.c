/* Trains (UDP_GRO): several datagrams of one sender in one message of the kernel, taken apart in place. */
#define _GNU_SOURCE
#include "relay/socket.h"
#include "socket_check.h"

#include <errno.h>
#include <netinet/udp.h>
#include <sys/syscall.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

static bool kernel_lacks_gro;

int setsockopt(int fd, int level, int option, const void *value, socklen_t bytes) {
    if (kernel_lacks_gro && level == IPPROTO_UDP && option == UDP_GRO) {
        errno = ENOPROTOOPT;
        return -1;
    }
    return (int)syscall(SYS_setsockopt, fd, level, option, value, bytes);
}

/* Byte i of everything that was ever sent, so that a piece says where it was cut. */
static uint8_t sent[65000];

static void fill_sent(void) {
    for (size_t i = 0; i < sizeof sent; i++)
        sent[i] = (uint8_t)(i * 31 + i / 251);
}

/* `bytes` of `sent` as a run of datagrams of `segment_bytes`, which loopback does not cut apart. */
static void send_run(struct fixture *f, size_t bytes, uint16_t segment_bytes) {
    union {
        struct cmsghdr align;
        uint8_t bytes[CMSG_SPACE(sizeof segment_bytes)];
    } control = {.bytes = {0}};
    struct sockaddr_storage name;
    struct iovec part = {sent, bytes};
    struct msghdr header = {.msg_name = &name,
                            .msg_namelen = name_of(&f->addr, &name),
                            .msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = &control,
                            .msg_controllen = sizeof control};
    control.align.cmsg_len = CMSG_LEN(sizeof segment_bytes);
    control.align.cmsg_level = IPPROTO_UDP;
    control.align.cmsg_type = UDP_SEGMENT;
    memcpy(CMSG_DATA(&control.align), &segment_bytes, sizeof segment_bytes);
    CHECK_EQ(sendmsg(f->peer, &header, 0), bytes);
}

static void wait_for(int fd) {
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    CHECK_EQ(poll(&ready, 1, 2000), 1);
}

static void expect_piece(struct fixture *f, unsigned index, size_t at, size_t bytes) {
    struct vr_ingress in;
    CHECK(vr_socket_ingress(f->socket, index, &in));
    CHECK_EQ(in.data_bytes, bytes);
    CHECK_MEM(in.data, sent + at, bytes);
    CHECK(vr_addr_equal(&in.source, &f->peer_addr));
}

static void check_train(const char *ip, enum vr_side side) {
    struct fixture f;
    int tos = 0xb8;
    bool v4 = strchr(ip, '.') != NULL;
    if (!fixture_open(&f, ip, ip, side))
        return;
    setsockopt(f.peer, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TOS : IPV6_TCLASS, &tos, sizeof tos);
    send_run(&f, 63 * 210 + 50, 210);
    wait_for(f.fd);
    CHECK_EQ(vr_socket_receive(f.socket, VR_BATCH_MAX), 64);
    for (unsigned i = 0; i < 64; i++) {
        struct vr_ingress in;
        expect_piece(&f, i, i * 210, i < 63 ? 210 : 50);
        CHECK(vr_socket_ingress(f.socket, i, &in));
        CHECK_EQ(in.tos, tos);
        CHECK_EQ(in.side, side);
    }
    CHECK_EQ(vr_socket_continue(f.socket), 0);
    CHECK_EQ(vr_socket_receive(f.socket, VR_BATCH_MAX), 0);
    fixture_close(&f);
}

TEST(a_train_is_taken_apart_in_place) {
    fill_sent();
    check_train("127.0.0.1", VR_SIDE_INTERNAL);
    check_train("127.0.0.1", VR_SIDE_BACKBONE);
    check_train("::1", VR_SIDE_INTERNAL);
}

TEST(without_a_train_all_is_as_ever) {
    struct fixture f;
    CASE("a public socket asks for none: the kernel cuts the run apart");
    CHECK(fixture_open(&f, "127.0.0.1", "127.0.0.1", VR_SIDE_PUBLIC));
    send_run(&f, 640, 64);
    wait_for(f.fd);
    CHECK_EQ(vr_socket_receive(f.socket, VR_BATCH_MAX), 10);
    expect_piece(&f, 9, 576, 64);
    CHECK_EQ(vr_socket_continue(f.socket), 0);
    fixture_close(&f);

    CASE("a kernel that does not know how");
    kernel_lacks_gro = true;
    CHECK(fixture_open(&f, "127.0.0.1", "127.0.0.1", VR_SIDE_INTERNAL));
    kernel_lacks_gro = false;
    send_run(&f, 640, 64);
    wait_for(f.fd);
    CHECK_EQ(vr_socket_receive(f.socket, VR_BATCH_MAX), 10);
    expect_piece(&f, 9, 576, 64);
    fixture_close(&f);

    CASE("single datagrams between trains, an empty one too");
    CHECK(fixture_open(&f, "127.0.0.1", "127.0.0.1", VR_SIDE_INTERNAL));
    send_udp(f.peer, &f.addr, sent, 100);
    send_run(&f, 200, 100);
    send_udp(f.peer, &f.addr, "", 0);
    send_udp(f.peer, &f.addr, sent, 300);
    wait_for(f.fd);
    CHECK_EQ(vr_socket_receive(f.socket, VR_BATCH_MAX), 5);
    expect_piece(&f, 0, 0, 100);
    expect_piece(&f, 1, 0, 100);
    expect_piece(&f, 2, 100, 100);
    expect_piece(&f, 3, 0, 0);
    expect_piece(&f, 4, 0, 300);
    fixture_close(&f);
}

TEST(a_datagram_of_a_train_that_is_too_long_is_told_apart) {
    enum { LONG = VR_SPP_BYTES + VR_DATAGRAM_MAX_BYTES + 1 };
    struct fixture f;
    CHECK(fixture_open(&f, "127.0.0.1", "127.0.0.1", VR_SIDE_INTERNAL));
    send_run(&f, 2 * LONG + 70, LONG);
    wait_for(f.fd);
    CHECK_EQ(vr_socket_receive(f.socket, VR_BATCH_MAX), 3);
    for (unsigned i = 0; i < 2; i++) {
        struct vr_ingress in;
        CHECK(!vr_socket_ingress(f.socket, i, &in));
        CHECK_EQ(in.data_bytes, LONG - 1);
    }
    expect_piece(&f, 2, 2 * LONG, 70);
    fixture_close(&f);
}

TEST(more_than_a_batch_comes_in_portions_and_then_less_is_asked_for) {
    struct fixture f;
    CHECK(fixture_open(&f, "127.0.0.1", "127.0.0.1", VR_SIDE_INTERNAL));
    for (unsigned i = 0; i < 5; i++)
        send_run(&f, 64 * 40, 40);
    wait_for(f.fd);
    CHECK_EQ(vr_socket_receive(f.socket, VR_BATCH_MAX), VR_BATCH_MAX);
    expect_piece(&f, VR_BATCH_MAX - 1, 63 * 40, 40);
    CHECK_EQ(vr_socket_continue(f.socket), 64);
    expect_piece(&f, 0, 0, 40);
    expect_piece(&f, 63, 63 * 40, 40);
    CHECK_EQ(vr_socket_continue(f.socket), 0);
    CHECK(!vr_socket_was_full(f.socket));

    CASE("four trains of 64 are a batch");
    for (unsigned i = 0; i < 5; i++)
        send_run(&f, 64 * 40, 40);
    CHECK_EQ(vr_socket_receive(f.socket, VR_BATCH_MAX), VR_BATCH_MAX);
    CHECK_EQ(vr_socket_continue(f.socket), 0);
    CHECK(vr_socket_was_full(f.socket));
    CHECK_EQ(vr_socket_receive(f.socket, VR_BATCH_MAX), 64);

    CASE("and when no trains come any more, as many as ever");
    for (unsigned i = 0; i < VR_TRAIN_MESSAGES + 5; i++)
        send_udp(f.peer, &f.addr, sent, 40);
    CHECK_EQ(vr_socket_receive(f.socket, VR_BATCH_MAX), 4);
    CHECK_EQ(vr_socket_receive(f.socket, VR_BATCH_MAX), VR_TRAIN_MESSAGES);
    CHECK_EQ(vr_socket_receive(f.socket, VR_BATCH_MAX), 1);
    CHECK_EQ(vr_socket_receive(f.socket, 7), 0);
    fixture_close(&f);
}
