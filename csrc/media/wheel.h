/* wheel.h: who is due at which millisecond: a 20 ms clock for each session, spread over 20 slots.
 *
 * 1. A session is due once every 20 ms, at its own millisecond; it joins where the fewest are.
 * 2. It may move, by a few ms a round, towards the millisecond that suits it. Slots stay level: one with
 *    VR_WHEEL_SPARE more than a fair share and a quarter takes nobody else, so that sessions whose packets come
 *    at the same moment do not make one burst; who finds the way closed goes to the next open slot.
 * 3. Time is an argument; nothing here sleeps. What was not served in its millisecond is served in that
 *    slot's next one.
 */
#ifndef VR_WHEEL_H
#define VR_WHEEL_H

#include <stdbool.h>
#include <stdint.h>

enum {
    VR_WHEEL_SLOTS = 20,  /* of 1 ms */
    VR_WHEEL_STEP_MS = 3, /* the farthest that a session moves to an earlier slot in one round */
    VR_WHEEL_SPARE = 1,
};

struct vr_wheel_slot {
    uint32_t *sessions;
    uint32_t count, capacity;
};

struct vr_wheel {
    struct vr_wheel_slot slots[VR_WHEEL_SLOTS];
    uint64_t *due_ms; /* by session; 0: not in the wheel */
    uint32_t sessions;
};

/* False when memory is short. */
bool vr_wheel_init(struct vr_wheel *w, uint32_t max_sessions);
void vr_wheel_free(struct vr_wheel *w);

/* False when memory is short. */
bool vr_wheel_join(struct vr_wheel *w, uint32_t session, uint64_t now_ms);
void vr_wheel_leave(struct vr_wheel *w, uint32_t session); /* if it is there */

/* The next session that is due at `ms`, or false; `*cursor` starts at 0. Each must be given to
 * vr_wheel_again, or leave, before the next is asked for. */
bool vr_wheel_take(struct vr_wheel *w, uint64_t ms, uint32_t *cursor, uint32_t *session);

/* A session was served at `ms`: it is due again 20 ms later, or `shift_ms` later (negative: earlier) than
 * that as far as there is room. */
void vr_wheel_again(struct vr_wheel *w, uint32_t session, uint64_t ms, int shift_ms);

/* The rounds that a session which is served at `ms` was left out of since it was due. */
static inline uint32_t vr_wheel_missed(const struct vr_wheel *w, uint32_t session, uint64_t ms) {
    uint64_t late_ms = ms - w->due_ms[session];
    return late_ms < VR_WHEEL_SLOTS ? 0 : (uint32_t)(late_ms / VR_WHEEL_SLOTS);
}

/* How many ticks all sessions have after `after_ms` and until `through_ms`, if nobody moves; those before were
 * served or skipped. */
uint64_t vr_wheel_ticks(const struct vr_wheel *w, uint64_t after_ms, uint64_t through_ms);

#endif
