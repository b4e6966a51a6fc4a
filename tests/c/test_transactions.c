#include "check.h"
#include "relay/transactions.h"

static const struct vr_hash_key KEY = {{1, 2}};
static const uint8_t TID[12] = "transaction1";

static struct vr_flow_key flow(unsigned i) {
    struct vr_flow_key key = {{{0}, 0}, {{0}, 0}};
    memcpy(key.client.ip, &i, sizeof i);
    return key;
}

static uint64_t place(const struct vr_transactions *t, unsigned i) {
    struct vr_flow_key key = flow(i);
    return vr_transaction_hash(t, &key, TID, NULL);
}

static struct vr_transaction check_of(uint16_t cluster_id) {
    return (struct vr_transaction){.claim.owner.cluster_id = cluster_id};
}

TEST(key_id_and_transceiver_all_matter) {
    struct vr_transactions *t = vr_transactions_new(10, &KEY);
    struct vr_flow_key one = flow(1), two = flow(2);
    struct vr_addr a = {{1}, 1}, z = {{2}, 1}, none = {{0}, 0};
    uint64_t hash = vr_transaction_hash(t, &one, TID, &a);
    CHECK(hash == vr_transaction_hash(t, &one, TID, &a));
    CHECK(hash != vr_transaction_hash(t, &two, TID, &a));
    CHECK(hash != vr_transaction_hash(t, &one, (const uint8_t *)"transaction2", &a));
    CHECK(hash != vr_transaction_hash(t, &one, TID, &z));
    CHECK(vr_transaction_hash(t, &one, TID, &none) != vr_transaction_hash(t, &one, TID, NULL));
    vr_transactions_free(t);
}

TEST(remembers_for_a_while) {
    struct vr_transactions *t = vr_transactions_new(10, &KEY);
    struct vr_transaction check = check_of(7);
    CHECK(vr_transactions_find(t, place(t, 1), 5000) == NULL);
    vr_transactions_remember(t, place(t, 1), &check, 5000);
    const struct vr_transaction *found = vr_transactions_find(t, place(t, 1), 6999);
    CHECK(found && found->claim.owner.cluster_id == 7);
    CHECK(vr_transactions_find(t, place(t, 1), 5000 + VR_CHECK_MEMORY_MS) == NULL);
    CHECK(vr_transactions_find(t, place(t, 2), 5000) == NULL);
    vr_transactions_free(t);
}

TEST(the_first_stays_until_its_time_is_over) {
    struct vr_transactions *t = vr_transactions_new(10, &KEY);
    struct vr_transaction first = check_of(7), second = check_of(8);
    vr_transactions_remember(t, place(t, 1), &first, 1000);
    vr_transactions_remember(t, place(t, 1), &second, 2000);
    CHECK_EQ(vr_transactions_find(t, place(t, 1), 2000)->claim.owner.cluster_id, 7);
    vr_transactions_remember(t, place(t, 1), &second, 3000);
    CHECK_EQ(vr_transactions_find(t, place(t, 1), 3000)->claim.owner.cluster_id, 8);
    vr_transactions_free(t);
}

TEST(the_oldest_gives_way) {
    enum { CHECKS = 4000 };
    struct vr_transactions *t = vr_transactions_new(CHECKS, &KEY);
    struct vr_transaction check = check_of(1);
    for (unsigned i = 0; i < 4 * CHECKS; i++)
        vr_transactions_remember(t, place(t, i), &check, 1000 + i / 100);
    unsigned recent = 0, old = 0;
    for (unsigned i = 0; i < CHECKS / 2; i++) {
        recent += vr_transactions_find(t, place(t, 4 * CHECKS - 1 - i), 1160) != NULL;
        old += vr_transactions_find(t, place(t, i), 1160) != NULL;
    }
    CHECK(recent > CHECKS / 2 * 99 / 100);
    CHECK_EQ(old, 0);
    vr_transactions_free(t);
}
