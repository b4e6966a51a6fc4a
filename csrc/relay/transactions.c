#include "transactions.h"

#include "../wire/stun.h"

#include <stdlib.h>

enum { CELLS = 8 };

struct bucket {
    uint64_t hash[CELLS]; /* 0: free */
    uint32_t sent_ms[CELLS];
    struct vr_transaction transaction[CELLS];
};

struct vr_transactions {
    struct vr_hash_key hash_key;
    uint32_t buckets;
    struct bucket *bucket;
};

struct vr_transactions *vr_transactions_new(size_t checks, const struct vr_hash_key *hash_key) {
    struct vr_transactions *transactions = calloc(1, sizeof *transactions);
    if (!transactions)
        return NULL;
    transactions->hash_key = *hash_key;
    transactions->buckets = (uint32_t)(checks / CELLS + 1);
    transactions->bucket = calloc(transactions->buckets, sizeof *transactions->bucket);
    if (!transactions->bucket) {
        free(transactions);
        return NULL;
    }
    return transactions;
}

void vr_transactions_free(struct vr_transactions *transactions) {
    if (!transactions)
        return;
    free(transactions->bucket);
    free(transactions);
}

uint64_t vr_transaction_hash(const struct vr_transactions *transactions,
                             const struct vr_flow_key *key, const uint8_t *tid,
                             const struct vr_addr *transceiver) {
    struct {
        struct vr_flow_key key;
        struct vr_addr transceiver;
        uint8_t tid[VR_STUN_TID_BYTES];
        uint8_t what[2];
    } covered = {.key = *key, .what = {'c', transceiver != NULL}};
    memcpy(covered.tid, tid, sizeof covered.tid);
    if (transceiver)
        covered.transceiver = *transceiver;
    uint64_t hash = vr_siphash(&transactions->hash_key, &covered, sizeof covered);
    return hash ? hash : 1;
}

/* Cell `i` of the two buckets of `hash`. */
static struct bucket *bucket_of(const struct vr_transactions *transactions, uint64_t hash,
                                unsigned i) {
    uint64_t part = i < CELLS ? hash >> 32 : hash & UINT32_MAX;
    return &transactions->bucket[part * transactions->buckets >> 32];
}

static uint32_t age_of(const struct bucket *bucket, unsigned cell, uint32_t now_ms) {
    return bucket->hash[cell] ? vr_age_ms(now_ms, bucket->sent_ms[cell]) : UINT32_MAX;
}

void vr_transactions_remember(struct vr_transactions *transactions, uint64_t hash,
                              const struct vr_transaction *transaction, uint32_t now_ms) {
    struct bucket *oldest = bucket_of(transactions, hash, 0);
    unsigned oldest_cell = 0;
    uint32_t oldest_age_ms = 0;
    if (vr_transactions_find(transactions, hash, now_ms))
        return;
    for (unsigned i = 0; i < 2 * CELLS; i++) {
        struct bucket *bucket = bucket_of(transactions, hash, i);
        uint32_t age_ms = age_of(bucket, i % CELLS, now_ms);
        if (age_ms > oldest_age_ms) {
            oldest = bucket;
            oldest_cell = i % CELLS;
            oldest_age_ms = age_ms;
        }
    }
    oldest->hash[oldest_cell] = hash;
    oldest->sent_ms[oldest_cell] = now_ms;
    oldest->transaction[oldest_cell] = *transaction;
}

const struct vr_transaction *vr_transactions_find(const struct vr_transactions *transactions,
                                                  uint64_t hash, uint32_t now_ms) {
    for (unsigned i = 0; i < 2 * CELLS; i++) {
        const struct bucket *bucket = bucket_of(transactions, hash, i);
        if (bucket->hash[i % CELLS] == hash &&
            age_of(bucket, i % CELLS, now_ms) < VR_CHECK_MEMORY_MS)
            return &bucket->transaction[i % CELLS];
    }
    return NULL;
}
