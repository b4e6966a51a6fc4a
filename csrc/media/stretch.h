/* stretch.h: takes a few milliseconds out of mono speech, or puts them in, at its own period.
 *
 * The piece is chosen where the sound best resembles itself (normalised correlation), and the seam is a
 * cross-fade: pitch stays, clicks do not arise. In silence any length fits. Pure functions.
 */
#ifndef VR_STRETCH_H
#define VR_STRETCH_H

#include <stddef.h>
#include <stdint.h>

/* Samples that a call needs at least, to change the length by up to `change_samples`. */
size_t vr_stretch_needs(uint32_t rate_hz, size_t change_samples);

/* Shortens `pcm` in place by 2.5 ms up to `change_samples`; returns by how much: 0 when `samples` are
 * fewer than vr_stretch_needs says. */
size_t vr_stretch_shorten(int16_t *pcm, size_t samples, uint32_t rate_hz, size_t change_samples);

/* Lengthens `pcm` in place likewise; the caller has room for `samples + change_samples`. */
size_t vr_stretch_lengthen(int16_t *pcm, size_t samples, uint32_t rate_hz, size_t change_samples);

/* As these two, by exactly `samples_by`, whatever the sound; `samples` are at least so many and an overlap
 * (vr_stretch_needs). */
void vr_stretch_cut(int16_t *pcm, size_t samples, uint32_t rate_hz, size_t samples_by);
void vr_stretch_repeat(int16_t *pcm, size_t samples, uint32_t rate_hz, size_t samples_by);

#endif
