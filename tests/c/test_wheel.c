/* The 20 ms clock's slots: everybody is due once in 20 ms, wherever they move. */
#include "../../csrc/media/wheel.h"

#include "check.h"

enum { SESSIONS = 200 };

struct served {
    struct vr_wheel w;
    uint64_t ms;
    uint64_t last_ms[SESSIONS];
    uint64_t wanted_ms[SESSIONS]; /* when the next tick would be right */
    unsigned times[SESSIONS];
    unsigned most_in_a_ms;
};

static struct served *start(unsigned sessions) {
    static struct served s;
    memset(&s, 0, sizeof s);
    s.ms = 1000;
    CHECK(vr_wheel_init(&s.w, SESSIONS));
    for (uint32_t i = 0; i < sessions; i++)
        CHECK(vr_wheel_join(&s.w, i, s.ms));
    return &s;
}

/* Lets `ms` pass; with `wanted` 0..19 everybody wants to be due at ms that are that modulo 20. */
static void pass(struct served *s, unsigned ms, int wanted) {
    s->most_in_a_ms = 0;
    for (unsigned n = 0; n < ms; n++) {
        uint32_t cursor = 0, session;
        unsigned here = 0;
        s->ms++;
        while (vr_wheel_take(&s->w, s->ms, &cursor, &session)) {
            uint64_t *wanted_ms = &s->wanted_ms[session];
            if (wanted < 0)
                *wanted_ms = s->ms;
            else if (*wanted_ms % 20 != (unsigned)wanted)
                *wanted_ms = (s->ms + 10) / 20 * 20 + (unsigned)wanted;
            s->times[session]++;
            here++;
            if (s->last_ms[session] != 0)
                CHECK(s->ms - s->last_ms[session] >= 20 - VR_WHEEL_STEP_MS);
            s->last_ms[session] = s->ms;
            vr_wheel_again(&s->w, session, s->ms, (int)((int64_t)*wanted_ms - (int64_t)s->ms));
            *wanted_ms += 20;
        }
        if (here > s->most_in_a_ms)
            s->most_in_a_ms = here;
    }
}

/* The farthest that anybody's tick is from what it wants. */
static uint64_t farthest_ms(const struct served *s) {
    uint64_t farthest = 0;
    for (int i = 0; i < SESSIONS; i++) {
        uint64_t due = s->w.due_ms[i], wanted = s->wanted_ms[i];
        uint64_t off = due == 0 ? 0 : due > wanted ? due - wanted : wanted - due;
        farthest = off > farthest ? off : farthest;
    }
    return farthest;
}

TEST(sessions_join_evenly_and_are_due_every_20_ms) {
    struct served *s = start(SESSIONS);
    pass(s, 200, -1);
    for (int i = 0; i < SESSIONS; i++)
        CHECK_EQ(s->times[i], 10);
    CHECK_EQ(s->most_in_a_ms, SESSIONS / VR_WHEEL_SLOTS);
    vr_wheel_free(&s->w);
}

TEST(a_session_finds_its_millisecond) {
    struct served *s = start(5);
    pass(s, 1000, 13);
    for (int i = 0; i < 5; i++)
        CHECK(s->times[i] >= 49 && s->times[i] <= 51);
    CHECK(farthest_ms(s) <= 3); /* two share a slot */
    vr_wheel_free(&s->w);
}

/* Clients whose packets all come at once: their ticks gather, and make no burst. */
TEST(two_hundred_that_want_the_same_moment_stay_spread) {
    struct served *s = start(SESSIONS);
    pass(s, 2000, 13);
    CHECK(farthest_ms(s) <= 16);
    pass(s, 2000, 13);
    CHECK(s->most_in_a_ms <= SESSIONS / VR_WHEEL_SLOTS * 5 / 4 + VR_WHEEL_SPARE + 1);
    for (int i = 0; i < SESSIONS; i++)
        CHECK(s->times[i] >= 198 && s->times[i] <= 202);
    vr_wheel_free(&s->w);
}

TEST(a_session_that_left_is_not_due) {
    struct served *s = start(40);
    pass(s, 100, 5);
    for (uint32_t i = 0; i < 40; i += 2)
        vr_wheel_leave(&s->w, i);
    vr_wheel_leave(&s->w, 0); /* again: nothing */
    unsigned before = s->times[0];
    pass(s, 100, 5);
    CHECK_EQ(s->times[0], before);
    CHECK_EQ(s->w.sessions, 20);
    CHECK(vr_wheel_join(&s->w, 0, s->ms));
    s->last_ms[0] = 0;
    pass(s, 40, -1);
    CHECK(s->times[0] >= before + 1);
    vr_wheel_free(&s->w);
}

/* What vr_wheel_ticks foretells is what is served, wherever sessions are on their way. */
TEST(ticks_are_counted_without_serving_them) {
    struct served *s = start(SESSIONS);
    static const unsigned spans_ms[] = {1, 7, 20, 21, 1007};
    pass(s, 50, 13); /* some have just moved past a round of their slot */
    for (size_t i = 0; i < sizeof spans_ms / sizeof spans_ms[0]; i++) {
        uint64_t expected = vr_wheel_ticks(&s->w, s->ms, s->ms + spans_ms[i]), served = 0;
        for (int session = 0; session < SESSIONS; session++)
            served -= s->times[session];
        pass(s, spans_ms[i], -1);
        for (int session = 0; session < SESSIONS; session++)
            served += s->times[session];
        CHECK_EQ(expected, served);
    }
    s->ms += 1007; /* skipped, so that everybody's due time is past */
    CHECK_EQ(vr_wheel_ticks(&s->w, s->ms, s->ms), 0);
    CHECK_EQ(vr_wheel_ticks(&s->w, s->ms, s->ms + 40), 2 * SESSIONS);
    vr_wheel_leave(&s->w, 0);
    CHECK_EQ(vr_wheel_ticks(&s->w, s->ms, s->ms + 40), 2 * (SESSIONS - 1));
    vr_wheel_free(&s->w);
}

/* A thread that overslept serves what it missed in the slots' next round. */
TEST(a_jump_of_the_clock_leaves_nobody_out) {
    struct served *s = start(SESSIONS);
    pass(s, 100, -1);
    s->ms += 1007;
    pass(s, 20, -1);
    for (int i = 0; i < SESSIONS; i++)
        CHECK_EQ(s->times[i], 6);
    vr_wheel_free(&s->w);
}
