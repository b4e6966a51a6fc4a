#include "runs.h"

#include <stdbool.h>
#include <string.h>

/* Of a flow with more datagrams than this in one line the later ones are not sorted any more. */
enum { LEVELS = 15 };

enum { DIGITS = VR_GROUPS + 1 };

/* --- sorting: stable passes over one digit each, the least significant first --- */

typedef unsigned digit_of(const struct vr_runs *runs, const struct vr_run_item *item, unsigned i);

static inline void sort_by(struct vr_runs *runs, const struct vr_run_item *item, unsigned count,
                           digit_of *digit) {
    uint16_t next[DIGITS + 1] = {0};
    for (unsigned i = 0; i < count; i++)
        next[digit(runs, item, i) + 1]++;
    for (unsigned d = 1; d < DIGITS; d++)
        next[d] = (uint16_t)(next[d] + next[d - 1]);
    for (unsigned place = 0; place < count; place++) {
        uint16_t i = runs->order[place];
        runs->other[next[digit(runs, item, i)]++] = i;
    }
    memcpy(runs->order, runs->other, count * sizeof runs->order[0]);
}

/* Larger ones first, 12 bits of size; the last level as it came. */
static unsigned size_key(const struct vr_runs *runs, const struct vr_run_item *item, unsigned i) {
    unsigned bytes = item[i].bytes < 4095 ? item[i].bytes : 4095;
    return runs->level[i] < LEVELS ? 4095 - bytes : 0;
}

static unsigned size_low(const struct vr_runs *runs, const struct vr_run_item *item, unsigned i) {
    return size_key(runs, item, i) & 63;
}

static unsigned size_high(const struct vr_runs *runs, const struct vr_run_item *item, unsigned i) {
    return size_key(runs, item, i) >> 6;
}

static unsigned level(const struct vr_runs *runs, const struct vr_run_item *item, unsigned i) {
    (void)item;
    return runs->level[i];
}

static unsigned group(const struct vr_runs *runs, const struct vr_run_item *item, unsigned i) {
    (void)runs;
    return item[i].group;
}

/* Levels: how many datagrams of the same flow and group came before, in this line. Level after level is sent,
 * and sorted within. True when there is more than one. */
static bool find_levels(struct vr_runs *runs, const struct vr_run_item *item, unsigned count) {
    bool several = false;
    runs->line++;
    for (unsigned i = 0; i < count; i++) {
        unsigned place = (item[i].flow + item[i].group * 31U) % VR_RUNS_FLOWS;
        uint32_t times = runs->seen[place].line == runs->line ? runs->seen[place].times : 0;
        runs->level[i] = (uint8_t)(times < LEVELS ? times : LEVELS);
        runs->seen[place].line = runs->line;
        runs->seen[place].times = times + 1;
        several |= times > 0;
    }
    return several;
}

static bool is_uniform(const struct vr_run_item *item, unsigned count) {
    unsigned differing = 0;
    for (unsigned i = 1; i < count; i++)
        differing |= item[i].bytes ^ item[0].bytes;
    return differing == 0;
}

/* --- within one group and level: few runs --- */

static bool makes_runs(const struct vr_run_item *item) {
    return item->group < VR_GROUPS && item->bytes <= VR_SEGMENT_BYTES_MAX && item->bytes > 0;
}

static bool has_room(unsigned items, unsigned bytes) {
    return items < VR_RUN_SEGMENTS_MAX && (items + 1) * bytes <= VR_RUN_BYTES_MAX;
}

/* The places from `front` to `back` fall in size. As many of a size as there are, then the smallest of
 * all: so sizes of which there are few are soon used up, and every run ends with a shorter one. */
static void pair_up(struct vr_runs *runs, const struct vr_run_item *item, unsigned front,
                    unsigned back) {
    unsigned first = front, end = back, out = front;
    while (front < back) {
        const struct vr_run_item *head = &item[runs->order[front]];
        unsigned items = 0;
        do {
            runs->other[out++] = runs->order[front++];
            items++;
        } while (front < back && has_room(items, head->bytes) &&
                 item[runs->order[front]].bytes == head->bytes);
        if (front < back && makes_runs(head) && has_room(items, head->bytes) &&
            item[runs->order[back - 1]].bytes > 0)
            runs->other[out++] = runs->order[--back];
    }
    memcpy(&runs->order[first], &runs->other[first], (end - first) * sizeof runs->order[0]);
}

static void pair_up_all(struct vr_runs *runs, const struct vr_run_item *item, unsigned count) {
    for (unsigned place = 0, end; place < count; place = end) {
        unsigned i = runs->order[place];
        for (end = place + 1; end < count; end++)
            if (item[runs->order[end]].group != item[i].group ||
                runs->level[runs->order[end]] != runs->level[i])
                break;
        if (runs->level[i] < LEVELS)
            pair_up(runs, item, place, end);
    }
}

/* --- cutting --- */

static unsigned run_length(const struct vr_runs *runs, const struct vr_run_item *item,
                           unsigned place, unsigned count) {
    const struct vr_run_item *first = &item[runs->order[place]];
    unsigned items = 1;
    if (!makes_runs(first))
        return 1;
    while (place + items < count && has_room(items, first->bytes)) {
        const struct vr_run_item *next = &item[runs->order[place + items]];
        if (next->group != first->group || next->bytes > first->bytes || next->bytes == 0)
            break;
        items++;
        if (next->bytes < first->bytes) /* only the last may be shorter */
            break;
    }
    return items;
}

void vr_runs_arrange(struct vr_runs *runs, const struct vr_run_item *item, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        runs->order[i] = (uint16_t)i;
    bool uniform = is_uniform(item, count);
    if (!uniform) {
        bool several = find_levels(runs, item, count);
        sort_by(runs, item, count, size_low);
        sort_by(runs, item, count, size_high);
        if (several)
            sort_by(runs, item, count, level);
    }
    sort_by(runs, item, count, group);
    if (!uniform)
        pair_up_all(runs, item, count);
    for (unsigned place = 0; place < count; place += runs->length[place])
        runs->length[place] = (uint8_t)run_length(runs, item, place, count);
}
