#include "session.h"

#include "ring.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MS_NS ((uint64_t)1000000)

enum {
    ECHO_STEP_MAX = 60,     /* sequence numbers: under half of SRTP's replay window */
    ECHO_FIRST_GAP_MS = 20, /* between two sources */
};

/* Incoming sequence numbers and timestamps onto our own line, losses and reordering kept. */
struct echo {
    bool started;
    uint32_t ssrc;
    uint16_t sequence_offset, last_sequence;
    uint32_t timestamp_offset, last_timestamp;
    uint64_t last_ns;
};

struct vr_session {
    struct vr_session_config config;
    uint32_t clock_hz; /* of what we send */
    struct vr_srtp *srtp_in, *srtp_out;
    struct vr_receiver receiver;
    struct vr_pacer *pacer;
    struct vr_encoder *encoder;
    struct echo echo;
    struct vr_reception reception;
    struct vr_session_counts counts;
    uint16_t sequence;
    uint32_t last_timestamp; /* of our newest packet, and when it left */
    uint64_t last_timestamp_ns;
    uint64_t last_sent_ns, last_report_ns;

    struct vr_ring heard; /* none in ECHO mode */
    struct vr_ring tap;   /* both sides of each tick, interleaved; none unless asked for */
    int16_t sides[2 * VR_BLOCK_MAX_SAMPLES];
};

struct vr_session *vr_session_new(const struct vr_session_config *config, uint64_t now_ns) {
    struct vr_session *s = calloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    s->config = *config;
    s->clock_hz = vr_codec_clock_hz(config->encoder.codec);
    s->config.pacer.clock_hz = s->clock_hz;
    s->sequence = config->first_sequence;
    s->last_timestamp = config->pacer.first_timestamp;
    s->last_timestamp_ns = s->last_sent_ns = s->last_report_ns = now_ns;
    if (config->mode == VR_SESSION_ECHO)
        return s;
    size_t block = config->receive.rate_hz / 1000 * VR_BLOCK_MS;
    bool rings =
        vr_ring_init(&s->heard, block, VR_SESSION_RING_MS / VR_BLOCK_MS) &&
        (!config->tap || vr_ring_init(&s->tap, 2 * block, VR_SESSION_RING_MS / VR_BLOCK_MS));
    s->pacer = vr_pacer_new(&s->config.pacer);
    s->encoder = vr_encoder_new(&config->encoder);
    if (rings && s->pacer != NULL && s->encoder != NULL &&
        vr_receiver_init(&s->receiver, &config->receive) == 0)
        return s;
    vr_session_free(s);
    return NULL;
}

void vr_session_free(struct vr_session *s) {
    if (s == NULL)
        return;
    vr_srtp_free(s->srtp_in);
    vr_srtp_free(s->srtp_out);
    if (s->config.mode == VR_SESSION_PCM)
        vr_receiver_free(&s->receiver);
    vr_pacer_free(s->pacer);
    vr_encoder_free(s->encoder);
    vr_ring_free(&s->heard);
    vr_ring_free(&s->tap);
    free(s);
}

void vr_session_set_keys(struct vr_session *s, struct vr_srtp *receive, struct vr_srtp *send) {
    vr_srtp_free(s->srtp_in);
    vr_srtp_free(s->srtp_out);
    s->srtp_in = receive;
    s->srtp_out = send;
}

static uint64_t ntp_at(const struct vr_session *s, uint64_t now_ns) {
    uint64_t seconds = now_ns / 1000000000u, rest = now_ns % 1000000000u;
    return s->config.ntp_offset + (seconds << 32) + (rest << 32) / 1000000000u;
}

static uint32_t units_of(const struct vr_session *s, uint64_t ns) {
    return (uint32_t)(ns / 1000000 * s->clock_hz / 1000);
}

static void note_rtp_sent(struct vr_session *s, const struct vr_rtp *rtp, uint64_t now_ns) {
    s->counts.packets_out++;
    s->counts.bytes_out += rtp->payload_bytes;
    if (s->counts.first_out_ns == 0)
        s->counts.first_out_ns = now_ns;
    s->last_timestamp = rtp->timestamp;
    s->last_timestamp_ns = s->last_sent_ns = now_ns;
}

/* --- incoming -------------------------------------------------------------------------------- */

static enum vr_session_status srtp_status(enum vr_srtp_status status) {
    switch (status) {
    case VR_SRTP_OK:
        return VR_SESSION_OK;
    case VR_SRTP_REPLAYED:
    case VR_SRTP_OLD:
        return VR_SESSION_REPLAYED;
    default:
        return VR_SESSION_NOT_AUTHENTIC;
    }
}

