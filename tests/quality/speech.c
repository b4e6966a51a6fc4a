/* speech.c: speech through Opus, a network that loses and delays, and the listening half of a call.
 *
 *     speech LOSS_PERCENT JITTER_MS SEED RATE_IN < mono 16-bit PCM
 *
 * Prints one JSON object: what was concealed and recovered, and by comparison with the direct path (same
 * packets, decoded in order), for each second that is loud: by how much later it is heard, and its SNR.
 */
#include "media/receive.h"

#include <math.h>
#include <opus/opus.h>
#include <speex/speex_resampler.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RATE = 24000,
    BLOCK = RATE / 50,
    MAX_S = 60,
    MAX_PACKETS = MAX_S * 50,
    LAG_MAX = RATE * 3 / 10
};
#define MS 1000000ull

static int16_t wide[48000 * MAX_S], direct[RATE * MAX_S], heard[RATE * (MAX_S + 2)];
static double
    after_ms[MAX_PACKETS + 20]; /* of a tick, what it comes later than its packet would calmly */
static struct packet {
    uint8_t data[600];
    size_t bytes;
    uint64_t arrives_ns;
    bool lost;
} packets[MAX_PACKETS];

static uint64_t state;
static uint64_t next_random(void) { /* xorshift64* */
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 2685821657736338717u;
}

static size_t read_speech(uint32_t rate_in) {
    static int16_t in[48000 * MAX_S];
    spx_uint32_t in_samples = (spx_uint32_t)fread(in, 2, sizeof in / 2, stdin);
    spx_uint32_t out_samples = sizeof wide / 2;
    SpeexResamplerState *r = speex_resampler_init(1, rate_in, 48000, 8, NULL);
    speex_resampler_process_int(r, 0, in, &in_samples, wide, &out_samples);
    speex_resampler_destroy(r);
    return out_samples / 960;
}

static void send(size_t count, unsigned loss_percent, unsigned jitter_ms) {
    OpusEncoder *e = opus_encoder_create(48000, 1, OPUS_APPLICATION_VOIP, NULL);
    OpusDecoder *d = opus_decoder_create(RATE, 1, NULL);
    opus_encoder_ctl(e, OPUS_SET_BITRATE(32000));
    opus_encoder_ctl(e, OPUS_SET_INBAND_FEC(1));
    opus_encoder_ctl(e, OPUS_SET_PACKET_LOSS_PERC(10));
    for (size_t i = 0; i < count; i++) {
        struct packet *p = &packets[i];
        struct vr_rtp rtp = {.ssrc = 7,
                             .sequence = (uint16_t)(65000 + i),
                             .payload_type = 111,
                             .timestamp = (uint32_t)(0xfffff000u + 960 * i)};
        vr_rtp_write_header(p->data, &rtp);
        int bytes = opus_encode(e, wide + 960 * i, 960, p->data + 12, sizeof p->data - 12);
        p->bytes = 12 + (size_t)bytes;
        p->lost = next_random() % 100 < loss_percent;
        p->arrives_ns =
            1000 * MS + 20 * MS * i + (jitter_ms != 0 ? next_random() % (jitter_ms * MS) : 0);
        if (opus_decode(d, p->data + 12, bytes, direct + BLOCK * i, BLOCK, 0) != BLOCK)
            exit(2);
    }
    opus_encoder_destroy(e);
    opus_decoder_destroy(d);
}

/* Ticks lie 7 ms after the packets of a network without jitter at first, and move as the engine's do. */
static size_t receive(struct vr_receiver *r, size_t count) {
    size_t samples = 0;
    uint64_t now_ns = 1007 * MS;
    for (size_t tick = 0; tick < count + 20; tick++) {
        size_t first = tick > 20 ? tick - 20 : 0;
        for (size_t i = first; i < count; i++)
            if (!packets[i].lost && packets[i].arrives_ns <= now_ns) {
                vr_receiver_put(r, packets[i].data, packets[i].bytes, packets[i].arrives_ns);
                packets[i].lost = true; /* delivered */
            }
        /* silence before the first packet, so that the times of both paths compare */
        if (!vr_receiver_tick(r, now_ns, heard + samples))
            memset(heard + samples, 0, BLOCK * sizeof *heard);
        samples += BLOCK;
        after_ms[tick] = ((double)now_ns - 1000.0 * MS) / MS - 20.0 * (double)tick;
        int shift_ms = vr_receiver_shift_ms(r, 0);
        int step_ms = shift_ms < 0 ? -1 : shift_ms > 0;
        now_ns += (uint64_t)(20 + step_ms) * MS;
    }
    return samples;
}

