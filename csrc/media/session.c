#include "session_state.h"

#include <stdlib.h>
#include <string.h>

#define MS_NS ((uint64_t)1000000)

static bool init_frames(struct vr_session *s) {
    const struct vr_session_config *c = &s->config;
    if (c->tap && !vr_frames_init(&s->frame_tap, VR_SESSION_TAP_BYTES))
        return false;
    return c->mode == VR_SESSION_ECHO ||
           (vr_frames_init(&s->frames, VR_SESSION_HEARD_BYTES) &&
            vr_frame_pacer_init(&s->frame_pacer, s->clock_hz, c->pacer.start_ms,
                                c->pacer.first_timestamp, VR_SESSION_SAID_BYTES));
}

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
    vr_line_init(&s->line, s->clock_hz, s->sequence, config->pacer.first_timestamp);
    if (config->mode != VR_SESSION_PCM) {
        if (init_frames(s))
            return s;
        vr_session_free(s);
        return NULL;
    }
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
    vr_frames_free(&s->frames);
    vr_frames_free(&s->frame_tap);
    vr_frame_pacer_free(&s->frame_pacer);
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
        s->counts.verdicts_in++;
        s->counts.fraction_lost_out = rtcp.block.fraction_lost;
        if (round_trip_ns != 0)
            s->counts.round_trip_ns = round_trip_ns;
    }
    return VR_SESSION_OK;
}

/* A packet of the source that is heard. With `clock_hz` 0 it is no sound: its number came, its time says nothing. */
static void count_in(struct vr_session *s, const struct vr_rtp *rtp, uint32_t clock_hz,
                     uint64_t now_ns) {
    struct vr_reception *r = &s->reception;
    bool same = r->started && r->ssrc == rtp->ssrc;
    if (clock_hz == 0 && !same)
        return;
    s->counts.packets_in++;
    s->counts.bytes_in += rtp->payload_bytes;
    if (clock_hz == 0) {
        vr_reception_add_untimed(r, rtp->sequence);
        return;
    }
    if (!same) {
        s->lost_of_others += vr_reception_lost(r);
        vr_reception_start(r, rtp->ssrc, rtp->sequence, clock_hz);
    } else if (r->clock_hz != clock_hz) {
        vr_reception_change_clock(r, clock_hz);
    }
    vr_reception_add(r, rtp->sequence, rtp->timestamp, now_ns);
    if (s->counts.first_in_ns == 0)
        s->counts.first_in_ns = now_ns;
}

/* A frame of one side, for the recorder and, of the client's side, for the reader. */
static void keep_frame(struct vr_session *s, enum vr_frame_side side, const struct vr_rtp *placed,
                       const uint8_t *payload, uint64_t now_ns) {
    bool taps = s->frame_tap.queue.data != NULL;
    bool reads = side == VR_FRAME_HEARD && s->config.mode == VR_SESSION_FRAMES;
    if (!taps && !reads)
        return;
    struct vr_frame frame = {
        .at_ns = now_ns,
        .timestamp = placed->timestamp,
        .units = vr_codec_units(s->config.encoder.codec, payload, placed->payload_bytes),
        .payload_bytes = (uint32_t)placed->payload_bytes,
        .sequence = placed->sequence,
        .side = (uint8_t)side,
        .marker = placed->marker,
    };
    if (taps)
        vr_frames_write(&s->frame_tap, &frame, payload);
    if (reads)
        s->came |= vr_frames_write(&s->frames, &frame, payload);
}

/* Protects what is in `out` as the RTP packet `rtp`; 0 when that does not work. */
static size_t seal(struct vr_session *s, const struct vr_rtp *rtp, uint8_t *out) {
    size_t bytes = VR_RTP_HEADER_BYTES + rtp->payload_bytes;
    vr_rtp_write_header(out, rtp);
    if (vr_srtp_protect(s->srtp_out, out, &bytes, VR_SESSION_PACKET_BYTES) != VR_SRTP_OK)
        return 0;
    return bytes;
}

static size_t echo(struct vr_session *s, const struct vr_rtp *placed, const uint8_t *payload,
                   uint64_t now_ns, uint8_t *out) {
    struct vr_rtp rtp = *placed;
    if (rtp.payload_bytes > VR_SESSION_PAYLOAD_BYTES)
        return 0;
    memcpy(out + VR_RTP_HEADER_BYTES, payload, rtp.payload_bytes);
    size_t bytes = seal(s, &rtp, out);
    if (bytes == 0)
        return 0;
    note_rtp_sent(s, &rtp, now_ns);
    keep_frame(s, VR_FRAME_SAID, &rtp, payload, now_ns);
    return bytes;
}

/* A packet of our codec, in a mode without one: it goes back, or to the reader. */
static size_t pass(struct vr_session *s, const struct vr_rtp *in, uint64_t now_ns, uint8_t *out) {
    struct vr_rtp placed = {
        .ssrc = s->config.ssrc,
        .payload_type = s->config.payload_type,
        .marker = in->marker,
        .payload_bytes = in->payload_bytes,
    };
    size_t bytes = 0;
    vr_line_place(&s->line, in, now_ns, &placed);
    keep_frame(s, VR_FRAME_HEARD, &placed, in->payload, now_ns);
    if (s->config.mode == VR_SESSION_ECHO && !s->config.receive_only) {
        bytes = echo(s, &placed, in->payload, now_ns, out);
        s->counts.echo_dropped += bytes == 0;
        if (bytes == 0)
            return 0;
    }
    vr_line_passed(&s->line, &placed, now_ns);
    return bytes;
}

