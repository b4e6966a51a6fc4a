/* Frames that are encoded already: one after the other in their own time, pauses, flushes, and what has no room. */
#include "../../csrc/media/frame_pacer.h"

#include "check.h"

enum { CLOCK = 48000, UNITS_20 = 960 };

static struct vr_frame_pacer *start(uint32_t start_ms, size_t capacity_bytes) {
    static struct vr_frame_pacer p;
    CHECK(vr_frame_pacer_init(&p, CLOCK, start_ms, 5000, capacity_bytes));
    return &p;
}

static bool put(struct vr_frame_pacer *p, uint8_t number, uint32_t ms) {
    return vr_frame_pacer_write(p, ms * CLOCK / 1000, &number, 1);
}

/* The frame of this tick, or -1; its marker and timestamp are checked. */
static int tick(struct vr_frame_pacer *p, unsigned *ticks, int *marker) {
    struct vr_frame head;
    const struct vr_frame *frame = vr_frame_pacer_tick(p, &head);
    CHECK_EQ(head.timestamp, 5000 + UNITS_20 * (*ticks)++);
    if (frame == NULL)
        return -1;
    int number = frame->payload[0];
    *marker = head.marker;
    vr_frame_pacer_sent(p);
    return number;
}

TEST(ticks_left_out_are_a_gap_of_the_timestamp) {
    struct vr_frame_pacer p;
    struct vr_frame out;
    CHECK(vr_frame_pacer_init(&p, 48000, 0, 1000, 65536));
    for (int i = 0; i < 3; i++)
        CHECK(vr_frame_pacer_write(&p, 3 * 960, (const uint8_t *)"x", 1));
    CHECK(vr_frame_pacer_tick(&p, &out) != NULL);
    CHECK_EQ(out.timestamp, 1000);
    vr_frame_pacer_sent(&p);
    vr_frame_pacer_skip(&p, 50);
    CHECK(vr_frame_pacer_tick(&p, &out) != NULL); /* the time of the first is over */
    CHECK_EQ(out.timestamp, 1000 + 51 * 960);
    vr_frame_pacer_sent(&p);
    vr_frame_pacer_skip(&p, 1);
    CHECK(vr_frame_pacer_tick(&p, &out) == NULL); /* one of its three is left */
    vr_frame_pacer_free(&p);
}

TEST(each_frame_takes_its_own_time) {
    struct vr_frame_pacer *p = start(0, 4096);
    static const int expected[] = {1, -1, -1, 2, 3, -1, -1, 4};
    unsigned ticks = 0;
    int marker = 0;
    CHECK(put(p, 1, 60) && put(p, 2, 20) && put(p, 3, 40));
    CHECK_EQ(vr_frame_pacer_waiting_ms(p), 120);
    for (size_t i = 0; i < 6; i++) {
        CHECK_EQ(tick(p, &ticks, &marker), expected[i]);
        if (i == 0 || i == 3)
            CHECK_EQ(marker, i == 0);
    }
    CHECK_EQ(tick(p, &ticks, &marker), -1); /* nothing is left: the talkspurt is over */
    CHECK(put(p, 4, 20));
    CHECK_EQ(tick(p, &ticks, &marker), 4);
    CHECK(marker);
    CHECK_EQ(vr_frame_pacer_waiting_ms(p), 0);
    vr_frame_pacer_free(p);
}

TEST(a_talkspurt_waits_for_its_start_and_no_longer) {
    struct vr_frame_pacer *p = start(40, 4096);
    unsigned ticks = 0;
    int marker;
    CHECK(put(p, 1, 20));
    CHECK_EQ(tick(p, &ticks, &marker), -1);
    CHECK_EQ(tick(p, &ticks, &marker), -1);
    CHECK_EQ(tick(p, &ticks, &marker), 1); /* 40 ms were enough */
    CHECK_EQ(tick(p, &ticks, &marker), -1);
    CHECK(put(p, 2, 20) && put(p, 3, 20));
    CHECK_EQ(tick(p, &ticks, &marker), 2); /* so much is there at once */
    CHECK_EQ(tick(p, &ticks, &marker), 3);
    vr_frame_pacer_free(p);
}

TEST(a_pause_takes_its_time_and_a_talkspurt_follows) {
    struct vr_frame_pacer *p = start(40, 4096);
    unsigned ticks = 0;
    int marker;
    CHECK(put(p, 1, 20) && vr_frame_pacer_write(p, 3 * UNITS_20, NULL, 0) && put(p, 2, 20));
    CHECK_EQ(tick(p, &ticks, &marker), 1);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(tick(p, &ticks, &marker), -1);
    CHECK_EQ(tick(p, &ticks, &marker), 2);
    CHECK(marker);
    vr_frame_pacer_free(p);
}

TEST(a_flush_stops_what_was_written_and_nothing_else) {
    struct vr_frame_pacer *p = start(0, 4096);
    unsigned ticks = 0;
    int marker;
    for (uint8_t i = 0; i < 10; i++)
        CHECK(put(p, i, 20));
    CHECK_EQ(tick(p, &ticks, &marker), 0);
    vr_frame_pacer_flush(p);
    CHECK(put(p, 77, 20));
    CHECK_EQ(tick(p, &ticks, &marker), 77);
    CHECK_EQ(vr_frame_pacer_waiting_ms(p), 0);
    CHECK_EQ(tick(p, &ticks, &marker), -1);
    vr_frame_pacer_free(p);
}

TEST(what_has_no_room_is_refused_and_counted) {
    struct vr_frame_pacer *p = start(0, 1024);
    unsigned ticks = 0, taken = 0;
    int marker;
    while (put(p, (uint8_t)taken, 20))
        taken++;
    CHECK(taken >= 10 && taken <= 1024 / (int)sizeof(struct vr_frame));
    CHECK(!put(p, 99, 20));
    CHECK_EQ(p->frames.refused, 2);
    CHECK_EQ(vr_frame_pacer_waiting_ms(p), 20 * taken);
    for (unsigned i = 0; i < taken; i++)
        CHECK_EQ(tick(p, &ticks, &marker), i);
    CHECK_EQ(tick(p, &ticks, &marker), -1);
    uint8_t big[600] = {0};
    CHECK(!vr_frame_pacer_write(p, UNITS_20, big, sizeof big)); /* half a queue for one frame */
    vr_frame_pacer_free(p);
}
