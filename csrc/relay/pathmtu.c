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

static bool is_fresh(const struct vr_pathmtu_place *place, int64_t now_s) {
    return place->asked_s != 0 && now_s - place->asked_s < VR_PATHMTU_REFRESH_S;
}

/* The peer's place, else the first of its places that may be taken; NULL when there is none. */
static struct vr_pathmtu_place *place_of(struct vr_pathmtu *pathmtu, const struct vr_addr *peer,
                                         int64_t now_s) {
    unsigned first = vr_addr_mix(peer, 0) >> (32 - VR_PATHMTU_PEERS_BITS);
    struct vr_pathmtu_place *free_place = NULL;
    for (unsigned way = 0; way < VR_PATHMTU_WAYS; way++) {
        struct vr_pathmtu_place *place = &pathmtu->place[(first + way) % VR_PATHMTU_PEERS];
        if (place->asked_s != 0 && vr_addr_equal(&place->peer, peer))
            return place;
        if (!free_place && !is_fresh(place, now_s))
            free_place = place;
    }
    return free_place;
}

uint32_t vr_pathmtu_payload(struct vr_pathmtu *pathmtu, const struct vr_addr *peer) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    struct vr_pathmtu_place *place = place_of(pathmtu, peer, now.tv_sec);
    if (!place)
        return UINT32_MAX;
    if (!vr_addr_equal(&place->peer, peer) || !is_fresh(place, now.tv_sec))
        *place = (struct vr_pathmtu_place){*peer, ask(peer), now.tv_sec};
    return place->payload_bytes;
}
