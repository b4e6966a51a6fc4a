#include "tally.h"

#include <stdlib.h>

enum { CELLS = 8 };

struct cell {
    uint32_t fingerprint;
    uint32_t count; /* 0: free */
};

struct vr_tally {
    uint32_t buckets;
    struct cell *cell; /* buckets of CELLS, one cache line each */
};

struct vr_tally *vr_tally_new(size_t keys) {
    struct vr_tally *tally = calloc(1, sizeof *tally);
    if (!tally)
        return NULL;
    tally->buckets = (uint32_t)(keys * 4 / (CELLS * 3) + 1); /* two choices hold 75 % */
    tally->cell = calloc((size_t)tally->buckets * CELLS, sizeof *tally->cell);
    if (!tally->cell) {
        free(tally);
        return NULL;
    }
    return tally;
}

void vr_tally_free(struct vr_tally *tally) {
    if (!tally)
        return;
    free(tally->cell);
    free(tally);
}

static void candidates(const struct vr_tally *tally, uint64_t hash, struct cell *bucket[2]) {
    bucket[0] = tally->cell + ((hash >> 32) * tally->buckets >> 32) * CELLS;
    bucket[1] = tally->cell + ((hash & UINT32_MAX) * tally->buckets >> 32) * CELLS;
}

/* The cell of `hash`, or NULL. */
static struct cell *find(const struct vr_tally *tally, uint64_t hash) {
    struct cell *bucket[2];
    uint32_t fingerprint = (uint32_t)hash;
    candidates(tally, hash, bucket);
    for (unsigned i = 0; i < 2 * CELLS; i++) {
        struct cell *cell = bucket[i / CELLS] + i % CELLS;
        if (cell->count > 0 && cell->fingerprint == fingerprint)
            return cell;
    }
    return NULL;
}

/* A free cell of the emptier bucket, or NULL. */
static struct cell *place(const struct vr_tally *tally, uint64_t hash) {
    struct cell *bucket[2];
    struct cell *room[2] = {NULL, NULL};
    unsigned free_cells[2] = {0, 0};
    candidates(tally, hash, bucket);
    for (unsigned i = 0; i < 2 * CELLS; i++) {
        struct cell *cell = bucket[i / CELLS] + i % CELLS;
        if (cell->count == 0) {
            room[i / CELLS] = cell;
            free_cells[i / CELLS]++;
        }
    }
    return room[free_cells[1] > free_cells[0]];
}

uint32_t vr_tally_get(const struct vr_tally *tally, uint64_t hash) {
    const struct cell *cell = find(tally, hash);
    return cell ? cell->count : 0;
}

void vr_tally_add(struct vr_tally *tally, uint64_t hash) {
    struct cell *cell = find(tally, hash);
    if (!cell) {
        cell = place(tally, hash);
        if (!cell)
            return;
        cell->fingerprint = (uint32_t)hash;
    }
    cell->count++;
}

void vr_tally_remove(struct vr_tally *tally, uint64_t hash) {
    struct cell *cell = find(tally, hash);
    if (cell)
        cell->count--;
}
