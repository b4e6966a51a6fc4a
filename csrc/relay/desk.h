/* desk.h: what a worker and the process that keeps the cache hand each other, in shared memory: the
 * worker's notices one way, the cache's answers (mailbox.h) the other.
 *
 * 1. Each ring has one writer and one reader. Who writes never waits: a full ring loses the notice
 *    and counts it; the cache is only a cache.
 * 2. Both positions outlive the processes, so a successor of either side goes on where the last one
 *    stopped. Zeroed memory is an empty desk.
 * 3. A reader copies a cell out before it looks at it.
 * 4. There is one desk for each slot; one eventfd tells the cache that any of them has notices.
 */
#ifndef VR_DESK_H
#define VR_DESK_H

#include "../wire/addr.h"
#include "../wire/token.h"
#include "mailbox.h"

enum { VR_DESK_NOTICES = 1024 };

enum vr_notice_kind {
    VR_NOTICE_ASK = 1, /* who owns this flow? A datagram waits for the answer */
    VR_NOTICE_OWNERS,  /* these own this flow: new, or to be refreshed */
};

struct vr_notice {
    uint32_t kind;
    uint32_t tokens; /* OWNERS: 1 or 2; the reader clamps it */
    struct vr_flow_key key;
    uint8_t sealed[2][VR_TOKEN_BYTES];
};

/* The one kind of vr_command in a desk's mailbox. Its data is a struct vr_answer. */
enum { VR_COMMAND_ANSWER = 1 };

struct vr_answer {
    struct vr_flow_key key;
    uint8_t tokens; /* 0: not found, or not asked; the reader clamps it */
    uint8_t chars[2][VR_TOKEN_CHARS];
};

_Static_assert(sizeof(struct vr_answer) <= VR_COMMAND_DATA_BYTES, "an answer is one command");

struct vr_desk {
    struct vr_mailbox mailbox;                     /* cache to worker */
    uint64_t noticed __attribute__((aligned(64))); /* notices put, ever */
    uint64_t lost;                                 /* notices for which there was no room, ever */
    uint64_t taken __attribute__((aligned(64)));   /* notices taken, ever */
    struct vr_notice notice[VR_DESK_NOTICES] __attribute__((aligned(64)));
};

/* Worker. False when the ring is full. */
static inline bool vr_desk_put(struct vr_desk *desk, const struct vr_notice *notice) {
    uint64_t noticed = desk->noticed;
    if (noticed - __atomic_load_n(&desk->taken, __ATOMIC_ACQUIRE) >= VR_DESK_NOTICES) {
        __atomic_store_n(&desk->lost, desk->lost + 1, __ATOMIC_RELAXED);
        return false;
    }
    desk->notice[noticed % VR_DESK_NOTICES] = *notice;
    __atomic_store_n(&desk->noticed, noticed + 1, __ATOMIC_RELEASE);
    return true;
}

/* Cache. False when there is none. */
static inline bool vr_desk_take(struct vr_desk *desk, struct vr_notice *notice) {
    uint64_t taken = desk->taken;
    if (__atomic_load_n(&desk->noticed, __ATOMIC_ACQUIRE) == taken)
        return false;
    *notice = desk->notice[taken % VR_DESK_NOTICES];
    if (notice->tokens > 2)
        notice->tokens = 2;
    __atomic_store_n(&desk->taken, taken + 1, __ATOMIC_RELEASE);
    return true;
}

#endif
