"""The media engine of csrc/media: declarations and lifetimes. What each thing means is in _engine.pyi."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINVAL
from libc.stdint cimport int16_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from transceiver._csrc cimport *

import os
import time
from enum import IntEnum

_NTP_EPOCH_S = 2_208_988_800


class EventKind(IntEnum):
    CHECKED = VR_ENGINE_CHECKED
    DTLS = VR_ENGINE_DTLS
    READABLE = VR_ENGINE_READABLE
    DIGIT = VR_ENGINE_DIGIT
    EXPIRED = VR_ENGINE_EXPIRED
    CLOSED = VR_ENGINE_CLOSED


RECEIVE_STATUSES = (
    "ok", "late", "duplicate", "old_source", "sequence_jump", "too_big", "malformed_rtp",
    "empty_payload", "payload_type", "broken_payload",
)
CHECK_STATUSES = (
    "ok", "role_conflict", "unknown_attribute", "malformed", "no_check", "unknown_ufrag", "wrong_username",
    "wrong_integrity", "replayed_check", "flow_key_limit",
)
DROP_NAMES = tuple(vr_engine_drop_name(i).decode() for i in range(VR_ENGINE_DROP_COUNT))
assert len(RECEIVE_STATUSES) == VR_RECEIVE_STATUS_COUNT
assert len(CHECK_STATUSES) == VR_ICE_STATUS_COUNT

_CODECS = {"opus": VR_CODEC_OPUS, "pcmu": VR_CODEC_PCMU, "pcma": VR_CODEC_PCMA}
cdef bytes _NO_KEY = bytes(36)
cdef size_t _EVENT_HEAD = sizeof(vr_engine_event)


def now_ns():
    return vr_engine_now_ns()


cdef _check(int result):
    if result == -EAGAIN:
        raise BlockingIOError(EAGAIN, "the engine's command queue is full")
    if result == -EINVAL:
        raise ValueError("an argument the engine does not take")
    if result < 0:
        raise OSError(-result, os.strerror(-result))


cdef class Engine:
    cdef vr_engine *_engine
    cdef readonly int max_sessions

    def __cinit__(self, int fd, *, int max_sessions, int wake_ms=20, bint direct=False, relays=()):
        cdef vr_engine_config config
        memset(&config, 0, sizeof(config))
        if not 1 <= max_sessions <= 65_536:
            raise ValueError(f"max_sessions {max_sessions} is not in 1..65536")
        if not 20 <= wake_ms <= 100:
            raise ValueError(f"wake_ms {wake_ms} is not in 20..100")
        if len(relays) > VR_ENGINE_RELAYS:
            raise ValueError(f"{len(relays)} relay networks are more than {VR_ENGINE_RELAYS}")
        config.fd = fd
        config.max_sessions = max_sessions
        config.wake_ms = wake_ms
        config.direct = direct
        config.hash_seed = int.from_bytes(os.urandom(8), "big")
        for network in relays:
            packed = network.network_address.packed
            bits = network.prefixlen
            if network.version == 4:
                packed = bytes(10) + b"\xff\xff" + packed
                bits += 96
            memcpy(config.relays[config.relay_count].ip, <const char *>packed, 16)
            config.relays[config.relay_count].prefix_bits = bits
            config.relay_count += 1
        self.max_sessions = max_sessions
        self._engine = vr_engine_new(&config)
        if self._engine is NULL:
            raise MemoryError("the media engine could not be made")

    def __dealloc__(self):
        vr_engine_free(self._engine)

    @property
    def notify_fd(self):
        return vr_engine_notify_fd(self._engine)

    def run(self):
        cdef int result
        with nogil:
            result = vr_engine_run(self._engine)
        _check(result)

    def stop(self):
        vr_engine_stop(self._engine)

    def open(self, int index, str ufrag, str pwd, str remote_ufrag, config):
        cdef vr_session_config c
        cdef vr_session *media
        if not 0 <= index < self.max_sessions:
            raise ValueError(f"session {index} is not in 0..{self.max_sessions - 1}")
        if not vr_codec_rate_valid(config.rate_hz):
            raise ValueError(f"rate {config.rate_hz} Hz is none of 8000, 16000, 24000, 48000")
        memset(&c, 0, sizeof(c))
        if config.echo and config.frames:
            raise ValueError("a pass-through goes back by itself or to the reader, not both")
        c.mode = VR_SESSION_PCM
        if config.echo:
            c.mode = VR_SESSION_ECHO
        elif config.frames:
            c.mode = VR_SESSION_FRAMES
        c.receive.rate_hz = config.rate_hz
        c.receive.opus_payload_type = c.receive.pcmu_payload_type = VR_NO_PAYLOAD_TYPE
        c.receive.pcma_payload_type = VR_NO_PAYLOAD_TYPE
        for name, payload_type in config.payload_types.items():
            if not 0 <= payload_type <= 127:
                raise ValueError(f"payload type {payload_type} is not in 0..127")
            if name == "opus":
                c.receive.opus_payload_type = payload_type
            elif name == "pcmu":
                c.receive.pcmu_payload_type = payload_type
            elif name == "pcma":
                c.receive.pcma_payload_type = payload_type
            else:
                raise ValueError(f"codec {name!r} is none of opus, pcmu, pcma")
        c.receive.event_payload_type = (
            VR_NO_PAYLOAD_TYPE if config.event_payload_type is None else config.event_payload_type
        )
        c.payload_type = config.payload_types[config.codec]
        c.encoder.codec = _CODECS[config.codec]
        c.encoder.rate_hz = config.rate_hz
        c.encoder.bitrate = config.bitrate
        c.encoder.complexity = config.complexity
        c.encoder.fec = config.fec
        c.encoder.dtx = config.dtx
        c.encoder.expected_loss_percent = config.expected_loss_percent
        c.pacer.rate_hz = config.rate_hz
        c.pacer.start_ms = config.start_ms
        c.pacer.live_ms = config.live_ms
        c.pacer.capacity_samples = config.capacity_ms * config.rate_hz // 1000
        c.pacer.first_timestamp = config.first_timestamp
        c.first_sequence = config.first_sequence
        c.receive_only = not config.sends
        c.tap = config.tap
        c.ssrc = config.ssrc
        cname = config.cname.encode()[:32]
        memcpy(c.cname, <const char *>cname, len(cname))
        ahead_ns = time.time_ns() - time.monotonic_ns() + _NTP_EPOCH_S * 10**9
        c.ntp_offset = ((ahead_ns << 32) // 10**9) & 0xFFFFFFFFFFFFFFFF
        media = vr_session_new(&c, vr_engine_now_ns())
        if media is NULL:
            raise MemoryError("the session's codecs could not be made")
        cdef int result = vr_engine_open(
            self._engine, index, ufrag.encode(), pwd.encode(), remote_ufrag.encode(), media
        )
        if result < 0:
            vr_session_free(media)
            _check(result)
        cdef Session session = Session.__new__(Session)
        session._owner = self
        session._media = media
        session.index = index
        session.rate_hz = config.rate_hz
        session._codec = c.encoder.codec
        return session

    def awake(self):
        vr_engine_awake(self._engine)

    def next_event(self):
        cdef const vr_engine_event *event = vr_engine_peek(self._engine)
        if event is NULL:
            return None
        payload = PyBytes_FromStringAndSize(<const char *>event.payload, event.payload_bytes)
        origin = None
        if event.kind == VR_ENGINE_DTLS or event.kind == VR_ENGINE_CHECKED:
            origin = PyBytes_FromStringAndSize(<const char *>event, _EVENT_HEAD)
        # A declared type: inferring one through a pointer to const never ends (Cython 3.3).
        cdef tuple found = (event.kind, event.session, event.at_ns, payload, origin)
        vr_engine_pop(self._engine)
        return found

    def authenticated(self, bytes origin not None):
        if <size_t>len(origin) != _EVENT_HEAD:
            raise ValueError("not an event's origin")
        cdef int result = vr_engine_authenticated(
            self._engine, <const vr_engine_event *>PyBytes_AS_STRING(origin)
        )
        if result != -EAGAIN:
            _check(result)

    def counts(self):
        cdef vr_engine_counts c
        vr_engine_read_counts(self._engine, &c)
        return {
            "drops": {DROP_NAMES[i]: c.drops[i] for i in range(VR_ENGINE_DROP_COUNT)},
            "checks": {CHECK_STATUSES[i]: c.checks[i] for i in range(VR_ICE_STATUS_COUNT)},
            "rtp_in": c.rtp_in,
            "rtp_out": c.rtp_out,
            "rtcp_in": c.rtcp_in,
            "rtcp_out": c.rtcp_out,
            "dtls_in": c.dtls_in,
            "dtls_out": c.dtls_out,
            "ticks": c.ticks,
            "skipped_ticks": c.skipped_ticks,
            "late_ns": c.late_ns,
            "lateness_100us": [c.lateness[i] for i in range(VR_ENGINE_LATENESS)],
            "wakeups": c.wakeups,
            "sessions": c.sessions,
            "received": c.socket.received,
            "messages": c.socket.messages,
            "receive_calls": c.socket.receive_calls,
            "receive_errors": c.socket.receive_errors,
            "truncated": c.socket.truncated,
            "sent": c.socket.sent,
            "send_calls": c.socket.send_calls,
            "send_errors": c.socket.send_errors,
            "send_full": c.socket.send_full,
        }


cdef class Session:
    cdef Engine _owner
    cdef vr_session *_media
    cdef vr_codec _codec
    cdef readonly int index
    cdef readonly int rate_hz

    def __init__(self):
        raise TypeError("made by Engine.open")

    @property
    def is_open(self):
        return self._media is not NULL

    def set_keys(self, int profile, bytes receive_key not None, bytes receive_salt not None,
                 bytes send_key not None, bytes send_salt not None):
        cdef size_t key_bytes = vr_srtp_key_bytes(profile), salt_bytes = vr_srtp_salt_bytes(profile)
        cdef vr_srtp *receive
        cdef vr_srtp *send
        cdef int result
        if key_bytes == 0:
            raise ValueError(f"SRTP profile {profile:#06x} is not supported")
        if not (<size_t>len(receive_key) == <size_t>len(send_key) == key_bytes
                and <size_t>len(receive_salt) == <size_t>len(send_salt) == salt_bytes):
            raise ValueError("a key or salt of the wrong length")
        if self._media is NULL:
            return
        receive = vr_srtp_new(profile, receive_key, receive_salt)
        send = vr_srtp_new(profile, send_key, send_salt)
        if receive is NULL or send is NULL:
            result = -EINVAL
        else:
            result = vr_engine_keys(self._owner._engine, self.index, receive, send)
        if result < 0:
            vr_srtp_free(receive)
            vr_srtp_free(send)
            _check(result)

    def send(self, const uint8_t[::1] datagram not None):
        if self._media is NULL or datagram.shape[0] == 0:
            return False
        return vr_engine_send(self._owner._engine, self.index, &datagram[0], datagram.shape[0]) == 0

    @property
    def readable(self):
        return 0 if self._media is NULL else vr_session_readable(self._media)

    def read(self):
        cdef size_t samples = 0 if self._media is NULL else vr_session_readable(self._media)
        if self._media is not NULL:
            vr_engine_rearm(self._owner._engine, self.index)
        if samples == 0:
            return b""
        pcm = PyBytes_FromStringAndSize(NULL, 2 * samples)
        cdef size_t got = vr_session_read(
            self._media, <int16_t *>PyBytes_AS_STRING(pcm), samples
        )
        return pcm if got == samples else pcm[: 2 * got]

    def read_tap(self):
        cdef size_t samples = 0 if self._media is NULL else vr_session_tap_readable(self._media)
        if samples == 0:
            return b""
        pcm = PyBytes_FromStringAndSize(NULL, 2 * samples)
        cdef size_t got = vr_session_read_tap(
            self._media, <int16_t *>PyBytes_AS_STRING(pcm), samples
        )
        return pcm if got == samples else pcm[: 2 * got]

    def read_frames(self):
        if self._media is NULL:
            return []
        vr_engine_rearm(self._owner._engine, self.index)
        return _take_frames(vr_session_frames(self._media))

    def read_frame_tap(self):
        return [] if self._media is NULL else _take_frames(vr_session_frame_tap(self._media))

    def write_frame(self, const uint8_t[::1] payload not None):
        cdef vr_frame_pacer *pacer
        cdef size_t size = payload.shape[0]
        cdef uint32_t tick = vr_codec_clock_hz(self._codec) // 50, units = tick
        pacer = NULL if self._media is NULL else vr_session_frame_pacer(self._media)
        if pacer is NULL:
            return False
        if size != 0:
            units = vr_codec_units(self._codec, &payload[0], size)
        if units == 0 or units % tick != 0:
            raise ValueError(f"a frame of {units * 20 / tick:g} ms is none of 20, 40 ... 120 ms")
        if size > VR_SESSION_PAYLOAD_BYTES:
            raise ValueError(f"a frame of {size} bytes is over {VR_SESSION_PAYLOAD_BYTES}")
        return vr_frame_pacer_write(pacer, units, &payload[0] if size != 0 else NULL, size)

    def flush_frames(self):
        if self._media is not NULL and vr_session_frame_pacer(self._media) is not NULL:
            vr_frame_pacer_flush(vr_session_frame_pacer(self._media))

    @property
    def frames_waiting_ms(self):
        if self._media is NULL or vr_session_frame_pacer(self._media) is NULL:
            return 0
        return vr_frame_pacer_waiting_ms(vr_session_frame_pacer(self._media))

    def write(self, uint32_t generation, pcm):
        cdef Py_buffer view
        cdef size_t taken
        if self._media is NULL or vr_session_pacer(self._media) is NULL:
            return 0
        if generation == 0:
            raise ValueError("generation 0 is nobody's")
        PyObject_GetBuffer(pcm, &view, PyBUF_SIMPLE)
        try:
            taken = vr_pacer_write(
                vr_session_pacer(self._media), generation, <const int16_t *>view.buf, view.len // 2
            )
        finally:
            PyBuffer_Release(&view)
        return taken

    def flush(self, uint32_t through_generation):
        if self._media is not NULL and vr_session_pacer(self._media) is not NULL:
            vr_pacer_flush(vr_session_pacer(self._media), through_generation)

    @property
    def waiting(self):
        if self._media is NULL or vr_session_pacer(self._media) is NULL:
            return 0
        return vr_pacer_waiting(vr_session_pacer(self._media))

    def played(self, uint32_t generation):
        cdef uint64_t samples = 0
        if self._media is NULL or vr_session_pacer(self._media) is NULL:
            return None
        if not vr_pacer_played(vr_session_pacer(self._media), generation, &samples):
            return None
        return samples

    def path(self):
        cdef vr_engine_path path
        if self._media is NULL or not vr_engine_read_path(self._owner._engine, self.index, &path):
            return None
        key = PyBytes_FromStringAndSize(<const char *>&path.key, 36)
        if key == _NO_KEY:
            return None
        return path.paused, _flow_key(key), path.authenticated_ns

    def marks(self):
        cdef vr_session_marks m
        memset(&m, 0, sizeof(m))
        if self._media is not NULL:
            vr_session_read_marks(self._media, &m)
        return m.first_in_ns, m.first_out_ns

    def counts(self):
        cdef vr_session_counts c
        if self._media is NULL:
            return None
        vr_session_read_counts(self._media, &c)
        return {
            "packets_in": c.packets_in,
            "bytes_in": c.bytes_in,
            "packets_out": c.packets_out,
            "bytes_out": c.bytes_out,
            "reports_in": c.reports_in,
            "verdicts_in": c.verdicts_in,
            "reports_out": c.reports_out,
            "echo_dropped": c.echo_dropped,
            "encode_failures": c.encode_failures,
            "blocks_lost": c.blocks_lost,
            "tap_blocks_lost": c.tap_blocks_lost,
            "frames_lost": c.frames_lost,
            "tap_frames_lost": c.tap_frames_lost,
            "first_in_ns": c.first_in_ns,
            "first_out_ns": c.first_out_ns,
            "round_trip_ns": c.round_trip_ns,
            "lost_in": c.lost_in,
            "jitter_in_ms": c.jitter_in_units * 1000 / c.clock_hz_in if c.clock_hz_in else 0.0,
            "fraction_lost_out": c.fraction_lost_out / 256,
            "target_ms": c.target_ns / 1e6,
            "receive": {
                RECEIVE_STATUSES[i]: c.receive.status[i] for i in range(VR_RECEIVE_STATUS_COUNT)
            },
            "samples": c.receive.samples,
            "concealed_samples": c.receive.concealed_samples,
            "recovered_samples": c.receive.recovered_samples,
            "silence_samples": c.receive.silence_samples,
            "shortened_samples": c.receive.shortened_samples,
            "lengthened_samples": c.receive.lengthened_samples,
            "decode_failures": c.receive.decode_failures,
            "ages_5ms": [c.receive.ages[i] for i in range(VR_RECEIVE_AGES)],
            "beyond_target_ms": {
                VR_RECEIVE_BEYOND_LEAST_MS + i: c.receive.beyond_target[i]
                for i in range(VR_RECEIVE_BEYOND)
                if c.receive.beyond_target[i]
            },
            "stale": c.jitter.stale,
            "restarts": c.jitter.restarts,
            "talkspurts": c.pacer.talkspurts,
            "padded_samples": c.pacer.padded_samples,
            "flushed_samples": c.pacer.flushed_samples,
            "refused_samples": c.pacer.refused_samples,
            "live_shortened_samples": c.pacer.shortened_samples,
        }

    def close(self):
        if self._media is NULL:
            return
        vr_engine_close(self._owner._engine, self.index)
        self._media = NULL


cdef list _take_frames(vr_frames *frames):
    """What waits now: a writer that is faster than we does not keep us here."""
    cdef size_t left = vr_frames_waiting(frames)
    cdef const vr_frame *frame
    cdef bytes payload
    cdef list taken = []
    while left != 0:
        frame = vr_frames_peek(frames)
        if frame is NULL:
            break
        payload = PyBytes_FromStringAndSize(<const char *>frame.payload, frame.payload_bytes)
        taken.append((
            frame.side, frame.at_ns, frame.sequence, frame.timestamp, frame.units, frame.marker != 0, payload
        ))
        vr_frames_pop(frames)
        left -= 1
    return taken


cdef _flow_key(bytes packed):
    """struct vr_flow_key as an SPP header, which is what FlowKey is."""
    return b"\x56\xec" + packed[:16] + packed[18:34] + packed[16:18] + packed[34:36]
