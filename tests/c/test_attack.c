/* What an attacker can do with floods, spoofed addresses, captured checks and sessions of his own: each
 * time no established call is cut or moved, and memory stays what it is (issue "Nothing lost"). */
#include "forward_check.h"
#include "relay/forward.h"
#include "relay/owners.h"
#include "relay/tracker.h"

static struct bench b;

/* Two calls of transceiver 7, from clients 1 and 2. */
static void open_with_calls(void) {
    bench_open(&b);
    establish(&b, 1, 7, ufrag_of(&b, 1, 7, 1));
    establish(&b, 2, 7, ufrag_of(&b, 1, 7, 2));
}

static void check_calls_untouched(void) {
    for (unsigned c = 1; c <= 2; c++) {
        CHECK_EQ(send_public(&b, client(c), rtp()), VR_VERDICT_SEND);
        check_went_up(&b, transceiver(7), client(c), 172);
        CHECK_EQ(send_internal(&b, transceiver(7), client(c), rtp()), VR_VERDICT_SEND);
        check_went_down(&b, client(c), 172);
    }
}

TEST(a_flood_of_random_tokens_makes_no_state) {
    open_with_calls();
    struct ufrag ufrag = ufrag_of(&b, 1, 7, 0);
    uint32_t seed = 1;
    for (unsigned i = 0; i < 20000; i++) {
        static const char alphabet[] =
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        for (unsigned j = 1; j < VR_TOKEN_CHARS; j++) {
            seed = seed * 1664525 + 1013904223;
            ufrag.chars[j] = alphabet[seed >> 26];
        }
        CHECK_EQ(
            send_public(&b, v4(100, 64 + i % 64, i / 256 % 256, i % 256, i), check_of(ufrag, i)),
            VR_VERDICT_DROP);
    }
    CHECK_EQ(b.stats.flows_created, 2);
    check_calls_untouched();
    bench_close(&b);
}

TEST(a_valid_token_from_random_sources) {
    open_with_calls();
    struct ufrag captured = ufrag_of(&b, 1, 7, 1);
    for (unsigned i = 0; i < 100000; i++) { /* a second of it */
        send_public(&b, v4(100, 64 + i / 65536, i / 256 % 256, i % 256, 999),
                    check_of(captured, i));
        if (i % 100 == 0)
            wait_ms(&b, 1);
        if (i % 1000 == 0)
            vr_forward_sweep(b.forwarder, b.now_ns);
    }
    CHECK(b.stats.flows_created <= 2 + 2 * 20);
    CHECK(b.stats.drop[VR_DROP_CAP_TOKEN_FLOWS_RATE] >= 100000 - 2 * 20);
    check_calls_untouched();
    CASE("the client whose token it is");
    CHECK_EQ(send_public(&b, client(1), check_of(captured, 1)), VR_VERDICT_SEND);
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), success_of(1)), VR_VERDICT_SEND);
    bench_close(&b);
}

TEST(a_captured_check_replayed_from_another_address) {
    open_with_calls();
    struct message captured = check_of(ufrag_of(&b, 1, 7, 1), 4711);
    CHECK_EQ(send_public(&b, client(1), captured), VR_VERDICT_SEND);
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), success_of(4711)), VR_VERDICT_SEND);
    CHECK_EQ(send_public(&b, client(66), captured), VR_VERDICT_SEND); /* 7 does not answer it */
    CHECK_EQ(send_public(&b, client(66), rtp()), VR_VERDICT_DROP);
    CHANGED(&b, RX(PUBLIC, 172), DROP(HALF_OPEN));
    CASE("the success for the victim's check does not count for the attacker's");
    CHECK_EQ(send_internal(&b, transceiver(7), client(1), success_of(4711)), VR_VERDICT_SEND);
    CHECK(slot_of(&b, VR_POOL_ESTABLISHED, client(66)) == VR_NO_SLOT);
    check_calls_untouched();
    bench_close(&b);
}

