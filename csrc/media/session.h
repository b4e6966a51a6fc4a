/* session.h: the media of one call, without I/O: SRTP in and out, sound both ways, reports, pass-through.
 *
 * 1. A packet that does not authenticate changes nothing and is reported as such: the caller may have
 *    offered it to the wrong session.
 * 2. Modes. PCM: packets become blocks in a ring that Python reads, and what the pacer holds becomes
 *    packets. ECHO: packets go back at once under our own SSRC, sequence and timestamps, losses kept;
 *    no codec, no jitter buffer. FRAMES: payloads as they come are what Python reads (frames.h), and those
 *    that it writes leave in time (frame_pacer.h); no codec, no jitter buffer: losses and reordering
 *    stay as they are.
 * 3. The ring of PCM is lossy at its old end: a reader that sleeps loses the oldest sound; a queue of frames is lossy
 *    at its new end. Counters say so.
 * 4. Something leaves at least every 400 ms: without sound that is a report (RFC 3550 6).
 * 5. One thread owns a session; the functions marked *reader* may run in one other thread.
 */
#ifndef VR_SESSION_H
#define VR_SESSION_H

#include "frame_pacer.h"
#include "frames.h"
#include "line.h"
#include "pacer.h"
#include "receive.h"
#include "rtcp.h"
#include "srtp.h"

enum vr_session_mode { VR_SESSION_PCM, VR_SESSION_ECHO, VR_SESSION_FRAMES };

enum {
    VR_SESSION_PACKET_BYTES = 1500, /* room for what a tick or an echo sends */
    VR_SESSION_PAYLOAD_BYTES =      /* of it for a frame: no longer one is sent */
        VR_SESSION_PACKET_BYTES -
        VR_RTP_HEADER_BYTES - VR_SRTP_GROWTH_BYTES,
    VR_SESSION_RING_MS = 1000,
    VR_SESSION_HEARD_BYTES = 32 * 1024, /* frames to read: 5 s of 32 kbit/s */
    VR_SESSION_SAID_BYTES = 256 * 1024, /* frames to send: at least 40 s of 32 kbit/s */
    VR_SESSION_TAP_BYTES = 64 * 1024,   /* frames of both sides for a recorder */
    VR_SESSION_REPORT_MS = 1000,
    VR_SESSION_SILENCE_MS = 340, /* with a tick of 20 ms this keeps rule 4 */
};

struct vr_session_config {
    enum vr_session_mode mode;
    struct vr_receive_config receive;
    struct vr_pacer_config pacer;     /* clock_hz is set here */
    struct vr_encoder_config encoder; /* its codec is the one that we send */
    uint8_t payload_type;             /* of what we send */
    bool receive_only;                /* the client hears nothing: only reports are sent */
    bool tap;                         /* keep both sides for a recorder: as PCM, else as frames */
    uint32_t ssrc;
    uint16_t first_sequence;
    uint64_t ntp_offset; /* NTP time (32.32) of monotonic 0 */
    char cname[VR_RTCP_CNAME_BYTES + 1];
};

enum vr_session_status {
    VR_SESSION_OK = 0,
    VR_SESSION_NO_KEYS,  /* before the handshake is over */
    VR_SESSION_REPLAYED, /* authentic once: not again, and too old likewise */
    VR_SESSION_NOT_AUTHENTIC,
    VR_SESSION_RTCP,    /* authenticated, but no RTCP */
    VR_SESSION_RECEIVE, /* authenticated, but of no use: counted by receive.h */
    VR_SESSION_STATUS_COUNT,
};

/* True when the packet counts as authenticated for the rules of the socket. */
static inline bool vr_session_authentic(enum vr_session_status status) {
    return status == VR_SESSION_OK || status == VR_SESSION_RTCP || status == VR_SESSION_RECEIVE;
}

