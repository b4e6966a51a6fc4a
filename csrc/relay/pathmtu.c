#define _GNU_SOURCE
#include "pathmtu.h"

#include "sockaddr.h"

#include <time.h>
#include <unistd.h>

enum { UDP_BYTES = 8, IPV4_BYTES = 20, IPV6_BYTES = 40 };

static uint32_t ask(const struct vr_addr *peer) {
    bool v4 = vr_ip_is_v4(peer->ip);
    int family = v4 ? AF_INET : AF_INET6, mtu = 0;
    socklen_t bytes = sizeof mtu;
    union vr_sockaddr name = {0};
    int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return UINT32_MAX;
    bool known =
        vr_sockaddr_write(&name, family, peer) &&
        connect(fd, &name.any, vr_sockaddr_bytes(family)) == 0 &&
        getsockopt(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_MTU : IPV6_MTU, &mtu, &bytes) == 0;
    close(fd);
    int header_bytes = UDP_BYTES + (v4 ? IPV4_BYTES : IPV6_BYTES);
    return known && mtu > header_bytes ? (uint32_t)(mtu - header_bytes) : UINT32_MAX;
}

uint32_t vr_pathmtu_payload(struct vr_pathmtu *pathmtu, const struct vr_addr *peer) {
    struct timespec now;
    uint32_t word;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    memcpy(&word, peer->ip + 12, 4);
    unsigned i = ((word ^ peer->port_be) * UINT32_C(0x9E3779B1)) >> 26;
    if (pathmtu->place[i].asked_s == 0 || !vr_addr_equal(&pathmtu->place[i].peer, peer) ||
        now.tv_sec - pathmtu->place[i].asked_s >= VR_PATHMTU_REFRESH_S) {
        pathmtu->place[i].peer = *peer;
        pathmtu->place[i].payload_bytes = ask(peer);
        pathmtu->place[i].asked_s = now.tv_sec;
    }
    return pathmtu->place[i].payload_bytes;
}
