/* receive.h: the listening half of a call: RTP packets in clear in, one 20 ms block of PCM a tick out.
 *
 * 1. From the first packet on every tick gives a full block: sound, concealment, or silence where the
 *    client sends nothing, so that whoever listens hears time pass.
 * 2. The delay is brought to the jitter buffer's target by taking pieces out of the sound or putting
 *    them in (stretch.h), never by dropping blocks; the last 20 ms of it by the caller, who moves the
 *    tick (vr_receiver_shift_ms).
 * 3. Blocks begin where packets do, as far as packets are 10 ms or a multiple of 20 ms: so none of a packet waits for
 *    the next tick. Where time-scaling has left a rest, one seam takes it away, in a quiet moment if one comes.
 * 4. A payload type that was not negotiated, or that does not parse, costs a counter; within the
 *    audio's SSRC its sequence number is not taken for a loss.
 * 5. Telephone events wait in `events`.
 */
#ifndef VR_RECEIVE_H
#define VR_RECEIVE_H

#include "codec.h"
#include "events.h"
#include "jitter.h"

enum {
    VR_BLOCK_MS = 20,
    VR_BLOCK_MAX_SAMPLES = VR_CODEC_RATE_MAX_HZ / 1000 * VR_BLOCK_MS,
    VR_RECEIVE_CODECS = 3,
    VR_RECEIVE_AGES = 64,
    VR_RECEIVE_AGE_MS = 5,
    VR_RECEIVE_BEYOND = 64,
    VR_RECEIVE_BEYOND_LEAST_MS = -32,
    VR_NO_PAYLOAD_TYPE = 255,
};

enum vr_receive_status {
    VR_RECEIVE_OK = 0,
    VR_RECEIVE_LATE, /* see enum vr_jitter_status */
    VR_RECEIVE_DUPLICATE,
    VR_RECEIVE_OLD_SOURCE,
    VR_RECEIVE_JUMP,
    VR_RECEIVE_TOO_BIG,
    VR_RECEIVE_RTP,          /* not RTP, or an extension or padding past the packet's end */
    VR_RECEIVE_EMPTY,        /* no payload */
    VR_RECEIVE_PAYLOAD_TYPE, /* not negotiated: CN, RED, RTX, DTMF, noise */
    VR_RECEIVE_PAYLOAD,      /* of a negotiated type, but broken */
    VR_RECEIVE_STATUS_COUNT,
};

struct vr_receive_config {
    uint32_t rate_hz;          /* of the blocks */
    uint8_t opus_payload_type; /* VR_NO_PAYLOAD_TYPE: not negotiated */
    uint8_t pcmu_payload_type;
    uint8_t pcma_payload_type;
    uint8_t event_payload_type; /* telephone-event at any clock */
};

struct vr_receive_counts {
    uint64_t status[VR_RECEIVE_STATUS_COUNT];
    uint64_t decode_failures;    /* parsed, but the decoder refused: concealed */
    uint64_t samples;            /* handed out in all */
    uint64_t concealed_samples;  /* of them guessed by the decoder */
    uint64_t recovered_samples;  /* of them from in-band FEC */
    uint64_t silence_samples;    /* of them put where nothing came */
    uint64_t shortened_samples;  /* taken out to lower the delay */
    uint64_t lengthened_samples; /* put in to raise it */
    /* packets by the time from their arrival to the tick that handed out the last of them: in steps of
     * VR_RECEIVE_AGE_MS, and, less the target of that moment, in ms from VR_RECEIVE_BEYOND_LEAST_MS on */
    uint64_t ages[VR_RECEIVE_AGES];
    uint64_t beyond_target[VR_RECEIVE_BEYOND];
};

struct vr_receiver {
    struct vr_receive_config config;
    enum vr_codec codec;                            /* of the newest packet that came */
    enum vr_codec sounding;                         /* of the newest one that was decoded */
    struct vr_decoder *decoders[VR_RECEIVE_CODECS]; /* by enum vr_codec, made when first needed */
    struct vr_jitter jitter;
    struct vr_receive_counts counts;
    uint32_t silent_samples; /* in a row */
    bool is_dtx;             /* the newest packet said that silence follows: nothing is missing */
    size_t
        grain_samples; /* of the newest packet, or of a block if that is less; 0: they do not fit */
    unsigned unaligned_ticks;
    uint64_t tail_arrival_ns; /* of the packet whose last samples wait in the fifo; 0: none */
    int64_t
        off_ns; /* of the last block: how much later than its target it went out; 0 in silence */
    struct vr_events events;
    size_t fifo_samples;
    size_t fifo_capacity_samples;
    int16_t *fifo; /* decoded, not played */
};

/* 0, -EINVAL or -ENOMEM; the decoder of the first negotiated codec is made here. */
int vr_receiver_init(struct vr_receiver *r, const struct vr_receive_config *config);
void vr_receiver_free(struct vr_receiver *r);

enum vr_receive_status vr_receiver_put(struct vr_receiver *r, const uint8_t *data, size_t bytes,
                                       uint64_t now_ns);

/* The same for a packet that vr_rtp_read has read already, with what it returned. Up to VR_RECEIVE_JUMP the
 * packet has a payload that was negotiated. */
enum vr_receive_status vr_receiver_put_rtp(struct vr_receiver *r, enum vr_rtp_status read,
                                           const struct vr_rtp *rtp, uint64_t now_ns);

/* Writes 20 ms to `pcm` and returns true; false, nothing written, before the first packet. */
bool vr_receiver_tick(struct vr_receiver *r, uint64_t now_ns, int16_t *pcm);

/* By how many ms the tick after the last one, which came `late_ns` after its time, had better be later
 * (negative: earlier) than 20 ms. */
int vr_receiver_shift_ms(const struct vr_receiver *r, uint64_t late_ns);

#endif
