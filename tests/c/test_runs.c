#include "check.h"
#include "relay/runs.h"

#include <stdlib.h>

static struct vr_runs runs;
static struct vr_run_item item[VR_LINE_MAX];
static unsigned count;

static void add(uint32_t flow, uint16_t bytes, uint16_t group) {
    item[count++] = (struct vr_run_item){.flow = flow, .bytes = bytes, .group = group};
}

/* All that runs.h promises; returns the number of runs. */
static unsigned check_arranged(void) {
    static bool taken[VR_LINE_MAX];
    unsigned made = 0;
    vr_runs_arrange(&runs, item, count);
    memset(taken, 0, sizeof taken);
    for (unsigned place = 0, items; place < count; place += items, made++) {
        const struct vr_run_item *first = &item[runs.order[place]];
        items = runs.length[place];
        CHECK(items >= 1 && items <= VR_RUN_SEGMENTS_MAX && place + items <= count);
        CHECK(items == 1 || (first->group < VR_GROUPS && first->bytes <= VR_SEGMENT_BYTES_MAX &&
                             items * first->bytes <= VR_RUN_BYTES_MAX));
        for (unsigned i = place; i < place + items; i++) {
            const struct vr_run_item *now = &item[runs.order[i]];
            CHECK(!taken[runs.order[i]]);
            taken[runs.order[i]] = true;
            CHECK_EQ(now->group, first->group);
            CHECK(i + 1 < place + items ? now->bytes == first->bytes : now->bytes <= first->bytes);
            CHECK(items == 1 || now->bytes > 0);
            for (unsigned earlier = 0; earlier < runs.order[i]; earlier++)
                CHECK(taken[earlier] || item[earlier].flow != now->flow ||
                      item[earlier].group != now->group);
        }
    }
    count = 0;
    return made;
}

TEST(few_runs_are_made) {
    static const struct {
        const char *label;
        uint16_t bytes[8]; /* until 0; each of a flow of its own */
        unsigned runs;
    } cases[] = {
        {"one", {100}, 1},
        {"equal", {100, 100, 100}, 1},
        {"rising", {10, 20, 30, 40, 50, 60}, 3},
        {"falling", {60, 50, 40, 30, 20, 10}, 3},
        {"an odd number", {60, 50, 40, 30, 20}, 3},
        {"few of a size end the runs of many", {90, 90, 90, 80, 80, 80, 20, 10}, 2},
        {"too long", {1401, 1402, 100, 100}, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CASE(cases[i].label);
        for (unsigned j = 0; j < 8 && cases[i].bytes[j]; j++)
            add(j, cases[i].bytes[j], 5);
        CHECK_EQ(check_arranged(), cases[i].runs);
    }
}

TEST(one_flow_is_not_sorted) {
    for (uint16_t i = 0; i < 40; i++)
        add(1, (uint16_t)(100 + i), 0);
    CHECK_EQ(check_arranged(), 40);
    for (uint16_t i = 0; i < 40; i++)
        add(1, (uint16_t)(140 - i), 0);
    CHECK(check_arranged() <= 40);
}

TEST(groups_do_not_mix_and_the_last_group_makes_no_runs) {
    for (uint16_t i = 0; i < 60; i++)
        add(i, 100, i % 3);
    CHECK_EQ(check_arranged(), 3);
    for (uint16_t i = 0; i < 60; i++)
        add(i, 100, VR_GROUPS);
    CHECK_EQ(check_arranged(), 60);
}

TEST(long_runs_are_cut) {
    for (uint32_t i = 0; i < VR_LINE_MAX; i++)
        add(i, 210, 0);
    CHECK_EQ(check_arranged(), VR_LINE_MAX / VR_RUN_SEGMENTS_MAX);
    for (uint32_t i = 0; i < 100; i++)
        add(i, 1400, 0);
    CHECK_EQ(check_arranged(), 3); /* 46 of them are under 65,000 bytes */
}

TEST(any_line) {
    srand(5);
    for (unsigned round = 0; round < 3000; round++) {
        unsigned items = 1 + (unsigned)rand() % VR_LINE_MAX, flows = 1 + (unsigned)rand() % 300;
        unsigned sizes = 1 + (unsigned)rand() % 100,
                 groups = 1 + (unsigned)rand() % (VR_GROUPS + 1);
        for (unsigned i = 0; i < items; i++)
            add((unsigned)rand() % flows,
                (uint16_t)(rand() % 50 ? 80 + (unsigned)rand() % sizes : (unsigned)rand() % 2087),
                (uint16_t)((unsigned)rand() % groups + (groups > VR_GROUPS ? 0 : 1)));
        unsigned made = check_arranged();
        CHECK(made <= items);
    }
}
