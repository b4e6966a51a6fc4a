#include "stun.h"

#include "bytes.h"
#include "crc32.h"

#include <string.h>

/* RFC 8489 18.3, RFC 8445 20.2 */
enum {
    ATTR_USERNAME = 0x0006,
    ATTR_MESSAGE_INTEGRITY = 0x0008,
    ATTR_MESSAGE_INTEGRITY_SHA256 = 0x001C,
    ATTR_PRIORITY = 0x0024,
    ATTR_USE_CANDIDATE = 0x0025,
    ATTR_FINGERPRINT = 0x8028,
    ATTR_ICE_CONTROLLED = 0x8029,
    ATTR_ICE_CONTROLLING = 0x802A,
};

enum {
    ATTR_HEADER_BYTES = 4,
    HMAC_SHA1_BYTES = 20,
};

static const uint32_t MAGIC_COOKIE = 0x2112A442;
static const uint32_t FINGERPRINT_XOR = 0x5354554E;

struct attribute {
    uint16_t type;
    uint16_t bytes; /* of the value, padding not counted */
    const uint8_t *value;
};

static enum vr_stun_status read_username(const struct attribute *attr, struct vr_stun *out) {
    if (out->username)
        return VR_STUN_OK;
    /* RFC 8489 14.3: fewer than 509 bytes; an empty name cannot be two ufrags. */
    if (attr->bytes == 0 || attr->bytes > VR_STUN_USERNAME_MAX_BYTES)
        return VR_STUN_USERNAME;
    out->username = attr->value;
    out->username_bytes = attr->bytes;
    return VR_STUN_OK;
}

static enum vr_stun_status read_role(const struct attribute *attr, bool *role,
                                     struct vr_stun *out) {
    if (attr->bytes != 8)
        return VR_STUN_ATTRIBUTE;
    if (!out->has_ice_controlling && !out->has_ice_controlled)
        out->tie_breaker = vr_load_be64(attr->value);
    *role = true;
    return VR_STUN_OK;
}

/* Of the types that a receiver has to understand, those of RFC 8489 18.3.1; RFC 8445 20.2 adds what is read. */
static bool is_known(uint16_t type) {
    switch (type) {
    case 0x0001: /* MAPPED-ADDRESS */
    case 0x0009: /* ERROR-CODE */
    case 0x000A: /* UNKNOWN-ATTRIBUTES */
    case 0x0014: /* REALM */
    case 0x0015: /* NONCE */
    case 0x001D: /* PASSWORD-ALGORITHM */
    case 0x001E: /* USERHASH */
    case 0x0020: /* XOR-MAPPED-ADDRESS */
        return true;
    default:
        return type >= 0x8000;
    }
}

/* One attribute that no MESSAGE-INTEGRITY precedes, FINGERPRINT apart. */
static enum vr_stun_status read_attribute(const struct attribute *attr, struct vr_stun *out) {
    switch (attr->type) {
    case ATTR_USERNAME:
        return read_username(attr, out);
    case ATTR_PRIORITY:
        if (attr->bytes != 4)
            return VR_STUN_ATTRIBUTE;
        if (!out->has_priority)
            out->priority = vr_load_be32(attr->value);
        out->has_priority = true;
        return VR_STUN_OK;
    case ATTR_USE_CANDIDATE:
        out->has_use_candidate = true;
        return attr->bytes == 0 ? VR_STUN_OK : VR_STUN_ATTRIBUTE;
    case ATTR_ICE_CONTROLLED:
        return read_role(attr, &out->has_ice_controlled, out);
    case ATTR_ICE_CONTROLLING:
        return read_role(attr, &out->has_ice_controlling, out);
    default:
        if (!is_known(attr->type) && out->unknown_count < VR_STUN_UNKNOWN_MAX)
            out->unknown[out->unknown_count++] = attr->type;
        return VR_STUN_OK;
    }
}

