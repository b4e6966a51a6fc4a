#define _GNU_SOURCE
#include "net_check.h"
#include "relay/sender.h"

#include <errno.h>
#include <netinet/udp.h>
#include <sys/syscall.h>

enum { PEERS = 100, DATA_BYTES = 1 << 20 };

/* --- the kernel's sendmmsg, watched, and told what to refuse --- */

static unsigned messages_sent, runs_sent, longest_run;
static int refuse_runs; /* an errno */
static int plan_error;  /* an errno for the message after `plan_after` more */
static unsigned plan_after;

static bool trailers; /* the last bytes of each datagram are one */

static unsigned segments_of(const struct msghdr *header) {
    unsigned segments = 0;
    for (size_t i = 0; i < header->msg_iovlen; i++)
        segments += !trailers || header->msg_iov[i].iov_len != VR_TRAILER_BYTES;
    return segments;
}

static bool is_run(const struct msghdr *header) {
    return segments_of(header) > 1;
}

int sendmmsg(int fd, struct mmsghdr *message, unsigned count, int flags) {
    unsigned n = 0;
    for (; n < count; n++) {
        if (refuse_runs && is_run(&message[n].msg_hdr))
            break;
        if (plan_error && plan_after == n)
            break;
    }
    if (n == 0) {
        errno = plan_error && plan_after == 0 ? plan_error : refuse_runs;
        plan_error = errno == plan_error ? 0 : plan_error;
        return -1;
    }
    int sent = (int)syscall(SYS_sendmmsg, fd, message, n, flags);
    for (int i = 0; i < sent; i++) {
        unsigned segments = segments_of(&message[i].msg_hdr);
        messages_sent++;
        runs_sent += segments > 1;
        longest_run = segments > longest_run ? segments : longest_run;
        plan_after -= plan_error != 0;
    }
    return sent;
}

/* --- a sender and its peers; every datagram says its number --- */

static struct vr_sender *sender;
static struct vr_stats stats;
static int peer[PEERS];
static struct vr_addr peer_addr[PEERS];
static uint8_t data[DATA_BYTES];
static size_t data_used;
static uint16_t next_number;
static uint32_t flow; /* of what is queued next */
static uint8_t tos;   /* too */
static struct {
    unsigned count;
    uint16_t number[VR_LINE_MAX];
    uint16_t bytes[VR_LINE_MAX];
    uint32_t flow[VR_LINE_MAX];
} expected[PEERS];

