#include "check.h"
#include "relay/allow.h"
#include "wire/bytes.h"

static struct vr_addr addr_v4(uint8_t a, uint8_t b, uint8_t c, uint8_t d, uint16_t port) {
    struct vr_addr addr;
    vr_ip_from_v4(addr.ip, (uint8_t[]){a, b, c, d});
    vr_store_be16((uint8_t *)&addr.port_be, port);
    return addr;
}

static struct vr_cidr cidr_v4(uint8_t a, uint8_t b, uint8_t c, uint8_t d, uint8_t bits) {
    struct vr_cidr cidr = {.prefix_bits = (uint8_t)(96 + bits), .port_max = 65535};
    vr_ip_from_v4(cidr.ip, (uint8_t[]){a, b, c, d});
    return cidr;
}

static bool matches(struct vr_cidr cidr, struct vr_addr addr) {
    return vr_allow_match(&cidr, 1, &addr);
}

TEST(no_networks_allow_nothing) {
    struct vr_addr addr = addr_v4(10, 0, 0, 1, 1);
    CHECK(!vr_allow_match(NULL, 0, &addr));
}

TEST(a_network_ends_at_any_bit) {
    for (unsigned bits = 0; bits <= 32; bits++) {
        uint32_t host = 0xC0A80101, inside = bits == 32 ? host : host ^ 1;
        uint32_t outside = bits ? host ^ 1u << (32 - bits) : 0;
        uint8_t in[4], out[4];
        vr_store_be32(in, inside);
        vr_store_be32(out, outside);
        struct vr_cidr cidr = cidr_v4(192, 168, 1, 1, (uint8_t)bits);
        CHECK(matches(cidr, addr_v4(in[0], in[1], in[2], in[3], 9)));
        CHECK_EQ(matches(cidr, addr_v4(out[0], out[1], out[2], out[3], 9)), bits == 0);
    }
}

TEST(ports_are_a_range) {
    struct vr_cidr cidr = cidr_v4(10, 0, 0, 0, 8);
    cidr.port_min = 40000;
    cidr.port_max = 40009;
    CHECK(!matches(cidr, addr_v4(10, 1, 1, 1, 39999)));
    CHECK(matches(cidr, addr_v4(10, 1, 1, 1, 40000)));
    CHECK(matches(cidr, addr_v4(10, 1, 1, 1, 40009)));
    CHECK(!matches(cidr, addr_v4(10, 1, 1, 1, 40010)));
}

TEST(the_families_are_apart) {
    struct vr_cidr all_v6 = {.prefix_bits = 0, .port_max = 65535};
    struct vr_addr v6 = {.ip = {0x20, 1}, .port_be = 1};
    CHECK(matches(all_v6, v6));
    CHECK(!matches(all_v6, addr_v4(10, 0, 0, 1, 1)));
    CHECK(!matches(cidr_v4(0, 0, 0, 0, 0), v6));
    CHECK(matches(cidr_v4(0, 0, 0, 0, 0), addr_v4(10, 0, 0, 1, 1)));
}

TEST(any_of_several_is_enough) {
    struct vr_cidr cidrs[] = {cidr_v4(10, 0, 0, 0, 8), cidr_v4(192, 0, 2, 0, 24)};
    struct vr_addr second = addr_v4(192, 0, 2, 200, 1), none = addr_v4(192, 0, 3, 1, 1);
    CHECK(vr_allow_match(cidrs, 2, &second));
    CHECK(!vr_allow_match(cidrs, 2, &none));
}

TEST(an_impossible_prefix_matches_nothing) {
    struct vr_cidr cidr = {.prefix_bits = 200, .port_max = 65535};
    CHECK(!matches(cidr, (struct vr_addr){.ip = {0}, .port_be = 1}));
}
