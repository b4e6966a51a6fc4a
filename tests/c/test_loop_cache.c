/* The loop and the cache's desk: what waits for an answer, what is told, what is dropped. */
#define _GNU_SOURCE
#include "loop_check.h"
#include "relay/loop.h"

static bool rang(int fd) {
    uint64_t rings;
    return read(fd, &rings, sizeof rings) == sizeof rings;
}

TEST(without_a_cache_nothing_waits) {
    struct worker *w = open_worker(0);
    send_udp(w->client, &w->addr[FIRST], "p", 1);
    vr_loop_turn(w->loop, 1000);
    CHECK_EQ(w->stats.drop[VR_DROP_PARK_FULL], 1);
    close_worker(w);
}

TEST(the_cache_is_asked_told_and_heard) {
    static uint8_t waiting[2][64];
    struct vr_asker asker = {.has_room = true};
    struct worker *w = open_worker(0);
    struct vr_command answer = {.kind = VR_COMMAND_ANSWER};
    vr_loop_free(w->loop);
    w->asker = &asker;
    w->bell_fd = eventfd(0, EFD_NONBLOCK);
    w->loop = make_loop(w);

    CASE("asked, once a batch");
    send_udp(w->client, &w->addr[FIRST], "p", 1);
    send_udp(w->client, &w->addr[FIRST], "p", 1);
    vr_loop_turn(w->loop, 1000);
    CHECK_EQ(asker.parked, 2);
    CHECK(rang(w->bell_fd));
    CHECK(!rang(w->bell_fd));
    CHECK_EQ(all_drops(&w->stats), 0);

    CASE("told of owners");
    send_udp(w->client, &w->addr[FIRST], "1o", 2);
    vr_loop_turn(w->loop, 1000);
    expect(w->transceiver[0], "1o");
    CHECK_EQ(asker.told, 1);
    CHECK(rang(w->bell_fd));

    CASE("no room");
    asker.has_room = false;
    send_udp(w->client, &w->addr[FIRST], "p", 1);
    vr_loop_turn(w->loop, 1000);
    CHECK_EQ(w->stats.drop[VR_DROP_PARK_FULL], 1);
    CHECK(!rang(w->bell_fd));

    CASE("an answer sends what waited");
    for (unsigned i = 0; i < 2; i++) {
        memcpy(waiting[i], "1x", 2);
        asker.waiting.in[i] = (struct vr_ingress){
            .side = VR_SIDE_PUBLIC, .data = waiting[i], .data_bytes = 2, .parked = true};
    }
    asker.waiting.count = 2;
    asker.recovered = true;
    CHECK(vr_mailbox_put(&w->mailbox, &answer));
    ring(w->command_fd);
    vr_loop_turn(w->loop, 1000);
    expect(w->transceiver[0], "1x");
    expect(w->transceiver[0], "1x");

    CASE("a miss drops it");
    asker.recovered = false;
    CHECK(vr_mailbox_put(&w->mailbox, &answer));
    ring(w->command_fd);
    vr_loop_turn(w->loop, 1000);
    CHECK_EQ(w->stats.drop[VR_DROP_PARK_EXPIRED], 2);
    CHECK_EQ(w->commands, 0);

    CASE("what waits too long is dropped");
    asker.swept = 3;
    for (unsigned i = 0; i < 10 && asker.swept; i++)
        vr_loop_turn(w->loop, 20);
    CHECK_EQ(w->stats.drop[VR_DROP_PARK_EXPIRED], 5);
    close(w->bell_fd);
    close_worker(w);
}
