#include "check.h"
#include "relay/tally.h"

static uint64_t hash_of(uint64_t i) {
    i = (i + 1) * UINT64_C(0x9E3779B97F4A7C15);
    i = (i ^ i >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    return (i ^ i >> 27) * UINT64_C(0x94D049BB133111EB);
}

TEST(counts_up_and_down) {
    struct vr_tally *tally = vr_tally_new(10);
    CHECK_EQ(vr_tally_get(tally, hash_of(1)), 0);
    for (unsigned i = 1; i <= 5; i++) {
        vr_tally_add(tally, hash_of(1));
        CHECK_EQ(vr_tally_get(tally, hash_of(1)), i);
    }
    CHECK_EQ(vr_tally_get(tally, hash_of(2)), 0);
    for (unsigned i = 5; i-- > 0;) {
        vr_tally_remove(tally, hash_of(1));
        CHECK_EQ(vr_tally_get(tally, hash_of(1)), i);
    }
    vr_tally_remove(tally, hash_of(1)); /* never below 0 */
    CHECK_EQ(vr_tally_get(tally, hash_of(1)), 0);
    vr_tally_free(tally);
}

TEST(holds_what_it_was_made_for) {
    enum { KEYS = 20000 };
    struct vr_tally *tally = vr_tally_new(KEYS);
    for (unsigned round = 1; round <= 3; round++) {
        for (unsigned i = 0; i < KEYS; i++)
            vr_tally_add(tally, hash_of(i));
        unsigned wrong = 0;
        for (unsigned i = 0; i < KEYS; i++)
            wrong += vr_tally_get(tally, hash_of(i)) != round;
        CHECK(wrong <= 4);
    }
    for (unsigned round = 0; round < 3; round++)
        for (unsigned i = 0; i < KEYS; i++)
            vr_tally_remove(tally, hash_of(i));
    for (unsigned i = 0; i < KEYS; i++)
        CHECK_EQ(vr_tally_get(tally, hash_of(i)), 0);
    vr_tally_free(tally);
}

TEST(full_it_refuses_nobody) {
    struct vr_tally *tally = vr_tally_new(8);
    for (unsigned i = 0; i < 1000; i++)
        vr_tally_add(tally, hash_of(i));
    unsigned counted = 0;
    for (unsigned i = 0; i < 1000; i++)
        counted += vr_tally_get(tally, hash_of(i));
    CHECK(counted >= 8 && counted <= 16);
    vr_tally_free(tally);
}
