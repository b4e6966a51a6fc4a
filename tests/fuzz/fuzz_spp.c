/* Any bytes as a wrapped datagram: what is read, written again, is what was there. */
#include "fuzz.h"
#include "wire/spp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct vr_flow_key key, again;
    uint8_t header[VR_SPP_BYTES];

    bool wrapped = vr_spp_read(data, bytes, &key);
    HOLDS(wrapped == (bytes >= VR_SPP_BYTES && data[0] == 0x56 && data[1] == 0xEC));
    if (!wrapped)
        return 0;
    vr_spp_write(header, &key);
    HOLDS(memcmp(header, data, sizeof header) == 0);
    HOLDS(vr_spp_read(header, sizeof header, &again) && vr_flow_key_equal(&key, &again));
    return 0;
}
