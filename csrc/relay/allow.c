#include "allow.h"

#include "../wire/bytes.h"

static bool prefix_equal(const uint8_t a[16], const uint8_t b[16], unsigned bits) {
    unsigned bytes = bits / 8;
    if (memcmp(a, b, bytes) != 0)
        return false;
    unsigned rest = bits % 8;
    return rest == 0 || (a[bytes] ^ b[bytes]) >> (8 - rest) == 0;
}

bool vr_allow_match(const struct vr_cidr *cidrs, size_t count, const struct vr_addr *address) {
    uint16_t port = vr_load_be16((const uint8_t *)&address->port_be);
    for (size_t i = 0; i < count; i++) {
        const struct vr_cidr *cidr = &cidrs[i];
        bool for_ipv4 = cidr->prefix_bits >= 96 && vr_ip_is_v4(cidr->ip);
        if (for_ipv4 == vr_ip_is_v4(address->ip) && cidr->prefix_bits <= 128 &&
            port >= cidr->port_min && port <= cidr->port_max &&
            prefix_equal(cidr->ip, address->ip, cidr->prefix_bits))
            return true;
    }
    return false;
}
