/* Any bytes as RTP: what the view says lies within them, and the two readers agree. */
#include "fuzz.h"
#include "media/rtp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct vr_rtp head, whole;
    uint8_t *copy = exact_copy(data, bytes);
    enum vr_rtp_status first = vr_rtp_read_header(copy, bytes, &head);
    enum vr_rtp_status status = vr_rtp_read(copy, bytes, &whole);
    HOLDS(first == VR_RTP_OK || status == first);
    if (first == VR_RTP_OK) {
        HOLDS(head.header_bytes >= VR_RTP_HEADER_BYTES && head.header_bytes <= bytes);
        HOLDS(head.extension == NULL || head.extension + head.extension_bytes <= copy + bytes);
        for (unsigned id = 0; id < 256; id++) {
            size_t n;
            const uint8_t *element = vr_rtp_extension(&head, id, &n);
            HOLDS(element == NULL || element + n <= head.extension + head.extension_bytes);
        }
    }
    if (status == VR_RTP_OK)
        HOLDS(whole.payload_bytes > 0 && whole.payload + whole.payload_bytes <= copy + bytes);
    free(copy);
    return 0;
}
