/* jitter.h: the adaptive jitter buffer of one incoming audio stream: packets in, frames out by the clock.
 *
 * 1. Playout follows the sender's timestamps. A packet's *transit* is its arrival minus its timestamp; the
 *    least transit of the last seconds is the *base* (so clock drift moves it), what a packet takes
 *    more is its *lateness*, and the *delay* is how long after base the sample goes out that goes out now.
 * 2. The *target* is the delay that 98 % of the last 10 s could still make, plus one 20 ms block,
 *    within 20..200 ms; what would be late for the longest has no say, as no delay helps it. When the base rises, what
 *    was seen counts for that much less. Nobody waits longer: a packet that is missing when its turn comes is LOST,
 *    at once, and takes just its own time: a loss never adds delay.
 * 3. A packet that comes after silence was played in its place plays all the same, later; the excess over
 *    the target is for the caller to take out by time-scaling (vr_jitter_excess_ns). Beyond the
 *    longest target packets are dropped instead.
 * 4. Where the sender is silent (contiguous sequence numbers, a gap of the timestamp: DTX) nothing is lost;
 *    speech after it starts with the first piece of playout (vr_jitter_take) that is due, or 5 ms early.
 * 5. A new SSRC, a sequence jump that a second packet confirms and a timestamp a second off start
 *    afresh; the old SSRC is deaf for a second so that stragglers do not switch back.
 * 6. Bounded: 64 packets, VR_JITTER_ARENA_BYTES; the oldest give way.
 */
#ifndef VR_JITTER_H
#define VR_JITTER_H

#include "rtp.h"

enum {
    VR_JITTER_SLOTS = 64,
    VR_JITTER_ARENA_BYTES = 12 * 1024, /* three longest delays of 128 kbit/s */
    VR_JITTER_PAYLOAD_MAX_BYTES = 1500,
    VR_JITTER_BUCKETS = 36, /* up to the longest target less a block */
    VR_JITTER_BUCKET_MS = 5,
    VR_JITTER_TARGET_MIN_MS = 20,
    VR_JITTER_TARGET_MAX_MS = 200,
};

enum vr_jitter_status {
    VR_JITTER_OK = 0,
    VR_JITTER_LATE,       /* its time has passed */
    VR_JITTER_DUPLICATE,  /* it is here already */
    VR_JITTER_OLD_SOURCE, /* of the SSRC that was left less than a second ago */
    VR_JITTER_JUMP,       /* a sequence number far off that no second packet has confirmed */
    VR_JITTER_TOO_BIG,    /* a payload over VR_JITTER_PAYLOAD_MAX_BYTES */
    VR_JITTER_STATUS_COUNT,
};

enum vr_jitter_kind {
    VR_JITTER_EMPTY,  /* nothing to play: the sender is silent, or everything is late */
    VR_JITTER_PACKET, /* decode `payload` */
    VR_JITTER_LOST,   /* conceal `units`; if `payload` is set, its in-band FEC describes them */
};

struct vr_jitter_frame {
    enum vr_jitter_kind kind;
    bool restart;           /* first of a new source: the decoder's past does not matter */
    uint8_t payload_type;   /* of `payload` */
    const uint8_t *payload; /* valid until the next vr_jitter_put */
    size_t payload_bytes;
    uint32_t units; /* duration, timestamp units */
    uint64_t arrival_ns;
};

struct vr_jitter_counts {
    uint64_t received;
    uint64_t status[VR_JITTER_STATUS_COUNT];
    uint64_t lost_frames; /* LOST handed out */
    uint64_t evicted;     /* pushed out by newer ones, or by a new source */
    uint64_t stale;       /* beyond the longest delay */
    uint64_t restarts;    /* new source or discontinuity */
};

struct vr_jitter_slot {
    bool used;
    bool filler; /* a sequence number without audio: telephone-event, CN, unknown payload type */
    uint8_t payload_type;
    uint16_t payload_bytes;
    uint32_t units;
    int64_t sequence;  /* extended */
    int64_t timestamp; /* extended */
    uint64_t arena_at;
    uint64_t arrival_ns;
};

struct vr_jitter {
    uint32_t clock_hz;
    bool started; /* a source is known */
    bool playing; /* its first packet has been handed out */
    bool restart; /* the next packet handed out is the first of a source */
    uint32_t ssrc;
    uint32_t old_ssrc;
    uint64_t old_ssrc_until_ns;
    bool jump_pending;
    uint16_t jump_sequence;
    int64_t newest_sequence;
    int64_t newest_timestamp;
    int64_t next_sequence;
    int64_t next_timestamp;  /* first unit not handed out yet */
    int64_t silence_units;   /* handed out as EMPTY since then */
    int64_t base_ns[2];      /* least transit of this window and of the one before */
    uint64_t base_window_ns; /* start of this window */
    uint64_t target_ns;
    float lateness[VR_JITTER_BUCKETS]; /* share of the sound seen; the rest of 1 came too late */
    uint32_t lateness_units;           /* of sound seen, up to what is remembered */
    int64_t lateness_base_ns; /* what `lateness` counts from: where the base was highest lately */
    uint64_t arena_at;
    struct vr_jitter_counts counts;
    struct vr_jitter_slot slots[VR_JITTER_SLOTS];
    uint8_t arena[VR_JITTER_ARENA_BYTES];
};

void vr_jitter_init(struct vr_jitter *j, uint32_t clock_hz);

/* What comes from now on has timestamps of another clock; what was learnt of the network stays. */
void vr_jitter_change_clock(struct vr_jitter *j, uint32_t clock_hz);

/* Takes a packet of `units` duration. With `units` 0 it is filler: its sequence number is not missing. */
enum vr_jitter_status vr_jitter_put(struct vr_jitter *j, const struct vr_rtp *packet,
                                    uint32_t units, uint64_t now_ns);

/* The next frame, when `pending_units` are decoded and not yet played and `want_units` more would
 * fill the block that is due now. EMPTY has at most `want_units`. */
void vr_jitter_take(struct vr_jitter *j, uint64_t now_ns, uint32_t pending_units,
                    uint32_t want_units, struct vr_jitter_frame *out);

/* Delay of the sample that goes out now, the first of `pending_units` if there are any; 0 before the
 * start. */
int64_t vr_jitter_delay_ns(const struct vr_jitter *j, uint64_t now_ns, uint32_t pending_units);

/* Delay minus target: positive, play faster; negative, play slower; 0 while silent. */
int64_t vr_jitter_excess_ns(const struct vr_jitter *j, uint64_t now_ns, uint32_t pending_units);

/* Packets waiting. */
unsigned vr_jitter_depth(const struct vr_jitter *j);

#endif
