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

static struct bucket *bucket_of(const struct vr_transactions *transactions, uint64_t hash) {
    return &transactions->bucket[(hash >> 32) * transactions->buckets >> 32];
}

void vr_transactions_remember(struct vr_transactions *transactions, uint64_t hash,
                              const struct vr_transaction *transaction, uint32_t now_ms) {
    struct bucket *bucket = bucket_of(transactions, hash);
    unsigned oldest = 0;
    uint32_t oldest_ms = 0;
    for (unsigned i = 0; i < CELLS; i++) {
        uint32_t age_ms =
            bucket->hash[i] ? vr_age_ms(now_ms, bucket->sent_ms[i]) : (uint32_t)UINT32_MAX;
        if (bucket->hash[i] == hash && age_ms < VR_CHECK_MEMORY_MS)
            return;
        if (age_ms > oldest_ms) {
            oldest = i;
            oldest_ms = age_ms;
        }
    }
    bucket->hash[oldest] = hash;
    bucket->sent_ms[oldest] = now_ms;
    bucket->transaction[oldest] = *transaction;
}

const struct vr_transaction *vr_transactions_find(const struct vr_transactions *transactions,
                                                  uint64_t hash, uint32_t now_ms) {
    const struct bucket *bucket = bucket_of(transactions, hash);
    for (unsigned i = 0; i < CELLS; i++)
        if (bucket->hash[i] == hash && vr_age_ms(now_ms, bucket->sent_ms[i]) < VR_CHECK_MEMORY_MS)
            return &bucket->transaction[i];
    return NULL;
}
