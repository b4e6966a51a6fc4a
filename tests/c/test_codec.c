/* Codecs: Opus at every rate, G.711 bit by bit, damaged payloads, concealment. */
#include "../../csrc/media/codec.h"
#include "../../csrc/media/g711.h"

#include "check.h"
#include "sound.h"

#include <opus/opus.h>

static const uint32_t rates[] = {8000, 16000, 24000, 48000};
enum { RATES = sizeof rates / sizeof rates[0] };

TEST(g711_codes_survive_a_round_trip) {
    for (int code = 0; code < 256; code++) {
        CHECK_EQ(vr_g711_alaw_encode(vr_g711_alaw_decode((uint8_t)code)), code);
        if (code != 0x7f) /* mu-law has two zeros; the positive one is sent */
            CHECK_EQ(vr_g711_ulaw_encode(vr_g711_ulaw_decode((uint8_t)code)), code);
    }
    /* ITU-T G.711 tables: the ends of the scales */
    CHECK_EQ(vr_g711_ulaw_decode(0x80), 32124);
    CHECK_EQ(vr_g711_ulaw_decode(0x00), -32124);
    CHECK_EQ(vr_g711_ulaw_decode(0xff), 0);
    CHECK_EQ(vr_g711_alaw_decode(0xaa), 32256);
    CHECK_EQ(vr_g711_alaw_decode(0x2a), -32256);
    CHECK_EQ(vr_g711_alaw_decode(0xd5), 8);
    CHECK_EQ(vr_g711_alaw_encode(-32768), 0x2a);
    CHECK_EQ(vr_g711_ulaw_encode(-32768), 0x00);
}

TEST(g711_error_is_small_everywhere) {
    for (int s = -32768; s < 32768; s += 7) {
        int size = s < 0 ? -s : s;
        int ulaw = vr_g711_ulaw_decode(vr_g711_ulaw_encode((int16_t)s)) - s;
        int alaw = vr_g711_alaw_decode(vr_g711_alaw_encode((int16_t)s)) - s;
        CHECK(abs(ulaw) <= size / 16 + 660 * (size > 32124) + 8);
        CHECK(abs(alaw) <= size / 16 + 520 * (size > 32256) + 16);
    }
}

static size_t round_trip(enum vr_codec codec, uint32_t rate_hz, int16_t *out, unsigned frames) {
    struct vr_encoder_config config = {
        .codec = codec, .rate_hz = rate_hz, .bitrate = 24000, .complexity = 5};
    struct vr_encoder *e = vr_encoder_new(&config);
    struct vr_decoder *d = vr_decoder_new(codec, rate_hz);
    size_t got = 0;
    for (unsigned i = 0; i < frames; i++) {
        int16_t pcm[960];
        uint8_t payload[400];
        sound_tone(pcm, rate_hz / 50, 440, rate_hz, 8000, i * rate_hz / 50);
        size_t bytes = vr_encoder_encode(e, pcm, payload, sizeof payload);
        CHECK(bytes > 0);
        CHECK_EQ(vr_codec_units(codec, payload, bytes), vr_codec_clock_hz(codec) / 50);
        got += vr_decoder_decode(d, guard_copy(payload, bytes), bytes, out + got);
    }
    vr_encoder_free(e);
    vr_decoder_free(d);
    return got;
}

TEST(tone_keeps_pitch_length_and_level_at_every_rate) {
    static int16_t out[48000 * 2 + VR_CODEC_FRAME_MAX_SAMPLES];
    static const enum vr_codec codecs[] = {VR_CODEC_OPUS, VR_CODEC_PCMU, VR_CODEC_PCMA};
    for (size_t c = 0; c < 3; c++)
        for (size_t r = 0; r < RATES; r++) {
            size_t got = round_trip(codecs[c], rates[r], out, 100);
            CHECK_EQ(got, 2 * rates[r]);
            size_t skip = rates[r] / 4;
            CHECK(fabs(sound_frequency(out + skip, got - skip, rates[r]) - 440) < 2);
            CHECK(fabs(sound_rms(out + skip, got - skip) / (8000 / sqrt(2)) - 1) < 0.2);
        }
}

TEST(left_only_stereo_comes_at_half_amplitude) { /* C20 */
    OpusEncoder *e = opus_encoder_create(48000, 2, OPUS_APPLICATION_AUDIO, NULL);
    opus_encoder_ctl(e, OPUS_SET_BITRATE(128000));
    opus_encoder_ctl(e, OPUS_SET_FORCE_CHANNELS(2));
    struct vr_decoder *d = vr_decoder_new(VR_CODEC_OPUS, 24000);
    static int16_t out[24000 * 2 + VR_CODEC_FRAME_MAX_SAMPLES];
    size_t got = 0;
    for (unsigned i = 0; i < 100; i++) {
        int16_t mono[960], stereo[1920] = {0};
        uint8_t payload[1275];
        sound_tone(mono, 960, 440, 48000, 8000, i * 960);
        for (int k = 0; k < 960; k++)
            stereo[2 * k] = mono[k];
        int bytes = opus_encode(e, stereo, 960, payload, sizeof payload);
        CHECK_EQ(vr_codec_units(VR_CODEC_OPUS, payload, (size_t)bytes), 960);
        got += vr_decoder_decode(d, payload, (size_t)bytes, out + got);
    }
    CHECK_EQ(got, 48000);
    CHECK(fabs(sound_frequency(out + 6000, got - 6000, 24000) - 440) < 2);
    CHECK(fabs(20 * log10(sound_rms(out + 6000, got - 6000) / (8000 / sqrt(2))) + 6) < 1);
    opus_encoder_destroy(e);
    vr_decoder_free(d);
}

