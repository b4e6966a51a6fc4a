/* addr.h: a transport address and the flow key made of two of them.
 *
 * Every address inside the project is 16 bytes: IPv6, or IPv4 mapped into
 * ::ffff:0:0/96 (RFC 4291 2.5.5.2). It is normalised once, where it enters.
 */
#ifndef VR_ADDR_H
#define VR_ADDR_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct vr_addr {
    uint8_t ip[16];   /* IPv6 or IPv4-mapped, network order */
    uint16_t port_be; /* network order, as the socket API has it */
};

/* The flow key of every table, of Redis and of the transceiver:
 * client address, client port, proxy address, proxy port; 36 bytes, no padding. */
struct vr_flow_key {
    struct vr_addr client; /* the real client as the relay sees it */
    struct vr_addr proxy;  /* the relay's public address, as advertised */
};

_Static_assert(sizeof(struct vr_addr) == 18, "an address has no padding");
_Static_assert(sizeof(struct vr_flow_key) == 36, "a flow key has no padding");

static inline bool vr_ip_is_v4(const uint8_t ip[16]) {
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return memcmp(ip, mapped, 12) == 0;
}

static inline void vr_ip_from_v4(uint8_t ip[16], const uint8_t v4[4]) {
    memset(ip, 0, 10);
    ip[10] = 0xff;
    ip[11] = 0xff;
    memcpy(ip + 12, v4, 4);
}

/* Whether a datagram can be sent there: port 0 is nobody's (RFC 768), and a link-local IPv6 address is one
 * only together with a zone (RFC 4007 6), for which there is no room here. */
static inline bool vr_addr_can_be_sent_to(const struct vr_addr *addr) {
    return addr->port_be != 0 && !(addr->ip[0] == 0xfe && (addr->ip[1] & 0xc0) == 0x80);
}

static inline bool vr_addr_equal(const struct vr_addr *a, const struct vr_addr *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

/* 32 bits for a small table by destination, its place in the top ones; `also` is what else tells entries
 * apart. IPv6 counts with its last four bytes. Not for what a stranger chooses: it has no key (siphash.h). */
static inline uint32_t vr_addr_mix(const struct vr_addr *addr, uint32_t also) {
    uint32_t word;
    memcpy(&word, addr->ip + 12, sizeof word);
    return (word ^ addr->port_be ^ also) * UINT32_C(0x9E3779B1);
}

static inline bool vr_flow_key_equal(const struct vr_flow_key *a, const struct vr_flow_key *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

#endif
