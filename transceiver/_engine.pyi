"""The media engine of csrc/media as Python sees it: lifetimes and numbers, no algorithm (see media.py).

1. One thread calls `Engine.run`, which holds no GIL; all else is called by one other thread.
2. A Session is the engine's; after `close` its methods do nothing and return nothing.
3. PCM is 16-bit, native order (little-endian), mono, at the session's rate.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Protocol

class EventKind(IntEnum):
    """What `Engine.next_event` tells; see csrc/media/engine.h."""

    CHECKED = 1
    DTLS = 2
    READABLE = 3
    DIGIT = 4
    EXPIRED = 5
    CLOSED = 6

RECEIVE_STATUSES: tuple[str, ...]
CHECK_STATUSES: tuple[str, ...]
DROP_NAMES: tuple[str, ...]

class Config(Protocol):
    """What `Engine.open` reads; media.MediaConfig."""

    @property
    def echo(self) -> bool: ...
    @property
    def frames(self) -> bool: ...
    @property
    def sends(self) -> bool: ...
    @property
    def rate_hz(self) -> int: ...
    @property
    def codec(self) -> str: ...
    @property
    def payload_types(self) -> Mapping[str, int]: ...
    @property
    def event_payload_type(self) -> int | None: ...
    @property
    def bitrate(self) -> int: ...
    @property
    def complexity(self) -> int: ...
    @property
    def fec(self) -> bool: ...
    @property
    def dtx(self) -> bool: ...
    @property
    def expected_loss_percent(self) -> int: ...
    @property
    def start_ms(self) -> int: ...
    @property
    def live_ms(self) -> int: ...
    @property
    def capacity_ms(self) -> int: ...
    @property
    def first_timestamp(self) -> int: ...
    @property
    def first_sequence(self) -> int: ...
    @property
    def tap(self) -> bool: ...
    @property
    def ssrc(self) -> int: ...
    @property
    def cname(self) -> str: ...

def now_ns() -> int:
    """The clock of all times here: CLOCK_MONOTONIC."""

class Engine:
    """One media thread with its socket."""

    max_sessions: int
    notify_fd: int
    """Readable when events wait."""

    def __init__(
        self,
        fd: int,
        *,
        max_sessions: int,
        wake_ms: int = 20,
        direct: bool = False,
        relays: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network] = (),
    ) -> None:
        """`fd` is a bound, non-blocking UDP socket and stays the caller's. ValueError, MemoryError."""

    def run(self) -> None:
        """The thread's life, without the GIL; returns after `stop`. OSError when polling fails."""

    def stop(self) -> None:
        """Ends `run`; any thread."""

    def open(self, index: int, ufrag: str, pwd: str, remote_ufrag: str, config: Config) -> Session:
        """Opens a free place. ValueError, MemoryError, BlockingIOError when the queue is full."""

    def awake(self) -> None:
        """Makes `notify_fd` quiet; call it before the first `next_event` of a wake-up."""

    def next_event(self) -> tuple[int, int, int, bytes, bytes | None] | None:
        """(kind, index, time in ns, payload, origin of a datagram or None); None when all is told."""

    def authenticated(self, origin: bytes) -> None:
        """The DTLS datagram that came with `origin` was authentic (design 3.5 rules 3 and 4); lost when
        the queue is full: the next datagram says it again.
        """

    def counts(self) -> dict[str, Any]:
        """All counters of the engine, by name."""

_Frame = tuple[int, int, int, int, int, bool, bytes]
"""Side (0 the client, 1 we), time in ns, sequence number, timestamp, duration, marker, payload; see frames.h."""

class Session:
    """One call's place in the engine. Made by Engine.open."""

    index: int
    rate_hz: int
    is_open: bool
    readable: int
    """Samples that wait to be read."""
    waiting: int
    """Samples written and not gone."""

    def set_keys(
        self,
        profile: int,
        receive_key: bytes,
        receive_salt: bytes,
        send_key: bytes,
        send_salt: bytes,
    ) -> None:
        """SRTP master keys (RFC 5764 4.2); sound flows from now on. ValueError for another profile."""

    def send(self, datagram: bytes | bytearray | memoryview) -> bool:
        """A DTLS datagram to the call's media path; False when the queue is full."""

    def read(self) -> bytes:
        """All PCM that waits, and asks to be told of more."""

    def read_tap(self) -> bytes:
        """What a session opened with `tap` kept of both sides, interleaved: client, we."""

    def read_frames(self) -> list[_Frame]:
        """All frames that wait, and asks to be told of more; none unless opened with `frames`."""

    def read_frame_tap(self) -> list[_Frame]:
        """What a session without PCM, opened with `tap`, kept of both sides."""

    def write_frame(self, payload: bytes | bytearray | memoryview) -> bool:
        """Queues a frame of 20, 40 ... 120 ms and at most VR_SESSION_PAYLOAD_BYTES (else ValueError), or with
        no bytes a pause of 20 ms; False when there is no room.
        """

    def flush_frames(self) -> None:
        """Stops the frames that were written so far."""

    frames_waiting_ms: int
    """Of frames written and not gone."""

    def write(self, generation: int, pcm: bytes | bytearray | memoryview) -> int:
        """Queues PCM of a generation (from 1, never falling); returns the samples taken."""

    def flush(self, through_generation: int) -> None:
        """Stops these generations within one 20 ms block, with a fade."""

    def played(self, generation: int) -> int | None:
        """Samples of a generation that went out; None when it has not begun, or long ago."""

    def path(self) -> tuple[bool, bytes, int] | None:
        """(paused, SPP header of the media's flow key, time of the last authentic packet in ns);
        None before the first check and once closed.
        """

    def marks(self) -> tuple[int, int]:
        """First RTP in and out in ns (0: not yet); zeros once closed."""

    def counts(self) -> dict[str, Any] | None:
        """All counters of the session, by name; None once closed."""

    def close(self) -> None:
        """Says BYE and gives the place back; the engine tells CLOSED when it is free."""
