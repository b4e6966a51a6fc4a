#define _GNU_SOURCE
#include "loop_check.h"
#include "relay/loop.h"

#include <netinet/udp.h>
#include <pthread.h>
#include <sys/resource.h>

TEST(a_batch_goes_where_the_forwarder_says) {
    struct worker *w = open_worker(0);
    send_udp(w->client, &w->addr[FIRST], "1a", 2);
    send_udp(w->client, &w->addr[FIRST], "2b", 2);
    send_udp(w->client, &w->addr[FIRST], "drop", 4);
    send_udp(w->client, &w->addr[FIRST], "park", 4);
    send_udp(w->client, &w->addr[FIRST], "e", 1);
    CHECK_EQ(vr_loop_turn(w->loop, 1000), VR_LOOP_GOES_ON);
    expect(w->transceiver[0], "1a");
    expect(w->transceiver[0], "2b");
    expect(w->transceiver[1], "2b");
    expect(w->client, "e");
    CHECK(is_silent(w->transceiver[0]) && is_silent(w->transceiver[1]) && is_silent(w->client));
    CHECK_EQ(w->stats.side[VR_SIDE_PUBLIC].rx_packets, 5);
    CHECK_EQ(w->stats.side[VR_SIDE_PUBLIC].tx_packets, 1);
    CHECK_EQ(w->stats.side[VR_SIDE_INTERNAL].tx_packets, 3);
    CHECK_EQ(w->stats.side[VR_SIDE_INTERNAL].tx_bytes, 6);
    CHECK_EQ(w->stats.drop[VR_DROP_PARK_FULL], 1);
    CHECK_EQ(all_drops(&w->stats), 1);
    close_worker(w);
}

TEST(a_bad_datagram_does_not_disturb_its_batch) {
    static uint8_t jumbo[9000] = "1";
    struct worker *w = open_worker(0);
    send_udp(w->client, &w->addr[FIRST], "1a", 2);
    send_udp(w->client, &w->addr[FIRST], "bad", 3);
    send_udp(w->client, &w->addr[FIRST], jumbo, sizeof jumbo);
    send_udp(w->client, &w->addr[FIRST], "", 0);
    send_udp(w->client, &w->addr[FIRST], "bad", 3);
    send_udp(w->client, &w->addr[FIRST], "1b", 2);
    vr_loop_turn(w->loop, 1000);
    expect(w->transceiver[0], "1a");
    expect(w->transceiver[0], "1b");
    CHECK(is_silent(w->transceiver[0]));
    CHECK_EQ(w->stats.drop[VR_DROP_TRUNCATED], 1);
    CHECK_EQ(w->stats.drop[VR_DROP_SEND_ERROR], 2);
    CHECK_EQ(all_drops(&w->stats), 3);
    CHECK_EQ(w->stats.side[VR_SIDE_PUBLIC].rx_packets, 6);
    close_worker(w);
}

TEST(a_hop_names_its_public_socket) {
    struct worker *w = open_worker(0);
    char data[4];
    struct vr_addr from, asked = addr_of("127.8.8.8", ntohs(w->addr[SECOND].port_be));
    w->forwarder.hop[0] = (struct vr_hop){
        .side = VR_SIDE_PUBLIC, .listen = 200 + FIRST, .destination = w->client_addr};
    send_udp(w->transceiver[0], &w->addr[INTERNAL], "1", 1);
    vr_loop_turn(w->loop, 1000);
    CHECK_EQ(receive_udp(w->client, data, sizeof data, &from), 1);
    CHECK(vr_addr_equal(&from, &w->addr[FIRST]));

    CASE("a wildcard socket answers from the address that was asked");
    send_udp(w->client, &asked, "e", 1);
    vr_loop_turn(w->loop, 1000);
    CHECK_EQ(receive_udp(w->client, data, sizeof data, &from), 1);
    CHECK(vr_addr_equal(&from, &asked));

    CASE("a socket that this generation lacks");
    w->forwarder.hop[0].listen = 7;
    send_udp(w->transceiver[0], &w->addr[INTERNAL], "1", 1);
    w->forwarder.bad.side = VR_SIDE_BACKBONE;
    send_udp(w->transceiver[0], &w->addr[INTERNAL], "b", 1);
    vr_loop_turn(w->loop, 1000);
    CHECK_EQ(w->stats.drop[VR_DROP_SEND_ERROR], 2);
    CHECK_EQ(all_drops(&w->stats), 2);
    close_worker(w);
}

