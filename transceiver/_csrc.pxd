"""What the media binding calls of csrc/wire and csrc/media; the headers are the manual."""

from libc.stdint cimport int16_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "wire/addr.h" nogil:
    struct vr_addr:
        uint8_t ip[16]
        uint16_t port_be

    struct vr_flow_key:
        vr_addr client
        vr_addr proxy


cdef extern from "media/srtp.h" nogil:
    struct vr_srtp:
        pass

    size_t vr_srtp_key_bytes(unsigned profile)
    size_t vr_srtp_salt_bytes(unsigned profile)
    vr_srtp *vr_srtp_new(unsigned profile, const uint8_t *key, const uint8_t *salt)
    void vr_srtp_free(vr_srtp *srtp)


cdef extern from "media/codec.h" nogil:
    enum vr_codec:
        VR_CODEC_OPUS
        VR_CODEC_PCMU
        VR_CODEC_PCMA

    struct vr_encoder_config:
        vr_codec codec
        uint32_t rate_hz
        uint32_t bitrate
        uint8_t complexity
        uint8_t expected_loss_percent
        bint fec
        bint dtx

    bint vr_codec_rate_valid(uint32_t rate_hz)
    uint32_t vr_codec_clock_hz(vr_codec codec)
    uint32_t vr_codec_units(vr_codec codec, const uint8_t *payload, size_t bytes)


cdef extern from "media/jitter.h" nogil:
    enum:
        VR_JITTER_STATUS_COUNT

    struct vr_jitter_counts:
        uint64_t received
        uint64_t status[1]
        uint64_t lost_frames
        uint64_t evicted
        uint64_t stale
        uint64_t restarts


cdef extern from "media/receive.h" nogil:
    enum:
        VR_NO_PAYLOAD_TYPE
        VR_RECEIVE_STATUS_COUNT
        VR_RECEIVE_AGES
        VR_RECEIVE_BEYOND
        VR_RECEIVE_BEYOND_LEAST_MS

    struct vr_receive_config:
        uint32_t rate_hz
        uint8_t opus_payload_type
        uint8_t pcmu_payload_type
        uint8_t pcma_payload_type
        uint8_t event_payload_type

    struct vr_receive_counts:
        uint64_t status[1]
        uint64_t decode_failures
        uint64_t samples
        uint64_t concealed_samples
        uint64_t recovered_samples
        uint64_t silence_samples
        uint64_t shortened_samples
        uint64_t lengthened_samples
        uint64_t ages[1]
        uint64_t beyond_target[1]


cdef extern from "media/pacer.h" nogil:
    struct vr_pacer_config:
        uint32_t rate_hz
        uint32_t start_ms
        uint32_t live_ms
        size_t capacity_samples
        uint32_t first_timestamp

    struct vr_pacer_counts:
        uint64_t blocks
        uint64_t talkspurts
        uint64_t padded_samples
        uint64_t flushed_samples
        uint64_t refused_samples
        uint64_t shortened_samples

    struct vr_pacer:
        pass

    size_t vr_pacer_write(vr_pacer *pacer, uint32_t generation, const int16_t *pcm, size_t samples)
    void vr_pacer_flush(vr_pacer *pacer, uint32_t through_generation)
    size_t vr_pacer_waiting(const vr_pacer *pacer)
    bint vr_pacer_played(const vr_pacer *pacer, uint32_t generation, uint64_t *samples)


cdef extern from "media/frames.h" nogil:
    struct vr_frame:
        uint64_t at_ns
        uint32_t timestamp
        uint32_t units
        uint32_t payload_bytes
        uint16_t sequence
        uint8_t side
        uint8_t marker
        uint8_t payload[0]

    struct vr_frames:
        pass

    size_t vr_frames_waiting(const vr_frames *frames)
    const vr_frame *vr_frames_peek(vr_frames *frames)
    void vr_frames_pop(vr_frames *frames)


cdef extern from "media/frame_pacer.h" nogil:
    struct vr_frame_pacer:
        pass

    bint vr_frame_pacer_write(vr_frame_pacer *pacer, uint32_t units, const uint8_t *payload,
                              size_t payload_bytes)
    void vr_frame_pacer_flush(vr_frame_pacer *pacer)
    uint32_t vr_frame_pacer_waiting_ms(const vr_frame_pacer *pacer)


