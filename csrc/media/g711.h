/* g711.h: PCMU and PCMA (ITU-T G.711), 8 kHz, one byte a sample. */
#ifndef VR_G711_H
#define VR_G711_H

#include <stddef.h>
#include <stdint.h>

int16_t vr_g711_ulaw_decode(uint8_t code);
int16_t vr_g711_alaw_decode(uint8_t code);
uint8_t vr_g711_ulaw_encode(int16_t sample);
uint8_t vr_g711_alaw_encode(int16_t sample);

#endif
