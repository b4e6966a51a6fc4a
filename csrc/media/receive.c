#include "receive.h"

#include "../wire/bytes.h"
#include "stretch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    CONCEAL_MS = 100, /* how long silence is filled by the decoder before it is plain zero */
    FIFO_MS = VR_BLOCK_MS + 2 * VR_CODEC_FRAME_MAX_MS + 40,
    SHORTEN_ABOVE_MS = 20, /* below, the tick moves */
    SHORTEN_MAX_MS = 15,
    LENGTHEN_BELOW_MS =
        20, /* a target is 20 ms more than what packets need when blocks begin with them */
    LENGTHEN_MAX_MS = 10,
    QUIET = 330, /* -40 dB: a seam cannot be heard */
    ALIGN_WITHIN_TICKS = 25,
    /* a block that goes out so much after its time, or before it, moves the tick */
    OFF_LATE_MS = 2,
    OFF_EARLY_MS = -1,
};

#define MS_NS ((int64_t)1000000)

_Static_assert((int)VR_RECEIVE_TOO_BIG == (int)VR_JITTER_TOO_BIG, "the jitter buffer's come first");

static int first_codec(const struct vr_receive_config *c) {
    if (c->opus_payload_type != VR_NO_PAYLOAD_TYPE)
        return VR_CODEC_OPUS;
    if (c->pcmu_payload_type != VR_NO_PAYLOAD_TYPE)
        return VR_CODEC_PCMU;
    return c->pcma_payload_type != VR_NO_PAYLOAD_TYPE ? VR_CODEC_PCMA : -1;
}

int vr_receiver_init(struct vr_receiver *r, const struct vr_receive_config *config) {
    int codec = first_codec(config);
    if (codec < 0 || !vr_codec_rate_valid(config->rate_hz))
        return -EINVAL;
    memset(r, 0, sizeof *r);
    r->config = *config;
    r->codec = r->sounding = (enum vr_codec)codec;
    vr_jitter_init(&r->jitter, vr_codec_clock_hz(r->codec));
    r->fifo_capacity_samples = config->rate_hz / 1000 * FIFO_MS;
    r->fifo = malloc(r->fifo_capacity_samples * sizeof *r->fifo);
    r->decoders[codec] = vr_decoder_new(r->codec, config->rate_hz);
    if (r->fifo != NULL && r->decoders[codec] != NULL)
        return 0;
    vr_receiver_free(r);
    return -ENOMEM;
}

void vr_receiver_free(struct vr_receiver *r) {
    for (int i = 0; i < VR_RECEIVE_CODECS; i++)
        vr_decoder_free(r->decoders[i]);
    free(r->fifo);
    memset(r, 0, sizeof *r);
}

/* --- packets --------------------------------------------------------------------------------- */

static int codec_of(const struct vr_receive_config *c, uint8_t payload_type) {
    if (payload_type == c->opus_payload_type)
        return VR_CODEC_OPUS;
    if (payload_type == c->pcmu_payload_type)
        return VR_CODEC_PCMU;
    return payload_type == c->pcma_payload_type ? VR_CODEC_PCMA : -1;
}

/* Of the codec before, with another clock, and overtaken by what came since: no change back. */
static bool is_straggler(const struct vr_receiver *r, enum vr_codec codec,
                         const struct vr_rtp *rtp) {
    const struct vr_jitter *j = &r->jitter;
    return vr_codec_clock_hz(codec) != j->clock_hz && j->started && j->ssrc == rtp->ssrc &&
           (int16_t)(rtp->sequence - (uint16_t)j->newest_sequence) < 0;
}

/* The client may change between negotiated codecs at any packet (RFC 3264 7). */
static bool switch_codec(struct vr_receiver *r, enum vr_codec codec) {
    if (codec == r->codec)
        return true;
    if (r->decoders[codec] == NULL)
        r->decoders[codec] = vr_decoder_new(codec, r->config.rate_hz);
    if (r->decoders[codec] == NULL)
        return false;
    if (vr_codec_clock_hz(codec) != r->jitter.clock_hz)
        vr_jitter_change_clock(&r->jitter, vr_codec_clock_hz(codec));
    r->codec = codec;
    return true;
}

