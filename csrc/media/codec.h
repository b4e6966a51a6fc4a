/* codec.h: Opus (RFC 6716, RFC 7587) and G.711 between payloads and 16-bit mono PCM.
 *
 * 1. PCM has the session's rate (8, 16, 24 or 48 kHz). Opus decodes and encodes at it directly; G.711 is
 *    resampled by libspeexdsp (Debian keeps it; a few KiB of state, 3 ms of delay at 8 kHz, where soxr
 *    takes hundreds of KiB).
 * 2. Stereo is mixed down, so a tone on one side comes at half its amplitude; we send mono.
 * 3. A payload is checked before it is decoded (vr_codec_units); what the decoder still refuses is
 *    concealed like a loss. Concealment fades out by itself within 100 ms.
 * 4. All memory is taken when a decoder or encoder is made. One thread at a time each.
 */
#ifndef VR_CODEC_H
#define VR_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum vr_codec { VR_CODEC_OPUS, VR_CODEC_PCMU, VR_CODEC_PCMA };

enum {
    VR_CODEC_FRAME_MAX_MS = 120, /* RFC 6716 3.2.5 */
    VR_CODEC_RATE_MAX_HZ = 48000,
    VR_CODEC_FRAME_MAX_SAMPLES = VR_CODEC_RATE_MAX_HZ / 1000 * VR_CODEC_FRAME_MAX_MS,
    VR_CODEC_PAYLOAD_MAX_BYTES = 1275, /* of one Opus frame */
};

/* The RTP clock: 48,000 for Opus at any rate (RFC 7587 4.1), 8,000 for G.711. */
uint32_t vr_codec_clock_hz(enum vr_codec codec);

bool vr_codec_rate_valid(uint32_t rate_hz);

/* Duration of a payload in units of the RTP clock, 0 when it is none: an Opus packet whose table of
 * contents or framing is broken or that is longer than 120 ms. */
uint32_t vr_codec_units(enum vr_codec codec, const uint8_t *payload, size_t bytes);

/* An Opus payload without sound: what a sender with DTX sends now and then in silence. */
bool vr_codec_is_dtx(enum vr_codec codec, size_t bytes);

struct vr_decoder;

/* NULL when the rate is none of ours or memory is short. */
struct vr_decoder *vr_decoder_new(enum vr_codec codec, uint32_t rate_hz);
void vr_decoder_free(struct vr_decoder *decoder);
void vr_decoder_reset(struct vr_decoder *decoder);

/* Each returns the samples written to `pcm` (room for VR_CODEC_FRAME_MAX_SAMPLES), 0 when the payload
 * is not to be decoded. `samples` is a multiple of 2.5 ms up to 120 ms, of the session's rate. */
size_t vr_decoder_decode(struct vr_decoder *decoder, const uint8_t *payload, size_t bytes,
                         int16_t *pcm);
size_t vr_decoder_recover(struct vr_decoder *decoder, const uint8_t *next_payload, size_t bytes,
                          size_t samples, int16_t *pcm); /* the frame before `next_payload` */
size_t vr_decoder_conceal(struct vr_decoder *decoder, size_t samples, int16_t *pcm);

struct vr_encoder_config {
    enum vr_codec codec;
    uint32_t rate_hz;
    uint32_t bitrate;   /* bit/s, Opus only from here on */
    uint8_t complexity; /* 0..10 */
    uint8_t expected_loss_percent;
    bool fec;
    bool dtx;
};

struct vr_encoder;

struct vr_encoder *vr_encoder_new(const struct vr_encoder_config *config);
void vr_encoder_free(struct vr_encoder *encoder);

/* Takes effect with the next frame; codec and rate cannot change (false). */
bool vr_encoder_configure(struct vr_encoder *encoder, const struct vr_encoder_config *config);

/* Encodes 20 ms. Returns the payload's bytes, at most `capacity`; 1 or 2 for an Opus frame that DTX says
 * need not be sent; 0 upon failure. */
size_t vr_encoder_encode(struct vr_encoder *encoder, const int16_t *pcm, uint8_t *payload,
                         size_t capacity);

#endif
