/* The lossy ring: order, loss at the old end, and two threads. */
#include "../../csrc/media/ring.h"

#include "check.h"

#include <pthread.h>

enum { BLOCK = 4, BLOCKS = 8 };

static void write_block(struct vr_ring *r, int16_t first) {
    int16_t block[BLOCK] = {first, (int16_t)(first + 1), (int16_t)(first + 2),
                            (int16_t)(first + 3)};
    vr_ring_write(r, block);
}

TEST(samples_come_in_order_in_any_portions) {
    struct vr_ring r;
    int16_t out[64], expected = 0;
    CHECK(vr_ring_init(&r, BLOCK, BLOCKS));
    for (int round = 0, next = 0; round < 100; round++) {
        for (int i = 0; i < 1 + round % 3; i++, next += BLOCK)
            write_block(&r, (int16_t)next);
        size_t got;
        while ((got = vr_ring_read(&r, out, (size_t)(1 + round % 7))) != 0)
            for (size_t i = 0; i < got; i++)
                CHECK_EQ(out[i], expected++);
        CHECK_EQ(vr_ring_readable(&r), 0);
    }
    CHECK_EQ(r.blocks_lost, 0);
    vr_ring_free(&r);
}

TEST(a_sleeper_loses_the_oldest_and_it_is_counted) {
    struct vr_ring r;
    int16_t out[64];
    CHECK(vr_ring_init(&r, BLOCK, BLOCKS));
    for (int i = 0; i < 20; i++)
        write_block(&r, (int16_t)(i * BLOCK));
    CHECK_EQ(vr_ring_readable(&r), (BLOCKS - 1) * BLOCK);
    CHECK_EQ(vr_ring_read(&r, out, 64), (BLOCKS - 1) * BLOCK);
    CHECK_EQ(out[0], 13 * BLOCK);
    CHECK_EQ(r.blocks_lost, 13);
    vr_ring_free(&r);
    CHECK_EQ(vr_ring_read(&r, out, 64) + vr_ring_readable(&r), 0);
}

static void *write_many(void *argument) {
    for (int i = 0; i < 200000; i++)
        write_block(argument, (int16_t)(i * BLOCK));
    return NULL;
}

TEST(what_is_read_is_never_torn) {
    struct vr_ring r;
    pthread_t thread;
    int16_t out[BLOCK * BLOCKS];
    uint64_t read = 0;
    CHECK(vr_ring_init(&r, BLOCK, BLOCKS));
    pthread_create(&thread, NULL, write_many, &r);
    while (read + r.blocks_lost * BLOCK < 200000 * BLOCK) {
        size_t got = vr_ring_read(&r, out, sizeof out / 2);
        for (size_t i = 1; i < got; i++)
            CHECK_EQ((int16_t)(out[i] - out[i - 1]), 1);
        read += got;
    }
    pthread_join(thread, NULL);
    vr_ring_free(&r);
}
