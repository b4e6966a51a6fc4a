/* socket_check.h: a socket of the relay on loopback, and a plain one that talks to it. */
#ifndef VR_SOCKET_CHECK_H
#define VR_SOCKET_CHECK_H

#include "net_check.h"
#include "relay/socket.h"

struct fixture {
    int fd, peer;
    struct vr_addr addr, peer_addr;
    struct vr_slots *slots;
    struct vr_socket *socket;
    struct vr_stats stats;
};

static inline bool fixture_open(struct fixture *f, const char *ip, const char *peer_ip,
                                enum vr_side side) {
    memset(f, 0, sizeof *f);
    f->fd = open_udp(ip);
    f->peer = open_udp(peer_ip);
    if (f->fd < 0 || f->peer < 0) {
        printf("SKIPPED: this host has no %s\n", ip);
        return false;
    }
    f->addr = bound_addr(f->fd);
    f->peer_addr = bound_addr(f->peer);
    f->slots = vr_slots_new();
    struct vr_socket_config config = {.fd = f->fd, .side = side, .listen = 3, .slots = f->slots};
    f->socket = vr_socket_new(&config);
    CHECK(f->socket != NULL);
    return f->socket != NULL;
}

static inline void fixture_close(struct fixture *f) {
    vr_socket_free(f->socket);
    vr_slots_free(f->slots);
    close(f->fd);
    close(f->peer);
}

#endif
