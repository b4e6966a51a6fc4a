/* net_check.h: plain UDP sockets on loopback for the C tests; every port is the kernel's choice. */
#ifndef VR_NET_CHECK_H
#define VR_NET_CHECK_H

#include "check.h"
#include "wire/addr.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

static inline struct vr_addr addr_of(const char *ip, uint16_t port) {
    struct vr_addr addr = {.port_be = htons(port)};
    uint8_t v4[4];
    if (inet_pton(AF_INET, ip, v4) == 1)
        vr_ip_from_v4(addr.ip, v4);
    else if (inet_pton(AF_INET6, ip, addr.ip) != 1)
        abort();
    return addr;
}

static inline socklen_t name_of(const struct vr_addr *addr, struct sockaddr_storage *name) {
    memset(name, 0, sizeof *name);
    if (vr_ip_is_v4(addr->ip)) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)name;
        v4->sin_family = AF_INET;
        v4->sin_port = addr->port_be;
        memcpy(&v4->sin_addr, addr->ip + 12, 4);
        return sizeof *v4;
    }
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)name;
    v6->sin6_family = AF_INET6;
    v6->sin6_port = addr->port_be;
    memcpy(&v6->sin6_addr, addr->ip, 16);
    return sizeof *v6;
}

static inline struct vr_addr addr_from(const struct sockaddr_storage *name) {
    struct vr_addr addr;
    if (name->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)name;
        vr_ip_from_v4(addr.ip, (const uint8_t *)&v4->sin_addr);
        addr.port_be = v4->sin_port;
    } else {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)name;
        memcpy(addr.ip, &v6->sin6_addr, 16);
        addr.port_be = v6->sin6_port;
    }
    return addr;
}

/* A socket bound to `ip` and a free port; `*` is every address of both families. -1 when the host lacks
 * the family. */
static inline int open_udp(const char *ip) {
    bool both = strcmp(ip, "*") == 0;
    struct vr_addr addr = addr_of(both ? "::" : ip, 0);
    struct sockaddr_storage name;
    socklen_t name_bytes = name_of(&addr, &name);
    int v6only = !both, fd = socket(name.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    if (name.ss_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6only, sizeof v6only);
    if (bind(fd, (struct sockaddr *)&name, name_bytes) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static inline struct vr_addr bound_addr(int fd) {
    struct sockaddr_storage name;
    socklen_t name_bytes = sizeof name;
    if (getsockname(fd, (struct sockaddr *)&name, &name_bytes) < 0)
        abort();
    return addr_from(&name);
}

static inline void send_udp(int fd, const struct vr_addr *to, const void *data, size_t bytes) {
    struct sockaddr_storage name;
    socklen_t name_bytes = name_of(to, &name);
    CHECK_EQ(sendto(fd, data, bytes, 0, (struct sockaddr *)&name, name_bytes), bytes);
}

/* The next datagram's size and sender, or -1 when none comes within two seconds. */
static inline ssize_t receive_udp(int fd, void *data, size_t bytes, struct vr_addr *from) {
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    struct sockaddr_storage name = {0};
    socklen_t name_bytes = sizeof name;
    if (poll(&ready, 1, 2000) != 1)
        return -1;
    ssize_t received = recvfrom(fd, data, bytes, 0, (struct sockaddr *)&name, &name_bytes);
    if (received >= 0 && from)
        *from = addr_from(&name);
    return received;
}

/* True when nothing lies in the socket now. */
static inline bool is_silent(int fd) {
    uint8_t byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0;
}

#endif