static double likeness(const int16_t *a, const int16_t *b, size_t samples, size_t step) {
    double product = 0, energy_a = 1, energy_b = 1;
    for (size_t i = 0; i < samples; i += step) {
        product += (double)a[i] * b[i];
        energy_a += (double)a[i] * a[i];
        energy_b += (double)b[i] * b[i];
    }
    return product / sqrt(energy_a * energy_b);
}

/* Half a second from `at` of the direct path: where is it heard, and how well? */
static bool compare(size_t at, double *lag_ms, double *snr_db) {
    const int16_t *wanted = direct + at;
    double energy = 0, best = -1;
    size_t lag = 0;
    for (size_t i = 0; i < RATE / 2; i++)
        energy += (double)wanted[i] * wanted[i];
    if (sqrt(energy / (RATE / 2)) < 300)
        return false;
    for (size_t l = 0; l < LAG_MAX; l += 3) {
        double score = likeness(wanted, heard + at + l, RATE / 2, 3);
        if (score > best) {
            best = score;
            lag = l;
        }
    }
    size_t from = lag > 3 ? lag - 3 : 0;
    best = -1;
    for (size_t l = from; l <= from + 6; l++) {
        double score = likeness(wanted, heard + at + l, RATE / 2, 1);
        if (score > best) {
            best = score;
            lag = l;
        }
    }
    double noise = 1;
    for (size_t i = 0; i < RATE / 2; i++) {
        double d = (double)wanted[i] - heard[at + lag + i];
        noise += d * d;
    }
    *lag_ms = 1000.0 * (double)lag / RATE + after_ms[(at + lag) / BLOCK];
    *snr_db = 10 * log10(energy / noise);
    return true;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 1;
    state = strtoull(argv[3], NULL, 10) * 0x9e3779b97f4a7c15u + 1;
    size_t count = read_speech((uint32_t)atoi(argv[4]));
    send(count, (unsigned)atoi(argv[1]), (unsigned)atoi(argv[2]));
    size_t lost = 0;
    for (size_t i = 0; i < count; i++)
        lost += packets[i].lost;
    struct vr_receive_config config = {RATE, 111, VR_NO_PAYLOAD_TYPE, VR_NO_PAYLOAD_TYPE,
                                       VR_NO_PAYLOAD_TYPE};
    struct vr_receiver r;
    if (vr_receiver_init(&r, &config) != 0)
        return 2;
    receive(&r, count);
    static double lags[2 * MAX_S], snrs[2 * MAX_S];
    size_t parts = 0;
    for (size_t at = 2 * RATE; at + RATE < BLOCK * count; at += RATE / 2)
        parts += compare(at, &lags[parts], &snrs[parts]);
    double last_lag = parts != 0 ? lags[parts - 1] : 0;
    qsort(lags, parts, sizeof *lags, by_value);
    qsort(snrs, parts, sizeof *snrs, by_value);
    double samples = (double)r.counts.samples;
    printf("{\"packets\": %zu, \"lost\": %zu, \"parts\": %zu, \"concealed\": %.4f, "
           "\"recovered\": %.4f, \"late\": %lu, \"target_ms\": %.0f, \"delay_ms_median\": %.1f, "
           "\"delay_ms_max\": %.1f, \"delay_ms_last\": %.1f, \"snr_db_median\": %.1f, "
           "\"snr_db_worst\": %.1f, \"stretched\": %.4f}\n",
           count, lost, parts, (double)r.counts.concealed_samples / samples,
           (double)r.counts.recovered_samples / samples, r.counts.status[VR_RECEIVE_LATE],
           (double)r.jitter.target_ns / 1e6, parts ? lags[parts / 2] : 0,
           parts ? lags[parts - 1] : 0, last_lag, parts ? snrs[parts / 2] : 0, parts ? snrs[0] : 0,
           (double)(r.counts.shortened_samples + r.counts.lengthened_samples) / samples);
    vr_receiver_free(&r);
    return 0;
}
