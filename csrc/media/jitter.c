#include "jitter.h"

#include <string.h>

enum {
    BLOCK_MS = 20,
    INITIAL_TARGET_MS = 40,
    JUMP_AHEAD = 1000,  /* sequence numbers; RFC 3550 A.1 has 3000 for MAX_DROPOUT */
    JUMP_BEHIND = 200,  /* and 100 for MAX_MISORDER */
    EARLY_START_MS = 5, /* well below the 20 ms by which a target is more than what packets need */
    REMEMBERED_S = 10,  /* of sound, by the lateness statistics */
    SINK_WINDOWS = 8,   /* of the base, in which the mark that it rises above comes down to it */
};

#define MS_NS ((int64_t)1000000)
#define SECOND_NS ((int64_t)1000000000)
#define BASE_WINDOW_NS (2 * (uint64_t)SECOND_NS)
#define STALE_SLACK_NS (2 * BLOCK_MS * MS_NS)
static const float late_share = 0.02f;

_Static_assert(VR_JITTER_BUCKETS *VR_JITTER_BUCKET_MS + BLOCK_MS == VR_JITTER_TARGET_MAX_MS,
               "the last bucket has the longest target");

void vr_jitter_init(struct vr_jitter *j, uint32_t clock_hz) {
    memset(j, 0, offsetof(struct vr_jitter, arena));
    j->clock_hz = clock_hz;
    j->target_ns = INITIAL_TARGET_MS * (uint64_t)MS_NS;
}

static void release(struct vr_jitter *j, struct vr_jitter_slot *slot) {
    slot->used = false;
    j->counts.evicted += !slot->filler;
}

static void release_all(struct vr_jitter *j) {
    for (int i = 0; i < VR_JITTER_SLOTS; i++)
        if (j->slots[i].used)
            release(j, &j->slots[i]);
}

void vr_jitter_change_clock(struct vr_jitter *j, uint32_t clock_hz) {
    release_all(j);
    j->lateness_units = (uint32_t)((uint64_t)j->lateness_units * clock_hz / j->clock_hz);
    j->clock_hz = clock_hz;
    j->started = j->playing = false;
}

static int64_t units_to_ns(const struct vr_jitter *j, int64_t units) {
    return units / j->clock_hz * SECOND_NS + units % j->clock_hz * SECOND_NS / j->clock_hz;
}

static int64_t ns_to_units(const struct vr_jitter *j, int64_t ns) {
    return ns * (int64_t)j->clock_hz / SECOND_NS;
}

static int64_t base_ns(const struct vr_jitter *j) {
    return j->base_ns[0] < j->base_ns[1] ? j->base_ns[0] : j->base_ns[1];
}

/* How long after its base arrival the unit `timestamp` would go out, if it went out now. */
static int64_t delay_of(const struct vr_jitter *j, uint64_t now_ns, int64_t timestamp) {
    return (int64_t)now_ns - units_to_ns(j, timestamp) - base_ns(j);
}

/* --- arrival --------------------------------------------------------------------------------- */

static void restart(struct vr_jitter *j, const struct vr_rtp *packet, uint64_t now_ns) {
    if (j->started)
        j->counts.restarts++;
    if (j->started && j->ssrc != packet->ssrc) {
        j->old_ssrc = j->ssrc;
        j->old_ssrc_until_ns = now_ns + (uint64_t)SECOND_NS;
    }
    release_all(j);
    j->started = true;
    j->playing = false;
    j->restart = true;
    j->jump_pending = false;
    j->ssrc = packet->ssrc;
    /* far from 0, so that extended numbers never turn negative */
    j->newest_sequence = ((int64_t)1 << 32) + packet->sequence;
    j->newest_timestamp = ((int64_t)1 << 40) + packet->timestamp;
    j->next_sequence = j->newest_sequence;
    j->next_timestamp = j->newest_timestamp;
    j->silence_units = 0;
    j->base_ns[0] = j->base_ns[1] = (int64_t)now_ns - units_to_ns(j, j->newest_timestamp);
    j->base_window_ns = now_ns;
    j->lateness_base_ns = j->base_ns[0];
}

/* The base has risen, as a route has grown longer or a clock is slow: what was late against the old one is
 * less so against this. Where it only wavers, for want of packets, it stays below the mark. */
static void follow_base(struct vr_jitter *j) {
    int64_t rise_ns = base_ns(j) - j->lateness_base_ns;
    if (rise_ns < 0) {
        j->lateness_base_ns += rise_ns / SINK_WINDOWS;
        return;
    }
    int64_t by = rise_ns / (VR_JITTER_BUCKET_MS * MS_NS);
    j->lateness_base_ns += by * VR_JITTER_BUCKET_MS * MS_NS;
    for (int64_t i = 0; by != 0 && i < VR_JITTER_BUCKETS; i++) {
        float share = j->lateness[i];
        j->lateness[i] = 0;
        j->lateness[i > by ? i - by : 0] += share;
    }
}

