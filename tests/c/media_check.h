/* media_check.h: what the C tests of csrc/media share: checks, hex, and inputs that end on a guard page. */
#ifndef MEDIA_CHECK_H
#define MEDIA_CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static unsigned checks_done;

#define CHECK(condition) CHECK_CASE("", condition)
#define CHECK_CASE(label, condition)                                                               \
    do {                                                                                           \
        checks_done++;                                                                             \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, label, #condition);             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static inline int check_done(const char *name) {
    printf("%s: %u checks\n", name, checks_done);
    return 0;
}

static inline size_t from_hex(const char *hex, uint8_t *out) {
    size_t n = 0;
    unsigned byte;
    for (; hex[0] != 0 && sscanf(hex, "%2x", &byte) == 1; hex += 2)
        out[n++] = (uint8_t)byte;
    return n;
}

/* `bytes` bytes that end right before a page that must not be touched. */
struct guarded {
    uint8_t *data;
    size_t bytes;
    void *mapping;
    size_t mapping_bytes;
};

static inline struct guarded guarded_bytes(const uint8_t *data, size_t bytes) {
    const size_t page = 4096;
    size_t usable = (bytes + page - 1) / page * page + page;
    struct guarded g = {.bytes = bytes, .mapping_bytes = usable + page};
    g.mapping = mmap(NULL, g.mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.mapping == MAP_FAILED || mprotect((uint8_t *)g.mapping + usable, page, PROT_NONE) != 0)
        abort();
    g.data = (uint8_t *)g.mapping + usable - bytes;
    if (bytes != 0)
        memcpy(g.data, data, bytes);
    return g;
}

static inline struct guarded guarded_hex(const char *hex) {
    uint8_t bytes[2048];
    return guarded_bytes(bytes, from_hex(hex, bytes));
}

static inline void guarded_free(struct guarded *g) { munmap(g->mapping, g->mapping_bytes); }

/* xorshift64*: the same numbers everywhere. */
static inline uint64_t next_random(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717u;
}

#endif
