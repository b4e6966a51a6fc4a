#include "stretch.h"

#include <string.h>

/* The overlap of a seam, and the shortest piece: 2.5 ms is a pitch of 400 Hz. */
static size_t overlap_samples(uint32_t rate_hz) {
    return rate_hz / 200;
}
static size_t shortest_samples(uint32_t rate_hz) {
    return rate_hz / 400;
}

size_t vr_stretch_needs(uint32_t rate_hz, size_t change_samples) {
    return change_samples + overlap_samples(rate_hz);
}

/* The distance in [shortest, longest] at which the first samples come again most alike. Every other
 * sample and lag are enough: a seam does not need the best, only a good one. */
static size_t best_lag(const int16_t *pcm, size_t overlap, size_t shortest, size_t longest) {
    size_t best = longest;
    float best_score = -1.0f;
    for (size_t lag = shortest; lag <= longest; lag += 2) {
        float product = 0, energy = 1;
        for (size_t i = 0; i < overlap; i += 2) {
            float later = pcm[lag + i];
            product += pcm[i] * later;
            energy += later * later;
        }
        float score = product > 0 ? product * product / energy : 0;
        if (score > best_score) {
            best_score = score;
            best = lag;
        }
    }
    return best_score > 0 ? best : longest;
}

static int16_t fade(int16_t from, int16_t to, size_t i, size_t overlap) {
    int n = (int)overlap, k = (int)i;
    return (int16_t)((from * (n - k) + to * k) / n);
}

void vr_stretch_cut(int16_t *pcm, size_t samples, uint32_t rate_hz, size_t lag) {
    size_t overlap = overlap_samples(rate_hz);
    for (size_t i = 0; i < overlap; i++)
        pcm[i] = fade(pcm[i], pcm[lag + i], i, overlap);
    memmove(pcm + overlap, pcm + lag + overlap, (samples - lag - overlap) * sizeof *pcm);
}

void vr_stretch_repeat(int16_t *pcm, size_t samples, uint32_t rate_hz, size_t lag) {
    size_t overlap = overlap_samples(rate_hz);
    /* x[0..lag), then back: x[lag..) fades into x[0..), which goes on to the end */
    memmove(pcm + lag, pcm, samples * sizeof *pcm);
    /* pcm[0..lag) is still the beginning; pcm[2 * lag + i] is what was pcm[lag + i] */
    for (size_t i = 0; i < overlap; i++) {
        int16_t went_on = pcm[2 * lag + i];
        pcm[lag + i] = fade(went_on, pcm[lag + i], i, overlap);
    }
}

/* The lag to change by; 0 when there is too little to choose from. */
static size_t choose(const int16_t *pcm, size_t samples, uint32_t rate_hz, size_t change_samples) {
    size_t shortest = shortest_samples(rate_hz);
    if (change_samples < shortest || samples < vr_stretch_needs(rate_hz, change_samples))
        return 0;
    return best_lag(pcm, overlap_samples(rate_hz), shortest, change_samples);
}

size_t vr_stretch_shorten(int16_t *pcm, size_t samples, uint32_t rate_hz, size_t change_samples) {
    size_t lag = choose(pcm, samples, rate_hz, change_samples);
    if (lag != 0)
        vr_stretch_cut(pcm, samples, rate_hz, lag);
    return lag;
}

size_t vr_stretch_lengthen(int16_t *pcm, size_t samples, uint32_t rate_hz, size_t change_samples) {
    size_t lag = choose(pcm, samples, rate_hz, change_samples);
    if (lag != 0)
        vr_stretch_repeat(pcm, samples, rate_hz, lag);
    return lag;
}
