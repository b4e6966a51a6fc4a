/* check.h: a test program in one header. Write TEST(name) { CHECK(..); } and nothing else;
 * main runs every test of the file in order and exits 1 if one failed.
 *
 * 1. A failed CHECK is printed with its place and the label of the case, and the test goes on.
 * 2. guard_copy puts an input where the byte behind it cannot be read.
 */
#ifndef VR_CHECK_H
#define VR_CHECK_H

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct check_test {
    const char *name;
    void (*run)(void);
    struct check_test *next;
};

static struct check_test *check_first, **check_last = &check_first;
static unsigned check_failures;
static const char *check_label = "";

static inline void check_register(struct check_test *test) {
    *check_last = test;
    check_last = &test->next;
}

#define TEST(name)                                                                                 \
    static void name(void);                                                                        \
    __attribute__((constructor)) static void check_register_##name(void) {                         \
        static struct check_test test = {#name, name, NULL};                                       \
        check_register(&test);                                                                     \
    }                                                                                              \
    static void name(void)

/* Names the case that the next checks are about; a static string. */
#define CASE(text) (check_label = (text))

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            check_fail(__FILE__, __LINE__, #condition, NULL);                                      \
    } while (0)

/* Two integers, or enums, that have to be equal. */
#define CHECK_EQ(actual, expected)                                                                 \
    do {                                                                                           \
        long long check_a = (long long)(actual), check_e = (long long)(expected);                  \
        if (check_a != check_e) {                                                                  \
            char check_text[64];                                                                   \
            snprintf(check_text, sizeof check_text, "is %lld, not %lld", check_a, check_e);        \
            check_fail(__FILE__, __LINE__, #actual, check_text);                                   \
        }                                                                                          \
    } while (0)

#define CHECK_MEM(actual, expected, bytes) CHECK(memcmp((actual), (expected), (bytes)) == 0)

static inline void check_fail(const char *file, int line, const char *what, const char *values) {
    check_failures++;
    printf("%s:%d: %s%s%s", file, line, what, values ? " " : " is false", values ? values : "");
    printf(*check_label ? " [%s]\n" : "%s\n", check_label);
}

enum { GUARD_BYTES = 1 << 17 };

/* A copy of `data` whose last byte is the last readable one: reading on is a fault. It is valid
 * until the next call; `bytes` is at most GUARD_BYTES. */
static inline uint8_t *guard_copy(const void *data, size_t bytes) {
    static uint8_t *end;
    if (!end) {
        size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
        uint8_t *start = mmap(NULL, GUARD_BYTES + page_bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (start == MAP_FAILED || mprotect(start + GUARD_BYTES, page_bytes, PROT_NONE) != 0)
            abort();
        end = start + GUARD_BYTES;
    }
    if (bytes > GUARD_BYTES)
        abort();
    if (bytes > 0)
        memcpy(end - bytes, data, bytes);
    return end - bytes;
}

/* Bytes of a string of hex digits; returns how many. */
static inline size_t from_hex(const char *hex, uint8_t *out, size_t out_bytes) {
    size_t n = 0;
    unsigned byte;
    for (; n < out_bytes && sscanf(hex, "%2x", &byte) == 1; hex += 2)
        out[n++] = (uint8_t)byte;
    return n;
}

int main(void) {
    unsigned failed = 0, passed = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (struct check_test *test = check_first; test; test = test->next) {
        unsigned before = check_failures;
        check_label = "";
        test->run();
        if (check_failures == before) {
            passed++;
        } else {
            failed++;
            printf("FAILED %s\n", test->name);
        }
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed != 0;
}

#endif