static void update_base(struct vr_jitter *j, int64_t transit_ns, uint64_t now_ns) {
    if (now_ns - j->base_window_ns >= BASE_WINDOW_NS) {
        /* where nothing came for so long, clocks have drifted apart */
        bool stale = now_ns - j->base_window_ns >= 2 * BASE_WINDOW_NS;
        j->base_ns[1] = stale ? transit_ns : j->base_ns[0];
        j->base_ns[0] = transit_ns;
        j->base_window_ns = now_ns;
        follow_base(j);
    } else if (transit_ns < j->base_ns[0]) {
        j->base_ns[0] = transit_ns;
    }
}

static void update_target(struct vr_jitter *j, int64_t lateness_ns, uint32_t units) {
    int64_t bucket = lateness_ns / (VR_JITTER_BUCKET_MS * MS_NS);
    uint32_t remembered_units = j->clock_hz * REMEMBERED_S;
    j->lateness_units += units;
    if (j->lateness_units > remembered_units)
        j->lateness_units = remembered_units;
    float share = (float)units / (float)j->lateness_units;
    for (int i = 0; i < VR_JITTER_BUCKETS; i++)
        j->lateness[i] *= 1.0f - share;
    if (bucket < VR_JITTER_BUCKETS)
        j->lateness[bucket] += share;
    if (j->lateness_units < remembered_units / 20)
        return; /* half a second is not enough to leave the initial target */

    unsigned quantile = VR_JITTER_BUCKETS;
    for (float above = 0; quantile > 1 && (above += j->lateness[quantile - 1]) <= late_share;)
        quantile--;
    int64_t target_ms = (int64_t)quantile * VR_JITTER_BUCKET_MS + BLOCK_MS;
    j->target_ns = (uint64_t)(target_ms * MS_NS);
}

/* Room for `bytes` in the ring of payloads; packets whose bytes are overwritten go. */
static uint64_t arena_take(struct vr_jitter *j, size_t bytes) {
    uint64_t at = j->arena_at, offset = at % VR_JITTER_ARENA_BYTES;
    if (offset + bytes > VR_JITTER_ARENA_BYTES)
        at += VR_JITTER_ARENA_BYTES - offset;
    j->arena_at = at + bytes;
    if (j->arena_at > VR_JITTER_ARENA_BYTES)
        for (int i = 0; i < VR_JITTER_SLOTS; i++)
            if (j->slots[i].used && j->slots[i].payload_bytes != 0 &&
                j->slots[i].arena_at < j->arena_at - VR_JITTER_ARENA_BYTES)
                release(j, &j->slots[i]);
    return at;
}

/* Makes the slot of `sequence` free: what lies a whole ring before it has waited too long. */
static struct vr_jitter_slot *slot_for(struct vr_jitter *j, int64_t sequence) {
    if (sequence - j->next_sequence >= VR_JITTER_SLOTS) {
        int64_t first = sequence - VR_JITTER_SLOTS + 1;
        for (int i = 0; i < VR_JITTER_SLOTS; i++)
            if (j->slots[i].used && j->slots[i].sequence < first)
                release(j, &j->slots[i]);
        j->next_sequence = first;
    }
    return &j->slots[(uint64_t)sequence % VR_JITTER_SLOTS];
}

static bool is_near(const struct vr_jitter *j, uint16_t sequence) {
    int16_t ahead = (int16_t)(sequence - (uint16_t)j->newest_sequence);
    return ahead <= JUMP_AHEAD && ahead >= -JUMP_BEHIND;
}

/* Whether `packet` goes on where its source was; restarts when it surely does not. */
static enum vr_jitter_status follow(struct vr_jitter *j, const struct vr_rtp *packet,
                                    uint64_t now_ns) {
    if (!j->started) {
        restart(j, packet, now_ns);
        return VR_JITTER_OK;
    }
    if (packet->ssrc != j->ssrc) {
        if (packet->ssrc == j->old_ssrc && now_ns < j->old_ssrc_until_ns)
            return VR_JITTER_OLD_SOURCE;
        restart(j, packet, now_ns);
        return VR_JITTER_OK;
    }
    if (is_near(j, packet->sequence)) {
        int16_t ahead = (int16_t)(packet->sequence - (uint16_t)j->newest_sequence);
        int32_t later = (int32_t)(packet->timestamp - (uint32_t)j->newest_timestamp);
        int64_t transit = (int64_t)now_ns - units_to_ns(j, j->newest_timestamp + later);
        int64_t lateness = transit - base_ns(j);
        if (ahead > 0 && (lateness > SECOND_NS || lateness < -SECOND_NS))
            restart(j, packet, now_ns);
        j->jump_pending = false;
        return VR_JITTER_OK;
    }
    if (j->jump_pending && packet->sequence == (uint16_t)(j->jump_sequence + 1)) {
        restart(j, packet, now_ns);
        return VR_JITTER_OK;
    }
    j->jump_pending = true;
    j->jump_sequence = packet->sequence;
    return VR_JITTER_JUMP;
}

