#include "pacer.h"

#include "codec.h"
#include "stretch.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCK_MS = 20,
    LIVE_CALM_BLOCKS = 50, /* a backlog is worked off when it was there for a whole second */
    SHORTEN_MAX_MS = 10,
    EDGE_MS = 3, /* where the writer is late: a fade, so that nothing clicks */
    RUN_MAX_SAMPLES = 2 * VR_CODEC_RATE_MAX_HZ / 1000 * BLOCK_MS,
};

/* Written once by the writer, then read by the player only; the list has one node that is used up. */
struct chunk {
    _Atomic(struct chunk *) next;
    uint32_t generation;
    size_t samples;
    int16_t pcm[];
};

struct clock {
    _Atomic uint32_t generation;
    _Atomic uint64_t samples;
};

struct vr_pacer {
    struct vr_pacer_config config;
    size_t block_samples;

    /* writer */
    struct chunk *tail;
    _Atomic uint64_t refused;

    /* both */
    _Atomic uint64_t waiting;
    _Atomic uint32_t flushed_through;
    struct clock clocks[VR_PACER_CLOCKS];

    /* player */
    struct chunk *head; /* used up, or with `taken` samples gone */
    size_t taken;
    bool talking;
    bool broken;          /* the newest block was not full of sound */
    int16_t last;         /* sample of the newest block */
    unsigned tail_blocks; /* of silence, sent since the sound ended */
    unsigned waited_blocks;
    unsigned calm_blocks;
    uint64_t least_waiting; /* in this second */
    uint32_t timestamp;
    struct vr_pacer_counts counts;
};

/* --- writer ---------------------------------------------------------------------------------- */

static struct chunk *new_chunk(uint32_t generation, const int16_t *pcm, size_t samples) {
    struct chunk *chunk = malloc(sizeof *chunk + samples * sizeof *pcm);
    if (chunk == NULL)
        return NULL;
    atomic_init(&chunk->next, NULL);
    chunk->generation = generation;
    chunk->samples = samples;
    if (samples != 0)
        memcpy(chunk->pcm, pcm, samples * sizeof *pcm);
    return chunk;
}

struct vr_pacer *vr_pacer_new(const struct vr_pacer_config *config) {
    if (!vr_codec_rate_valid(config->rate_hz))
        return NULL;
    struct vr_pacer *p = calloc(1, sizeof *p);
    struct chunk *empty = new_chunk(0, NULL, 0);
    if (p == NULL || empty == NULL) {
        free(p);
        free(empty);
        return NULL;
    }
    p->config = *config;
    p->block_samples = config->rate_hz / 1000 * BLOCK_MS;
    p->head = p->tail = empty;
    p->timestamp = config->first_timestamp;
    p->least_waiting = UINT64_MAX;
    return p;
}

void vr_pacer_free(struct vr_pacer *p) {
    if (p == NULL)
        return;
    for (struct chunk *chunk = p->head; chunk != NULL;) {
        struct chunk *next = atomic_load_explicit(&chunk->next, memory_order_acquire);
        free(chunk);
        chunk = next;
    }
    free(p);
}

size_t vr_pacer_write(struct vr_pacer *p, uint32_t generation, const int16_t *pcm, size_t samples) {
    if (generation <= atomic_load_explicit(&p->flushed_through, memory_order_relaxed))
        return samples;
    uint64_t waiting = atomic_load_explicit(&p->waiting, memory_order_relaxed);
    size_t room = waiting < p->config.capacity_samples ? p->config.capacity_samples - waiting : 0;
    size_t take = samples < room ? samples : room;
    struct chunk *chunk = take != 0 ? new_chunk(generation, pcm, take) : NULL;
    if (chunk == NULL)
        take = 0;
    if (take < samples)
        atomic_fetch_add_explicit(&p->refused, samples - take, memory_order_relaxed);
    if (take == 0)
        return 0;
    atomic_fetch_add_explicit(&p->waiting, take, memory_order_relaxed);
    atomic_store_explicit(&p->tail->next, chunk, memory_order_release);
    p->tail = chunk;
    return take;
}

void vr_pacer_flush(struct vr_pacer *p, uint32_t through_generation) {
    if (through_generation > atomic_load_explicit(&p->flushed_through, memory_order_relaxed))
        atomic_store_explicit(&p->flushed_through, through_generation, memory_order_release);
}

size_t vr_pacer_waiting(const struct vr_pacer *p) {
    return atomic_load_explicit(&((struct vr_pacer *)p)->waiting, memory_order_relaxed);
}