static enum vr_receive_status put(struct vr_receiver *r, enum vr_rtp_status read,
                                  const struct vr_rtp *rtp, uint64_t now_ns) {
    if (read != VR_RTP_OK && read != VR_RTP_EMPTY)
        return VR_RECEIVE_RTP;
    int codec = read == VR_RTP_EMPTY ? -1 : codec_of(&r->config, rtp->payload_type);
    if (codec < 0) {
        vr_jitter_put(&r->jitter, rtp, 0, now_ns);
        if (read == VR_RTP_EMPTY)
            return VR_RECEIVE_EMPTY;
        if (rtp->payload_type != r->config.event_payload_type)
            return VR_RECEIVE_PAYLOAD_TYPE;
        vr_events_put(&r->events, rtp, now_ns);
        return VR_RECEIVE_OK;
    }
    uint32_t units = vr_codec_units((enum vr_codec)codec, rtp->payload, rtp->payload_bytes);
    if (units != 0 && is_straggler(r, (enum vr_codec)codec, rtp))
        return VR_RECEIVE_LATE;
    if (units == 0 || !switch_codec(r, (enum vr_codec)codec))
        return VR_RECEIVE_PAYLOAD; /* its sequence number is missing: what it stood for is concealed */
    return (enum vr_receive_status)vr_jitter_put(&r->jitter, rtp, units, now_ns);
}

enum vr_receive_status vr_receiver_put_rtp(struct vr_receiver *r, enum vr_rtp_status read,
                                           const struct vr_rtp *rtp, uint64_t now_ns) {
    enum vr_receive_status status = put(r, read, rtp, now_ns);
    r->counts.status[status]++;
    return status;
}

enum vr_receive_status vr_receiver_put(struct vr_receiver *r, const uint8_t *data, size_t bytes,
                                       uint64_t now_ns) {
    struct vr_rtp rtp;
    enum vr_rtp_status read = vr_rtp_read(data, bytes, &rtp);
    return vr_receiver_put_rtp(r, read, &rtp, now_ns);
}

/* --- blocks ---------------------------------------------------------------------------------- */

static uint32_t to_units(const struct vr_receiver *r, size_t samples) {
    return (uint32_t)((uint64_t)samples * r->jitter.clock_hz / r->config.rate_hz);
}

static size_t to_samples(const struct vr_receiver *r, uint32_t units) {
    return (size_t)((uint64_t)units * r->config.rate_hz / r->jitter.clock_hz);
}

/* What to ask the decoder for: SILK conceals whole 10 ms and drops what is not asked for, which
 * clicks; only senders of shorter frames use CELT alone. The surplus waits in the fifo, as delay. */
static size_t conceal_samples(const struct vr_receiver *r, size_t samples, bool whole_frame) {
    size_t shortest = r->config.rate_hz / 400, step = 4 * shortest;
    if (whole_frame && samples != 0 && samples % shortest == 0)
        return samples;
    return samples == 0 ? step : (samples + step - 1) / step * step;
}

/* The last 20 ms before plain zero fade, whatever the decoder makes of so long a loss. */
static void fade_to_silence(struct vr_receiver *r, int16_t *pcm, size_t samples) {
    int64_t per_ms = r->config.rate_hz / 1000, end = per_ms * CONCEAL_MS,
            fade = per_ms * VR_BLOCK_MS;
    for (size_t i = 0; i < samples; i++) {
        int64_t left = end - (int64_t)(r->silent_samples + i);
        if (left < fade)
            pcm[i] = (int16_t)(left <= 0 ? 0 : pcm[i] * left / fade);
    }
}

static size_t fill_silence(struct vr_receiver *r, struct vr_decoder *decoder, size_t samples,
                           int16_t *pcm) {
    if (samples == 0)
        samples = 1;
    if (r->silent_samples < r->config.rate_hz / 1000 * CONCEAL_MS) {
        samples = vr_decoder_conceal(decoder, conceal_samples(r, samples, false), pcm);
        fade_to_silence(r, pcm, samples);
        if (r->is_dtx)
            r->counts.silence_samples += samples;
        else
            r->counts.concealed_samples += samples;
    } else {
        memset(pcm, 0, samples * sizeof *pcm);
        r->counts.silence_samples += samples;
    }
    r->silent_samples += (uint32_t)samples;
    return samples;
}

