/* sockaddr.h: between the kernel's socket addresses and struct vr_addr; internal to the sockets. */
#ifndef VR_SOCKADDR_H
#define VR_SOCKADDR_H

#include "../wire/addr.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>

union vr_sockaddr {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static inline socklen_t vr_sockaddr_bytes(int family) {
    return family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

/* `name` is of IPv4 or IPv6. */
static inline void vr_sockaddr_read(struct vr_addr *addr, const union vr_sockaddr *name) {
    if (name->any.sa_family == AF_INET) {
        vr_ip_from_v4(addr->ip, (const uint8_t *)&name->v4.sin_addr);
        addr->port_be = name->v4.sin_port;
    } else {
        memcpy(addr->ip, &name->v6.sin6_addr, 16);
        addr->port_be = name->v6.sin6_port;
    }
}

/* Writes the address as a socket of this family names it into zeroed memory, or memory of an
 * earlier call with the same family. False when the family cannot reach it. */
static inline bool vr_sockaddr_write(union vr_sockaddr *name, int family,
                                     const struct vr_addr *addr) {
    if (family == AF_INET) {
        if (!vr_ip_is_v4(addr->ip))
            return false;
        name->v4.sin_family = AF_INET;
        name->v4.sin_port = addr->port_be;
        memcpy(&name->v4.sin_addr, addr->ip + 12, 4);
    } else {
        name->v6.sin6_family = AF_INET6;
        name->v6.sin6_port = addr->port_be;
        memcpy(&name->v6.sin6_addr, addr->ip, 16);
    }
    return true;
}

/* All zero, or 0.0.0.0. */
static inline bool vr_ip_is_any(const uint8_t ip[16]) {
    static const uint8_t zero[16];
    return memcmp(ip, zero, 16) == 0 || (vr_ip_is_v4(ip) && memcmp(ip + 12, zero, 4) == 0);
}

#endif
