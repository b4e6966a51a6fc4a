#include "line.h"

#include <string.h>

enum {
    STEP_MAX = 60,     /* sequence numbers: under half of SRTP's replay window */
    FIRST_GAP_MS = 20, /* between two sources */
    BACK_MAX_S = 1,
    AHEAD_MAX_S = 10, /* what a long stall brings at once may have long pauses */
};

void vr_line_init(struct vr_line *line, uint32_t clock_hz, uint16_t sequence, uint32_t timestamp) {
    memset(line, 0, sizeof *line);
    line->clock_hz = clock_hz;
    line->last_sequence = (uint16_t)(sequence - 1);
    line->last_timestamp = timestamp;
}

static void rebase(struct vr_line *line, const struct vr_rtp *in, uint64_t now_ns) {
    uint32_t timestamp = line->last_timestamp;
    if (line->started) {
        uint64_t passed_ms = (now_ns - line->last_ns) / 1000000;
        passed_ms = passed_ms > FIRST_GAP_MS ? passed_ms : FIRST_GAP_MS;
        timestamp += (uint32_t)(passed_ms * line->clock_hz / 1000);
    }
    line->started = true;
    line->ssrc = in->ssrc;
    line->sequence_offset = (uint16_t)(line->last_sequence + 1 - in->sequence);
    line->timestamp_offset = timestamp - in->timestamp;
}

/* Whether no loss, pause or delay explains the timestamp of the next packet. */
static bool leaps(const struct vr_line *line, const struct vr_rtp *in, uint64_t now_ns) {
    int32_t step = (int32_t)(in->timestamp + line->timestamp_offset - line->last_timestamp);
    int64_t hz = line->clock_hz;
    if (step >= -BACK_MAX_S * hz && step <= AHEAD_MAX_S * hz)
        return false;
    int64_t passed_s = (int64_t)((now_ns - line->last_ns) / 1000000000);
    return step < 0 || step > (passed_s + AHEAD_MAX_S) * hz;
}

void vr_line_place(struct vr_line *line, const struct vr_rtp *in, uint64_t now_ns,
                   struct vr_rtp *out) {
    int16_t step = (int16_t)(in->sequence + line->sequence_offset - line->last_sequence);
    if (!line->started || line->ssrc != in->ssrc || step > STEP_MAX || step < -STEP_MAX ||
        (step > 0 && leaps(line, in, now_ns)))
        rebase(line, in, now_ns);
    out->sequence = (uint16_t)(in->sequence + line->sequence_offset);
    out->timestamp = in->timestamp + line->timestamp_offset;
}

void vr_line_passed(struct vr_line *line, const struct vr_rtp *placed, uint64_t now_ns) {
    if ((int16_t)(placed->sequence - line->last_sequence) <= 0)
        return;
    line->last_sequence = placed->sequence;
    line->last_timestamp = placed->timestamp;
    line->last_ns = now_ns;
}

void vr_line_skip(struct vr_line *line, const struct vr_rtp *in) {
    if (line->started && line->ssrc == in->ssrc &&
        (uint16_t)(in->sequence + line->sequence_offset) == (uint16_t)(line->last_sequence + 1))
        line->sequence_offset--;
}
