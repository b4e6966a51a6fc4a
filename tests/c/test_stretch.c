/* Time-scaling: pitch stays, no clicks, and the length changes by what is returned. */
#include "../../csrc/media/stretch.h"

#include "check.h"
#include "sound.h"

enum { RATE = 24000 };

TEST(a_tone_keeps_its_pitch_both_ways) {
    static const double pitches[] = {80, 110, 200, 350, 440};
    for (size_t p = 0; p < sizeof pitches / sizeof pitches[0]; p++) {
        int16_t pcm[2400 + 360], shorter[2400];
        sound_tone(pcm, 2400, pitches[p], RATE, 8000, 0);
        memcpy(shorter, pcm, sizeof shorter);
        int step = sound_largest_step(pcm, 2400);
        size_t by = vr_stretch_shorten(shorter, 2400, RATE, 360);
        CHECK(by >= 60 && by <= 360);
        CHECK(sound_largest_step(shorter, 2400 - by) <= step * 3 / 2);
        CHECK(fabs(sound_frequency(shorter, 2400 - by, RATE) / pitches[p] - 1) < 0.03);
        by = vr_stretch_lengthen(pcm, 2400, RATE, 360);
        CHECK(by >= 60 && by <= 360);
        CHECK(sound_largest_step(pcm, 2400 + by) <= step * 3 / 2);
        CHECK(fabs(sound_frequency(pcm, 2400 + by, RATE) / pitches[p] - 1) < 0.03);
    }
}

TEST(silence_gives_the_whole_piece) {
    int16_t pcm[960 + 360] = {0};
    CHECK_EQ(vr_stretch_shorten(pcm, 960, RATE, 360), 360);
    CHECK_EQ(vr_stretch_lengthen(pcm, 960, RATE, 360), 360);
}

TEST(too_little_is_left_alone) {
    int16_t pcm[960] = {0};
    CHECK_EQ(vr_stretch_shorten(pcm, 479, RATE, 360), 0);
    CHECK_EQ(vr_stretch_shorten(pcm, 480, RATE, 360), 360);
    CHECK_EQ(vr_stretch_shorten(pcm, 960, RATE, 59), 0);
    CHECK_EQ(vr_stretch_lengthen(pcm, 100, RATE, 60), 0);
}

TEST(noise_at_every_rate_stays_in_bounds) {
    static const uint32_t rates[] = {8000, 16000, 24000, 48000};
    uint64_t random = 5;
    for (size_t r = 0; r < 4; r++)
        for (int round = 0; round < 200; round++) {
            size_t samples = rates[r] / 50 + sound_random(&random) % (rates[r] / 50);
            size_t change = sound_random(&random) % (rates[r] / 66);
            int16_t *pcm = malloc((samples + change + 1) * sizeof *pcm);
            for (size_t i = 0; i < samples; i++)
                pcm[i] = (int16_t)(sound_random(&random) >> 40);
            size_t by = vr_stretch_shorten(pcm, samples, rates[r], change);
            CHECK(by <= change);
            by = vr_stretch_lengthen(pcm, samples - by, rates[r], change);
            CHECK(by <= change);
            free(pcm);
        }
}