static enum vr_session_status take_rtcp(struct vr_session *s, uint8_t *data, size_t bytes,
                                        uint64_t now_ns) {
    struct vr_rtcp rtcp;
    enum vr_session_status status = srtp_status(vr_srtp_unprotect_rtcp(s->srtp_in, data, &bytes));
    if (status != VR_SESSION_OK)
        return status;
    if (vr_rtcp_read(data, bytes, s->config.ssrc, &rtcp) != VR_RTCP_OK)
        return VR_SESSION_RTCP;
    s->counts.reports_in++;
    if (rtcp.has_sender_info && s->reception.started && rtcp.sender_ssrc == s->reception.ssrc)
        vr_reception_sender_report(&s->reception, rtcp.ntp, now_ns);
    if (rtcp.has_block) {
        uint64_t round_trip_ns = vr_rtcp_round_trip_ns(&rtcp.block, ntp_at(s, now_ns));
        s->counts.fraction_lost_out = rtcp.block.fraction_lost;
        if (round_trip_ns != 0)
            s->counts.round_trip_ns = round_trip_ns;
    }
    return VR_SESSION_OK;
}

static void count_in(struct vr_session *s, const struct vr_rtp *rtp, uint32_t clock_hz,
                     uint64_t now_ns) {
    if (!s->reception.started || s->reception.ssrc != rtp->ssrc ||
        s->reception.clock_hz != clock_hz)
        vr_reception_start(&s->reception, rtp->ssrc, rtp->sequence, clock_hz);
    vr_reception_add(&s->reception, rtp->sequence, rtp->timestamp, now_ns);
    s->counts.packets_in++;
    s->counts.bytes_in += rtp->payload_bytes;
    if (s->counts.first_in_ns == 0)
        s->counts.first_in_ns = now_ns;
}

/* Where our line goes on after another source, or after a jump that SRTP's window cannot follow. */
static void echo_rebase(struct vr_session *s, const struct vr_rtp *rtp, uint64_t now_ns) {
    struct echo *e = &s->echo;
    uint16_t sequence = e->started ? (uint16_t)(e->last_sequence + 1) : s->sequence;
    uint32_t timestamp = s->config.pacer.first_timestamp;
    if (e->started) {
        uint32_t passed = units_of(s, now_ns - e->last_ns);
        uint32_t least = units_of(s, ECHO_FIRST_GAP_MS * MS_NS);
        timestamp = e->last_timestamp + (passed > least ? passed : least);
    }
    e->started = true;
    e->ssrc = rtp->ssrc;
    e->sequence_offset = (uint16_t)(sequence - rtp->sequence);
    e->timestamp_offset = timestamp - rtp->timestamp;
    e->last_sequence = (uint16_t)(sequence - 1);
}

/* A packet that does not go back leaves no gap in our line. */
static void echo_skip(struct echo *e, const struct vr_rtp *in) {
    if (e->started && e->ssrc == in->ssrc &&
        (uint16_t)(in->sequence + e->sequence_offset) == (uint16_t)(e->last_sequence + 1))
        e->sequence_offset--;
}

static size_t echo(struct vr_session *s, const struct vr_rtp *in, uint64_t now_ns, uint8_t *out) {
    struct echo *e = &s->echo;
    int16_t step = (int16_t)(in->sequence + e->sequence_offset - e->last_sequence);
    if (!e->started || e->ssrc != in->ssrc || step > ECHO_STEP_MAX || step < -ECHO_STEP_MAX)
        echo_rebase(s, in, now_ns);
    struct vr_rtp rtp = {
        .ssrc = s->config.ssrc,
        .sequence = (uint16_t)(in->sequence + e->sequence_offset),
        .timestamp = in->timestamp + e->timestamp_offset,
        .payload_type = s->config.payload_type,
        .marker = in->marker,
        .payload_bytes = in->payload_bytes,
    };
    step = (int16_t)(rtp.sequence - e->last_sequence);
    size_t bytes = VR_RTP_HEADER_BYTES + in->payload_bytes;
    if (bytes + VR_SRTP_GROWTH_BYTES > VR_SESSION_PACKET_BYTES)
        return 0;
    vr_rtp_write_header(out, &rtp);
    memcpy(out + VR_RTP_HEADER_BYTES, in->payload, in->payload_bytes);
    if (vr_srtp_protect(s->srtp_out, out, &bytes, VR_SESSION_PACKET_BYTES) != VR_SRTP_OK)
        return 0;
    if (step > 0) {
        e->last_sequence = rtp.sequence;
        e->last_timestamp = rtp.timestamp;
        e->last_ns = now_ns;
    }
    note_rtp_sent(s, &rtp, now_ns);
    return bytes;
}