TEST(a_flood_on_one_side_does_not_starve_the_other) {
    struct worker *w = open_worker(8);
    for (unsigned i = 0; i < 100; i++)
        send_udp(w->client, &w->addr[FIRST], "1", 1);
    send_udp(w->client, &w->addr[SECOND], "e2", 2);
    send_udp(w->transceiver[1], &w->addr[INTERNAL], "ei", 2);
    CHECK_EQ(vr_loop_turn(w->loop, 1000), VR_LOOP_GOES_ON);
    expect(w->client, "e2");
    expect(w->transceiver[1], "ei");
    CHECK_EQ(w->stats.side[VR_SIDE_INTERNAL].tx_packets, 1 + 8);
    close_worker(w);
}

TEST(a_turn_serves_a_whole_batch_on_the_inside_too) {
    enum { BATCH = 4 * VR_TRAIN_MESSAGES };
    struct worker *w = open_worker(BATCH);
    for (unsigned i = 0; i < BATCH + 10; i++)
        send_udp(w->transceiver[1], &w->addr[INTERNAL], "1", 1);
    CHECK_EQ(vr_loop_turn(w->loop, 1000), VR_LOOP_GOES_ON);
    CHECK_EQ(w->stats.side[VR_SIDE_INTERNAL].rx_packets, BATCH);
    CHECK_EQ(vr_loop_turn(w->loop, 1000), VR_LOOP_GOES_ON);
    CHECK_EQ(w->stats.side[VR_SIDE_INTERNAL].rx_packets, BATCH + 10);
    close_worker(w);
}

/* Five runs of 64 in one turn, though four would be a batch: all are forwarded, in order. */
TEST(a_train_is_forwarded_datagram_by_datagram) {
    enum { RUNS = 5, EACH = 64 };
    struct worker *w = open_worker(0);
    int segment_bytes = 2, room_bytes = 1 << 20;
    setsockopt(w->transceiver[0], SOL_SOCKET, SO_RCVBUF, &room_bytes, sizeof room_bytes);
    CHECK_EQ(setsockopt(w->transceiver[1], IPPROTO_UDP, UDP_SEGMENT, &segment_bytes,
                        sizeof segment_bytes),
             0);
    for (unsigned run = 0; run < RUNS; run++) {
        uint8_t data[EACH][2];
        for (unsigned i = 0; i < EACH; i++) {
            data[i][0] = '1';
            data[i][1] = (uint8_t)(run * EACH + i);
        }
        send_udp(w->transceiver[1], &w->addr[INTERNAL], data, sizeof data);
    }
    CHECK_EQ(vr_loop_turn(w->loop, 1000), VR_LOOP_GOES_ON);
    for (unsigned i = 0; i < RUNS * EACH; i++) {
        uint8_t data[4];
        ssize_t bytes = recv(w->transceiver[0], data, sizeof data, MSG_DONTWAIT);
        CHECK_EQ(bytes, 2);
        CHECK_EQ(data[1], (uint8_t)i);
    }
    CHECK(is_silent(w->transceiver[0]));
    CHECK_EQ(w->stats.side[VR_SIDE_INTERNAL].rx_packets, RUNS * EACH);
    CHECK_EQ(w->stats.side[VR_SIDE_INTERNAL].tx_packets, RUNS * EACH);
    CHECK_EQ(all_drops(&w->stats), 0);
    close_worker(w);
}

TEST(stop_leaves_the_datagrams_to_the_next_worker) {
    struct worker *w = open_worker(0);
    send_udp(w->client, &w->addr[FIRST], "1", 1);
    ring(w->stop_fd);
    CHECK_EQ(vr_loop_run(w->loop), VR_LOOP_STOPPED);
    CHECK_EQ(vr_loop_run(w->loop), VR_LOOP_STOPPED);
    CHECK(is_silent(w->transceiver[0]));
    uint64_t rings;
    CHECK_EQ(read(w->stop_fd, &rings, sizeof rings), sizeof rings);
    vr_loop_free(w->loop);
    w->loop = make_loop(w);
    CHECK_EQ(vr_loop_turn(w->loop, 1000), VR_LOOP_GOES_ON);
    expect(w->transceiver[0], "1");
    close_worker(w);
}

TEST(a_worker_ends_when_its_supervisor_is_gone) {
    struct worker *w = open_worker(0);
    CHECK_EQ(vr_loop_turn(w->loop, 0), VR_LOOP_GOES_ON);
    close(w->life[1]);
    w->life[1] = -1;
    CHECK_EQ(vr_loop_run(w->loop), VR_LOOP_ORPHANED);
    ring(w->stop_fd);
    CHECK_EQ(vr_loop_run(w->loop), VR_LOOP_ORPHANED);
    close_worker(w);
}

