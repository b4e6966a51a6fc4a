/* Who shares a flow key, where packets go, and when a call is over (rules 1, 3, 4 and 5 of ice.h). */
#include "ice_check.h"
#include "media/ice.h"

static bool comes_from(const struct vr_ice_path *path, unsigned relay_n) {
    struct vr_source expected = relay(relay_n);
    return vr_addr_equal(&path->source.peer, &expected.peer);
}

/* --- 1: up to four sessions share a flow key ------------------------------------------------- */

TEST(four_sessions_share_a_flow_key_and_none_removes_another) {
    struct bench b = bench_open(4);
    for (unsigned i = 0; i < 4; i++, b.now_ns += SECOND)
        bench_path(&b, i, 0);
    CHECK_EQ(bench_members(&b, 0), 0xF);
    for (unsigned i = 0; i < 4; i++)
        CHECK_EQ(bench_target(&b, i), 0);
    bench_close(&b);
}

TEST(a_fifth_session_replaces_the_one_silent_longest) {
    struct bench b = bench_open(6);
    struct vr_ice_path *paths[4];
    for (unsigned i = 0; i < 4; i++)
        paths[i] = bench_path(&b, i, 0);
    b.now_ns += 5 * SECOND;
    bench_media(&b, paths[0], 0);
    bench_media(&b, paths[1], 0);
    bench_media(&b, paths[3], 0);
    bench_path(&b, 4, 0);
    CHECK_EQ(bench_members(&b, 0), 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4);
    CHECK(!bench_has_path(&b, 2, 0));
    CHECK_EQ(bench_target(&b, 2), NOWHERE);
    CASE("who was replaced comes back with its next check, at the cost of the next");
    b.now_ns += SECOND;
    bench_media(&b, paths[0], 0);
    bench_media(&b, paths[3], 0);
    bench_path(&b, 4, 0);
    bench_path(&b, 2, 0);
    CHECK_EQ(bench_members(&b, 0), 1 << 0 | 1 << 2 | 1 << 3 | 1 << 4);
    bench_close(&b);
}

TEST(a_replaced_session_keeps_its_other_flow_keys) {
    struct bench b = bench_open(5);
    bench_path(&b, 0, 1);
    for (unsigned i = 0; i < 5; i++, b.now_ns += SECOND)
        bench_path(&b, i, 0);
    CHECK_EQ(bench_members(&b, 0), 0x1E);
    CHECK_EQ(bench_target(&b, 0), 1);
    CHECK(vr_ice_has_consent(b.ice, 0, b.now_ns));
    bench_close(&b);
}

TEST(a_session_leaves_a_flow_key_after_30_s_without_an_authenticated_packet) {
    struct bench b = bench_open(1);
    bench_path(&b, 0, 0);
    b.now_ns += 30 * SECOND - 1;
    CHECK_EQ(bench_members(&b, 0), 1);
    b.now_ns += 1;
    CHECK_EQ(bench_members(&b, 0), 0);
    CHECK(bench_has_path(&b, 0, 0));
    vr_ice_expire(b.ice, 0, b.now_ns);
    CHECK(!bench_has_path(&b, 0, 0));
    bench_close(&b);
}

TEST(a_flow_key_that_was_left_is_a_new_one_when_it_comes_back) {
    struct bench b = bench_open(1);
    bench_check(&b, 0, 0, (struct options){.nominates = true});
    bench_media(&b, b.out.path, 0);
    b.now_ns += 30 * SECOND;
    bench_path(&b, 0, 1);
    struct vr_ice_path *back = bench_path(&b, 0, 0);
    CHECK_EQ(back->first_check_ns, b.now_ns);
    CHECK_EQ(back->media_ns, 0);
    CHECK_EQ(back->nominated_ns, 0);
    bench_close(&b);
}

TEST(packets_of_an_unvalidated_flow_key_are_offered_to_nobody) {
    struct bench b = bench_open(1);
    bench_path(&b, 0, 0);
    struct vr_flow_key key = flow(0);
    struct vr_ice_path *paths[VR_ICE_SESSIONS_PER_FLOW_KEY];
    CHECK_EQ(bench_members(&b, 1), 0);
    CASE("the same client at another address of the relay");
    key.proxy = v4(192, 0, 2, 2, 3478);
    CHECK_EQ(vr_ice_members(b.ice, &key, b.now_ns, paths), 0);
    bench_close(&b);
}

/* --- 3: where everything but a reply goes ---------------------------------------------------- */

TEST(packets_go_to_the_source_of_the_last_authenticated_one) {
    struct bench b = bench_open(1);
    struct vr_ice_path *path = bench_path(&b, 0, 0);
    CHECK(comes_from(path, 0));
    bench_media(&b, path, 1);
    CHECK(comes_from(path, 1));
    struct message m = check_message((struct options){0});
    CHECK_EQ(bench_give(&b, m.data, m.bytes, 0, 2), VR_ICE_OK);
    CHECK(comes_from(path, 2));
    CASE("a check that is not authentic moves nothing");
    m = check_message((struct options){.password = "x"});
    bench_give(&b, m.data, m.bytes, 0, 3);
    CHECK(comes_from(path, 2));
    bench_close(&b);
}

