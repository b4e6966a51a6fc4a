/* frames.h: encoded frames from one thread to another, in order, bounded; a frame is an RTP payload.
 *
 * What does not fit is refused: the writer counts it or tells. No lock.
 */
#ifndef VR_FRAMES_H
#define VR_FRAMES_H

#include "queue.h"

enum vr_frame_side { VR_FRAME_HEARD, VR_FRAME_SAID }; /* of the client, of ours */

struct vr_frame {
    uint64_t at_ns;     /* when it came or left */
    uint32_t timestamp; /* of the codec's clock, on one line whatever the sources (line.h) */
    uint32_t units;     /* duration; 0: unknown */
    uint32_t payload_bytes;
    uint16_t sequence;
    uint8_t side;
    uint8_t marker; /* first after silence */
    uint8_t payload[];
};

struct vr_frames {
    struct vr_queue queue; /* no data: nothing is taken */
    _Atomic uint64_t written, read, refused;
    _Atomic uint64_t flush_to; /* frames written when a flush was asked for */
};

/* `capacity_bytes` is a power of two. False when memory is short. */
bool vr_frames_init(struct vr_frames *frames, size_t capacity_bytes);
void vr_frames_free(struct vr_frames *frames);

/* Writer. False, and counted, when there is no room for it. `frame` has no payload of its own. */
bool vr_frames_write(struct vr_frames *frames, const struct vr_frame *frame,
                     const uint8_t *payload);
void vr_frames_flush(struct vr_frames *frames); /* what was written so far is not to be played */

/* Any thread, approximately. */
size_t vr_frames_waiting(const struct vr_frames *frames);

/* Reader. The oldest, or NULL; valid until vr_frames_pop. */
const struct vr_frame *vr_frames_peek(struct vr_frames *frames);
void vr_frames_pop(struct vr_frames *frames);
bool vr_frames_is_flushed(struct vr_frames *frames); /* the oldest is one of those */

#endif