static enum vr_session_status take_rtp(struct vr_session *s, uint8_t *data, size_t bytes,
                                       uint64_t now_ns, uint8_t *out, size_t *out_bytes) {
    struct vr_rtp rtp;
    enum vr_session_status status = srtp_status(vr_srtp_unprotect(s->srtp_in, data, &bytes));
    if (status != VR_SESSION_OK)
        return status;
    if (s->config.mode == VR_SESSION_PCM) {
        enum vr_receive_status received = vr_receiver_put(&s->receiver, data, bytes, now_ns);
        if (received <= VR_RECEIVE_JUMP && vr_rtp_read(data, bytes, &rtp) == VR_RTP_OK)
            count_in(s, &rtp, s->receiver.jitter.clock_hz, now_ns);
        return received <= VR_RECEIVE_JUMP ? VR_SESSION_OK : VR_SESSION_RECEIVE;
    }
    bool read = vr_rtp_read(data, bytes, &rtp) == VR_RTP_OK;
    if (read && rtp.payload_type == s->config.receive.event_payload_type) {
        vr_events_put(&s->receiver.events, &rtp);
        echo_skip(&s->echo, &rtp);
        return VR_SESSION_OK;
    }
    if (!read || rtp.payload_type != s->config.payload_type) {
        s->counts.echo_dropped++;
        return VR_SESSION_RECEIVE;
    }
    count_in(s, &rtp, s->clock_hz, now_ns);
    if (s->config.receive_only)
        return VR_SESSION_OK;
    *out_bytes = echo(s, &rtp, now_ns, out);
    s->counts.echo_dropped += *out_bytes == 0;
    return VR_SESSION_OK;
}

enum vr_session_status vr_session_packet(struct vr_session *s, uint8_t *data, size_t bytes,
                                         uint64_t now_ns, uint8_t *out, size_t *out_bytes) {
    *out_bytes = 0;
    if (s->srtp_in == NULL)
        return VR_SESSION_NO_KEYS;
    if (vr_rtp_is_rtcp(data, bytes))
        return take_rtcp(s, data, bytes, now_ns);
    return take_rtp(s, data, bytes, now_ns, out, out_bytes);
}

int vr_session_event(struct vr_session *s) {
    return vr_events_take(&s->receiver.events);
}

/* --- the clock ------------------------------------------------------------------------------- */

/* One side of this tick for the tap: 0 the client, 1 what it is sent. Without `pcm`: silence. */
static void note_side(struct vr_session *s, size_t side, const int16_t *pcm) {
    if (s->tap.samples == NULL)
        return;
    for (size_t i = 0; i < s->heard.block; i++)
        s->sides[2 * i + side] = pcm != NULL ? pcm[i] : 0;
}

static bool listen(struct vr_session *s, uint64_t now_ns) {
    int16_t pcm[VR_BLOCK_MAX_SAMPLES];
    bool heard = vr_receiver_tick(&s->receiver, now_ns, pcm);
    note_side(s, 0, heard ? pcm : NULL);
    if (heard)
        vr_ring_write(&s->heard, pcm);
    return heard;
}

static size_t speak(struct vr_session *s, uint64_t now_ns, uint8_t *out) {
    int16_t pcm[VR_BLOCK_MAX_SAMPLES];
    struct vr_pacer_block block;
    vr_pacer_tick(s->pacer, pcm, &block); /* time passes, heard or not */
    if (block.sound && !s->config.receive_only)
        note_side(s, 1, pcm);
    if (!block.sound || s->config.receive_only)
        return 0;
    size_t room = VR_SESSION_PACKET_BYTES - VR_RTP_HEADER_BYTES - VR_SRTP_GROWTH_BYTES;
    size_t payload_bytes = vr_encoder_encode(s->encoder, pcm, out + VR_RTP_HEADER_BYTES, room);
    if (payload_bytes == 0) {
        s->counts.encode_failures++;
        return 0;
    }
    if (s->config.encoder.dtx && vr_codec_is_dtx(s->config.encoder.codec, payload_bytes))
        return 0;
    struct vr_rtp rtp = {
        .ssrc = s->config.ssrc,
        .sequence = s->sequence++,
        .timestamp = block.timestamp,
        .payload_type = s->config.payload_type,
        .marker = block.marker,
        .payload_bytes = payload_bytes,
    };
    size_t bytes = VR_RTP_HEADER_BYTES + payload_bytes;
    vr_rtp_write_header(out, &rtp);
    if (vr_srtp_protect(s->srtp_out, out, &bytes, VR_SESSION_PACKET_BYTES) != VR_SRTP_OK)
        return 0;
    note_rtp_sent(s, &rtp, now_ns);
    return bytes;
}