static void open_sender(enum vr_side side) {
    sender = mmap(NULL, sizeof *sender, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    vr_sender_init(sender, open_udp("127.0.0.1"), AF_INET, side, false);
    memset(&stats, 0, sizeof stats);
    memset(expected, 0, sizeof expected);
    messages_sent = runs_sent = longest_run = plan_after = 0;
    refuse_runs = plan_error = 0;
    next_number = 0;
    flow = tos = 0;
    data_used = 0;
    for (unsigned i = 0; i < PEERS; i++) {
        peer[i] = open_udp("127.0.0.1");
        peer_addr[i] = bound_addr(peer[i]);
    }
}

static void close_sender(void) {
    for (unsigned i = 0; i < PEERS; i++)
        close(peer[i]);
    close(sender->fd);
    munmap(sender, sizeof *sender);
}

static void queue_to(struct vr_addr destination, size_t bytes) {
    struct vr_hop hop = {.side = sender->side, .destination = destination, .is_relay = trailers};
    uint8_t *datagram = data + data_used;
    data_used += bytes;
    memset(datagram, (uint8_t)next_number, bytes);
    memcpy(datagram, &next_number, sizeof next_number);
    struct vr_egress egress = {
        .data = datagram, .data_bytes = (uint32_t)bytes, .flow = flow, .tos = tos};
    if (trailers && bytes >= VR_TRAILER_BYTES + 2) { /* what lies behind the data is not its own */
        egress.data_bytes -= egress.trailer_bytes = VR_TRAILER_BYTES;
        memcpy(egress.trailer, datagram + egress.data_bytes, VR_TRAILER_BYTES);
        memset(datagram + egress.data_bytes, 0xEE, VR_TRAILER_BYTES);
    }
    vr_sender_queue(sender, &egress, &hop, &stats);
    next_number++;
}

static void queue(unsigned i, size_t bytes) {
    expected[i].number[expected[i].count] = next_number;
    expected[i].flow[expected[i].count] = flow;
    expected[i].bytes[expected[i].count++] = (uint16_t)bytes;
    queue_to(peer_addr[i], bytes);
}

static void flush(void) {
    vr_sender_flush(sender, &stats);
    data_used = 0;
}

/* The first datagram of `peer` that is still expected and has this number; of its flow no earlier one
 * may be. */
static unsigned place_expected(unsigned i, uint16_t number) {
    unsigned j = 0;
    while (j < expected[i].count && expected[i].number[j] != number)
        j++;
    CHECK(j < expected[i].count);
    for (unsigned earlier = 0; earlier < j; earlier++)
        CHECK(expected[i].bytes[earlier] == 0 || expected[i].flow[earlier] != expected[i].flow[j]);
    return j;
}

/* Every peer has got what was queued for it, whole and each flow in order, and nothing else. */
static void check_arrival(void) {
    for (unsigned i = 0; i < PEERS; i++) {
        for (unsigned left = expected[i].count; left > 0; left--) {
            uint8_t datagram[4096];
            uint16_t number = 0;
            ssize_t bytes = receive_udp(peer[i], datagram, sizeof datagram, NULL);
            memcpy(&number, datagram, sizeof number);
            unsigned j = place_expected(i, number);
            CHECK_EQ(bytes, expected[i].bytes[j]);
            CHECK(bytes < 3 || datagram[bytes - 1] == (uint8_t)number);
            expected[i].bytes[j] = 0;
        }
        CHECK(is_silent(peer[i]));
        expected[i].count = 0;
    }
}

static uint64_t sent_packets(void) {
    return stats.side[sender->side].tx_packets;
}

TEST(datagrams_of_one_destination_travel_together) {
    open_sender(VR_SIDE_INTERNAL);
    for (unsigned i = 0; i < 60; i++)
        queue(i % 3, 210);
    flush();
    check_arrival();
    CHECK_EQ(messages_sent, 3);
    CHECK_EQ(longest_run, 20);
    CHECK_EQ(sent_packets(), 60);
    CHECK_EQ(stats.side[VR_SIDE_INTERNAL].tx_bytes, 60 * 210);
    close_sender();
}

TEST(a_run_is_of_equal_sizes_and_only_its_last_is_shorter) {
    static const struct {
        const char *label;
        uint16_t bytes[6]; /* until 0 */
        unsigned messages;
    } cases[] = {
        {"one", {100}, 1},
        {"equal", {100, 100, 100}, 1},
        {"a shorter last", {100, 100, 40}, 1},
        {"a shorter one in between", {100, 40, 100}, 2},
        {"rising", {40, 100, 200}, 3},
        {"falling", {200, 100, 40}, 2},
        {"too long to be cut", {1401, 1401}, 2},
        {"just right to be cut", {1400, 1400}, 1},
        {"a long one in between", {100, 2000, 100}, 3},
    };
    open_sender(VR_SIDE_INTERNAL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CASE(cases[i].label);
        messages_sent = 0;
        for (unsigned j = 0; j < 6 && cases[i].bytes[j]; j++)
            queue(7, cases[i].bytes[j]);
        flush();
        check_arrival();
        CHECK_EQ(messages_sent, cases[i].messages);
    }
    close_sender();
}

TEST(sizes_of_different_flows_change_places) {
    open_sender(VR_SIDE_INTERNAL);
    static const uint16_t sizes[] = {40, 100, 70, 200, 100, 90};
    for (flow = 0; flow < 6; flow++)
        queue(7, sizes[flow]);
    flush();
    check_arrival();
    CHECK_EQ(messages_sent, 3); /* 200 40, 100 100 70, 90 */
    close_sender();
}

TEST(a_run_has_one_tos) {
    open_sender(VR_SIDE_INTERNAL);
    for (flow = 0; flow < 12; flow++) {
        tos = flow % 3 == 0 ? 0xb8 : flow % 3 == 1 ? 0 : 0x28;
        queue(7, 100);
    }
    flush();
    check_arrival();
    CHECK_EQ(messages_sent, 3);
    CHECK_EQ(longest_run, 4);
    close_sender();
}

TEST(a_run_has_a_limit) {
    open_sender(VR_SIDE_INTERNAL);
    CASE("64 segments");
    for (unsigned i = 0; i < 130; i++)
        queue(0, 100);
    flush();
    check_arrival();
    CHECK_EQ(messages_sent, 3);
    CHECK_EQ(longest_run, VR_RUN_SEGMENTS_MAX);
    CASE("the bytes of one UDP datagram");
    messages_sent = 0;
    for (unsigned i = 0; i < 64; i++)
        queue(0, 1400);
    flush();
    check_arrival();
    CHECK_EQ(messages_sent, 2);
    close_sender();
}

TEST(towards_clients_there_are_no_runs) {
    open_sender(VR_SIDE_PUBLIC);
    for (unsigned i = 0; i < 10; i++)
        queue(0, 100);
    flush();
    check_arrival();
    CHECK_EQ(messages_sent, 10);
    close_sender();
}

TEST(a_refused_run_goes_as_single_datagrams) {
    static const struct {
        const char *label;
        int error;
        bool gives_up;
    } cases[] = {
        {"a segment over the MTU", EMSGSIZE, false},
        {"a device that cannot", EIO, true},
        {"a kernel that will not", EINVAL, true},
        {"not supported", EOPNOTSUPP, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CASE(cases[i].label);
        open_sender(VR_SIDE_INTERNAL);
        refuse_runs = cases[i].error;
        for (unsigned j = 0; j < 40; j++)
            queue(j % 4, j < 4 ? 300 : 100);
        flush();
        check_arrival();
        CHECK_EQ(sent_packets(), 40);
        CHECK_EQ(stats.drop[VR_DROP_SEND_ERROR] + stats.drop[VR_DROP_SEND_SIZE], 0);
        CHECK_EQ(sender->makes_runs, !cases[i].gives_up);
        refuse_runs = 0;
        queue(0, 100);
        queue(0, 100);
        flush();
        check_arrival();
        CHECK_EQ(runs_sent, cases[i].gives_up ? 0 : 1);
        close_sender();
    }
}

TEST(a_bad_destination_is_no_reason_to_give_up_runs) {
    open_sender(VR_SIDE_INTERNAL);
    for (unsigned i = 0; i < 5; i++) {
        queue(0, 100);
        queue_to(addr_of("127.0.0.1", 0), 100);       /* EINVAL */
        queue_to(addr_of("255.255.255.255", 9), 100); /* EACCES */
        queue(1, 100);
    }
    flush();
    check_arrival();
    CHECK_EQ(stats.drop[VR_DROP_SEND_ERROR], 10);
    CHECK_EQ(sent_packets(), 10);
    CHECK(sender->makes_runs);
    CHECK_EQ(runs_sent, 2);
    close_sender();
}

TEST(a_run_without_buffers_is_dropped_whole) {
    open_sender(VR_SIDE_INTERNAL);
    for (unsigned i = 0; i < 8; i++)
        queue_to(peer_addr[0], 100);
    queue(1, 100);
    plan_error = ENOBUFS;
    flush();
    check_arrival();
    CHECK_EQ(stats.drop[VR_DROP_SEND_BUSY], 8);
    CHECK_EQ(sent_packets(), 1);
    close_sender();
}

TEST(a_full_buffer_among_runs_loses_nothing) {
    for (unsigned i = 0; i < 8; i++) {
        unsigned after = i / 2;
        trailers = i % 2;
        open_sender(VR_SIDE_INTERNAL);
        plan_error = EAGAIN;
        plan_after = after;
        for (unsigned j = 0; j < 60; j++)
            queue(j % 4, 100);
        flush();
        CHECK_EQ(sender->backlog_count, 60 - after * 15);
        for (unsigned j = 0; j < 10; j++)
            queue(j % 4, 100);
        flush();
        vr_sender_flush_backlog(sender, &stats);
        check_arrival();
        CHECK_EQ(sent_packets(), 70);
        CHECK_EQ(sender->backlog_count, 0);
        close_sender();
    }
}

static void mix(void) {
    static const uint16_t sizes[] = {2, 60, 60, 100, 100, 100, 210, 1400, 1401, 2086};
    open_sender(VR_SIDE_INTERNAL);
    srand(7);
    for (unsigned round = 0; round < 60; round++) {
        /* More destinations than groups, so that some share a place. */
        unsigned peers = round % 2 ? PEERS : 1 + (unsigned)rand() % 20;
        unsigned datagrams = 1 + (unsigned)rand() % (peers < 8 ? 25 * peers : 200);
        if (rand() % 4 == 0)
            refuse_runs = EMSGSIZE;
        for (unsigned i = 0; i < datagrams; i++) {
            flow = (unsigned)rand() % (round % 3 ? 100 : 3);
            tos = flow % 8 ? 0 : 0xb8;
            queue((unsigned)rand() % peers, sizes[(unsigned)rand() % 10]);
        }
        flush();
        check_arrival();
        refuse_runs = 0;
    }
    CHECK(sender->makes_runs);
    CHECK(runs_sent > 100);
    for (unsigned i = 0; i < VR_DROPS; i++)
        CHECK_EQ(stats.drop[i], 0);
    close_sender();
}

TEST(any_mixture_keeps_each_flow_in_order) {
    mix();
}

TEST(each_datagram_of_a_run_has_its_own_trailer) {
    trailers = true;
    open_sender(VR_SIDE_INTERNAL);
    for (unsigned i = 0; i < 20; i++)
        queue(0, i < 19 ? 226 : 100);
    flush();
    check_arrival();
    CHECK_EQ(messages_sent, 1);
    CHECK_EQ(stats.side[VR_SIDE_INTERNAL].tx_bytes, 19 * 226 + 100);
    CASE("a destination that is no relay gets none");
    struct vr_hop hop = {.side = VR_SIDE_INTERNAL, .destination = peer_addr[1]};
    struct vr_egress egress = {.data = data, .data_bytes = 50, .trailer_bytes = VR_TRAILER_BYTES};
    vr_sender_queue(sender, &egress, &hop, &stats);
    flush();
    uint8_t datagram[100];
    CHECK_EQ(receive_udp(peer[1], datagram, sizeof datagram, NULL), 50);
    close_sender();
    mix();
    trailers = false;
}