static enum vr_session_status take_rtp(struct vr_session *s, uint8_t *data, size_t bytes,
                                       uint64_t now_ns, uint8_t *out, size_t *out_bytes) {
    struct vr_rtp rtp;
    enum vr_session_status status = srtp_status(vr_srtp_unprotect(s->srtp_in, data, &bytes));
    if (status != VR_SESSION_OK)
        return status;
    enum vr_rtp_status form = vr_rtp_read(data, bytes, &rtp);
    bool read = form == VR_RTP_OK;
    bool is_event = read && rtp.payload_type == s->config.receive.event_payload_type;
    if (s->config.mode == VR_SESSION_PCM) {
        const struct vr_jitter *heard = &s->receiver.jitter;
        enum vr_receive_status received = vr_receiver_put_rtp(&s->receiver, form, &rtp, now_ns);
        bool is_sound = received <= VR_RECEIVE_JUMP && !is_event;
        if ((read || form == VR_RTP_EMPTY) && heard->started && rtp.ssrc == heard->ssrc)
            count_in(s, &rtp, is_sound ? heard->clock_hz : 0, now_ns);
        return received > VR_RECEIVE_JUMP ? VR_SESSION_RECEIVE : VR_SESSION_OK;
    }
    bool is_sound = read && !is_event && rtp.payload_type == s->config.payload_type;
    if (read || form == VR_RTP_EMPTY)
        count_in(s, &rtp, is_sound ? s->clock_hz : 0, now_ns);
    if (is_event) {
        vr_events_put(&s->receiver.events, &rtp, now_ns);
        vr_line_skip(&s->line, &rtp);
        return VR_SESSION_OK;
    }
    if (!is_sound) {
        s->counts.echo_dropped++;
        return VR_SESSION_RECEIVE;
    }
    *out_bytes = pass(s, &rtp, now_ns, out);
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
    size_t payload_bytes =
        vr_encoder_encode(s->encoder, pcm, out + VR_RTP_HEADER_BYTES, VR_SESSION_PAYLOAD_BYTES);
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
    size_t bytes = seal(s, &rtp, out);
    if (bytes != 0)
        note_rtp_sent(s, &rtp, now_ns);
    return bytes;
}

static size_t speak_frame(struct vr_session *s, uint64_t now_ns, bool able, uint8_t *out) {
    struct vr_frame head;
    const struct vr_frame *frame = vr_frame_pacer_tick(&s->frame_pacer, &head);
    size_t bytes = 0;
    if (frame == NULL)
        return 0;
    bool fits = frame->payload_bytes <= VR_SESSION_PAYLOAD_BYTES;
    s->counts.echo_dropped += !fits;
    if (able && fits) {
        struct vr_rtp rtp = {
            .ssrc = s->config.ssrc,
            .sequence = s->sequence++,
            .timestamp = head.timestamp,
            .payload_type = s->config.payload_type,
            .marker = head.marker,
            .payload_bytes = frame->payload_bytes,
        };
        memcpy(out + VR_RTP_HEADER_BYTES, frame->payload, frame->payload_bytes);
        bytes = seal(s, &rtp, out);
        if (bytes != 0) {
            note_rtp_sent(s, &rtp, now_ns);
            keep_frame(s, VR_FRAME_SAID, &rtp, frame->payload, now_ns);
        }
    }
    vr_frame_pacer_sent(&s->frame_pacer);
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
        if (s->srtp_out != NULL && paused)
            vr_pacer_pause(s->pacer);
        else if (s->srtp_out != NULL)
            out->rtp_bytes = speak(s, now_ns, out->rtp);
        if (s->tap.samples != NULL && s->srtp_out != NULL)
            vr_ring_write(&s->tap, s->sides);
    } else if (s->config.mode == VR_SESSION_FRAMES && s->srtp_out != NULL) {
        out->rtp_bytes = speak_frame(s, now_ns, !paused && !s->config.receive_only, out->rtp);
        heard = s->came;
        s->came = false;
    }
    if (s->srtp_out != NULL && !paused &&
        (now_ns - s->last_report_ns >= VR_SESSION_REPORT_MS * MS_NS ||
         now_ns - s->last_sent_ns >= VR_SESSION_SILENCE_MS * MS_NS))
        out->rtcp_bytes = report(s, now_ns, false, out->rtcp);
    return heard;
}

void vr_session_skip(struct vr_session *s, uint32_t ticks) {
    if (s->srtp_out == NULL)
        return;
    if (s->config.mode == VR_SESSION_PCM)
        vr_pacer_skip(s->pacer, ticks);
    else if (s->config.mode == VR_SESSION_FRAMES)
        vr_frame_pacer_skip(&s->frame_pacer, ticks);
}

int vr_session_shift_ms(const struct vr_session *s, uint64_t late_ns) {
    return s->config.mode == VR_SESSION_PCM ? vr_receiver_shift_ms(&s->receiver, late_ns) : 0;
}

size_t vr_session_bye(struct vr_session *s, uint64_t now_ns,
                      uint8_t out[VR_RTCP_WRITE_BYTES + VR_SRTP_GROWTH_BYTES]) {
    return s->srtp_out == NULL ? 0 : report(s, now_ns, true, out);
}