/* The attacker holds a session at `t`: whatever he spoofs with its token is answered. */
static void spoof_and_confirm(unsigned victim, unsigned t, unsigned serial, unsigned tid) {
    send_public(&b, client(victim), check_of(ufrag_of(&b, 1, t, serial), tid));
    if (b.out.hops == 1)
        send_internal(&b, transceiver(t), client(victim), success_of(tid));
}

TEST(an_attackers_session_on_the_same_transceiver) {
    open_with_calls();
    for (unsigned i = 0; i < 3000; i++) {
        spoof_and_confirm(1, 7, 666, i);
        wait_ms(&b, 20);
        if (i % 125 == 0) {
            send_public(&b, client(1), check_of(ufrag_of(&b, 1, 7, 1), 90000 + i));
            CHECK_EQ(b.out.hops, 1);
            CHECK_EQ(send_internal(&b, transceiver(7), client(1), success_of(90000 + i)),
                     VR_VERDICT_SEND);
            send_internal(&b, transceiver(7), client(2), rtp());
        }
    }
    check_calls_untouched();
    bench_close(&b);
}

TEST(an_attackers_session_on_another_transceiver) {
    open_with_calls();
    for (unsigned i = 0; i < 3000; i++) {
        spoof_and_confirm(1, 8, 666, i);
        spoof_and_confirm(1, 9, 667, i);
        wait_ms(&b, 20);
        if (i % 125 == 0) { /* the victim's own check, every 2.5 s */
            send_public(&b, client(1), check_of(ufrag_of(&b, 1, 7, 1), 90000 + i));
            CHECK_EQ(b.out.hops, 1);
            CHECK_EQ(send_internal(&b, transceiver(7), client(1), success_of(90000 + i)),
                     VR_VERDICT_SEND);
        }
        CHECK_EQ(send_public(&b, client(1), rtp()), VR_VERDICT_SEND);
        CHECK_EQ(b.out.hops, 2); /* one of the two is always the victim's */
        struct vr_addr victims = transceiver(7);
        CHECK(vr_addr_equal(&b.out.hop[0].destination, &victims) ||
              vr_addr_equal(&b.out.hop[1].destination, &victims));
        CHECK_EQ(send_internal(&b, transceiver(7), client(1), rtp()), VR_VERDICT_SEND);
        send_internal(&b, transceiver(7), client(2), rtp());
    }
    CASE("when the attacker stops, his owners leave");
    for (unsigned i = 0; i < 13; i++) {
        wait_ms(&b, 2500);
        send_public(&b, client(1), check_of(ufrag_of(&b, 1, 7, 1), 80000 + i));
        CHECK_EQ(send_internal(&b, transceiver(7), client(1), success_of(80000 + i)),
                 VR_VERDICT_SEND);
        send_internal(&b, transceiver(7), client(2), rtp());
    }
    check_calls_untouched();
    bench_close(&b);
}

TEST(a_flow_made_for_a_victim_before_he_comes) {
    open_with_calls();
    spoof_and_confirm(5, 8, 666, 1);
    CHECK_EQ(send_public(&b, client(5), check_of(ufrag_of(&b, 1, 7, 5), 2)), VR_VERDICT_SEND);
    CHECK_EQ(send_internal(&b, transceiver(7), client(5), success_of(2)), VR_VERDICT_SEND);
    CHECK_EQ(send_public(&b, client(5), dtls()), VR_VERDICT_SEND);
    check_went_to_both(&b, transceiver(7), transceiver(8));
    CHECK_EQ(send_internal(&b, transceiver(7), client(5), dtls()), VR_VERDICT_SEND);
    bench_close(&b);
}

