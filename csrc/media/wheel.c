#include "wheel.h"

#include <stdlib.h>
#include <string.h>

bool vr_wheel_init(struct vr_wheel *w, uint32_t max_sessions) {
    memset(w, 0, sizeof *w);
    w->due_ms = calloc(max_sessions, sizeof *w->due_ms);
    return w->due_ms != NULL;
}

void vr_wheel_free(struct vr_wheel *w) {
    for (int i = 0; i < VR_WHEEL_SLOTS; i++)
        free(w->slots[i].sessions);
    free(w->due_ms);
    memset(w, 0, sizeof *w);
}

static struct vr_wheel_slot *slot_at(struct vr_wheel *w, uint64_t ms) {
    return &w->slots[ms % VR_WHEEL_SLOTS];
}

static bool add(struct vr_wheel *w, uint32_t session, uint64_t due_ms) {
    struct vr_wheel_slot *slot = slot_at(w, due_ms);
    if (slot->count == slot->capacity) {
        uint32_t capacity = slot->capacity != 0 ? 2 * slot->capacity : 8;
        uint32_t *grown = realloc(slot->sessions, capacity * sizeof *grown);
        if (grown == NULL)
            return false;
        slot->sessions = grown;
        slot->capacity = capacity;
    }
    slot->sessions[slot->count++] = session;
    w->due_ms[session] = due_ms;
    return true;
}

static void take_out(struct vr_wheel *w, uint32_t session, uint64_t due_ms) {
    struct vr_wheel_slot *slot = slot_at(w, due_ms);
    for (uint32_t i = 0; i < slot->count; i++)
        if (slot->sessions[i] == session) {
            slot->sessions[i] = slot->sessions[--slot->count];
            return;
        }
}

bool vr_wheel_join(struct vr_wheel *w, uint32_t session, uint64_t now_ms) {
    uint64_t best_ms = now_ms + 1;
    for (uint64_t ms = now_ms + 2; ms <= now_ms + VR_WHEEL_SLOTS; ms++)
        if (slot_at(w, ms)->count < slot_at(w, best_ms)->count)
            best_ms = ms;
    if (!add(w, session, best_ms))
        return false;
    w->sessions++;
    return true;
}

void vr_wheel_leave(struct vr_wheel *w, uint32_t session) {
    if (w->due_ms[session] == 0)
        return;
    take_out(w, session, w->due_ms[session]);
    w->due_ms[session] = 0;
    w->sessions--;
}

bool vr_wheel_take(struct vr_wheel *w, uint64_t ms, uint32_t *cursor, uint32_t *session) {
    struct vr_wheel_slot *slot = slot_at(w, ms);
    for (; *cursor < slot->count; ++*cursor)
        if (w->due_ms[slot->sessions[*cursor]] <= ms) {
            *session = slot->sessions[*cursor];
            return true;
        }
    return false;
}

static bool has_room(struct vr_wheel *w, uint64_t ms) {
    return slot_at(w, ms)->count * VR_WHEEL_SLOTS <
           w->sessions + w->sessions / 4 + VR_WHEEL_SPARE * VR_WHEEL_SLOTS;
}

/* The slot nearest to what is wanted: earlier by at most a step, as sound must not wait; later by as
 * much as it takes, as sound that is not there yet cannot be served. */
static uint64_t nearest(struct vr_wheel *w, uint64_t due_ms, int shift_ms) {
    int least = shift_ms < -VR_WHEEL_STEP_MS ? -VR_WHEEL_STEP_MS : shift_ms;
    if (shift_ms < 0) {
        for (int shift = -1; shift >= least; shift--)
            if (has_room(w, due_ms + (uint64_t)(int64_t)shift))
                return due_ms + (uint64_t)(int64_t)shift;
    } else if (shift_ms > 0) {
        for (int shift = 1; shift < VR_WHEEL_SLOTS; shift++)
            if (has_room(w, due_ms + (uint64_t)shift))
                return due_ms + (uint64_t)shift;
    }
    return due_ms;
}

void vr_wheel_again(struct vr_wheel *w, uint32_t session, uint64_t ms, int shift_ms) {
    uint64_t before_ms = w->due_ms[session], due_ms = nearest(w, ms + VR_WHEEL_SLOTS, shift_ms);
    w->due_ms[session] = due_ms;
    if (slot_at(w, due_ms) == slot_at(w, before_ms))
        return;
    if (add(w, session, due_ms))
        take_out(w, session, before_ms);
    else
        w->due_ms[session] = ms + VR_WHEEL_SLOTS;
}

uint64_t vr_wheel_ticks(const struct vr_wheel *w, uint64_t after_ms, uint64_t through_ms) {
    uint64_t ticks = 0;
    for (uint64_t ms = after_ms + 1; ms <= after_ms + VR_WHEEL_SLOTS; ms++) {
        const struct vr_wheel_slot *slot = &w->slots[ms % VR_WHEEL_SLOTS];
        for (uint32_t i = 0; i < slot->count; i++) {
            uint64_t due_ms = w->due_ms[slot->sessions[i]];
            uint64_t first_ms = due_ms > ms ? due_ms : ms;
            if (first_ms <= through_ms)
                ticks += (through_ms - first_ms) / VR_WHEEL_SLOTS + 1;
        }
    }
    return ticks;
}
