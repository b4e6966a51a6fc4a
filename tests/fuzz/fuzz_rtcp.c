/* Any bytes as a compound of RTCP; a report that was read is written and read again the same. */
#include "fuzz.h"
#include "media/rtcp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct vr_rtcp in, again;
    uint8_t *copy = exact_copy(data, bytes), out[VR_RTCP_WRITE_BYTES];
    if (vr_rtcp_read(copy, bytes, 7, &in) == VR_RTCP_OK && in.has_block) {
        struct vr_rtcp_report report = {.ssrc = in.sender_ssrc,
                                        .ntp = in.ntp,
                                        .sent_packets = in.has_sender_info,
                                        .has_block = true,
                                        .bye = in.has_bye,
                                        .block = in.block,
                                        .cname = "fuzz"};
        size_t written = vr_rtcp_write(out, &report);
        HOLDS(written <= sizeof out);
        HOLDS(vr_rtcp_read(out, written, 7, &again) == VR_RTCP_OK);
        HOLDS(again.has_block && again.block.lost == in.block.lost);
        HOLDS(again.block.jitter == in.block.jitter && again.has_bye == in.has_bye);
        vr_rtcp_round_trip_ns(&in.block, in.ntp);
    }
    free(copy);
    return 0;
}
