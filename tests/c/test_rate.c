#include "check.h"
#include "relay/rate.h"

/* Spreads i over 64 bits, as a keyed hash does. */
static uint64_t hash_of(uint64_t i) {
    i = (i + 1) * UINT64_C(0x9E3779B97F4A7C15);
    i = (i ^ i >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    return (i ^ i >> 27) * UINT64_C(0x94D049BB133111EB);
}

TEST(a_limit_a_second) {
    struct vr_rate *rate = vr_rate_new(100);
    for (unsigned second = 0; second < 3; second++) {
        for (unsigned i = 0; i < 10; i++)
            CHECK(vr_rate_take(rate, hash_of(1), 10, second * 1000 + i * 99));
        CHECK(!vr_rate_take(rate, hash_of(1), 10, second * 1000 + 999));
        CHECK(vr_rate_take(rate, hash_of(2), 10, second * 1000 + 999));
    }
    vr_rate_free(rate);
}

TEST(no_limit) {
    struct vr_rate *rate = vr_rate_new(1);
    for (unsigned i = 0; i < 70000; i++) {
        CHECK(vr_rate_take(rate, 1, 0, 0));
        CHECK(vr_rate_take(rate, 2, 65535, 0));
    }
    vr_rate_free(rate);
}

TEST(many_keys_do_not_refuse_each_other) {
    struct vr_rate *rate = vr_rate_new(1000);
    for (unsigned round = 0; round < 5; round++)
        for (unsigned i = 0; i < 1000; i++)
            CHECK(vr_rate_take(rate, hash_of(i), 5, 7000));
    unsigned passed = 0; /* nearly all are remembered */
    for (unsigned i = 0; i < 1000; i++)
        passed += vr_rate_take(rate, hash_of(i), 5, 7000);
    CHECK(passed < 20);
    vr_rate_free(rate);
}

TEST(under_pressure_it_lets_through) {
    struct vr_rate *rate = vr_rate_new(8);
    for (unsigned i = 0; i < 10000; i++)
        CHECK(vr_rate_take(rate, hash_of(i), 1, 7000));
    CASE("and keeps whom it saw most");
    for (unsigned i = 0; i < 50; i++)
        vr_rate_take(rate, hash_of(0), 50, 8000);
    for (unsigned i = 1; i < 1000; i++)
        vr_rate_take(rate, hash_of(i), 50, 8000);
    CHECK(!vr_rate_take(rate, hash_of(0), 50, 8000));
    vr_rate_free(rate);
}
