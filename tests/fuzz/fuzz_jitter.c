/* A script of packets and blocks for the jitter buffer: 8 bytes a step. Bounds hold after each. */
#include "fuzz.h"
#include "media/jitter.h"
#include "wire/bytes.h"

static struct vr_jitter j;

static void play(uint64_t now_ns) {
    uint32_t pending = 0;
    for (int i = 0; pending < 960; i++) {
        struct vr_jitter_frame frame;
        vr_jitter_take(&j, now_ns, pending, 960 - pending, &frame);
        HOLDS(frame.units > 0 && i < 2000);
        HOLDS(frame.kind != VR_JITTER_EMPTY || frame.units <= 960 - pending);
        HOLDS(frame.kind != VR_JITTER_PACKET || frame.payload != NULL);
        uint32_t sum = 0;
        for (size_t k = 0; frame.payload != NULL && k < frame.payload_bytes; k++)
            sum += frame.payload[k];
        HOLDS(sum < UINT32_MAX);
        pending += frame.units;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static uint8_t payload[VR_JITTER_PAYLOAD_MAX_BYTES];
    uint64_t now_ns = 1000000000;
    vr_jitter_init(&j, 48000);
    for (size_t at = 0; at + 8 <= bytes; at += 8) {
        const uint8_t *step = data + at;
        now_ns += (uint64_t)step[1] * (step[0] & 0x80 ? 50000000 : 500000);
        if (step[0] & 1) {
            play(now_ns);
        } else {
            struct vr_rtp rtp = {.ssrc = step[0] >> 1 & 3,
                                 .sequence = vr_load_be16(step + 2),
                                 .timestamp = vr_load_be16(step + 4) * 960u +
                                              (step[0] & 8 ? 0x80000000u : 0),
                                 .payload = payload,
                                 .payload_bytes = step[6] * 6u};
            vr_jitter_put(&j, &rtp, step[7] % 13 * 480u, now_ns);
        }
        HOLDS(vr_jitter_depth(&j) <= VR_JITTER_SLOTS);
        HOLDS(j.target_ns >= 20000000 && j.target_ns <= 200000000);
    }
    return 0;
}
