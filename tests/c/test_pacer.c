/* The speaking half: talkspurts, flushes within one block, clocks of generations, bounds, two threads. */
#include "../../csrc/media/pacer.h"

#include "check.h"
#include "sound.h"

#include <pthread.h>

enum { RATE = 24000, BLOCK = RATE / 50 };

static struct vr_pacer *make(uint32_t start_ms, uint32_t live_ms) {
    struct vr_pacer_config config = {.rate_hz = RATE,
                                     .clock_hz = 48000,
                                     .start_ms = start_ms,
                                     .live_ms = live_ms,
                                     .capacity_samples = 10 * RATE,
                                     .first_timestamp = 0xfffffc00u};
    return vr_pacer_new(&config);
}

static size_t write_tone(struct vr_pacer *p, uint32_t generation, size_t samples) {
    static int16_t pcm[20 * RATE];
    sound_tone(pcm, samples, 300, RATE, 8000, 0);
    return vr_pacer_write(p, generation, pcm, samples);
}

TEST(a_burst_goes_out_block_by_block) {
    struct vr_pacer *p = make(40, 0);
    struct vr_pacer_block block;
    int16_t pcm[BLOCK];
    vr_pacer_tick(p, pcm, &block);
    CHECK(!block.sound);
    CHECK_EQ(write_tone(p, 1, 5 * BLOCK + 100), 5 * BLOCK + 100);
    for (int i = 0; i < 6 + VR_PACER_TAIL_BLOCKS; i++) {
        uint32_t before = block.timestamp;
        vr_pacer_tick(p, pcm, &block);
        CHECK(block.sound);
        CHECK_EQ(block.marker, i == 0);
        CHECK_EQ((uint32_t)(block.timestamp - before), 960);
        CHECK((sound_rms(pcm, BLOCK) > 1000) == (i < 6));
    }
    vr_pacer_tick(p, pcm, &block);
    CHECK(!block.sound);
    uint64_t played = 0;
    CHECK(vr_pacer_played(p, 1, &played));
    CHECK_EQ(played, 5 * BLOCK + 100);
    CHECK(!vr_pacer_played(p, 2, &played));
    uint32_t before = block.timestamp;
    for (int i = 0; i < 49; i++)
        vr_pacer_tick(p, pcm, &block);
    write_tone(p, 2, 3 * BLOCK);
    vr_pacer_tick(p, pcm, &block);
    CHECK(block.sound && block.marker);
    CHECK_EQ((uint32_t)(block.timestamp - before), 50 * 960); /* the gap is real time */
    vr_pacer_free(p);
}

TEST(a_little_sound_waits_no_longer_than_the_start_time) {
    struct vr_pacer *p = make(40, 0);
    struct vr_pacer_block block;
    int16_t pcm[BLOCK];
    write_tone(p, 1, BLOCK);
    int ticks = 0;
    do {
        vr_pacer_tick(p, pcm, &block);
        ticks++;
    } while (!block.sound && ticks < 10);
    CHECK_EQ(ticks, 3);
    vr_pacer_free(p);
}

TEST(a_flush_fades_within_one_block) {
    struct vr_pacer *p = make(0, 0);
    struct vr_pacer_block block;
    int16_t pcm[BLOCK], last;
    write_tone(p, 1, 100 * BLOCK);
    write_tone(p, 2, 100 * BLOCK);
    for (int i = 0; i < 10; i++)
        vr_pacer_tick(p, pcm, &block);
    last = pcm[BLOCK - 1];
    vr_pacer_flush(p, 2);
    CHECK_EQ(write_tone(p, 2, 50 * BLOCK), 50 * BLOCK); /* late: taken and forgotten */
    vr_pacer_tick(p, pcm, &block);
    CHECK(block.sound && !block.marker);
    CHECK(abs(pcm[0] - last) < 1000);
    CHECK(sound_largest_step(pcm, BLOCK) < 1000);
    CHECK(sound_rms(pcm, 100) > 1000);
    CHECK(sound_rms(pcm + RATE / 1000 * VR_PACER_FADE_MS, BLOCK - RATE / 1000 * VR_PACER_FADE_MS) ==
          0);
    vr_pacer_tick(p, pcm, &block);
    CHECK(sound_rms(pcm, BLOCK) == 0);
    CHECK_EQ(vr_pacer_waiting(p), 0);
    uint64_t played;
    CHECK(vr_pacer_played(p, 1, &played));
    CHECK_EQ(played, 10 * BLOCK + RATE / 1000 * VR_PACER_FADE_MS);
    struct vr_pacer_counts counts;
    vr_pacer_read_counts(p, &counts);
    CHECK_EQ(counts.flushed_samples, 190 * BLOCK - RATE / 1000 * VR_PACER_FADE_MS);
    /* the next response is heard at once */
    write_tone(p, 3, 5 * BLOCK);
    vr_pacer_tick(p, pcm, &block);
    CHECK(sound_rms(pcm, BLOCK) > 1000);
    CHECK(!block.marker); /* still within the tail of the last one */
    vr_pacer_free(p);
}

