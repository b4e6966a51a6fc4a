/* frame_pacer.h: what pacer.h is for PCM, for frames that are encoded already: written in bursts, sent in time.
 *
 * 1. Two threads: the *writer* writes and flushes, the *player* ticks every 20 ms. No lock.
 * 2. A frame is 20, 40 ... 120 ms; the next leaves when its time is over. One without payload is a pause of its
 *    duration. What does not fit `capacity_bytes` is refused.
 * 3. A talkspurt starts when `start_ms` are waiting, or something has waited so long; its first frame has the marker.
 *    The timestamp follows the ticks, silent ones too.
 * 4. A flush takes effect at the next tick: a frame cannot be faded, so the listener's concealment does it.
 */
#ifndef VR_FRAME_PACER_H
#define VR_FRAME_PACER_H

#include "codec.h"
#include "frames.h"

struct vr_frame_pacer {
    struct vr_frames frames;
    _Atomic uint64_t waiting_units;
    uint32_t clock_hz;
    uint32_t start_ticks;
    uint32_t timestamp;
    uint32_t busy_ticks; /* of the frame that was sent last */
    uint32_t waited_ticks;
    bool talking;
};

bool vr_frame_pacer_init(struct vr_frame_pacer *pacer, uint32_t clock_hz, uint32_t start_ms,
                         uint32_t first_timestamp, size_t capacity_bytes);
void vr_frame_pacer_free(struct vr_frame_pacer *pacer);

/* Writer. False when there is no room. `units` is a multiple of 20 ms (vr_codec_units); without
 * payload, any such pause. */
bool vr_frame_pacer_write(struct vr_frame_pacer *pacer, uint32_t units, const uint8_t *payload,
                          size_t payload_bytes);
void vr_frame_pacer_flush(struct vr_frame_pacer *pacer);
uint32_t vr_frame_pacer_waiting_ms(const struct vr_frame_pacer *pacer); /* any thread */

/* Player. The frame to send at this tick, or NULL; its timestamp and marker are in `out`, which has no
 * payload. After sending it: vr_frame_pacer_sent. */
const struct vr_frame *vr_frame_pacer_tick(struct vr_frame_pacer *pacer, struct vr_frame *out);
void vr_frame_pacer_skip(struct vr_frame_pacer *pacer, uint32_t ticks); /* so many were left out */
void vr_frame_pacer_sent(struct vr_frame_pacer *pacer);

#endif