struct vr_session_counts {
    uint64_t packets_in, bytes_in; /* RTP of the source that is heard, payload bytes */
    uint64_t packets_out, bytes_out;
    uint64_t reports_in, reports_out;
    uint64_t verdicts_in; /* reports that say how what we send arrives */
    uint64_t
        echo_dropped; /* ECHO, FRAMES: not of our codec, a jump that cannot be passed on, or too long */
    uint64_t encode_failures;
    uint64_t blocks_lost; /* the reader slept: oldest blocks overwritten, as the reader saw it */
    uint64_t tap_blocks_lost;           /* the recorder slept */
    uint64_t frames_lost;               /* FRAMES: the reader slept */
    uint64_t tap_frames_lost;           /* the recorder slept */
    uint64_t first_in_ns, first_out_ns; /* RTP; 0: not yet */
    uint64_t round_trip_ns;             /* newest; 0: unknown */
    uint32_t lost_in;                   /* packets that never came, of all sources */
    uint32_t jitter_in_units;           /* RFC 3550, of the incoming codec's clock */
    uint32_t fraction_lost_out;         /* 1/256, by the peer's newest report */
    uint64_t target_ns;                 /* of the jitter buffer */
    uint32_t clock_hz_in;
    struct vr_receive_counts receive;
    struct vr_jitter_counts jitter;
    struct vr_pacer_counts pacer;
};

/* What is asked for often. */
struct vr_session_marks {
    uint64_t first_in_ns, first_out_ns; /* RTP; 0: not yet */
};

struct vr_session;

/* NULL upon bad values or short memory. In ECHO and FRAMES mode no codec and no ring of PCM is made. */
struct vr_session *vr_session_new(const struct vr_session_config *config, uint64_t now_ns);
void vr_session_free(struct vr_session *session);

/* Takes ownership of both contexts, made with vr_srtp_new; sound flows from now on. */
void vr_session_set_keys(struct vr_session *session, struct vr_srtp *receive, struct vr_srtp *send);

/* An SRTP or SRTCP datagram of a validated flow key, decrypted in place. In ECHO mode `*out_bytes` of
 * `out` (VR_SESSION_PACKET_BYTES) are to be sent back, if not 0. */
enum vr_session_status vr_session_packet(struct vr_session *session, uint8_t *data, size_t bytes,
                                         uint64_t now_ns, uint8_t *out, size_t *out_bytes);

/* 20 ms have passed: at most one RTP packet and one report to send, each 0 or more bytes. `paused`: nothing
 * can be sent now, and nothing is made. Returns whether there is something to read since the last tick. */
struct vr_session_output {
    size_t rtp_bytes, rtcp_bytes;
    uint8_t rtp[VR_SESSION_PACKET_BYTES];
    uint8_t rtcp[VR_RTCP_WRITE_BYTES + VR_SRTP_GROWTH_BYTES];
};
bool vr_session_tick(struct vr_session *session, uint64_t now_ns, bool paused,
                     struct vr_session_output *out);

/* So many ticks were left out before the next: what is sent afterwards is so much later, in its timestamps too. */
void vr_session_skip(struct vr_session *session, uint32_t ticks);

/* By how many ms the tick after the last one, which came `late_ns` after its time, had better be later
 * (negative: earlier) than 20 ms, so that sound goes out when it is due. */
int vr_session_shift_ms(const struct vr_session *session, uint64_t late_ns);

/* A report with BYE, to be sent before the end; 0 bytes without keys. */
size_t vr_session_bye(struct vr_session *session, uint64_t now_ns,
                      uint8_t out[VR_RTCP_WRITE_BYTES + VR_SRTP_GROWTH_BYTES]);

/* The next telephone event, or -1. */
int vr_session_event(struct vr_session *session);

/* Reader: samples that wait, and the oldest of them, at most `capacity`. */
size_t vr_session_readable(const struct vr_session *session);
bool vr_session_is_readable(const struct vr_session *session, uint32_t least_ms); /* FRAMES: any */
size_t vr_session_read(struct vr_session *session, int16_t *pcm, size_t capacity);

/* Reader: what the tap has kept, since the keys came: client and we, interleaved, an even number of samples. */
size_t vr_session_tap_readable(const struct vr_session *session);
size_t vr_session_read_tap(struct vr_session *session, int16_t *pcm, size_t capacity);

/* Reader: the frames that came (FRAMES), and what the tap has kept of both sides (ECHO, FRAMES). Never NULL. */
struct vr_frames *vr_session_frames(struct vr_session *session);
struct vr_frames *vr_session_frame_tap(struct vr_session *session);

/* FRAMES, else NULL: its writer functions may run in the reader's thread. */
struct vr_frame_pacer *vr_session_frame_pacer(struct vr_session *session);

/* The pacer, NULL but in PCM mode: its writer functions may run in the reader's thread. */
struct vr_pacer *vr_session_pacer(struct vr_session *session);

/* Any thread, approximately. */
void vr_session_read_marks(const struct vr_session *session, struct vr_session_marks *out);
void vr_session_read_counts(const struct vr_session *session, struct vr_session_counts *out);

#endif