TEST(a_flush_in_silence_is_silent) {
    struct vr_pacer *p = make(200, 0);
    struct vr_pacer_block block;
    int16_t pcm[BLOCK];
    write_tone(p, 1, BLOCK);
    vr_pacer_tick(p, pcm, &block);
    vr_pacer_flush(p, 1);
    for (int i = 0; i < 20; i++) {
        vr_pacer_tick(p, pcm, &block);
        CHECK(!block.sound);
    }
    CHECK_EQ(vr_pacer_waiting(p), 0);
    vr_pacer_free(p);
}

TEST(capacity_refuses_and_counts) {
    struct vr_pacer *p = make(0, 0);
    CHECK_EQ(write_tone(p, 1, 9 * RATE), 9 * RATE);
    CHECK_EQ(write_tone(p, 1, 2 * RATE), RATE);
    CHECK_EQ(write_tone(p, 1, RATE), 0);
    struct vr_pacer_counts counts;
    vr_pacer_read_counts(p, &counts);
    CHECK_EQ(counts.refused_samples, 2 * RATE);
    vr_pacer_free(p);
}

TEST(a_live_backlog_is_worked_off) {
    struct vr_pacer *p = make(40, 60);
    struct vr_pacer_block block;
    static int16_t heard[500 * BLOCK], tone[10 * BLOCK];
    sound_tone(tone, 10 * BLOCK, 440, RATE, 8000, 0); /* a stall: 200 ms at once, then real time */
    vr_pacer_write(p, 1, tone, 10 * BLOCK);
    for (int i = 0; i < 500; i++) {
        sound_tone(tone, BLOCK, 440, RATE, 8000, (size_t)(10 + i) * BLOCK);
        vr_pacer_write(p, 1, tone, BLOCK);
        vr_pacer_tick(p, heard + i * BLOCK, &block);
    }
    CHECK(sound_largest_step(heard, 500 * BLOCK) < 1400); /* seams, no cuts */
    CHECK(vr_pacer_waiting(p) <= 100 * RATE / 1000);
    uint64_t played;
    CHECK(vr_pacer_played(p, 1, &played) && played + vr_pacer_waiting(p) == 510 * BLOCK);
    vr_pacer_free(p);
}

/* A backend that is late in the middle of a word, again and again: gaps, but no clicks. */
TEST(a_late_writer_is_not_heard_as_clicks) {
    struct vr_pacer *p = make(0, 0);
    struct vr_pacer_block block;
    static int16_t heard[400 * BLOCK], pcm[4 * BLOCK];
    uint64_t random = 3;
    size_t said = 0, samples = 0;
    for (int i = 0; i < 400; i++) {
        if (sound_random(&random) % 3 == 0) {
            size_t n = i % 2 == 0 ? BLOCK : sound_random(&random) % (3 * BLOCK);
            sound_tone(pcm, n, 300, RATE, 8000, said);
            said += vr_pacer_write(p, 1, pcm, n);
        }
        vr_pacer_tick(p, heard + samples, &block);
        samples += block.sound ? BLOCK : 0;
    }
    struct vr_pacer_counts counts;
    vr_pacer_read_counts(p, &counts);
    CHECK(counts.padded_samples > 20 * BLOCK);
    CHECK(sound_largest_step(heard, samples) < 1000);
    vr_pacer_free(p);
}

/* Nothing can be sent for a while: sound waits, the timestamp does not, and what is flushed meanwhile is not
 * heard at all. */