bool vr_pacer_played(const struct vr_pacer *p, uint32_t generation, uint64_t *samples) {
    struct clock *clock = &((struct vr_pacer *)p)->clocks[generation % VR_PACER_CLOCKS];
    if (atomic_load_explicit(&clock->generation, memory_order_acquire) != generation)
        return false;
    uint64_t played = atomic_load_explicit(&clock->samples, memory_order_acquire);
    if (atomic_load_explicit(&clock->generation, memory_order_acquire) != generation)
        return false;
    *samples = played;
    return true;
}

/* --- player ---------------------------------------------------------------------------------- */

static void count_played(struct vr_pacer *p, uint32_t generation, size_t samples) {
    struct clock *clock = &p->clocks[generation % VR_PACER_CLOCKS];
    if (atomic_load_explicit(&clock->generation, memory_order_relaxed) != generation) {
        atomic_store_explicit(&clock->generation, 0, memory_order_release);
        atomic_store_explicit(&clock->samples, 0, memory_order_release);
        atomic_store_explicit(&clock->generation, generation, memory_order_release);
    }
    atomic_fetch_add_explicit(&clock->samples, samples, memory_order_release);
}

/* The chunk with sound to play, or NULL. Used up ones before it are freed. */
static struct chunk *current(struct vr_pacer *p) {
    while (p->taken == p->head->samples) {
        struct chunk *next = atomic_load_explicit(&p->head->next, memory_order_acquire);
        if (next == NULL)
            return NULL;
        free(p->head);
        p->head = next;
        p->taken = 0;
    }
    return p->head;
}

static void consume(struct vr_pacer *p, size_t samples) {
    p->taken += samples;
    atomic_fetch_sub_explicit(&p->waiting, samples, memory_order_relaxed);
}

static void discard(struct vr_pacer *p, uint32_t flushed) {
    struct chunk *chunk;
    while ((chunk = current(p)) != NULL && chunk->generation <= flushed) {
        p->counts.flushed_samples += chunk->samples - p->taken;
        consume(p, chunk->samples - p->taken);
    }
}

static size_t take(struct vr_pacer *p, int16_t *pcm, size_t samples) {
    size_t got = 0;
    struct chunk *chunk;
    while (got < samples && (chunk = current(p)) != NULL) {
        size_t rest = chunk->samples - p->taken;
        size_t n = rest < samples - got ? rest : samples - got;
        memcpy(pcm + got, chunk->pcm + p->taken, n * sizeof *pcm);
        count_played(p, chunk->generation, n);
        consume(p, n);
        got += n;
    }
    return got;
}

static int16_t fade(int16_t from, int16_t to, size_t i, size_t overlap) {
    return (int16_t)((from * (int64_t)(overlap - i) + to * (int64_t)i) / (int64_t)overlap);
}

/* What take would give, left where it is. */
static size_t peek(struct vr_pacer *p, int16_t *pcm, size_t samples) {
    struct chunk *chunk = current(p);
    size_t got = 0, taken = p->taken;
    for (; got < samples && chunk != NULL; taken = 0) {
        size_t rest = chunk->samples - taken, n = rest < samples - got ? rest : samples - got;
        memcpy(pcm + got, chunk->pcm + taken, n * sizeof *pcm);
        got += n;
        chunk = atomic_load_explicit(&chunk->next, memory_order_acquire);
    }
    return got;
}

/* A flush was asked for while its sound is on: what would have come next fades out. */
static size_t fade_out(struct vr_pacer *p, uint32_t flushed, int16_t *pcm) {
    struct chunk *chunk = current(p);
    size_t most = p->config.rate_hz / 1000 * VR_PACER_FADE_MS, got = 0;
    if (!p->talking || chunk == NULL || chunk->generation > flushed)
        return 0;
    while (got < most && (chunk = current(p)) != NULL && chunk->generation <= flushed) {
        size_t rest = chunk->samples - p->taken, n = rest < most - got ? rest : most - got;
        memcpy(pcm + got, chunk->pcm + p->taken, n * sizeof *pcm);
        count_played(p, chunk->generation, n);
        consume(p, n);
        got += n;
    }
    for (size_t i = 0; i < got; i++)
        pcm[i] = fade(pcm[i], 0, i + 1, got);
    return got;
}