/* All of a packet is out. */
static void note_age(struct vr_receiver *r, uint64_t now_ns, uint64_t arrival_ns) {
    uint64_t age_ns = now_ns - arrival_ns, step = age_ns / (VR_RECEIVE_AGE_MS * (uint64_t)MS_NS);
    int64_t beyond_ms = ((int64_t)age_ns - (int64_t)r->jitter.target_ns) / MS_NS;
    int64_t bucket = beyond_ms - VR_RECEIVE_BEYOND_LEAST_MS;
    bucket = bucket < 0 ? 0 : bucket;
    r->counts.ages[step < VR_RECEIVE_AGES ? step : VR_RECEIVE_AGES - 1]++;
    r->counts.beyond_target[bucket < VR_RECEIVE_BEYOND ? bucket : VR_RECEIVE_BEYOND - 1]++;
}

static void note_tail(struct vr_receiver *r, uint64_t now_ns) {
    if (r->tail_arrival_ns != 0)
        note_age(r, now_ns, r->tail_arrival_ns);
    r->tail_arrival_ns = 0;
}

static void note_grain(struct vr_receiver *r, size_t samples) {
    size_t block = r->config.rate_hz / 1000 * VR_BLOCK_MS;
    if (samples % block == 0)
        r->grain_samples = block;
    else
        r->grain_samples = block % samples == 0 ? samples : 0;
}

/* Decodes one more frame into the fifo, which has room for the longest. */
static void decode_next(struct vr_receiver *r, uint64_t now_ns, size_t want_samples) {
    struct vr_jitter_frame frame;
    uint32_t want_units = to_units(r, want_samples);
    vr_jitter_take(&r->jitter, now_ns, to_units(r, r->fifo_samples),
                   want_units != 0 ? want_units : 1, &frame);
    if (frame.payload != NULL) /* those of the codec before are still to be played */
        r->sounding = (enum vr_codec)codec_of(&r->config, frame.payload_type);
    struct vr_decoder *decoder = r->decoders[r->sounding];
    int16_t *pcm = r->fifo + r->fifo_samples;
    size_t samples = to_samples(r, frame.units), got;
    if (frame.kind == VR_JITTER_EMPTY) {
        r->fifo_samples += fill_silence(r, decoder, samples, pcm);
        return;
    }
    r->silent_samples = 0;
    if (frame.kind == VR_JITTER_LOST) {
        samples = conceal_samples(r, samples, true);
        if (frame.payload != NULL) {
            got = vr_decoder_recover(decoder, frame.payload, frame.payload_bytes, samples, pcm);
            r->counts.recovered_samples += got;
        } else {
            got = vr_decoder_conceal(decoder, samples, pcm);
            r->counts.concealed_samples += got;
        }
    } else {
        if (frame.restart)
            vr_decoder_reset(decoder);
        note_tail(r, now_ns); /* what waited goes out with the block that this packet is for */
        note_grain(r, samples);
        r->tail_arrival_ns = frame.arrival_ns;
        r->is_dtx = vr_codec_is_dtx(r->sounding, frame.payload_bytes);
        got = vr_decoder_decode(decoder, frame.payload, frame.payload_bytes, pcm);
        if (got == 0) {
            r->counts.decode_failures++;
            samples = conceal_samples(r, samples, true);
            got = vr_decoder_conceal(decoder, samples, pcm);
            r->counts.concealed_samples += got;
        }
    }
    if (got == 0) { /* even concealment failed: time passes all the same */
        memset(pcm, 0, samples * sizeof *pcm);
        got = samples;
        r->counts.silence_samples += got;
    }
    r->fifo_samples += got;
}

static size_t clamp_ms(const struct vr_receiver *r, int64_t ns, int64_t max_ms) {
    int64_t limit_ns = max_ms * MS_NS;
    return (size_t)((ns < limit_ns ? ns : limit_ns) * (int64_t)(r->config.rate_hz / 1000) / MS_NS);
}

/* Takes pieces out, or puts them in, while the delay is far from the target; the fifo holds a block before
 * and after. Returns whether it did. */