cdef extern from "media/session.h" nogil:
    enum:
        VR_SESSION_PAYLOAD_BYTES

    enum vr_session_mode:
        VR_SESSION_PCM
        VR_SESSION_ECHO
        VR_SESSION_FRAMES

    struct vr_session_config:
        vr_session_mode mode
        vr_receive_config receive
        vr_pacer_config pacer
        vr_encoder_config encoder
        uint8_t payload_type
        bint receive_only
        bint tap
        uint32_t ssrc
        uint16_t first_sequence
        uint64_t ntp_offset
        char cname[33]

    struct vr_session_counts:
        uint64_t packets_in
        uint64_t bytes_in
        uint64_t packets_out
        uint64_t bytes_out
        uint64_t reports_in
        uint64_t verdicts_in
        uint64_t reports_out
        uint64_t echo_dropped
        uint64_t encode_failures
        uint64_t blocks_lost
        uint64_t tap_blocks_lost
        uint64_t frames_lost
        uint64_t tap_frames_lost
        uint64_t first_in_ns
        uint64_t first_out_ns
        uint64_t round_trip_ns
        uint32_t lost_in
        uint32_t jitter_in_units
        uint32_t fraction_lost_out
        uint64_t target_ns
        uint32_t clock_hz_in
        vr_receive_counts receive
        vr_jitter_counts jitter
        vr_pacer_counts pacer

    struct vr_session_marks:
        uint64_t first_in_ns
        uint64_t first_out_ns

    struct vr_session:
        pass

    void vr_session_read_marks(const vr_session *session, vr_session_marks *out)
    vr_session *vr_session_new(const vr_session_config *config, uint64_t now_ns)
    void vr_session_free(vr_session *session)
    size_t vr_session_readable(const vr_session *session)
    size_t vr_session_read(vr_session *session, int16_t *pcm, size_t capacity)
    size_t vr_session_tap_readable(const vr_session *session)
    size_t vr_session_read_tap(vr_session *session, int16_t *pcm, size_t capacity)
    vr_frames *vr_session_frames(vr_session *session)
    vr_frames *vr_session_frame_tap(vr_session *session)
    vr_frame_pacer *vr_session_frame_pacer(vr_session *session)
    vr_pacer *vr_session_pacer(vr_session *session)
    void vr_session_read_counts(const vr_session *session, vr_session_counts *out)


cdef extern from "media/ice.h" nogil:
    enum:
        VR_ICE_STATUS_COUNT


cdef extern from "media/socket.h" nogil:
    struct vr_socket_counts:
        uint64_t received
        uint64_t received_bytes
        uint64_t messages
        uint64_t receive_errors
        uint64_t truncated
        uint64_t sent
        uint64_t sent_bytes
        uint64_t send_errors
        uint64_t send_full
        uint64_t receive_calls
        uint64_t send_calls


cdef extern from "media/engine.h" nogil:
    enum:
        VR_ENGINE_RELAYS
        VR_ENGINE_LATENESS
        VR_ENGINE_DROP_COUNT
        VR_ENGINE_CHECKED
        VR_ENGINE_DTLS
        VR_ENGINE_READABLE
        VR_ENGINE_DIGIT
        VR_ENGINE_EXPIRED
        VR_ENGINE_CLOSED

    struct vr_network:
        uint8_t ip[16]
        uint8_t prefix_bits

    struct vr_engine_config:
        int fd
        uint32_t max_sessions
        uint32_t wake_ms
        bint direct
        uint32_t relay_count
        vr_network relays[1]
        uint64_t hash_seed

    struct vr_engine_counts:
        uint64_t drops[1]
        uint64_t checks[1]
        uint64_t rtp_in
        uint64_t rtp_out
        uint64_t rtcp_in
        uint64_t rtcp_out
        uint64_t dtls_in
        uint64_t dtls_out
        uint64_t ticks
        uint64_t skipped_ticks
        uint64_t late_ns
        uint64_t lateness[1]
        uint64_t wakeups
        uint64_t sessions
        vr_socket_counts socket

    struct vr_engine_event:
        uint32_t kind
        uint32_t session
        uint32_t payload_bytes
        uint64_t at_ns
        vr_flow_key key
        uint8_t payload[0]

    struct vr_engine_path:
        bint paused
        vr_flow_key key
        uint64_t authenticated_ns

    struct vr_engine:
        pass

    const char *vr_engine_drop_name(int drop)
    uint64_t vr_engine_now_ns()
    vr_engine *vr_engine_new(const vr_engine_config *config)
    void vr_engine_free(vr_engine *engine)
    int vr_engine_run(vr_engine *engine)
    void vr_engine_stop(vr_engine *engine)
    int vr_engine_notify_fd(const vr_engine *engine)
    int vr_engine_open(vr_engine *engine, uint32_t session, const char *ufrag, const char *pwd,
                       const char *remote_ufrag, vr_session *media)
    int vr_engine_keys(vr_engine *engine, uint32_t session, vr_srtp *receive, vr_srtp *send)
    void vr_engine_close(vr_engine *engine, uint32_t session)
    int vr_engine_send(vr_engine *engine, uint32_t session, const uint8_t *data, size_t bytes)
    int vr_engine_authenticated(vr_engine *engine, const vr_engine_event *event)
    void vr_engine_awake(vr_engine *engine)
    const vr_engine_event *vr_engine_peek(vr_engine *engine)
    void vr_engine_pop(vr_engine *engine)
    void vr_engine_rearm(vr_engine *engine, uint32_t session)
    bint vr_engine_read_path(const vr_engine *engine, uint32_t session, vr_engine_path *out)
    void vr_engine_read_counts(const vr_engine *engine, vr_engine_counts *out)
