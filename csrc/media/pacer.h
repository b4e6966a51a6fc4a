/* pacer.h: the speaking half of a call before the codec: PCM written in bursts, one 20 ms block a tick out.
 *
 * 1. Two threads: the *writer* writes, ends, flushes and reads the clock; the *player* ticks. No lock is
 *    taken; each function names its thread.
 * 2. Sound carries a generation number (a response); numbers only grow. Flushing a generation stops it and
 *    all before it: the next block fades out within VR_PACER_FADE_MS and is silence from there.
 * 3. The clock of a generation counts samples that went out, the fade included, padding not.
 * 4. The timestamp follows the ticks, silent ones too; the first block after silence has the marker.
 *    A talkspurt starts when `start_ms` are waiting, or something has waited so long; it ends with
 *    VR_PACER_TAIL_BLOCKS of silence, so that the listener's concealment does not ring on. Where the writer is late
 *    in the middle of a sound, it fades out and in again.
 * 5. Bounded: what goes beyond `capacity_samples` is refused, and write says how much was taken. With
 *    `live_ms` (an echo, a bridge: sound that is made in real time) a backlog that stays above it is
 *    worked off by time-scaling.
 */
#ifndef VR_PACER_H
#define VR_PACER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    VR_PACER_FADE_MS = 8,
    VR_PACER_TAIL_BLOCKS = 5,
    VR_PACER_CLOCKS = 64, /* generations whose clock can still be read */
};

struct vr_pacer_config {
    uint32_t rate_hz;        /* of the PCM */
    uint32_t clock_hz;       /* of the RTP timestamps */
    uint32_t start_ms;       /* 0..200 */
    uint32_t live_ms;        /* 0: any backlog is fine */
    size_t capacity_samples; /* of what may wait */
    uint32_t first_timestamp;
};

struct vr_pacer;

/* NULL when memory is short or a rate is not 8, 16, 24 or 48 kHz. */
struct vr_pacer *vr_pacer_new(const struct vr_pacer_config *config);
void vr_pacer_free(struct vr_pacer *pacer); /* both threads are done with it */

/* Writer. Returns the samples taken, 0..samples. `generation` is never less than one written before, never 0;
 * of a generation that was flushed nothing is taken but all is reported as taken: it is over. */
size_t vr_pacer_write(struct vr_pacer *pacer, uint32_t generation, const int16_t *pcm,
                      size_t samples);
void vr_pacer_flush(struct vr_pacer *pacer, uint32_t through_generation);
size_t vr_pacer_waiting(const struct vr_pacer *pacer); /* samples written and not gone */

/* Any thread. False when the generation has not begun or is forgotten. */
bool vr_pacer_played(const struct vr_pacer *pacer, uint32_t generation, uint64_t *samples);

struct vr_pacer_block {
    bool sound;         /* false: nothing is to be sent, `pcm` was not written */
    bool marker;        /* first block of a talkspurt */
    uint32_t timestamp; /* of this tick, sound or not */
};

/* Player: one tick; `pcm` has room for 20 ms. */
void vr_pacer_tick(struct vr_pacer *pacer, int16_t *pcm, struct vr_pacer_block *out);

/* Player, instead of a tick: 20 ms in which nothing can be sent. Sound waits, time passes: a talkspurt begins
 * afterwards, and what is flushed meanwhile is gone without a fade. */
void vr_pacer_pause(struct vr_pacer *pacer);

/* Player: so many ticks were left out. */
void vr_pacer_skip(struct vr_pacer *pacer, uint32_t ticks);

struct vr_pacer_counts {
    uint64_t blocks; /* sent */
    uint64_t talkspurts;
    uint64_t padded_samples;    /* a block was not full: the writer is late, or the sound is over */
    uint64_t flushed_samples;   /* thrown away by flushes */
    uint64_t refused_samples;   /* beyond the capacity */
    uint64_t shortened_samples; /* taken out of a live backlog */
};

/* Any thread, approximately. */
void vr_pacer_read_counts(const struct vr_pacer *pacer, struct vr_pacer_counts *out);

#endif
