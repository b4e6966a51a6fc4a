/* fuzz.h: what a fuzz target needs besides the decoder. */
#ifndef VR_FUZZ_H
#define VR_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* A property that has to hold for every input; its failure is a crash in this line. */
#define HOLDS(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            __builtin_trap();                                                                      \
    } while (0)

/* A heap copy of exactly these bytes, so that the sanitizer sees a read behind them. */
static inline uint8_t *exact_copy(const uint8_t *data, size_t bytes) {
    uint8_t *copy = malloc(bytes ? bytes : 1);
    HOLDS(copy != NULL);
    if (bytes > 0)
        memcpy(copy, data, bytes);
    return copy;
}

#endif
