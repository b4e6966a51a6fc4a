/* session_state.h: what a session is made of; for session.c, which owns it, and session_reader.c, nobody else. */
#ifndef VR_SESSION_STATE_H
#define VR_SESSION_STATE_H

#include "ring.h"
#include "session.h"

struct vr_session {
    struct vr_session_config config;
    uint32_t clock_hz; /* of what we send */
    struct vr_srtp *srtp_in, *srtp_out;
    struct vr_receiver receiver;
    struct vr_pacer *pacer;
    struct vr_encoder *encoder;
    struct vr_line line;           /* of what came, once it is on its way back, or to the reader */
    struct vr_reception reception; /* of the newest source */
    uint32_t lost_of_others;       /* packets of the sources before it */
    struct vr_session_counts counts;
    uint16_t sequence;
    uint32_t last_timestamp; /* of our newest packet, and when it left */
    uint64_t last_timestamp_ns;
    uint64_t last_sent_ns, last_report_ns;

    struct vr_frames frames;           /* FRAMES: what came */
    struct vr_frame_pacer frame_pacer; /* FRAMES: what is to be sent */
    struct vr_frames frame_tap; /* both sides, of what has no PCM; unless asked for, no room */
    bool came;                  /* a frame, since the last tick */
    struct vr_ring heard;       /* PCM mode only */
    struct vr_ring tap;         /* both sides of each tick, interleaved; none unless asked for */
    int16_t sides[2 * VR_BLOCK_MAX_SAMPLES];
};

#endif
