"""The sound of a process's calls: the media engine's thread, and PCM for whoever talks and listens.

This is the seam for backends. A `MediaSession` is the sound of one call; its PCM is 16-bit
little-endian mono at the rate that it was opened with.

1. *Listening.* `MediaHandler.on_sound(pcm)` comes on the event loop with what has gathered, at least
   `wake_ms` (20..100) of it, for all calls in one wake-up. From the first packet on there are as
   many samples as time passes: losses are concealed, silence is zeros. A handler that does not get
   its turn for a second loses the oldest; `stats()["blocks_lost"]` counts.
2. *Speaking.* `write(generation, pcm)` queues, in any amount up to `capacity_ms`; sound leaves in real
   time on the engine's clock. A generation is one response (or one part of it): a number from 1
   that never falls.
3. *Barge-in.* `flush()` stops everything written so far within one 20 ms frame, with a fade of 8 ms;
   late sound of those generations is swallowed. `played_ms(generation)` says what went out.
4. *Pass-through.* `echo=True`: packets go back as they came, without a codec and without Python. `frames=True`: what
   was encoded stays encoded. `MediaHandler.on_frames` brings the client's frames, as many as there are, with the
   same wake-ups as sound; `write_frames` queues what the client is to hear, which leaves in real time. Frames come
   in the order of their arrival: `sequence` has gaps where packets were lost, `timestamp` where the client
   was silent too; both count on whatever the client's sources do. Either queue is bounded: 32 KiB come, 256 KiB go
   (5 s and 40 s at 32 kbit/s); what comes beyond is dropped, and `stats()["frames_lost"]` counts; what is written
   beyond is refused. There is no PCM with either.
5. Nothing here waits, and no RTP packet touches a Python object; a frame is one only where it was asked for.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import secrets
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from relay.wire.log import get_logger
from relay.wire.spp import FlowKey

from . import _engine
from ._engine import EventKind

EVENTS_PER_WAKEUP = 16
"""Taken before the loop looks at its sockets again: a model's word that the user speaks waits for no more."""
PYTHON_NICE = 10

DIGITS = "0123456789*#ABCD"
"""Telephone events 0..15 (RFC 4733 3.2)."""

ANSWERED = frozenset({"ok", "role_conflict", "unknown_attribute"})
"""Outcomes of a check that are no drops."""

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


RawFrame = tuple[int, int, int, int, int, bool, bytes]
"""Side (0 the client, 1 we), time in ns, sequence number, timestamp, duration, marker, payload: of one
side's line, before its wraps are counted (FrameLine).
"""


class EngineFullError(RuntimeError):
    """Every place of the engine is taken."""


@dataclass(frozen=True, slots=True)
class SrtpKeys:
    """Master keys and salts of one DTLS-SRTP association (RFC 5764 4.2)."""

    profile: int
    receive_key: bytes
    receive_salt: bytes
    send_key: bytes
    send_salt: bytes


@dataclass(frozen=True, slots=True)
class MediaConfig:
    """How one call's sound is carried."""

    codec: str
    """`opus`, `pcmu` or `pcma`: what we send."""
    payload_types: Mapping[str, int]
    """Negotiated payload types by codec; the client may change between them."""
    ssrc: int
    cname: str
    echo: bool = False
    frames: bool = False
    """Frames go to and from the handler as they are; not together with `echo`."""
    sends: bool = True
    """False for a client that wants to hear nothing: it gets reports only."""
    rate_hz: int = 24_000
    """8000, 16000, 24000 or 48000: of the PCM, both ways."""
    event_payload_type: int | None = None
    """Of telephone-event, when negotiated."""
    bitrate: int = 24_000
    complexity: int = 5
    fec: bool = True
    dtx: bool = False
    expected_loss_percent: int = 5
    start_ms: int = 40
    """Sound that gathers before a talkspurt starts; covers a backend that is not punctual."""
    live_ms: int = 0
    """For sound made in real time: a backlog that stays above this is worked off. 0: never."""
    capacity_ms: int = 300_000
    """Sound that may wait to be sent."""
    tap: bool = False
    """Both sides are kept for a recorder (see recording.py): a second of PCM, in pass-through 64 KiB
    of frames.
    """
    # RFC 3550 5.1: random origins; the low half leaves SRTP's first rollover far away
    first_timestamp: int = field(default_factory=lambda: secrets.randbelow(2**32))
    first_sequence: int = field(default_factory=lambda: secrets.randbelow(0x8000))


