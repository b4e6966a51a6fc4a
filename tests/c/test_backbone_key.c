/* A keyed backbone: what carries a trailer, who checks it, and what is dropped without one. */
#include "backbone_check.h"
#include "relay/forward.h"

enum { UNIX_S = 1800000000 };

static void open_keyed(void) {
    bench_open(&b);
    b.config.backbone_keys = vr_trailer_keys_new();
    CHECK_EQ(vr_trailer_keys_add(b.config.backbone_keys, (const uint8_t *)"sixteen byte key"), 0);
    bench_configure(&b);
    vr_forward_set_clock(b.forwarder, UNIX_S);
}

static void close_keyed(void) {
    bench_close(&b);
    vr_trailer_keys_free(b.config.backbone_keys);
}

/* A datagram with a trailer of this age, of which bytes are changed. */
static enum vr_verdict send_signed(enum vr_side side, struct vr_addr from,
                                   const struct vr_flow_key *about, struct message m, int age_s,
                                   bool forge) {
    struct vr_ingress in = wrapped_ingress(&b, side, from, client(1), &m);
    vr_spp_write(in.data, about);
    uint8_t *trailer = in.data + in.data_bytes;
    CHECK(vr_trailer_write(b.config.backbone_keys, in.data, (uint64_t)(UNIX_S - age_s), trailer));
    trailer[15] ^= forge;
    in.data_bytes += VR_TRAILER_BYTES;
    return submit(&b, &in);
}

static enum vr_verdict send_good(enum vr_side side, struct vr_addr from, unsigned c,
                                 struct message m) {
    struct vr_flow_key key = key_of(client(c));
    return send_signed(side, from, &key, m, 0, false);
}

/* The last datagram has a good trailer for its one hop; its data does not include it. */
static void check_signed(void) {
    CHECK_EQ(b.out.trailer_bytes, VR_TRAILER_BYTES);
    CHECK(b.out.hop[0].is_relay);
    CHECK_EQ(vr_trailer_check(b.config.backbone_keys, b.out.data, b.out.trailer, UNIX_S),
             VR_TRAILER_OK);
}

TEST(an_entry_signs_what_it_hands_over_and_strips_what_it_gets) {
    open_keyed();
    struct vr_addr first = far_relay(1);
    struct message check = check_of(ufrag_of(&b, 2, 7, 1), 1);
    send_public(&b, client(1), check);
    CHECK_EQ(b.out.data_bytes, check.size + VR_SPP_BYTES);
    check_signed();
    CHECK_EQ(send_internal(&b, first, client(1), success_of(1)), VR_VERDICT_DROP);
    CHANGED(&b, RX(INTERNAL, 20 + VR_SPP_BYTES), DROP(BACKBONE_KEY));
    CHECK_EQ(send_good(VR_SIDE_INTERNAL, first, 1, success_of(1)), VR_VERDICT_SEND);
    check_went_down(&b, client(1), 20);
    CHECK_EQ(b.out.trailer_bytes, 0);
    CASE("media, both ways");
    send_public(&b, client(1), rtp());
    check_signed();
    CHECK_EQ(send_good(VR_SIDE_INTERNAL, first, 1, rtp()), VR_VERDICT_SEND);
    CHANGED(&b, RX(INTERNAL, 172 + VR_SPP_BYTES + VR_TRAILER_BYTES));
    check_went_down(&b, client(1), 172);
    CASE("a transceiver of our own neither gets nor sends one");
    establish(&b, 2, 7, ufrag_of(&b, 1, 7, 2));
    send_public(&b, client(2), rtp());
    CHECK_EQ(b.out.trailer_bytes, 0);
    CHECK(!b.out.hop[0].is_relay);
    close_keyed();
}

TEST(a_copy_for_each_tier_has_the_trailer_on_one) {
    open_keyed();
    send_public(&b, client(1), check_of(ufrag_of(&b, 2, 7, 1), 1));
    send_good(VR_SIDE_INTERNAL, far_relay(1), 1, success_of(1));
    establish(&b, 1, 9, ufrag_of(&b, 1, 9, 0));
    CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_SEND);
    CHECK_EQ(b.out.hops, 2);
    CHECK_EQ(b.out.trailer_bytes, VR_TRAILER_BYTES);
    CHECK(b.out.hop[0].is_relay && !b.out.hop[1].is_relay);
    close_keyed();
}

