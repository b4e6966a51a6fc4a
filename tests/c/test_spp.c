#include "check.h"
#include "wire/spp.h"

/* Client 192.0.2.1:4660, proxy [2001:db8::2]:3478. */
static const char HEADER[] = "56ec"
                             "00000000000000000000ffffc0000201"
                             "20010db8000000000000000000000002"
                             "12340d96";

static struct vr_flow_key example_key(void) {
    struct vr_flow_key key;
    memset(&key, 0, sizeof key);
    vr_ip_from_v4(key.client.ip, (const uint8_t[]){192, 0, 2, 1});
    from_hex("20010db8000000000000000000000002", key.proxy.ip, 16);
    vr_store_be16((uint8_t *)&key.client.port_be, 0x1234);
    vr_store_be16((uint8_t *)&key.proxy.port_be, 3478);
    return key;
}

TEST(header_has_the_documented_layout) {
    uint8_t expected[VR_SPP_BYTES], written[VR_SPP_BYTES];
    struct vr_flow_key key = example_key();

    CHECK_EQ(from_hex(HEADER, expected, sizeof expected), VR_SPP_BYTES);
    vr_spp_write(written, &key);
    CHECK_MEM(written, expected, VR_SPP_BYTES);
}

TEST(what_is_written_is_read_whatever_the_payload) {
    uint8_t datagram[VR_SPP_BYTES + 100] = {0};
    struct vr_flow_key key = example_key(), read;

    vr_spp_write(datagram, &key);
    for (size_t payload_bytes = 0; payload_bytes <= 100; payload_bytes++) {
        const uint8_t *at = guard_copy(datagram, VR_SPP_BYTES + payload_bytes);
        memset(&read, 0xAA, sizeof read);
        CHECK(vr_spp_read(at, VR_SPP_BYTES + payload_bytes, &read));
        CHECK(vr_flow_key_equal(&read, &key));
    }
}

TEST(a_short_datagram_or_another_magic_leaves_the_key_alone) {
    uint8_t header[VR_SPP_BYTES];
    struct vr_flow_key key = example_key(), read, untouched;

    memset(&read, 0xAA, sizeof read);
    untouched = read;
    vr_spp_write(header, &key);
    for (size_t bytes = 0; bytes < VR_SPP_BYTES; bytes++)
        CHECK(!vr_spp_read(guard_copy(header, bytes), bytes, &read));
    for (unsigned bit = 0; bit < 16; bit++) {
        uint8_t *at = guard_copy(header, sizeof header);
        at[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(!vr_spp_read(at, sizeof header, &read));
    }
    CHECK(vr_flow_key_equal(&read, &untouched));
}

TEST(mapped_addresses_are_ipv4) {
    struct vr_flow_key key = example_key();
    CHECK(vr_ip_is_v4(key.client.ip));
    CHECK(!vr_ip_is_v4(key.proxy.ip));
    CHECK(!vr_addr_equal(&key.client, &key.proxy));
}
