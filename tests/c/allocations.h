/* allocations.h: counts every malloc of the process, libcrypto's included. */
#ifndef VR_ALLOCATIONS_H
#define VR_ALLOCATIONS_H

#include "check.h"

/* From the sanitizers' runtime, whose header not every compiler installs. */
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));

static unsigned allocations;

static inline void allocations_on_malloc(const volatile void *at, size_t bytes) {
    (void)at, (void)bytes;
    allocations++;
}

static inline void allocations_on_free(const volatile void *at) {
    (void)at;
}

/* Starts counting in `allocations`, from 0; once a program. Checks that the counting works. */
static inline void allocations_start(void) {
    CHECK(__sanitizer_install_malloc_and_free_hooks(allocations_on_malloc, allocations_on_free));
    void *volatile memory = malloc(1);
    free(memory);
    CHECK_EQ(allocations, 1);
    allocations = 0;
}

#endif