TEST(each_session_of_a_flow_key_has_its_own_source) {
    struct bench b = bench_open(2);
    struct vr_ice_path *one = bench_path(&b, 0, 0), *two = bench_path(&b, 1, 0);
    bench_media(&b, one, 1);
    CHECK(comes_from(one, 1));
    CHECK(comes_from(two, 0));
    bench_close(&b);
}

/* --- 4: where media goes --------------------------------------------------------------------- */

TEST(media_goes_to_the_first_check_without_anything_better) {
    struct bench b = bench_open(1);
    CHECK_EQ(bench_target(&b, 0), NOWHERE);
    bench_path(&b, 0, 3);
    b.now_ns += 100 * MS;
    bench_path(&b, 0, 1);
    CHECK_EQ(bench_target(&b, 0), 3);
    bench_close(&b);
}

TEST(media_follows_the_newest_authenticated_media_and_no_check) {
    struct bench b = bench_open(1);
    struct vr_ice_path *one = bench_path(&b, 0, 1), *two = bench_path(&b, 0, 2);
    bench_check(&b, 0, 2, (struct options){.nominates = true});
    CHECK_EQ(bench_target(&b, 0), 2);
    b.now_ns += MS;
    bench_media(&b, one, 0);
    CHECK_EQ(bench_target(&b, 0), 1);
    b.now_ns += MS;
    bench_media(&b, two, 0);
    CHECK_EQ(bench_target(&b, 0), 2);
    b.now_ns += MS;
    bench_check(&b, 0, 1, (struct options){.nominates = true});
    CHECK_EQ(bench_target(&b, 0), 2);
    bench_close(&b);
}

TEST(a_flow_key_silent_for_10_s_gets_no_media_and_the_call_pauses) {
    struct bench b = bench_open(1);
    bench_media(&b, bench_path(&b, 0, 0), 0);
    b.now_ns += 10 * SECOND - 1;
    CHECK_EQ(bench_target(&b, 0), 0);
    b.now_ns += 1;
    CHECK_EQ(bench_target(&b, 0), NOWHERE);
    CHECK(vr_ice_has_consent(b.ice, 0, b.now_ns));
    bench_path(&b, 0, 0);
    CHECK_EQ(bench_target(&b, 0), 0);
    bench_close(&b);
}

TEST(a_silent_media_path_gives_way_to_a_live_one) {
    struct bench b = bench_open(1);
    bench_media(&b, bench_path(&b, 0, 0), 0);
    b.now_ns += 5 * SECOND;
    bench_path(&b, 0, 1);
    CHECK_EQ(bench_target(&b, 0), 0);
    b.now_ns += 5 * SECOND;
    CHECK_EQ(bench_target(&b, 0), 1);
    bench_close(&b);
}

TEST(b01_a_new_port_of_a_nat_is_followed_with_its_first_check_and_media) {
    struct bench b = bench_open(1);
    bench_media(&b, bench_path(&b, 0, 0), 0);
    b.now_ns += 2500 * MS;
    bench_media(&b, bench_path(&b, 0, 1), 0);
    CHECK_EQ(bench_target(&b, 0), 1);
    bench_close(&b);
}

TEST(b07_of_four_addresses_the_nominated_one_gets_media_and_the_others_expire) {
    struct bench b = bench_open(1);
    for (unsigned round = 0; round < 8; round++)
        for (unsigned n = 0; n < 4; n++, b.now_ns += 10 * MS) {
            CHECK_EQ(bench_check(&b, 0, n, (struct options){.nominates = n == 2}), VR_ICE_OK);
            struct vr_flow_key key = flow(n);
            CHECK(vr_flow_key_equal(&b.out.path->key, &key));
        }
    CHECK_EQ(bench_target(&b, 0), 2);
    for (unsigned i = 0; i < 31; i++) {
        b.now_ns += SECOND;
        bench_path(&b, 0, 2);
        vr_ice_expire(b.ice, 0, b.now_ns);
    }
    for (unsigned n = 0; n < 4; n++)
        CHECK_EQ(bench_has_path(&b, 0, n), n == 2);
    bench_close(&b);
}

TEST(b08_media_follows_the_latest_nomination_and_then_the_media_itself) {
    struct bench b = bench_open(1);
    bench_check(&b, 0, 1, (struct options){.nominates = true});
    CHECK_EQ(bench_target(&b, 0), 1);
    b.now_ns += 9 * SECOND;
    bench_check(&b, 0, 2, (struct options){.nominates = true});
    CHECK_EQ(bench_target(&b, 0), 2);
    struct vr_ice_path *two = b.out.path;
    CASE("both flagged in turn, media from the second only: no flipping");
    for (unsigned i = 0; i < 100; i++, b.now_ns += 50 * MS) {
        bench_media(&b, two, 0);
        bench_check(&b, 0, 1 + i % 2, (struct options){.nominates = true});
        CHECK_EQ(bench_target(&b, 0), 2);
    }
    bench_close(&b);
}

