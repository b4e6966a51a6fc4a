/* line.h: the sequence numbers and timestamps of one source after another, onto one line of our own.
 *
 * Losses, reordering and pauses of a source stay as they are. Where another source follows, or a jump that the
 * line's readers could not follow, of the number or of the timestamp (a second back, or ten ahead of the time that has
 * passed), the line goes on with the next number and as much later as time has passed.
 */
#ifndef VR_LINE_H
#define VR_LINE_H

#include "rtp.h"

struct vr_line {
    bool started;
    uint32_t clock_hz;
    uint32_t ssrc; /* of the source */
    uint16_t sequence_offset, last_sequence;
    uint32_t timestamp_offset, last_timestamp;
    uint64_t last_ns;
};

/* The line's first packet has this sequence number and timestamp. */
void vr_line_init(struct vr_line *line, uint32_t clock_hz, uint16_t sequence, uint32_t timestamp);

/* Where a packet stands: `sequence` and `timestamp` of `out` are written. */
void vr_line_place(struct vr_line *line, const struct vr_rtp *in, uint64_t now_ns,
                   struct vr_rtp *out);

/* The packet that was placed went on: the line follows it. */
void vr_line_passed(struct vr_line *line, const struct vr_rtp *placed, uint64_t now_ns);

/* A packet of the source that does not go on leaves no gap. */
void vr_line_skip(struct vr_line *line, const struct vr_rtp *in);

#endif