static size_t report(struct vr_session *s, uint64_t now_ns, bool bye, uint8_t *out) {
    struct vr_rtcp_report r = {
        .ssrc = s->config.ssrc,
        .ntp = ntp_at(s, now_ns),
        .rtp_timestamp = s->last_timestamp + units_of(s, now_ns - s->last_timestamp_ns),
        .sent_packets = (uint32_t)s->counts.packets_out,
        .sent_bytes = (uint32_t)s->counts.bytes_out,
        .has_block = s->reception.started,
        .bye = bye,
        .cname = s->config.cname,
    };
    if (r.has_block)
        vr_reception_block(&s->reception, now_ns, &r.block);
    size_t bytes = vr_rtcp_write(out, &r);
    if (vr_srtp_protect_rtcp(s->srtp_out, out, &bytes,
                             VR_RTCP_WRITE_BYTES + VR_SRTP_GROWTH_BYTES) != VR_SRTP_OK)
        return 0;
    s->last_report_ns = s->last_sent_ns = now_ns;
    s->counts.reports_out++;
    return bytes;
}

bool vr_session_tick(struct vr_session *s, uint64_t now_ns, bool paused,
                     struct vr_session_output *out) {
    out->rtp_bytes = out->rtcp_bytes = 0;
    bool heard = false;
    if (s->config.mode == VR_SESSION_PCM) {
        heard = listen(s, now_ns);
        note_side(s, 1, NULL);
        if (s->srtp_out != NULL && !paused)
            out->rtp_bytes = speak(s, now_ns, out->rtp);
        if (s->tap.samples != NULL && s->srtp_out != NULL)
            vr_ring_write(&s->tap, s->sides);
    }
    if (s->srtp_out != NULL && !paused &&
        (now_ns - s->last_report_ns >= VR_SESSION_REPORT_MS * MS_NS ||
         now_ns - s->last_sent_ns >= VR_SESSION_SILENCE_MS * MS_NS))
        out->rtcp_bytes = report(s, now_ns, false, out->rtcp);
    return heard;
}

int vr_session_shift_ms(const struct vr_session *s, uint64_t late_ns) {
    return s->config.mode == VR_SESSION_PCM ? vr_receiver_shift_ms(&s->receiver, late_ns) : 0;
}

size_t vr_session_bye(struct vr_session *s, uint64_t now_ns,
                      uint8_t out[VR_RTCP_WRITE_BYTES + VR_SRTP_GROWTH_BYTES]) {
    return s->srtp_out == NULL ? 0 : report(s, now_ns, true, out);
}

/* --- the reader ------------------------------------------------------------------------------ */

size_t vr_session_readable(const struct vr_session *s) {
    return vr_ring_readable(&s->heard);
}

uint32_t vr_session_readable_ms(const struct vr_session *s) {
    return (uint32_t)(vr_session_readable(s) * 1000 / s->config.receive.rate_hz);
}

size_t vr_session_read(struct vr_session *s, int16_t *pcm, size_t capacity) {
    return vr_ring_read(&s->heard, pcm, capacity);
}

size_t vr_session_tap_readable(const struct vr_session *s) {
    return vr_ring_readable(&s->tap);
}

size_t vr_session_read_tap(struct vr_session *s, int16_t *pcm, size_t capacity) {
    return vr_ring_read(&s->tap, pcm, capacity / 2 * 2);
}

struct vr_pacer *vr_session_pacer(struct vr_session *s) {
    return s->pacer;
}

void vr_session_read_marks(const struct vr_session *s, struct vr_session_marks *out) {
    *out = (struct vr_session_marks){
        .first_in_ns = s->counts.first_in_ns,
        .first_out_ns = s->counts.first_out_ns,
    };
}

void vr_session_read_counts(const struct vr_session *session, struct vr_session_counts *out) {
    struct vr_session *s = (struct vr_session *)session;
    *out = s->counts;
    out->blocks_lost = atomic_load_explicit(&s->heard.blocks_lost, memory_order_relaxed);
    out->tap_blocks_lost = atomic_load_explicit(&s->tap.blocks_lost, memory_order_relaxed);
    out->lost_in = vr_reception_lost(&s->reception);
    out->jitter_in_units = s->reception.jitter_16 >> 4;
    out->clock_hz_in = s->reception.clock_hz;
    if (s->config.mode == VR_SESSION_ECHO)
        return;
    out->receive = s->receiver.counts;
    out->jitter = s->receiver.jitter.counts;
    out->target_ns = s->receiver.jitter.target_ns;
    vr_pacer_read_counts(s->pacer, &out->pacer);
}