TEST(progress_is_counted_and_flows_are_swept_when_nothing_comes) {
    struct worker *w = open_worker(0);
    vr_loop_turn(w->loop, 0);
    uint64_t before_ns = w->stats.progress_ns;
    unsigned sweeps = w->forwarder.sweeps;
    for (unsigned i = 0; i < 5; i++)
        CHECK_EQ(vr_loop_turn(w->loop, 20), VR_LOOP_GOES_ON);
    CHECK_EQ(w->stats.progress, 6);
    CHECK(w->stats.progress_ns >= before_ns + 80000000);
    CHECK_EQ(w->forwarder.sweeps - sweeps, 5);
    close_worker(w);
}

TEST(probes_leave_from_the_internal_socket_and_count_as_nothing_else) {
    struct worker *w = open_worker(0);
    uint8_t probe[2][VR_PROBE_BYTES + 1];
    struct vr_addr from;
    w->forwarder.probes = 2;
    vr_loop_turn(w->loop, 20);
    for (unsigned i = 0; i < 2; i++) {
        CHECK_EQ(receive_udp(w->transceiver[0], probe[i], sizeof probe[i], &from), VR_PROBE_BYTES);
        CHECK(vr_addr_equal(&from, &w->addr[INTERNAL]));
    }
    CHECK(memcmp(probe[0] + VR_SPP_BYTES, probe[1] + VR_SPP_BYTES, VR_PROBE_NONCE_BYTES) != 0);
    CHECK_EQ(w->stats.probes_sent, 2);
    CASE("an echo leaves at once, an echo that came is at its end");
    send_udp(w->client, &w->addr[FIRST], "h", 1);
    send_udp(w->client, &w->addr[FIRST], "t", 1);
    vr_loop_turn(w->loop, 1000);
    expect(w->transceiver[0], "h");
    CHECK(is_silent(w->transceiver[0]));
    CHECK_EQ(w->stats.probes_echoed, 1);
    CASE("one that cannot be sent is lost");
    w->forwarder.hop[0].destination.port_be = 0;
    w->forwarder.probes = 1;
    vr_loop_turn(w->loop, 20);
    CHECK_EQ(w->stats.probes_sent, 2);
    CHECK_EQ(w->stats.side[VR_SIDE_INTERNAL].tx_packets, 0);
    CHECK_EQ(all_drops(&w->stats), 0);
    close_worker(w);
}

static void *run_loop(void *loop) {
    static int end;
    end = vr_loop_run(loop);
    return &end;
}

TEST(an_idle_loop_ticks_on_its_own) {
    struct worker *w = open_worker(0);
    pthread_t thread;
    void *end;
    CHECK_EQ(pthread_create(&thread, NULL, run_loop, w->loop), 0);
    for (unsigned i = 0; i < 500; i++) {
        if (__atomic_load_n(&w->stats.progress, __ATOMIC_RELAXED) >= 3)
            break;
        usleep(10000);
    }
    CHECK(__atomic_load_n(&w->stats.progress, __ATOMIC_RELAXED) >= 3);
    ring(w->stop_fd);
    pthread_join(thread, &end);
    CHECK_EQ(*(int *)end, VR_LOOP_STOPPED);
    close_worker(w);
}

/* Nanoseconds that a turn takes after `datagrams` have come. */
static uint64_t turn_ns(struct worker *w, unsigned datagrams) {
    struct timespec before, after;
    for (unsigned i = 0; i < datagrams; i++)
        send_udp(w->client, &w->addr[FIRST], "1a", 2);
    clock_gettime(CLOCK_MONOTONIC, &before);
    vr_loop_turn(w->loop, 0);
    clock_gettime(CLOCK_MONOTONIC, &after);
    for (unsigned i = 0; i < datagrams; i++)
        expect(w->transceiver[0], "1a");
    return (uint64_t)(after.tv_sec - before.tv_sec) * 1000000000 + (uint64_t)after.tv_nsec -
           (uint64_t)before.tv_nsec;
}

/* Whether a turn goes without waiting, by the best of several: a busy machine interrupts one or the other. */
static bool turns_at_once(struct worker *w, unsigned datagrams) {
    for (unsigned tries = 0; tries < 20; tries++)
        if (turn_ns(w, datagrams) < VR_COALESCE_US_MAX * 1000 / 2)
            return true;
    return false;
}

TEST(it_waits_for_more_only_when_asked_and_after_a_small_batch) {
    struct worker *w = open_worker(4);
    CHECK(turns_at_once(w, 1));
    w->coalesce_us = VR_COALESCE_US_MAX;
    vr_loop_free(w->loop);
    w->loop = make_loop(w);
    CHECK(turn_ns(w, 3) >= VR_COALESCE_US_MAX * 1000);
    CHECK(turns_at_once(w, 0));
    CHECK(turns_at_once(w, 4));
    close_worker(w);
}

