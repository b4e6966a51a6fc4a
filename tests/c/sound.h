/* sound.h: what tests of sound share: tones, their frequency, energy, and repeatable random numbers. */
#ifndef VR_SOUND_H
#define VR_SOUND_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#ifndef M_PI
#define M_PI 3.14159265358979323846
#endif

static inline uint64_t sound_random(uint64_t *state) { /* xorshift64* */
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717u;
}

static inline void sound_tone(int16_t *pcm, size_t samples, double hz, double rate_hz, double level,
                              size_t first) {
    for (size_t i = 0; i < samples; i++)
        pcm[i] = (int16_t)lrint(level * sin(2 * M_PI * hz * (double)(first + i) / rate_hz));
}

static inline double sound_rms(const int16_t *pcm, size_t samples) {
    double sum = 0;
    for (size_t i = 0; i < samples; i++)
        sum += (double)pcm[i] * pcm[i];
    return sqrt(sum / (double)(samples != 0 ? samples : 1));
}

/* By upward zero crossings, interpolated: exact for one clean tone. */
static inline double sound_frequency(const int16_t *pcm, size_t samples, double rate_hz) {
    double first = -1, last = -1;
    unsigned count = 0;
    for (size_t i = 1; i < samples; i++)
        if (pcm[i - 1] < 0 && pcm[i] >= 0) {
            double at = (double)i - pcm[i] / ((double)pcm[i] - pcm[i - 1]);
            if (first < 0)
                first = at;
            else
                count++;
            last = at;
        }
    return count == 0 ? 0 : count * rate_hz / (last - first);
}

/* The largest step between neighbours: a click stands out in a smooth sound. */
static inline int sound_largest_step(const int16_t *pcm, size_t samples) {
    int largest = 0;
    for (size_t i = 1; i < samples; i++) {
        int step = pcm[i] - pcm[i - 1];
        if (step < 0)
            step = -step;
        if (step > largest)
            largest = step;
    }
    return largest;
}

#endif
