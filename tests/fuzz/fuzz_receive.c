/* The whole receive path behind SRTP: a script of packets with any payload, and blocks.
 * A step: length 1, delay 1, then that many bytes of a packet; a length of 0 is a block. */
#include "fuzz.h"
#include "media/receive.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const struct vr_receive_config config = {24000, 111, 0, 8, 110};
    struct vr_receiver r;
    uint64_t now_ns = 1000000000;
    int16_t *pcm = malloc(480 * sizeof *pcm);
    HOLDS(pcm != NULL && vr_receiver_init(&r, &config) == 0);
    for (size_t at = 0; at + 2 <= bytes;) {
        size_t length = data[at], rest = bytes - at - 2;
        now_ns += (uint64_t)data[at + 1] * 1000000;
        at += 2;
        if (length == 0) {
            vr_receiver_tick(&r, now_ns, pcm);
        } else {
            length = length < rest ? length : rest;
            uint8_t *copy = exact_copy(data + at, length);
            vr_receiver_put(&r, copy, length, now_ns);
            free(copy);
            at += length;
        }
        HOLDS(r.fifo_samples <= r.fifo_capacity_samples);
        HOLDS(vr_events_take(&r.events) <= 16);
    }
    vr_receiver_free(&r);
    free(pcm);
    return 0;
}
