/* Any bytes as a STUN message; then again with the fields planted that a fuzzer does not guess. */
#include "fuzz.h"
#include "wire/bytes.h"
#include "wire/crc32.h"
#include "wire/stun.h"

static void check_view(const uint8_t *data, size_t bytes, const struct vr_stun *m) {
    HOLDS(m->tid == data + 8);
    HOLDS(m->method < 0x1000 && m->class_ <= VR_STUN_ERROR);
    if (m->username) {
        HOLDS(m->username >= data + 24 && m->username_bytes <= bytes);
        HOLDS(m->username + m->username_bytes <= data + bytes);
        HOLDS(m->username_bytes >= 1 && m->username_bytes <= VR_STUN_USERNAME_MAX_BYTES);
    }
    size_t ufrag_bytes = vr_stun_local_ufrag(m);
    HOLDS(ufrag_bytes == 0 || ufrag_bytes + 1 < m->username_bytes);
    HOLDS(ufrag_bytes == 0 || m->username[ufrag_bytes] == ':');
    HOLDS(m->integrity_offset == 0 ||
          (m->integrity_offset >= VR_STUN_HEADER_BYTES && m->integrity_offset + 24u <= bytes));
}

static enum vr_stun_status read_once(const uint8_t *data, size_t bytes) {
    struct vr_stun message;
    enum vr_stun_status status = vr_stun_read(data, bytes, &message);
    if (status == VR_STUN_OK)
        check_view(data, bytes, &message);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    read_once(data, bytes);
    if (bytes < VR_STUN_HEADER_BYTES || bytes > VR_STUN_HEADER_BYTES + 0xFFFC)
        return 0;

    size_t whole_bytes = bytes & ~(size_t)3;
    uint8_t *copy = exact_copy(data, whole_bytes);
    copy[0] &= 0x3F;
    vr_store_be16(copy + 2, (uint16_t)(whole_bytes - VR_STUN_HEADER_BYTES));
    vr_store_be32(copy + 4, 0x2112A442);
    enum vr_stun_status status = read_once(copy, whole_bytes);
    HOLDS(status != VR_STUN_SHORT && status != VR_STUN_NOT_STUN && status != VR_STUN_LENGTH);
    if (status == VR_STUN_FINGERPRINT && vr_load_be32(copy + whole_bytes - 8) == 0x80280004) {
        uint32_t crc = vr_crc32(copy, whole_bytes - 8);
        vr_store_be32(copy + whole_bytes - 4, crc ^ 0x5354554E);
        read_once(copy, whole_bytes);
    }
    free(copy);
    return 0;
}
