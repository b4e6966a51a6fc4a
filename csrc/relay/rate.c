#include "rate.h"

#include <stdlib.h>

enum { CELLS = 8 };

/* One cache line. */
struct bucket {
    struct {
        uint32_t fingerprint;
        uint16_t second; /* modulo 2^16 */
        uint16_t count;
    } cell[CELLS];
};

struct vr_rate {
    uint32_t buckets;
    struct bucket *bucket;
};

struct vr_rate *vr_rate_new(size_t keys) {
    struct vr_rate *rate = calloc(1, sizeof *rate);
    if (!rate)
        return NULL;
    rate->buckets = (uint32_t)(keys * 2 / CELLS + 1);
    rate->bucket = calloc(rate->buckets, sizeof *rate->bucket);
    if (!rate->bucket) {
        free(rate);
        return NULL;
    }
    return rate;
}

void vr_rate_free(struct vr_rate *rate) {
    if (!rate)
        return;
    free(rate->bucket);
    free(rate);
}

bool vr_rate_take(struct vr_rate *rate, uint64_t hash, uint32_t limit, uint32_t now_ms) {
    struct bucket *bucket = &rate->bucket[(hash >> 32) * rate->buckets >> 32];
    uint32_t fingerprint = (uint32_t)hash;
    uint16_t second = (uint16_t)(now_ms / 1000);
    unsigned least = 0, least_count = UINT16_MAX + 1;
    if (limit == 0 || limit >= UINT16_MAX)
        return true;
    for (unsigned i = 0; i < CELLS; i++) {
        bool current = bucket->cell[i].second == second && bucket->cell[i].count > 0;
        if (current && bucket->cell[i].fingerprint == fingerprint) {
            if (bucket->cell[i].count >= limit)
                return false;
            bucket->cell[i].count++;
            return true;
        }
        unsigned count = current ? bucket->cell[i].count : 0;
        if (count < least_count) {
            least = i;
            least_count = count;
        }
    }
    bucket->cell[least].fingerprint = fingerprint;
    bucket->cell[least].second = second;
    bucket->cell[least].count = 1;
    return true;
}