@dataclass(frozen=True, slots=True)
class Frame:
    """An RTP payload: an Opus packet, or G.711 samples."""

    payload: bytes
    sequence: int
    """One more with each packet of the client, from 0; lost ones are missing."""
    timestamp: int
    """When it begins, in samples of the codec's clock (48 kHz for Opus, 8 kHz for G.711), from 0."""
    duration: int
    """In the same samples; 0 when it is no frame of the codec."""
    at_s: float
    """When it came, or left, in monotonic seconds."""
    marker: bool
    """It is the first after silence."""


class FrameLine:
    """Counts the frames of one side on, past the wraps of their 16 and 32 bits."""

    def __init__(self) -> None:
        self._sequence: int | None = None
        self._timestamp = 0
        self._first = (0, 0)

    def place(self, raw: RawFrame) -> Frame:
        """The frame that `raw` is."""
        _, at_ns, sequence, timestamp, duration, marker, payload = raw
        if self._sequence is None:
            self._sequence, self._timestamp = sequence, timestamp
            self._first = (sequence, timestamp)
        self._sequence += _signed(sequence - self._sequence, 16)
        self._timestamp += _signed(timestamp - self._timestamp, 32)
        return Frame(
            payload,
            self._sequence - self._first[0],
            self._timestamp - self._first[1],
            duration,
            at_ns / 1e9,
            marker,
        )