TEST(a_full_send_buffer_is_tried_again_when_writable) {
    struct worker *w = open_worker(0);
    full_calls = 1;
    send_udp(w->client, &w->addr[FIRST], "1a", 2);
    send_udp(w->client, &w->addr[FIRST], "1b", 2);
    vr_loop_turn(w->loop, 1000);
    CHECK(is_silent(w->transceiver[0]));
    CHECK(vr_socket_blocked(w->socket[INTERNAL]));
    send_udp(w->client, &w->addr[FIRST], "1c", 2);
    vr_loop_turn(w->loop, 1000);
    expect(w->transceiver[0], "1a");
    expect(w->transceiver[0], "1b");
    expect(w->transceiver[0], "1c");
    CHECK_EQ(all_drops(&w->stats), 0);

    CASE("and the loop is quiet again");
    CHECK(!vr_socket_blocked(w->socket[INTERNAL]));
    uint64_t before_ns = vr_loop_now_ns();
    vr_loop_turn(w->loop, 50);
    CHECK(vr_loop_now_ns() - before_ns >= 30000000);
    close_worker(w);
}

TEST(commands_reach_the_loop) {
    struct worker *w = open_worker(0);
    struct vr_command command = {.kind = 1, .data_bytes = 3, .data = "abc"};
    CHECK(vr_mailbox_put(&w->mailbox, &command));
    command.kind = 2;
    command.data_bytes = 1000; /* a writer that lies */
    CHECK(vr_mailbox_put(&w->mailbox, &command));
    ring(w->command_fd);
    vr_loop_turn(w->loop, 1000);
    CHECK_EQ(w->commands, 2);
    CHECK_EQ(w->command[0].kind, 1);
    CHECK_MEM(w->command[0].data, "abc", 3);
    CHECK_EQ(w->command[1].data_bytes, VR_COMMAND_DATA_BYTES);

    CASE("a full ring refuses, and is empty after one turn");
    for (unsigned i = 0; i < VR_MAILBOX_CELLS; i++)
        CHECK(vr_mailbox_put(&w->mailbox, &command));
    CHECK(!vr_mailbox_put(&w->mailbox, &command));
    ring(w->command_fd);
    vr_loop_turn(w->loop, 1000);
    CHECK_EQ(w->commands, 2 + VR_MAILBOX_CELLS);
    CHECK(vr_mailbox_put(&w->mailbox, &command));

    CASE("a next loop goes on where this one ended");
    vr_loop_free(w->loop);
    w->loop = make_loop(w);
    ring(w->command_fd);
    vr_loop_turn(w->loop, 1000);
    CHECK_EQ(w->commands, 3 + VR_MAILBOX_CELLS);

    CASE("a bell without a command");
    ring(w->command_fd);
    CHECK_EQ(vr_loop_turn(w->loop, 1000), VR_LOOP_GOES_ON);
    CHECK_EQ(w->commands, 3 + VR_MAILBOX_CELLS);
    close_worker(w);
}

TEST(a_wrong_configuration_is_refused) {
    struct worker *w = open_worker(0);
    struct vr_loop_config good = {.forwarder = &w->forwarder,
                                  .stats = &w->stats,
                                  .sockets = w->socket,
                                  .socket_count = SOCKETS,
                                  .batch_max = 1,
                                  .stop_fd = w->stop_fd,
                                  .life_fd = w->life[0],
                                  .command_fd = -1};
    struct vr_loop_config wrong = good;
    wrong.batch_max = VR_BATCH_MAX + 1;
    CHECK(vr_loop_new(&wrong) == NULL && errno == EINVAL);
    wrong = good;
    wrong.socket_count = 0;
    CHECK(vr_loop_new(&wrong) == NULL && errno == EINVAL);
    wrong = good;
    wrong.command_fd = w->command_fd; /* without a mailbox */
    CHECK(vr_loop_new(&wrong) == NULL && errno == EINVAL);
    wrong = good;
    wrong.stop_fd = -1;
    CHECK(vr_loop_new(&wrong) == NULL && errno == EBADF);

    CASE("no descriptor is left for epoll");
    struct rlimit limit, none;
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = limit.rlim_max};
    wrong = good;
    wrong.busy_poll_us = 10;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    CHECK(vr_loop_new(&wrong) == NULL && errno == EMFILE);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);

    struct vr_loop *loop = vr_loop_new(&good);
    CHECK(loop != NULL);
    vr_loop_free(loop);
    close_worker(w);
}
