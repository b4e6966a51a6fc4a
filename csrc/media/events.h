/* events.h: telephone events (RFC 4733), each once, when it begins; no more than a person or a machine presses keys:
 * VR_EVENTS_WAITING at once, as a stalled network brings them, and one each VR_EVENT_LEAST_MS from then on.
 */
#ifndef VR_EVENTS_H
#define VR_EVENTS_H

#include "rtp.h"

enum {
    VR_EVENTS_WAITING = 16, /* to be fetched; more are dropped and counted */
    VR_EVENT_LEAST_MS = 40, /* ITU-T Q.24: no tone is shorter */
    VR_EVENT_FLASH = 16,    /* the highest that is ours: 0-9, *, #, A-D, hook flash */
};

struct vr_events {
    uint8_t waiting[VR_EVENTS_WAITING];
    unsigned first, count;
    bool seen; /* `timestamp` is of the newest event */
    uint32_t timestamp;
    uint64_t paid_until_ns; /* of VR_EVENT_LEAST_MS for each */
    uint64_t dropped;
};

/* A packet of the telephone-event payload type; anything but an event is ignored. */
void vr_events_put(struct vr_events *events, const struct vr_rtp *packet, uint64_t now_ns);

/* The next event, 0..VR_EVENT_FLASH; -1 when none waits. */
int vr_events_take(struct vr_events *events);

#endif