static bool scale_time(struct vr_receiver *r, uint64_t now_ns, size_t block, int64_t excess_ns) {
    uint32_t rate_hz = r->config.rate_hz;
    size_t by = 0;
    if (excess_ns > SHORTEN_ABOVE_MS * MS_NS) {
        size_t change = clamp_ms(r, excess_ns, SHORTEN_MAX_MS);
        size_t needs = block + vr_stretch_needs(rate_hz, change);
        if (r->fifo_samples < needs && vr_jitter_depth(&r->jitter) != 0)
            decode_next(r, now_ns, needs - r->fifo_samples);
        if (r->fifo_samples < needs)
            return true;
        by = vr_stretch_shorten(r->fifo, r->fifo_samples, rate_hz, change);
        r->fifo_samples -= by;
        r->counts.shortened_samples += by;
    } else if (excess_ns < -LENGTHEN_BELOW_MS * MS_NS) {
        size_t change = clamp_ms(r, -excess_ns, LENGTHEN_MAX_MS);
        if (r->fifo_samples + change > r->fifo_capacity_samples)
            return true;
        by = vr_stretch_lengthen(r->fifo, r->fifo_samples, rate_hz, change);
        r->fifo_samples += by;
        r->counts.lengthened_samples += by;
    }
    return by != 0;
}

static bool is_quiet(const int16_t *pcm, size_t samples) {
    for (size_t i = 0; i < samples; i++)
        if (pcm[i] > QUIET || pcm[i] < -QUIET)
            return false;
    return true;
}

/* Takes away, or fills up, what of a packet would wait for the next tick. */
static void align(struct vr_receiver *r, size_t block, int64_t excess_ns) {
    size_t rest = r->grain_samples == 0 ? 0 : (r->fifo_samples - block) % r->grain_samples;
    if (rest == 0 || r->silent_samples != 0) {
        r->unaligned_ticks = 0;
        return;
    }
    size_t missing = r->grain_samples - rest;
    if (++r->unaligned_ticks < ALIGN_WITHIN_TICKS && !is_quiet(r->fifo, r->fifo_samples))
        return;
    int64_t sample_ns = 1000000000 / (int64_t)r->config.rate_hz;
    int64_t if_cut_ns = excess_ns - (int64_t)rest * sample_ns;
    int64_t if_filled_ns = excess_ns + (int64_t)missing * sample_ns;
    bool room = r->fifo_samples + missing <= r->fifo_capacity_samples &&
                r->fifo_samples >= vr_stretch_needs(r->config.rate_hz, missing);
    if (room && if_filled_ns < -if_cut_ns) {
        vr_stretch_repeat(r->fifo, r->fifo_samples, r->config.rate_hz, missing);
        r->fifo_samples += missing;
        r->counts.lengthened_samples += missing;
    } else {
        vr_stretch_cut(r->fifo, r->fifo_samples, r->config.rate_hz, rest);
        r->fifo_samples -= rest;
        r->counts.shortened_samples += rest;
    }
    r->unaligned_ticks = 0;
}

static int64_t excess_ns(const struct vr_receiver *r, uint64_t now_ns) {
    return vr_jitter_excess_ns(&r->jitter, now_ns, to_units(r, r->fifo_samples));
}

bool vr_receiver_tick(struct vr_receiver *r, uint64_t now_ns, int16_t *pcm) {
    if (!r->jitter.started)
        return false;
    size_t block = r->config.rate_hz / 1000 * VR_BLOCK_MS;
    while (r->fifo_samples < block)
        decode_next(r, now_ns, block - r->fifo_samples);
    if (!scale_time(r, now_ns, block, excess_ns(r, now_ns)))
        align(r, block, excess_ns(r, now_ns));
    r->off_ns = excess_ns(r, now_ns);
    memcpy(pcm, r->fifo, block * sizeof *pcm);
    r->fifo_samples -= block;
    memmove(r->fifo, r->fifo + block, r->fifo_samples * sizeof *pcm);
    if (r->fifo_samples == 0)
        note_tail(r, now_ns);
    r->counts.samples += block;
    return true;
}

int vr_receiver_shift_ms(const struct vr_receiver *r, uint64_t late_ns) {
    if (r->off_ns == 0)
        return 0;
    int64_t off_ms = (r->off_ns - (int64_t)late_ns) / MS_NS;
    if (off_ms >= OFF_LATE_MS)
        return (int)(1 - off_ms);
    return off_ms <= OFF_EARLY_MS ? (int)-off_ms : 0;
}
