#include "codec.h"

#include "g711.h"

#include <opus/opus.h>
#include <speex/speex_resampler.h>
#include <stdlib.h>
#include <string.h>

enum {
    G711_HZ = 8000,
    G711_FRAME_MAX_SAMPLES = G711_HZ / 1000 * VR_CODEC_FRAME_MAX_MS,
    G711_CONCEAL_SAMPLES = G711_HZ / 50, /* the history that concealment repeats: 20 ms */
    RESAMPLER_QUALITY = 4,
};

struct vr_decoder {
    enum vr_codec codec;
    uint32_t rate_hz;
    OpusDecoder *opus;
    SpeexResamplerState *resampler; /* NULL at 8 kHz */
    int16_t history[G711_CONCEAL_SAMPLES];
    unsigned concealed_samples; /* of G.711, in a row */
};

struct vr_encoder {
    struct vr_encoder_config config;
    OpusEncoder *opus;
    SpeexResamplerState *resampler;
};

uint32_t vr_codec_clock_hz(enum vr_codec codec) {
    return codec == VR_CODEC_OPUS ? 48000 : G711_HZ;
}

bool vr_codec_rate_valid(uint32_t rate_hz) {
    return rate_hz == 8000 || rate_hz == 16000 || rate_hz == 24000 || rate_hz == 48000;
}

uint32_t vr_codec_units(enum vr_codec codec, const uint8_t *payload, size_t bytes) {
    if (codec != VR_CODEC_OPUS)
        return bytes >= 1 && bytes <= G711_FRAME_MAX_SAMPLES ? (uint32_t)bytes : 0;
    if (bytes == 0)
        return 0;
    unsigned char toc;
    opus_int16 sizes[48];
    const unsigned char *frames[48];
    int count = opus_packet_parse(payload, (opus_int32)bytes, &toc, frames, sizes, NULL);
    int samples = opus_packet_get_samples_per_frame(payload, 48000);
    if (count <= 0 || count * samples > 48 * VR_CODEC_FRAME_MAX_MS)
        return 0;
    return (uint32_t)(count * samples);
}

bool vr_codec_is_dtx(enum vr_codec codec, size_t bytes) {
    return codec == VR_CODEC_OPUS && bytes <= 2;
}

static bool make_resampler(SpeexResamplerState **out, uint32_t from_hz, uint32_t to_hz) {
    int error = 0;
    if (from_hz == to_hz)
        return true;
    *out = speex_resampler_init(1, from_hz, to_hz, RESAMPLER_QUALITY, &error);
    return *out != NULL;
}

/* --- decoding -------------------------------------------------------------------------------- */

struct vr_decoder *vr_decoder_new(enum vr_codec codec, uint32_t rate_hz) {
    struct vr_decoder *d = vr_codec_rate_valid(rate_hz) ? calloc(1, sizeof *d) : NULL;
    if (d == NULL)
        return NULL;
    d->codec = codec;
    d->rate_hz = rate_hz;
    bool made;
    if (codec == VR_CODEC_OPUS) {
        d->opus = opus_decoder_create((opus_int32)rate_hz, 1, NULL);
        made = d->opus != NULL;
    } else {
        made = make_resampler(&d->resampler, G711_HZ, rate_hz);
    }
    if (made)
        return d;
    vr_decoder_free(d);
    return NULL;
}

void vr_decoder_free(struct vr_decoder *d) {
    if (d == NULL)
        return;
    if (d->opus != NULL)
        opus_decoder_destroy(d->opus);
    if (d->resampler != NULL)
        speex_resampler_destroy(d->resampler);
    free(d);
}

void vr_decoder_reset(struct vr_decoder *d) {
    if (d->opus != NULL)
        opus_decoder_ctl(d->opus, OPUS_RESET_STATE);
    if (d->resampler != NULL)
        speex_resampler_reset_mem(d->resampler);
    memset(d->history, 0, sizeof d->history);
    d->concealed_samples = 0;
}

static size_t resample(SpeexResamplerState *resampler, const int16_t *in, size_t samples,
                       int16_t *out, size_t capacity) {
    if (resampler == NULL) {
        memcpy(out, in, samples * sizeof *in);
        return samples;
    }
    spx_uint32_t in_samples = (spx_uint32_t)samples, out_samples = (spx_uint32_t)capacity;
    speex_resampler_process_int(resampler, 0, in, &in_samples, out, &out_samples);
    return out_samples;
}

static size_t g711_finish(struct vr_decoder *d, const int16_t *narrow, size_t samples,
                          int16_t *pcm) {
    return resample(d->resampler, narrow, samples, pcm, samples * (d->rate_hz / G711_HZ));
}

static size_t g711_decode(struct vr_decoder *d, const uint8_t *payload, size_t bytes,
                          int16_t *pcm) {
    int16_t narrow[G711_FRAME_MAX_SAMPLES];
    if (bytes == 0 || bytes > G711_FRAME_MAX_SAMPLES)
        return 0;
    int16_t (*decode)(uint8_t) =
        d->codec == VR_CODEC_PCMU ? vr_g711_ulaw_decode : vr_g711_alaw_decode;
    for (size_t i = 0; i < bytes; i++)
        narrow[i] = decode(payload[i]);
    size_t kept = bytes < G711_CONCEAL_SAMPLES ? bytes : G711_CONCEAL_SAMPLES;
    memmove(d->history, d->history + kept, (G711_CONCEAL_SAMPLES - kept) * sizeof *narrow);
    memcpy(d->history + G711_CONCEAL_SAMPLES - kept, narrow + bytes - kept, kept * sizeof *narrow);
    d->concealed_samples = 0;
    return g711_finish(d, narrow, bytes, pcm);
}

