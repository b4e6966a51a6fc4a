#include "events.h"

static const uint64_t least_ns = VR_EVENT_LEAST_MS * (uint64_t)1000000;

void vr_events_put(struct vr_events *e, const struct vr_rtp *packet, uint64_t now_ns) {
    if (packet->payload_bytes < 4 || packet->payload[0] > VR_EVENT_FLASH)
        return;
    /* RFC 4733 2.3: all packets of one event carry the timestamp of its beginning */
    if (e->seen && e->timestamp == packet->timestamp)
        return;
    e->seen = true;
    e->timestamp = packet->timestamp;
    if (e->paid_until_ns < now_ns)
        e->paid_until_ns = now_ns;
    if (e->count == VR_EVENTS_WAITING ||
        e->paid_until_ns - now_ns >= VR_EVENTS_WAITING * least_ns) {
        e->dropped++;
        return;
    }
    e->paid_until_ns += least_ns;
    e->waiting[(e->first + e->count++) % VR_EVENTS_WAITING] = packet->payload[0];
}

int vr_events_take(struct vr_events *e) {
    if (e->count == 0)
        return -1;
    int event = e->waiting[e->first];
    e->first = (e->first + 1) % VR_EVENTS_WAITING;
    e->count--;
    return event;
}