TEST(a_clusters_relay_checks_strips_and_signs) {
    open_keyed();
    struct message check = check_of(ufrag_of(&b, 1, 7, 1), 1);
    CHECK_EQ(send_good(VR_SIDE_BACKBONE, far_relay(9), 1, check), VR_VERDICT_SEND);
    check_went_up(&b, transceiver(7), client(1), check.size);
    CHECK_EQ(b.out.trailer_bytes, 0);
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), success_of(1)), VR_VERDICT_SEND);
    check_went_back(far_relay(9), 20);
    check_signed();
    CASE("what has none is dropped, whatever it is");
    const struct message plain[] = {rtp(), check, bytes_of(128, 1), bytes_of(128, 16)};
    for (unsigned i = 0; i < 4; i++) {
        CHECK_EQ(send_backbone(&b, far_relay(9), client(1), plain[i]), VR_VERDICT_DROP);
        CHANGED(&b, RX(BACKBONE, plain[i].size + VR_SPP_BYTES), DROP(BACKBONE_KEY));
    }
    CASE("another client's, an altered or an old one");
    struct vr_flow_key key = key_of(client(1));
    CHECK_EQ(send_signed(VR_SIDE_BACKBONE, far_relay(9), &key, rtp(), 0, true), VR_VERDICT_DROP);
    CHANGED(&b, RX(BACKBONE, 172 + VR_SPP_BYTES + VR_TRAILER_BYTES), DROP(BACKBONE_KEY));
    for (int age_s = -31; age_s <= 31; age_s += 62) {
        CHECK_EQ(send_signed(VR_SIDE_BACKBONE, far_relay(9), &key, rtp(), age_s, false),
                 VR_VERDICT_DROP);
        CHANGED(&b, RX(BACKBONE, 172 + VR_SPP_BYTES + VR_TRAILER_BYTES), DROP(BACKBONE_STALE));
    }
    CHECK_EQ(send_signed(VR_SIDE_BACKBONE, far_relay(9), &key, rtp(), 30, false), VR_VERDICT_SEND);
    check_went_up(&b, transceiver(7), client(1), 172);
    CASE("a stranger is a stranger first");
    CHECK_EQ(send_good(VR_SIDE_BACKBONE, v4(192, 0, 3, 1, 3479), 1, rtp()), VR_VERDICT_DROP);
    CHANGED(&b, RX(BACKBONE, 172 + VR_SPP_BYTES + VR_TRAILER_BYTES), DROP(BACKBONE_PEER));
    close_keyed();
}

TEST(probes_and_echoes_are_signed_too) {
    static const struct vr_flow_key nobody;
    open_keyed();
    const uint8_t nonce[VR_PROBE_NONCE_BYTES] = "sixteen bytes..";
    struct message probe = probe_of(nonce);
    CHECK_EQ(send_signed(VR_SIDE_BACKBONE, far_relay(9), &nobody, probe, 0, false),
             VR_VERDICT_SEND);
    check_went_back(far_relay(9), VR_PROBE_NONCE_BYTES);
    check_signed();
    CHECK_EQ(send_probe(VR_SIDE_BACKBONE, far_relay(9), probe_of(nonce)), VR_VERDICT_DROP);
    CHANGED(&b, RX(BACKBONE, VR_PROBE_BYTES), DROP(BACKBONE_KEY));
    CASE("our own");
    uint8_t buffer[VR_PROBE_BYTES];
    struct vr_egress out;
    CHECK(vr_forward_next_probe(b.forwarder, b.now_ns, nonce, buffer, &out));
    CHECK_EQ(vr_trailer_check(b.config.backbone_keys, out.data, out.trailer, UNIX_S),
             VR_TRAILER_OK);
    struct vr_addr to = out.hop[0].destination;
    CHECK_EQ(send_probe(VR_SIDE_INTERNAL, to, probe), VR_VERDICT_DROP);
    CHANGED(&b, RX(INTERNAL, VR_PROBE_BYTES), DROP(BACKBONE_KEY));
    CHECK_EQ(send_signed(VR_SIDE_INTERNAL, to, &nobody, probe, 0, false), VR_VERDICT_TAKEN);
    CASE("a relay without a key says what is wrong");
    struct vr_trailer_keys *keys = b.config.backbone_keys;
    b.config.backbone_keys = NULL;
    bench_configure(&b);
    b.config.backbone_keys = keys;
    CHECK_EQ(send_signed(VR_SIDE_BACKBONE, far_relay(9), &nobody, probe, 0, false),
             VR_VERDICT_DROP);
    CHANGED(&b, RX(BACKBONE, VR_PROBE_BYTES + VR_TRAILER_BYTES), DROP(BACKBONE_KEY));
    close_keyed();
}