/* A live backlog that did not go away for a second: this block is made of a little more sound. */
static size_t live_surplus(struct vr_pacer *p) {
    if (p->config.live_ms == 0)
        return 0;
    uint64_t waiting = atomic_load_explicit(&p->waiting, memory_order_relaxed);
    if (waiting < p->least_waiting)
        p->least_waiting = waiting;
    if (++p->calm_blocks < LIVE_CALM_BLOCKS)
        return 0;
    uint64_t wanted = p->config.rate_hz / 1000 * p->config.live_ms;
    if (p->least_waiting > wanted + p->block_samples) {
        size_t most = p->config.rate_hz / 1000 * SHORTEN_MAX_MS;
        size_t surplus = (size_t)(p->least_waiting - wanted);
        p->least_waiting -= surplus < most ? surplus : most;
        return surplus < most ? surplus : most;
    }
    p->calm_blocks = 0;
    p->least_waiting = UINT64_MAX;
    return 0;
}

/* A block of sound, shorter when not enough is waiting. */
static size_t take_block(struct vr_pacer *p, int16_t *pcm) {
    size_t surplus = live_surplus(p), block = p->block_samples, by = 0;
    int16_t run[RUN_MAX_SAMPLES];
    if (surplus != 0) {
        size_t ahead = peek(p, run, block + surplus);
        if (ahead == block + surplus)
            by = vr_stretch_shorten(run, ahead, p->config.rate_hz, surplus);
    }
    if (by == 0)
        return take(p, pcm, block);
    memcpy(pcm, run, block * sizeof *pcm);
    p->counts.shortened_samples += by;
    return take(p, run, block + by) - by;
}

static bool may_start(struct vr_pacer *p) {
    if (current(p) == NULL) {
        p->waited_blocks = 0;
        return false;
    }
    uint64_t wanted = p->config.rate_hz / 1000 * p->config.start_ms;
    if (atomic_load_explicit(&p->waiting, memory_order_relaxed) >= wanted ||
        p->waited_blocks * BLOCK_MS >= p->config.start_ms)
        return true;
    p->waited_blocks++;
    return false;
}

/* Where sound ends within a block, or at its end, it need not be silent there, nor where it goes on: a writer that is
 * late must not be heard as clicks. */
static void smooth(struct vr_pacer *p, int16_t *pcm, size_t got) {
    size_t edge = p->config.rate_hz / 1000 * EDGE_MS;
    for (size_t i = 0; p->broken && i < edge && i < got; i++)
        pcm[i] = fade(p->last, pcm[i], i, edge);
    int16_t end = got != 0 ? pcm[got - 1] : p->last;
    for (size_t i = 0; i < edge && got + i < p->block_samples; i++)
        pcm[got + i] = fade(end, 0, i + 1, edge);
    p->last = pcm[p->block_samples - 1];
    p->broken = got < p->block_samples;
}

static void send_block(struct vr_pacer *p, int16_t *pcm, size_t got, struct vr_pacer_block *out) {
    memset(pcm + got, 0, (p->block_samples - got) * sizeof *pcm);
    smooth(p, pcm, got);
    out->sound = true;
    out->marker = !p->talking;
    p->counts.talkspurts += !p->talking;
    p->counts.blocks++;
    p->talking = true;
    p->waited_blocks = 0;
}

void vr_pacer_tick(struct vr_pacer *p, int16_t *pcm, struct vr_pacer_block *out) {
    uint32_t flushed = atomic_load_explicit(&p->flushed_through, memory_order_acquire);
    *out = (struct vr_pacer_block){.timestamp = p->timestamp};
    vr_pacer_skip(p, 1);

    size_t got = fade_out(p, flushed, pcm);
    discard(p, flushed);
    if (got != 0) {
        p->tail_blocks = 0;
        send_block(p, pcm, got, out);
        return;
    }
    if (!p->talking && !may_start(p))
        return;
    got = take_block(p, pcm);
    if (got != 0) {
        p->tail_blocks = 0;
        p->counts.padded_samples += p->block_samples - got;
        send_block(p, pcm, got, out);
    } else if (p->tail_blocks < VR_PACER_TAIL_BLOCKS) {
        p->tail_blocks++;
        send_block(p, pcm, 0, out);
    } else {
        p->talking = false;
    }
}

void vr_pacer_skip(struct vr_pacer *p, uint32_t ticks) {
    p->timestamp += ticks * (p->config.clock_hz / 1000 * BLOCK_MS);
}

void vr_pacer_pause(struct vr_pacer *p) {
    vr_pacer_skip(p, 1);
    p->talking = false;
    p->broken = true;
    p->last = 0;
    p->waited_blocks = p->tail_blocks = 0;
    discard(p, atomic_load_explicit(&p->flushed_through, memory_order_acquire));
}

void vr_pacer_read_counts(const struct vr_pacer *p, struct vr_pacer_counts *out) {
    *out = p->counts;
    out->refused_samples =
        atomic_load_explicit(&((struct vr_pacer *)p)->refused, memory_order_relaxed);
}