TEST(b12_with_every_check_nominating_the_pair_that_works_gets_media) {
    struct bench b = bench_open(1);
    bench_check(&b, 0, 1, (struct options){.nominates = true});
    b.now_ns += 20 * MS;
    bench_check(&b, 0, 2, (struct options){.nominates = true});
    CHECK_EQ(bench_target(&b, 0), 2);
    CASE("what we send on 2 is lost: the client speaks on 1, and DTLS finds its way there");
    b.now_ns += 20 * MS;
    bench_check(&b, 0, 1, (struct options){.nominates = true});
    CHECK_EQ(bench_target(&b, 0), 1);
    bench_media(&b, b.out.path, 0);
    b.now_ns += 20 * MS;
    bench_check(&b, 0, 2, (struct options){.nominates = true});
    CHECK_EQ(bench_target(&b, 0), 1);
    bench_close(&b);
}

TEST(b16_a_handshake_is_answered_where_the_client_speaks_from) {
    struct bench b = bench_open(1);
    bench_path(&b, 0, 1);
    b.now_ns += MS;
    struct vr_ice_path *second = bench_path(&b, 0, 2);
    CHECK_EQ(bench_target(&b, 0), 1);
    bench_media(&b, second, 1); /* its ClientHello: DTLS counts as media */
    CHECK_EQ(bench_target(&b, 0), 2);
    CHECK(comes_from(vr_ice_media_path(b.ice, 0, b.now_ns), 1));
    bench_close(&b);
}

TEST(b20_an_off_path_hello_reaches_nobody_else) {
    struct bench b = bench_open(2);
    bench_path(&b, 0, 0);
    bench_path(&b, 1, 1);
    CHECK_EQ(bench_members(&b, 2), 0);
    CASE("from another customer's flow key it reaches that customer only");
    CHECK_EQ(bench_members(&b, 1), 1 << 1);
    bench_close(&b);
}

/* --- 5: consent is time ---------------------------------------------------------------------- */

TEST(any_authenticated_packet_keeps_consent_for_30_s) {
    struct bench b = bench_open(1);
    b.now_ns += 29 * SECOND; /* from the open */
    CHECK(vr_ice_has_consent(b.ice, 0, b.now_ns));
    for (unsigned i = 0; i < 6; i++) {
        if (i % 3 == 2)
            bench_media(&b, bench_path(&b, 0, 0), 0);
        else
            bench_check(&b, 0, 0, (struct options){.nominates = i % 3 == 1});
        b.now_ns += 29 * SECOND;
        CHECK(vr_ice_has_consent(b.ice, 0, b.now_ns));
    }
    b.now_ns += SECOND - 1;
    CHECK(vr_ice_has_consent(b.ice, 0, b.now_ns));
    b.now_ns += 1;
    CHECK(!vr_ice_has_consent(b.ice, 0, b.now_ns));
    bench_close(&b);
}

TEST(b17_consent_survives_loss_and_stalls_and_ends_30_s_after_a_cut) {
    struct bench b = bench_open(1);
    uint32_t random = 1;
    for (unsigned i = 0; i < 48; i++, b.now_ns += 2500 * MS) { /* 120 s of a browser's checks */
        random = random * 1664525 + 1013904223;
        CHECK(vr_ice_has_consent(b.ice, 0, b.now_ns));
        if (random >> 30 != 0) /* a quarter is lost */
            bench_path(&b, 0, 0);
    }
    CASE("8 s in which nothing is read");
    bench_path(&b, 0, 0);
    b.now_ns += 8 * SECOND;
    vr_ice_expire(b.ice, 0, b.now_ns);
    CHECK(vr_ice_has_consent(b.ice, 0, b.now_ns));
    CHECK_EQ(bench_target(&b, 0), 0);
    CASE("cut");
    bench_path(&b, 0, 0);
    b.now_ns += 30 * SECOND;
    CHECK(!vr_ice_has_consent(b.ice, 0, b.now_ns));
    bench_close(&b);
}

/* --- the end --------------------------------------------------------------------------------- */

TEST(a_closed_session_leaves_nothing_and_its_place_is_new) {
    struct bench b = bench_open(2);
    for (unsigned n = 0; n < 5; n++) {
        bench_path(&b, 0, n);
        bench_path(&b, 1, n);
    }
    bench_check(&b, 0, 0, (struct options){.transaction = 7});
    vr_ice_close(b.ice, 0);
    vr_ice_close(b.ice, 0);
    for (unsigned n = 0; n < 5; n++)
        CHECK_EQ(bench_members(&b, n), 1 << 1);
    CHECK_EQ(bench_check(&b, 0, 0, (struct options){0}), VR_ICE_UNKNOWN_UFRAG);
    CHECK_EQ(bench_target(&b, 0), NOWHERE);
    CHECK_EQ(vr_ice_open(b.ice, 0, "ufrag0", ice_password, "cli", b.now_ns), 0);
    CHECK_EQ(bench_target(&b, 0), NOWHERE);
    CHECK_EQ(bench_check(&b, 0, 9, (struct options){.transaction = 7}), VR_ICE_OK);
    bench_close(&b);
}
