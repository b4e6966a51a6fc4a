#include "g711.h"

enum { ULAW_BIAS = 0x84, ULAW_CLIP = 32635 };

int16_t vr_g711_ulaw_decode(uint8_t code) {
    code = (uint8_t)~code;
    int magnitude = (((code & 0x0f) << 3) + ULAW_BIAS) << ((code & 0x70) >> 4);
    return (int16_t)(code & 0x80 ? ULAW_BIAS - magnitude : magnitude - ULAW_BIAS);
}

int16_t vr_g711_alaw_decode(uint8_t code) {
    code ^= 0x55;
    int magnitude = (code & 0x0f) << 4, segment = (code & 0x70) >> 4;
    magnitude += segment == 0 ? 8 : 0x108;
    if (segment > 1)
        magnitude <<= segment - 1;
    return (int16_t)(code & 0x80 ? magnitude : -magnitude);
}

/* Position of the highest set bit of a value of 1..255 in the segment scale of both laws. */
static int segment_of(int magnitude, int lowest_bit) {
    int segment = 0;
    for (int rest = magnitude >> (lowest_bit + 1); rest != 0 && segment < 7; rest >>= 1)
        segment++;
    return segment;
}

uint8_t vr_g711_ulaw_encode(int16_t sample) {
    int magnitude = sample < 0 ? -(int)sample : sample;
    if (magnitude > ULAW_CLIP)
        magnitude = ULAW_CLIP;
    magnitude += ULAW_BIAS;
    int segment = segment_of(magnitude, 7);
    int code = segment << 4 | ((magnitude >> (segment + 3)) & 0x0f);
    return (uint8_t)~(sample < 0 ? code | 0x80 : code);
}

uint8_t vr_g711_alaw_encode(int16_t sample) {
    int magnitude = sample < 0 ? -(int)sample - 1 : sample;
    int segment = segment_of(magnitude, 7);
    int code = segment << 4 | ((magnitude >> (segment == 0 ? 4 : segment + 3)) & 0x0f);
    return (uint8_t)((sample < 0 ? code : code | 0x80) ^ 0x55);
}