static enum vr_jitter_status put(struct vr_jitter *j, const struct vr_rtp *packet, uint32_t units,
                                 uint64_t now_ns) {
    bool filler = units == 0;
    if (packet->payload_bytes > VR_JITTER_PAYLOAD_MAX_BYTES)
        return VR_JITTER_TOO_BIG;
    if (filler && (!j->started || packet->ssrc != j->ssrc))
        return VR_JITTER_OLD_SOURCE;
    if (filler && !is_near(j, packet->sequence))
        return VR_JITTER_JUMP;
    /* a filler's timestamp says nothing: while a key is held it stands still (RFC 4733 2.1) */
    enum vr_jitter_status status = filler ? VR_JITTER_OK : follow(j, packet, now_ns);
    if (status != VR_JITTER_OK)
        return status;
    int64_t sequence =
        j->newest_sequence + (int16_t)(packet->sequence - (uint16_t)j->newest_sequence);
    int64_t timestamp =
        j->newest_timestamp + (int32_t)(packet->timestamp - (uint32_t)j->newest_timestamp);
    if (!filler) {
        int64_t transit = (int64_t)now_ns - units_to_ns(j, timestamp);
        if (transit - base_ns(j) < -SECOND_NS) /* an old number with a timestamp of the future */
            return VR_JITTER_JUMP;
        update_base(j, transit, now_ns);
        update_target(j, transit - base_ns(j), units);
    }
    if (sequence > j->newest_sequence)
        j->newest_sequence = sequence;
    if (!filler && timestamp > j->newest_timestamp)
        j->newest_timestamp = timestamp;
    if (!j->playing && sequence < j->next_sequence && j->next_sequence - sequence < JUMP_BEHIND) {
        /* reordered before anything was played */
        j->next_sequence = sequence;
        if (!filler && timestamp < j->next_timestamp)
            j->next_timestamp = timestamp;
    }
    if (sequence < j->next_sequence)
        return VR_JITTER_LATE;
    struct vr_jitter_slot *slot = slot_for(j, sequence);
    if (slot->used && slot->sequence == sequence)
        return VR_JITTER_DUPLICATE;
    if (slot->used)
        release(j, slot);
    size_t bytes = filler ? 0 : packet->payload_bytes;
    uint64_t at = bytes != 0 ? arena_take(j, bytes) : 0;
    *slot = (struct vr_jitter_slot){
        .used = true,
        .filler = filler,
        .payload_type = packet->payload_type,
        .payload_bytes = (uint16_t)bytes,
        .units = units,
        .sequence = sequence,
        .timestamp = timestamp,
        .arena_at = at,
        .arrival_ns = now_ns,
    };
    if (bytes != 0)
        memcpy(j->arena + at % VR_JITTER_ARENA_BYTES, packet->payload, bytes);
    return VR_JITTER_OK;
}

enum vr_jitter_status vr_jitter_put(struct vr_jitter *j, const struct vr_rtp *packet,
                                    uint32_t units, uint64_t now_ns) {
    enum vr_jitter_status status = put(j, packet, units, now_ns);
    j->counts.received++;
    j->counts.status[status]++;
    return status;
}

/* --- playout --------------------------------------------------------------------------------- */

/* The first waiting packet with audio; fillers before it are used up. NULL when there is none. */
static struct vr_jitter_slot *first_waiting(struct vr_jitter *j) {
    for (int64_t s = j->next_sequence; s <= j->newest_sequence; s++) {
        struct vr_jitter_slot *slot = &j->slots[(uint64_t)s % VR_JITTER_SLOTS];
        if (!slot->used || slot->sequence != s)
            continue;
        if (!slot->filler)
            return slot;
        if (s == j->next_sequence) {
            slot->used = false;
            j->next_sequence++;
        }
    }
    return NULL;
}

static void advance(struct vr_jitter *j, struct vr_jitter_slot *slot) {
    slot->used = false;
    j->next_sequence = slot->sequence + 1;
    j->next_timestamp = slot->timestamp + slot->units;
    j->silence_units = 0;
}

static void hand_out(struct vr_jitter *j, const struct vr_jitter_slot *slot,
                     struct vr_jitter_frame *out) {
    out->payload_type = slot->payload_type;
    out->payload = j->arena + slot->arena_at % VR_JITTER_ARENA_BYTES;
    out->payload_bytes = slot->payload_bytes;
    out->arrival_ns = slot->arrival_ns;
}

