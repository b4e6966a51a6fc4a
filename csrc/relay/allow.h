/* allow.h: lists of networks, each with a port range, that an address may lie in.
 *
 * An IPv4 /n is stored mapped, as 96 + n. IPv4 addresses match IPv4 networks only, IPv6 addresses IPv6
 * networks only: ::/0 is not a way around an IPv4 list.
 */
#ifndef VR_ALLOW_H
#define VR_ALLOW_H

#include "../wire/addr.h"

#include <stddef.h>

struct vr_cidr {
    uint8_t ip[16];
    uint8_t prefix_bits; /* 0..128; an IPv4 /n is stored mapped, as 96 + n */
    uint16_t port_min;   /* host order; 0 and 65535: any */
    uint16_t port_max;
};

/* True when `address` lies in one of the `count` networks and in its port range. */
bool vr_allow_match(const struct vr_cidr *cidrs, size_t count, const struct vr_addr *address);

#endif