TEST(a_spoofed_half_open_flow_does_not_stop_its_victim) {
    open_with_calls();
    for (unsigned i = 0; i < 60; i++) /* unanswered: a token without a password */
        send_public(&b, client(5), check_of(ufrag_of(&b, 1, 8, 666), i));
    CHECK_EQ(send_public(&b, client(5), check_of(ufrag_of(&b, 1, 7, 5), 1)), VR_VERDICT_SEND);
    CHECK_EQ(send_internal(&b, transceiver(7), client(5), success_of(1)), VR_VERDICT_SEND);
    CHECK_EQ(send_public(&b, client(5), dtls()), VR_VERDICT_SEND);
    check_went_up(&b, transceiver(7), client(5), 100);
    bench_close(&b);
}

TEST(the_victims_transaction_id_with_the_attackers_token) {
    open_with_calls();
    struct ufrag victim = ufrag_of(&b, 1, 7, 5), attacker = ufrag_of(&b, 1, 8, 666);
    CHECK_EQ(send_public(&b, client(5), check_of(victim, 42)), VR_VERDICT_SEND);
    CHECK_EQ(send_public(&b, client(5), check_of(attacker, 42)), VR_VERDICT_SEND);
    CHECK_EQ(send_internal(&b, transceiver(7), client(5), success_of(42)), VR_VERDICT_SEND);
    CHECK_EQ(send_public(&b, client(5), dtls()), VR_VERDICT_SEND);
    check_went_up(&b, transceiver(7), client(5), 100);
    CASE("the same transceiver: the token stays the victim's");
    struct ufrag same = ufrag_of(&b, 1, 7, 666);
    struct vr_token token;
    send_public(&b, client(6), check_of(victim, 43));
    send_public(&b, client(6), check_of(same, 43));
    CHECK_EQ(send_internal(&b, transceiver(7), client(6), success_of(43)), VR_VERDICT_SEND);
    vr_token_open(b.keyring, (const uint8_t *)victim.chars, VR_TOKEN_CHARS, &token);
    CHECK_MEM(vr_flow_token(&b.table, slot_of(&b, VR_POOL_ESTABLISHED, client(6)), 0), token.sealed,
              VR_TOKEN_BYTES);
    bench_close(&b);
}

TEST(media_and_dtls_from_anywhere_make_nothing) { /* cases B20, A31 */
    open_with_calls();
    for (unsigned i = 0; i < 10000; i++) {
        struct vr_addr from = v4(100, 64, i / 256, i % 256, 1 + i);
        CHECK_EQ(send_public(&b, from, i % 2 ? dtls() : rtp()), VR_VERDICT_DROP);
    }
    CHECK_EQ(b.stats.drop[VR_DROP_NO_FLOW], 10000);
    CHECK_EQ(b.stats.flows_created, 2);
    check_calls_untouched();
    bench_close(&b);
}

TEST(spoofed_checks_do_not_keep_a_dead_flow) {
    open_with_calls();
    for (unsigned i = 0; i < 1200; i++) {
        wait_ms(&b, 50);
        send_public(&b, client(1), check_of(ufrag_of(&b, 1, 7, 1), i)); /* nobody answers */
        send_internal(&b, transceiver(7), client(2), rtp());
    }
    CHECK(slot_of(&b, VR_POOL_ESTABLISHED, client(1)) == VR_NO_SLOT);
    CHECK_EQ(b.stats.flows_expired, 1);
    bench_close(&b);
}

TEST(all_checks_of_a_flood_do_not_displace_a_remembered_one) {
    open_with_calls();
    CHECK_EQ(send_public(&b, client(5), check_of(ufrag_of(&b, 1, 7, 5), 1)), VR_VERDICT_SEND);
    for (unsigned s = 0; s < 150; s++) /* 150 captured tokens, all that the caps let through */
        for (unsigned i = 0; i < 50; i++)
            send_public(&b, client(300 + s), check_of(ufrag_of(&b, 1, 8, 1000 + s), i));
    CHECK_EQ(send_internal(&b, transceiver(7), client(5), success_of(1)), VR_VERDICT_SEND);
    check_calls_untouched();
    bench_close(&b);
}
