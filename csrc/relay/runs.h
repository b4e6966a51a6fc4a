/* runs.h: which datagrams of a line travel together (UDP_SEGMENT), and in which order.
 *
 * 1. A run goes to one group: equal sizes, and the last may be shorter. So of two datagrams of one
 *    group that differ in size the larger goes first, and any two make a run.
 * 2. Datagrams of one flow and group keep their order. Everything else may change places.
 * 3. What could not be told apart into groups (VR_GROUPS) makes no runs.
 *
 * Sans-IO: it looks at sizes, groups and flows, and says where to cut.
 */
#ifndef VR_RUNS_H
#define VR_RUNS_H

#include <stdint.h>

enum {
    VR_LINE_MAX = 512, /* datagrams in a line */
    VR_GROUPS_BITS = 6,
    VR_GROUPS = 1 << VR_GROUPS_BITS, /* groups that can be told apart in one line */
    VR_RUN_SEGMENTS_MAX = 64,        /* what every kernel with UDP_SEGMENT takes */
    VR_RUN_BYTES_MAX = 65000,        /* under the limit of one UDP datagram */
    VR_SEGMENT_BYTES_MAX = 1400,     /* longer ones may not fit the path's MTU and go alone */
    VR_RUNS_FLOWS = 2048,            /* power of two; flows that meet in it are taken for one */
};

struct vr_run_item {
    uint32_t flow; /* part of a hash: equal for all datagrams of a flow */
    uint16_t bytes;
    uint16_t group; /* 0..VR_GROUPS */
};

struct vr_runs {
    uint16_t order[VR_LINE_MAX]; /* the line's items, run after run */
    uint8_t length[VR_LINE_MAX]; /* at the place where a run starts: how many items it has */

    /* What follows is scratch. `seen` outlives a line, so that nobody has to clear it. */
    uint16_t other[VR_LINE_MAX];
    uint8_t level[VR_LINE_MAX];
    uint32_t line;
    struct {
        uint32_t line; /* the line in which it was seen last */
        uint32_t times;
    } seen[VR_RUNS_FLOWS];
};

/* Fills order and length for the first `count` items (at most VR_LINE_MAX). `runs` was zeroed once. */
void vr_runs_arrange(struct vr_runs *runs, const struct vr_run_item *item, unsigned count);

#endif