static void take_silence(struct vr_jitter *j, int64_t units, struct vr_jitter_frame *out) {
    out->kind = VR_JITTER_EMPTY;
    out->units = (uint32_t)units;
    j->silence_units += units;
}

static void take_packet(struct vr_jitter *j, struct vr_jitter_slot *slot,
                        struct vr_jitter_frame *out) {
    out->kind = VR_JITTER_PACKET;
    out->units = slot->units;
    out->restart = j->restart;
    hand_out(j, slot, out);
    j->restart = false;
    j->playing = true;
    advance(j, slot);
}

/* After silence: the speech starts where a piece of playout starts, when it is due by then, or nearly: so
 * packets and blocks begin together, and none waits for the next block with a rest. */
static void take_when_due(struct vr_jitter *j, struct vr_jitter_slot *slot, int64_t position_ns,
                          uint32_t want_units, struct vr_jitter_frame *out) {
    int64_t early_ns = (int64_t)j->target_ns - (position_ns - units_to_ns(j, slot->timestamp));
    if (early_ns <= EARLY_START_MS * MS_NS)
        take_packet(j, slot, out);
    else
        take_silence(j, want_units, out);
}

static void take_lost(struct vr_jitter *j, const struct vr_jitter_slot *next, int64_t missing_units,
                      struct vr_jitter_frame *out) {
    out->kind = VR_JITTER_LOST;
    if (missing_units <= next->units) {
        out->units = (uint32_t)missing_units;
        hand_out(j, next, out); /* its FEC is about the frame right before it */
    } else {
        out->units = next->units;
    }
    j->next_timestamp += j->silence_units + out->units;
    j->silence_units = 0;
    j->counts.lost_frames++;
}

void vr_jitter_take(struct vr_jitter *j, uint64_t now_ns, uint32_t pending_units,
                    uint32_t want_units, struct vr_jitter_frame *out) {
    *out = (struct vr_jitter_frame){.kind = VR_JITTER_EMPTY, .units = want_units};
    if (!j->started)
        return;
    /* when the frame taken now begins to sound, in terms of base arrivals */
    int64_t position_ns = (int64_t)now_ns + units_to_ns(j, (int64_t)pending_units) - base_ns(j);
    struct vr_jitter_slot *slot = first_waiting(j);
    const int64_t longest_ns = VR_JITTER_TARGET_MAX_MS * MS_NS + STALE_SLACK_NS;
    while (slot != NULL && position_ns - units_to_ns(j, slot->timestamp) > longest_ns) {
        struct vr_jitter_slot oldest = *slot;
        advance(j, slot);
        slot = first_waiting(j);
        if (slot == NULL) { /* the newest of all plays, however old it is */
            j->slots[(uint64_t)oldest.sequence % VR_JITTER_SLOTS] = oldest;
            slot = &j->slots[(uint64_t)oldest.sequence % VR_JITTER_SLOTS];
            j->next_sequence = oldest.sequence;
            j->next_timestamp = oldest.timestamp;
            break;
        }
        j->counts.stale++;
    }
    if (slot == NULL) {
        take_silence(j, want_units, out);
        return;
    }
    int64_t gap_units = slot->timestamp - j->next_timestamp;
    int64_t missing_units = gap_units - j->silence_units;
    bool contiguous = slot->sequence == j->next_sequence;
    const int64_t long_gap_units = ns_to_units(j, VR_JITTER_TARGET_MAX_MS * MS_NS);
    if (!j->playing || (gap_units > 0 && contiguous) || missing_units > long_gap_units)
        take_when_due(j, slot, position_ns, want_units, out);
    else if (missing_units <= 0)
        take_packet(j, slot, out);
    else
        take_lost(j, slot, missing_units, out);
}

int64_t vr_jitter_delay_ns(const struct vr_jitter *j, uint64_t now_ns, uint32_t pending_units) {
    if (!j->playing)
        return 0;
    return delay_of(j, now_ns, j->next_timestamp + j->silence_units - (int64_t)pending_units);
}

int64_t vr_jitter_excess_ns(const struct vr_jitter *j, uint64_t now_ns, uint32_t pending_units) {
    if (!j->playing || j->silence_units != 0)
        return 0;
    return vr_jitter_delay_ns(j, now_ns, pending_units) - (int64_t)j->target_ns;
}

unsigned vr_jitter_depth(const struct vr_jitter *j) {
    unsigned depth = 0;
    for (int i = 0; i < VR_JITTER_SLOTS; i++)
        depth += j->slots[i].used && !j->slots[i].filler;
    return depth;
}