TEST(units_of_every_opus_frame_size) {
    OpusEncoder *e = opus_encoder_create(48000, 1, OPUS_APPLICATION_AUDIO, NULL);
    static const int sizes[] = {120, 240, 480, 960, 1920, 2880, 3840, 4800, 5760};
    static int16_t pcm[5760];
    sound_tone(pcm, 5760, 300, 48000, 5000, 0);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint8_t payload[4000];
        int bytes = opus_encode(e, pcm, sizes[i], payload, sizeof payload);
        CHECK_EQ(vr_codec_units(VR_CODEC_OPUS, guard_copy(payload, (size_t)bytes), (size_t)bytes),
                 sizes[i]);
    }
    opus_encoder_destroy(e);
}

TEST(broken_payloads_have_no_duration) {
    static const struct {
        const char *what, *hex;
    } cases[] = {
        {"nothing", ""},
        {"code 3 without a count", "ff"},
        {"code 3 with 0 frames", "ff00"},
        {"code 3, more than 120 ms", "ff3f"},
        {"code 1, odd length", "fd01"},
        {"code 2, length past the end", "fe30"},
        {"padding past the end", "ff41ff"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t bytes[8];
        size_t n = from_hex(cases[i].hex, bytes, sizeof bytes);
        CASE(cases[i].what);
        CHECK_EQ(vr_codec_units(VR_CODEC_OPUS, guard_copy(bytes, n), n), 0);
    }
    static uint8_t big[2000];
    CHECK_EQ(vr_codec_units(VR_CODEC_OPUS, guard_copy(big, 1277), 1277), 0);
    CHECK_EQ(vr_codec_units(VR_CODEC_PCMU, big, 961), 0);
}

/* C14: whatever the bytes, the decoder returns and keeps its bounds. */
TEST(random_payloads_never_break_the_decoder) {
    uint64_t random = 3;
    struct vr_decoder *d = vr_decoder_new(VR_CODEC_OPUS, 48000);
    int16_t *out = malloc(VR_CODEC_FRAME_MAX_SAMPLES * sizeof *out);
    for (int i = 0; i < 3000; i++) {
        uint8_t payload[1276];
        size_t bytes = 1 + sound_random(&random) % (i % 3 == 0 ? 1276 : 60);
        for (size_t k = 0; k < bytes; k++)
            payload[k] = (uint8_t)(sound_random(&random) >> 32);
        uint8_t *data = guard_copy(payload, bytes);
        if (vr_codec_units(VR_CODEC_OPUS, data, bytes) == 0)
            continue;
        size_t got = vr_decoder_decode(d, data, bytes, out);
        CHECK(got <= VR_CODEC_FRAME_MAX_SAMPLES);
        vr_decoder_recover(d, data, bytes, 960, out);
        vr_decoder_conceal(d, 960, out);
    }
    free(out);
    vr_decoder_free(d);
}

TEST(g711_concealment_repeats_and_fades) {
    struct vr_decoder *d = vr_decoder_new(VR_CODEC_PCMU, 8000);
    uint8_t payload[160];
    int16_t pcm[960], out[VR_CODEC_FRAME_MAX_SAMPLES];
    sound_tone(pcm, 160, 400, 8000, 8000, 0);
    for (int i = 0; i < 160; i++)
        payload[i] = vr_g711_ulaw_encode(pcm[i]);
    CHECK_EQ(vr_decoder_decode(d, payload, 160, out), 160);
    double before = sound_rms(out, 160);
    CHECK_EQ(vr_decoder_conceal(d, 160, out), 160);
    double first = sound_rms(out, 160);
    CHECK(first > before * 0.6 && first < before);
    CHECK_EQ(vr_decoder_conceal(d, 320, out), 320);
    for (int i = 0; i < 100; i++)
        CHECK_EQ(vr_decoder_conceal(d, 160, out), 160);
    CHECK(sound_rms(out, 160) == 0);
    vr_decoder_free(d);
}

TEST(dtx_and_settings) {
    struct vr_encoder_config config = {.codec = VR_CODEC_OPUS,
                                       .rate_hz = 24000,
                                       .bitrate = 24000,
                                       .complexity = 0,
                                       .dtx = true,
                                       .fec = true,
                                       .expected_loss_percent = 10};
    struct vr_encoder *e = vr_encoder_new(&config);
    int16_t silence[480] = {0};
    uint8_t payload[400];
    unsigned small = 0;
    for (int i = 0; i < 100; i++)
        small += vr_encoder_encode(e, silence, payload, sizeof payload) <= 2;
    CHECK(small > 50);
    CHECK(vr_codec_is_dtx(VR_CODEC_OPUS, 1) && !vr_codec_is_dtx(VR_CODEC_PCMU, 1));
    config.complexity = 9;
    config.bitrate = 16000;
    CHECK(vr_encoder_configure(e, &config));
    config.rate_hz = 16000;
    CHECK(!vr_encoder_configure(e, &config));
    vr_encoder_free(e);
    config.rate_hz = 44100;
    CHECK(vr_encoder_new(&config) == NULL && vr_decoder_new(VR_CODEC_OPUS, 44100) == NULL);
}
