#include "check.h"
#include "relay/desk.h"
#include "relay/parking.h"
#include "wire/spp.h"

enum { MS = 1000000, NOW = 1000 * MS };

static uint8_t buffer[4096];

static struct vr_flow_key flow(unsigned i) {
    struct vr_flow_key key = {{{0}, 0}, {{0}, 0}};
    memcpy(key.client.ip, &i, sizeof i);
    return key;
}

static struct vr_ingress datagram(uint8_t first, uint32_t bytes) {
    buffer[64] = first;
    return (struct vr_ingress){
        .side = VR_SIDE_PUBLIC, .listen = 3, .data = buffer + 64, .data_bytes = bytes};
}

static enum vr_park put(struct vr_parking *parking, unsigned i, uint64_t hash, uint8_t first,
                        uint64_t now_ns) {
    struct vr_flow_key key = flow(i);
    struct vr_ingress in = datagram(first, 100);
    return vr_parking_put(parking, &key, hash, &in, now_ns);
}

TEST(a_flow_is_asked_for_once_and_its_datagrams_come_out_in_order) {
    struct vr_parking *parking = vr_parking_new();
    struct vr_flow_key key = flow(1);
    struct vr_parked parked;
    CHECK_EQ(put(parking, 1, 9, 'a', NOW), VR_PARK_ASK);
    CHECK_EQ(put(parking, 1, 9, 'b', NOW), VR_PARK_WAIT);
    CHECK_EQ(put(parking, 1, 9, 'c', NOW), VR_PARK_WAIT);
    CHECK_EQ(put(parking, 1, 9, 'd', NOW), VR_PARK_WAIT);
    CHECK_EQ(put(parking, 1, 9, 'e', NOW), VR_PARK_FULL);
    CHECK_EQ(vr_parking_flows(parking), 1);
    CHECK(vr_parking_take(parking, &key, 9, &parked));
    CHECK_EQ(parked.count, 4);
    for (unsigned i = 0; i < parked.count; i++) {
        CHECK_EQ(parked.in[i].data[0], 'a' + i);
        CHECK_EQ(parked.in[i].data_bytes, 100);
        CHECK_EQ(parked.in[i].listen, 3);
        CHECK(parked.in[i].parked);
        CHECK_EQ((uintptr_t)parked.in[i].data % 8, 0);
        memset(parked.in[i].data - VR_SPP_BYTES, 'h', VR_SPP_BYTES); /* headroom is there */
    }
    CHECK(!vr_parking_take(parking, &key, 9, &parked));
    CHECK_EQ(vr_parking_flows(parking), 0);
    vr_parking_free(parking);
}

TEST(one_hash_does_not_make_one_flow) {
    struct vr_parking *parking = vr_parking_new();
    struct vr_flow_key key = flow(2);
    struct vr_parked parked;
    CHECK_EQ(put(parking, 1, 9, 'a', NOW), VR_PARK_ASK);
    CHECK_EQ(put(parking, 2, 9, 'b', NOW), VR_PARK_ASK);
    CHECK(vr_parking_take(parking, &key, 9, &parked));
    CHECK_EQ(parked.in[0].data[0], 'b');
    CHECK_EQ(vr_parking_flows(parking), 1);
    vr_parking_free(parking);
}

TEST(waits_50_ms_from_the_first_datagram) {
    struct vr_parking *parking = vr_parking_new();
    put(parking, 1, 1, 'a', NOW);
    put(parking, 1, 1, 'b', NOW + 40 * MS);
    put(parking, 2, 2, 'c', NOW + 40 * MS);
    CHECK_EQ(vr_parking_sweep(parking, NOW + 49 * MS), 0);
    CHECK_EQ(vr_parking_sweep(parking, NOW + 50 * MS), 2);
    CHECK_EQ(vr_parking_flows(parking), 1);
    CHECK_EQ(put(parking, 1, 1, 'd', NOW + 51 * MS), VR_PARK_ASK);
    CHECK_EQ(vr_parking_sweep(parking, NOW + 90 * MS), 1);
    CHECK_EQ(vr_parking_sweep(parking, NOW + 101 * MS), 1);
    CHECK_EQ(vr_parking_sweep(parking, NOW + 1000 * MS), 0);
    vr_parking_free(parking);
}

TEST(memory_is_bounded) {
    struct vr_parking *parking = vr_parking_new();
    unsigned waiting = 0;
    for (unsigned i = 0; i < 100000; i++)
        waiting += put(parking, i, (uint64_t)i * 0x9E3779B97F4A7C15U, 'x', NOW) == VR_PARK_ASK;
    CHECK_EQ(waiting, VR_PARKED_FLOWS);
    CHECK_EQ(vr_parking_sweep(parking, NOW + 50 * MS), VR_PARKED_FLOWS);
    vr_parking_free(parking);
}

TEST(the_longest_datagram_waits_and_a_longer_one_does_not) {
    struct vr_parking *parking = vr_parking_new();
    struct vr_flow_key key = flow(1);
    struct vr_parked parked;
    struct vr_ingress in = datagram('a', 2048);
    CHECK_EQ(vr_parking_put(parking, &key, 1, &in, NOW), VR_PARK_ASK);
    in.data_bytes = 2049;
    CHECK_EQ(vr_parking_put(parking, &key, 1, &in, NOW), VR_PARK_FULL);
    in.side = VR_SIDE_BACKBONE; /* with an SPP header before the payload */
    in.data_bytes = 2048 + VR_SPP_BYTES;
    CHECK_EQ(vr_parking_put(parking, &key, 1, &in, NOW), VR_PARK_WAIT);
    in.data_bytes++;
    CHECK_EQ(vr_parking_put(parking, &key, 1, &in, NOW), VR_PARK_FULL);
    CHECK(vr_parking_take(parking, &key, 1, &parked));
    CHECK_EQ((uintptr_t)parked.in[1].data % 8, 2);
    vr_parking_free(parking);
}

TEST(a_desk_loses_notices_when_it_is_full_and_counts_them) {
    struct vr_desk *desk = aligned_alloc(64, sizeof *desk);
    memset(desk, 0, sizeof *desk);
    struct vr_notice notice = {.kind = VR_NOTICE_ASK, .tokens = 7};
    for (unsigned i = 0; i < VR_DESK_NOTICES + 5; i++) {
        notice.key = flow(i);
        CHECK_EQ(vr_desk_put(desk, &notice), i < VR_DESK_NOTICES);
    }
    CHECK_EQ(desk->lost, 5);
    for (unsigned i = 0; i < VR_DESK_NOTICES; i++) {
        struct vr_flow_key expected = flow(i);
        CHECK(vr_desk_take(desk, &notice));
        CHECK(vr_flow_key_equal(&notice.key, &expected));
        CHECK_EQ(notice.tokens, 2);
    }
    CHECK(!vr_desk_take(desk, &notice));
    CHECK(vr_desk_put(desk, &notice));
    free(desk);
}