/* FINGERPRINT covers the message up to itself, and its header's length includes it; since it
 * is the last attribute, the header is right as it stands (RFC 8489 14.7). */
static enum vr_stun_status check_fingerprint(const uint8_t *message, const uint8_t *end,
                                             const struct attribute *attr, struct vr_stun *out) {
    if (attr->bytes != 4 || attr->value + 4 != end)
        return VR_STUN_FINGERPRINT;
    size_t covered_bytes = (size_t)(attr->value - ATTR_HEADER_BYTES - message);
    if (vr_load_be32(attr->value) != (vr_crc32(message, covered_bytes) ^ FINGERPRINT_XOR))
        return VR_STUN_FINGERPRINT;
    out->has_fingerprint = true;
    return VR_STUN_OK;
}

static enum vr_stun_status read_attributes(const uint8_t *message, const uint8_t *end,
                                           struct vr_stun *out) {
    const uint8_t *at = message + VR_STUN_HEADER_BYTES;
    bool protected_part_ended = false;

    /* Lengths are multiples of 4, so an attribute's header is whole wherever one starts. */
    while (at < end) {
        enum vr_stun_status status = VR_STUN_OK;
        struct attribute attr = {vr_load_be16(at), vr_load_be16(at + 2), at + ATTR_HEADER_BYTES};
        size_t padded_bytes = ((size_t)attr.bytes + 3) & ~(size_t)3;

        if (padded_bytes > (size_t)(end - attr.value))
            return VR_STUN_ATTRIBUTE;
        if (attr.type == ATTR_FINGERPRINT) {
            status = check_fingerprint(message, end, &attr, out);
        } else if (protected_part_ended) {
            /* RFC 8489 14.5: what follows MESSAGE-INTEGRITY is ignored. */
        } else if (attr.type == ATTR_MESSAGE_INTEGRITY) {
            if (attr.bytes != HMAC_SHA1_BYTES)
                return VR_STUN_ATTRIBUTE;
            out->integrity_offset = (uint16_t)(at - message);
            protected_part_ended = true;
        } else if (attr.type == ATTR_MESSAGE_INTEGRITY_SHA256) {
            protected_part_ended = true;
        } else {
            status = read_attribute(&attr, out);
        }
        if (status != VR_STUN_OK)
            return status;
        at = attr.value + padded_bytes;
    }
    return VR_STUN_OK;
}

enum vr_stun_status vr_stun_read(const uint8_t *data, size_t bytes, struct vr_stun *out) {
    if (bytes < VR_STUN_HEADER_BYTES)
        return VR_STUN_SHORT;
    /* RFC 8489 5: the first two bits of every STUN message are zero. */
    if ((data[0] & 0xC0) != 0 || vr_load_be32(data + 4) != MAGIC_COOKIE)
        return VR_STUN_NOT_STUN;

    size_t body_bytes = vr_load_be16(data + 2);
    if (body_bytes % 4 != 0 || bytes - VR_STUN_HEADER_BYTES > body_bytes)
        return VR_STUN_LENGTH;
    if (bytes - VR_STUN_HEADER_BYTES < body_bytes)
        return VR_STUN_SHORT;

    /* RFC 8489 5: type is M11..M7 C1 M6..M4 C0 M3..M0. */
    unsigned type = vr_load_be16(data);
    *out = (struct vr_stun){
        .tid = data + 8,
        .method = (uint16_t)((type & 0x000F) | (type & 0x00E0) >> 1 | (type & 0x3E00) >> 2),
        .class_ = (enum vr_stun_class)((type & 0x0010) >> 4 | (type & 0x0100) >> 7),
    };
    return read_attributes(data, data + bytes, out);
}

size_t vr_stun_local_ufrag(const struct vr_stun *message) {
    if (!message->username)
        return 0;
    const uint8_t *colon = memchr(message->username, ':', message->username_bytes);
    if (!colon || colon + 1 == message->username + message->username_bytes)
        return 0;
    return (size_t)(colon - message->username);
}