/* Repeats the last 20 ms and fades them out over 60 ms, in the manner of G.711 appendix I. */
static size_t g711_conceal(struct vr_decoder *d, size_t samples, int16_t *pcm) {
    enum { FADE_SAMPLES = 3 * G711_CONCEAL_SAMPLES };
    int16_t narrow[G711_FRAME_MAX_SAMPLES];
    size_t count = samples / (d->rate_hz / G711_HZ);
    if (count > G711_FRAME_MAX_SAMPLES)
        count = G711_FRAME_MAX_SAMPLES;
    for (size_t i = 0; i < count; i++, d->concealed_samples++) {
        int left = FADE_SAMPLES - (int)d->concealed_samples;
        int sample = d->history[d->concealed_samples % G711_CONCEAL_SAMPLES];
        narrow[i] = left > 0 ? (int16_t)(sample * left / FADE_SAMPLES) : 0;
        if (left < -FADE_SAMPLES)
            d->concealed_samples -= G711_CONCEAL_SAMPLES;
    }
    return g711_finish(d, narrow, count, pcm);
}

static size_t opus_samples(int result) {
    return result > 0 ? (size_t)result : 0;
}

size_t vr_decoder_decode(struct vr_decoder *d, const uint8_t *payload, size_t bytes, int16_t *pcm) {
    if (d->opus == NULL)
        return g711_decode(d, payload, bytes, pcm);
    if (bytes == 0)
        return 0;
    return opus_samples(opus_decode(d->opus, payload, (opus_int32)bytes, pcm,
                                    (int)(d->rate_hz / 1000 * VR_CODEC_FRAME_MAX_MS), 0));
}

size_t vr_decoder_recover(struct vr_decoder *d, const uint8_t *next_payload, size_t bytes,
                          size_t samples, int16_t *pcm) {
    if (d->opus == NULL || bytes == 0)
        return vr_decoder_conceal(d, samples, pcm);
    size_t got =
        opus_samples(opus_decode(d->opus, next_payload, (opus_int32)bytes, pcm, (int)samples, 1));
    return got != 0 ? got : vr_decoder_conceal(d, samples, pcm);
}

size_t vr_decoder_conceal(struct vr_decoder *d, size_t samples, int16_t *pcm) {
    if (d->opus == NULL)
        return g711_conceal(d, samples, pcm);
    return opus_samples(opus_decode(d->opus, NULL, 0, pcm, (int)samples, 0));
}

/* --- encoding -------------------------------------------------------------------------------- */

static void apply(struct vr_encoder *e) {
    if (e->opus == NULL)
        return;
    opus_encoder_ctl(e->opus, OPUS_SET_BITRATE((opus_int32)e->config.bitrate));
    opus_encoder_ctl(e->opus, OPUS_SET_COMPLEXITY(e->config.complexity));
    opus_encoder_ctl(e->opus, OPUS_SET_INBAND_FEC(e->config.fec));
    opus_encoder_ctl(e->opus, OPUS_SET_DTX(e->config.dtx));
    opus_encoder_ctl(e->opus, OPUS_SET_PACKET_LOSS_PERC(e->config.expected_loss_percent));
}

struct vr_encoder *vr_encoder_new(const struct vr_encoder_config *config) {
    struct vr_encoder *e = vr_codec_rate_valid(config->rate_hz) ? calloc(1, sizeof *e) : NULL;
    if (e == NULL)
        return NULL;
    e->config = *config;
    bool made;
    if (config->codec == VR_CODEC_OPUS) {
        e->opus = opus_encoder_create((opus_int32)config->rate_hz, 1, OPUS_APPLICATION_VOIP, NULL);
        made = e->opus != NULL;
    } else {
        made = make_resampler(&e->resampler, config->rate_hz, G711_HZ);
    }
    if (!made) {
        vr_encoder_free(e);
        return NULL;
    }
    if (e->opus != NULL)
        opus_encoder_ctl(e->opus, OPUS_SET_SIGNAL(OPUS_SIGNAL_VOICE));
    apply(e);
    return e;
}

void vr_encoder_free(struct vr_encoder *e) {
    if (e == NULL)
        return;
    if (e->opus != NULL)
        opus_encoder_destroy(e->opus);
    if (e->resampler != NULL)
        speex_resampler_destroy(e->resampler);
    free(e);
}

bool vr_encoder_configure(struct vr_encoder *e, const struct vr_encoder_config *config) {
    if (config->codec != e->config.codec || config->rate_hz != e->config.rate_hz)
        return false;
    e->config = *config;
    apply(e);
    return true;
}

size_t vr_encoder_encode(struct vr_encoder *e, const int16_t *pcm, uint8_t *payload,
                         size_t capacity) {
    size_t samples = e->config.rate_hz / 50;
    if (e->opus != NULL) {
        int bytes = opus_encode(e->opus, pcm, (int)samples, payload, (opus_int32)capacity);
        return bytes > 0 ? (size_t)bytes : 0;
    }
    int16_t narrow[G711_HZ / 50];
    size_t count = resample(e->resampler, pcm, samples, narrow, G711_HZ / 50);
    if (count > capacity)
        return 0;
    uint8_t (*encode)(int16_t) =
        e->config.codec == VR_CODEC_PCMU ? vr_g711_ulaw_encode : vr_g711_alaw_encode;
    for (size_t i = 0; i < count; i++)
        payload[i] = encode(narrow[i]);
    return count;
}