def _signed(difference: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (difference + half) % (2 * half) - half


class MediaHandler(Protocol):
    """What happens to a call, on the event loop. Nothing of this raises."""

    def on_check(self, now_s: float) -> None:
        """A check was answered on a new path, or after a pause."""

    def on_dtls(self, datagram: bytes, on_authentic: Callable[[], None], now_s: float) -> None:
        """A DTLS datagram of one of the call's validated flow keys. `on_authentic` is to be called
        when it was authentic, before anything is sent in reply.
        """

    def on_sound(self, pcm: bytes) -> None:
        """The client's next samples."""

    def on_frames(self, frames: list[Frame]) -> None:
        """The client's next frames; of a session opened with `frames`."""

    def on_digit(self, digit: str) -> None:
        """The client pressed a key: one of DIGITS."""

    def on_expired(self) -> None:
        """No consent for 30 s."""


class MediaSession:
    """The sound of one call; see the module. Made by MediaEngine.open."""

    def __init__(
        self, session: _engine.Session, handler: MediaHandler, *, has_frames: bool = False
    ) -> None:
        self._session = session
        self.has_frames = has_frames
        self._last_stats: dict[str, Any] = {}
        self._last_generation = 0
        self._line = FrameLine()
        self.handler = handler
        self.rate_hz = session.rate_hz

    @property
    def index(self) -> int:
        """The call's place in the engine."""
        return self._session.index

    def set_keys(self, keys: SrtpKeys) -> None:
        """The handshake is over: sound may flow. ValueError for a profile we do not have."""
        self._session.set_keys(
            keys.profile, keys.receive_key, keys.receive_salt, keys.send_key, keys.send_salt
        )

    def send(self, datagram: bytes) -> bool:
        """Sends a DTLS datagram to the call's media path."""
        return self._session.send(datagram)

    def read(self) -> bytes:
        """What has gathered; usually `on_sound` brings it."""
        return self._session.read()

    def read_tap(self) -> bytes:
        """What the tap has kept since the last call: stereo, the client left, we right."""
        return self._session.read_tap()

    def read_frames(self) -> list[Frame]:
        """The frames that have come, in the order of their arrival; usually `on_frames` brings them."""
        return [self._line.place(raw) for raw in self._session.read_frames()]

    def read_frame_tap(self) -> list[RawFrame]:
        """What the tap of a pass-through has kept since the last call, of both sides."""
        return self._session.read_frame_tap()

    def write_frames(self, payloads: Iterable[bytes]) -> int:
        """Queues frames of 20, 40 ... 120 ms of the call's codec behind what is queued; b"" is a pause
        of 20 ms. Returns how many were taken: fewer than given when 256 KiB are waiting.
        Raises ValueError for one that is no such frame, or longer than a packet takes (1,464 bytes,
        csrc/media/session.h); those before it are queued.
        """
        taken = 0
        for payload in payloads:
            if not self._session.write_frame(payload):
                break
            taken += 1
        return taken

    def write(self, generation: int, pcm: bytes) -> int:
        """Queues samples behind what is queued. Returns how many bytes were taken: fewer than
        given when `capacity_ms` are waiting.
        """
        self._last_generation = max(self._last_generation, generation)
        return 2 * self._session.write(generation, pcm)

    def flush(self, through_generation: int | None = None) -> None:
        """Stops these generations (by default all written so far) within one 20 ms frame. Of frames,
        all that were written so far: after the one that has left.
        """
        self._session.flush_frames()
        if through_generation is None:
            through_generation = self._last_generation
        self._session.flush(through_generation)

    def played_ms(self, generation: int) -> float:
        """Milliseconds of this generation that went out; 0 before it begins."""
        return 1_000 * (self._session.played(generation) or 0) / self.rate_hz

    def queued_ms(self) -> float:
        """Milliseconds written and not gone, of sound or of frames."""
        return self._session.frames_waiting_ms + 1_000 * self._session.waiting / self.rate_hz

    def path(self) -> FlowKey | None:
        """Where sound goes, or went before the call paused; None before the first check."""
        found = self._session.path()
        return None if found is None else bytes.__new__(FlowKey, found[1])

    def marks(self) -> tuple[float | None, float | None]:
        """When sound first came and when it first left, in monotonic seconds; cheap."""
        first_in_ns, first_out_ns = self._session.marks()
        return (
            first_in_ns / 1e9 if first_in_ns else None,
            first_out_ns / 1e9 if first_out_ns else None,
        )

    def stats(self) -> dict[str, Any]:
        """The call's counters (csrc/media/session.h); those of its end once it is closed."""
        self._last_stats = self._session.counts() or self._last_stats
        return self._last_stats

    def close(self) -> None:
        """Says BYE and gives everything back; idempotent."""
        if self._session.is_open:
            self.stats()
            self._session.close()


@dataclass(frozen=True, slots=True)
class ClockCounts:
    """What the engine's clock did: ticks are 20 ms of one session each."""

    late_100us: Sequence[int]
    """Ticks that were served, by how late, in steps of 100 us; the last: 100 ms and more."""
    late_ns: int
    """The sum of their lateness."""
    skipped: int
    """Ticks that were left out, as the engine was later than it catches up."""


class MediaEngine:
    """The engine of one process: its thread, its sessions and their events. One event loop."""

    def __init__(
        self,
        media: socket.socket,
        *,
        max_sessions: int,
        allowed_relays: Sequence[IpNetwork],
        direct: bool,
        wake_ms: int = 20,
    ) -> None:
        self._engine = _engine.Engine(
            media.fileno(),
            max_sessions=max_sessions,
            wake_ms=wake_ms,
            direct=direct,
            relays=allowed_relays,
        )
        self._free = deque(range(max_sessions))
        self._sessions: dict[int, MediaSession] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="media", daemon=True)
        self._drops_taken: Counter[str] = Counter()
        self._packets_taken = (0, 0)
        self._clock_taken = self._clock()
        self.handler_failures = 0

    def __len__(self) -> int:
        """Open sessions."""
        return len(self._sessions)

    def start(self, loop: asyncio.AbstractEventLoop, *, yield_cpu: bool = True) -> None:
        """Starts the thread and listens to it. With `yield_cpu` this process's Python gets a worse
        nice value than the engine (10 to its 0), for good.
        """
        self._loop = loop
        self._thread.start()
        loop.add_reader(self._engine.notify_fd, self._on_notified)
        if yield_cpu:
            # On Linux niceness is the thread's; later threads inherit it.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), PYTHON_NICE)

    def stop(self) -> None:
        """Ends the thread; the sessions fall silent."""
        self._engine.stop()
        if self._thread.ident is not None:
            self._thread.join()
        if self._loop is not None:
            self._loop.remove_reader(self._engine.notify_fd)
            self._loop = None

    def open(
        self, ufrag: str, pwd: str, remote_ufrag: str, config: MediaConfig, handler: MediaHandler
    ) -> MediaSession:
        """A new session. Raises EngineFullError, ValueError, MemoryError, BlockingIOError."""
        if not self._free:
            raise EngineFullError("all places of the media engine are taken")
        index = self._free.popleft()
        try:
            made = self._engine.open(index, ufrag, pwd, remote_ufrag, config)
        except BaseException:
            self._free.appendleft(index)
            raise
        session = MediaSession(made, handler, has_frames=config.frames)
        self._sessions[index] = session
        return session

    def close(self, session: MediaSession) -> None:
        """Closes a session; its handler hears nothing more."""
        if self._sessions.get(session.index) is session:
            del self._sessions[session.index]
            session.close()

    def counts(self) -> dict[str, Any]:
        """The engine's counters (csrc/media/engine.h)."""
        return self._engine.counts()

    def take_drops(self) -> Counter[str]:
        """Datagrams and checks that came to nothing, by reason, since the last call."""
        counts = self.counts()
        checks = {name: n for name, n in counts["checks"].items() if name not in ANSWERED}
        drops: Counter[str] = Counter({**counts["drops"], **checks})
        drops["send_failed"] = counts["send_errors"] + counts["send_full"]
        drops["receive_failed"] = counts["receive_errors"] + counts["truncated"]
        drops["handler_failed"] = self.handler_failures
        fresh = drops - self._drops_taken
        self._drops_taken = drops
        return fresh

    def take_packets(self) -> tuple[int, int]:
        """RTP packets in and out since the last call."""
        counts = self.counts()
        before, self._packets_taken = self._packets_taken, (counts["rtp_in"], counts["rtp_out"])
        return self._packets_taken[0] - before[0], self._packets_taken[1] - before[1]

    def take_clock(self) -> ClockCounts:
        """What the clock did since the last call."""
        before, now = self._clock_taken, self._clock()
        self._clock_taken = now
        return ClockCounts(
            [new - old for new, old in zip(now.late_100us, before.late_100us, strict=True)],
            now.late_ns - before.late_ns,
            now.skipped - before.skipped,
        )

    def _clock(self) -> ClockCounts:
        counts = self.counts()
        return ClockCounts(counts["lateness_100us"], counts["late_ns"], counts["skipped_ticks"])

    def _run(self) -> None:
        try:
            self._engine.run()
        except OSError as error:
            get_logger().error("media_engine_failed", error=str(error))

    def _on_notified(self) -> None:
        self._engine.awake()
        for _ in range(EVENTS_PER_WAKEUP):
            event = self._engine.next_event()
            if event is None:
                return
            try:
                self._deliver(*event)
            except Exception:
                # A fault of one call must not cost the others theirs, nor fill the log.
                self.handler_failures += 1
                if self.handler_failures == 1:
                    get_logger().exception("media_event_failed")
        if self._loop is not None:
            self._loop.call_soon(self._on_notified)

    def _deliver(
        self, kind: int, index: int, at_ns: int, payload: bytes, origin: bytes | None
    ) -> None:
        if kind == EventKind.CLOSED:
            self._free.append(index)
            return
        session = self._sessions.get(index)
        if session is None:
            return
        handler = session.handler
        if kind == EventKind.READABLE:
            self._deliver_sound(session, handler)
        elif kind == EventKind.DTLS:
            assert origin is not None
            handler.on_dtls(payload, partial(self._engine.authenticated, origin), at_ns / 1e9)
        elif kind == EventKind.CHECKED:
            handler.on_check(at_ns / 1e9)
        elif kind == EventKind.DIGIT:
            if payload[0] < len(DIGITS):
                handler.on_digit(DIGITS[payload[0]])
        elif kind == EventKind.EXPIRED:
            handler.on_expired()

    @staticmethod
    def _deliver_sound(session: MediaSession, handler: MediaHandler) -> None:
        if session.has_frames:
            frames = session.read_frames()
            if frames:
                handler.on_frames(frames)
            return
        pcm = session.read()
        if pcm:
            handler.on_sound(pcm)