TEST(a_pause_is_a_gap_of_the_timestamp) {
    struct vr_pacer *p = make(0, 0);
    struct vr_pacer_block block;
    int16_t pcm[BLOCK];
    uint64_t played;
    write_tone(p, 1, 100 * BLOCK);
    for (int i = 0; i < 10; i++)
        vr_pacer_tick(p, pcm, &block);
    uint32_t before = block.timestamp;
    for (int i = 0; i < 500; i++)
        vr_pacer_pause(p);
    CHECK_EQ(vr_pacer_waiting(p), 90 * BLOCK);
    vr_pacer_tick(p, pcm, &block);
    CHECK(block.sound && block.marker && sound_rms(pcm, BLOCK) > 1000);
    CHECK_EQ((uint32_t)(block.timestamp - before), 501 * 960);
    vr_pacer_flush(p, 1);
    vr_pacer_pause(p);
    CHECK_EQ(vr_pacer_waiting(p), 0);
    vr_pacer_tick(p, pcm, &block);
    CHECK(!block.sound);
    CHECK(vr_pacer_played(p, 1, &played) && played == 11 * BLOCK);
    vr_pacer_free(p);
}

/* Deltas of any size at any time, several responses at once, flushes at any phase: what went out of a response is
 * what its clock says, in order, once. */
TEST(clocks_are_exact_whatever_the_writer_does) {
    enum { MOST = 40 };
    uint64_t random = 17;
    int16_t pcm[BLOCK], delta[5 * BLOCK];
    uint32_t written[MOST + 1], heard[MOST + 1];
    for (int round = 0; round < 40; round++) {
        struct vr_pacer *p = make(round % 3 * 40, 0);
        struct vr_pacer_block block;
        memset(written, 0, sizeof written);
        memset(heard, 0, sizeof heard);
        uint32_t writing = 1, flushed = 0;
        bool fading = false;
        for (int tick = 0; tick < 500; tick++) {
            for (uint64_t n = sound_random(&random) % 4; n != 0; n--) {
                size_t samples = sound_random(&random) % (2 * BLOCK);
                for (size_t i = 0; i < samples; i++) /* who and which, never 0 */
                    delta[i] = (int16_t)(writing * 512 + (written[writing] + i) % 511 + 1);
                written[writing] += (uint32_t)vr_pacer_write(p, writing, delta, samples);
                writing += writing < MOST && sound_random(&random) % 8 == 0;
            }
            if (sound_random(&random) % 40 == 0 && writing < MOST) {
                flushed = writing++;
                vr_pacer_flush(p, flushed);
                fading = true;
            }
            vr_pacer_tick(p, pcm, &block);
            size_t at = 0, edges = 0;
            for (uint32_t g = flushed + 1; g <= writing; g++) {
                uint64_t played = heard[g];
                vr_pacer_played(p, g, &played);
                CHECK(played <= written[g] && at + played - heard[g] <= BLOCK);
                for (; heard[g] < played; heard[g]++)
                    edges += pcm[at++] != (int16_t)(g * 512 + heard[g] % 511 + 1);
            }
            CHECK((at == 0 || block.sound) && edges <= 3 * RATE / 1000);
            CHECK(fading || at == BLOCK || vr_pacer_waiting(p) == 0 || !block.sound);
            fading = false;
        }
        vr_pacer_free(p);
    }
}

static void *play_all(void *argument) {
    struct vr_pacer *p = argument;
    struct vr_pacer_block block;
    int16_t pcm[BLOCK];
    for (int i = 0; i < 200000; i++)
        vr_pacer_tick(p, pcm, &block);
    return NULL;
}

TEST(writer_and_player_need_no_lock) {
    struct vr_pacer *p = make(0, 0);
    pthread_t thread;
    pthread_create(&thread, NULL, play_all, p);
    uint64_t random = 1;
    static int16_t pcm[2000];
    for (uint32_t i = 1; i < 20000; i++) {
        uint64_t played;
        vr_pacer_write(p, i / 10 + 1, pcm, sound_random(&random) % 2000);
        if (i % 100 == 0)
            vr_pacer_flush(p, i / 10);
        vr_pacer_played(p, i / 10, &played);
        CHECK(vr_pacer_waiting(p) <= 10 * RATE);
    }
    pthread_join(thread, NULL);
    vr_pacer_free(p);
}
