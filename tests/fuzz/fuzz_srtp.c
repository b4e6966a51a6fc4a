/* Any bytes as SRTP and SRTCP under each profile: nothing but an authentic packet passes. */
#include "fuzz.h"
#include "media/srtp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const unsigned profiles[] = {VR_SRTP_AES128_CM_SHA1_80, VR_SRTP_AEAD_AES_128_GCM,
                                        VR_SRTP_AEAD_AES_256_GCM};
    static const uint8_t key[VR_SRTP_KEY_BYTES_MAX] = "a key of thirty-two bytes and no";
    static struct vr_srtp *rx[3], *tx[3];
    for (int i = 0; i < 3; i++) {
        if (rx[i] == NULL) {
            rx[i] = vr_srtp_new(profiles[i], key, key);
            tx[i] = vr_srtp_new(profiles[i], key, key);
        }
        size_t n = bytes;
        uint8_t *copy = exact_copy(data, bytes);
        vr_srtp_unprotect(rx[i], copy, &n);
        HOLDS(n <= bytes);
        memcpy(copy, data, bytes);
        n = bytes;
        vr_srtp_unprotect_rtcp(rx[i], copy, &n);
        HOLDS(n <= bytes);
        free(copy);
        uint8_t *room = malloc(bytes + VR_SRTP_GROWTH_BYTES);
        HOLDS(room != NULL);
        memcpy(room, data, bytes);
        n = bytes;
        if (vr_srtp_protect(tx[i], room, &n, bytes + VR_SRTP_GROWTH_BYTES) == VR_SRTP_OK)
            HOLDS(n > bytes && n <= bytes + VR_SRTP_GROWTH_BYTES);
        free(room);
    }
    return 0;
}
