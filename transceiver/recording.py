"""Recordings of calls, off by default: both sides of a call's sound, as one stereo WAV file or, where
there is no PCM, as one file a side (legs.py): Ogg Opus, or WAV of G.711.

1. The engine keeps what the recorder has not taken yet (`MediaConfig.tap`); `poll` takes what is there,
   several times a second for all calls, and hands it to one thread that writes. Nothing here makes a
   call wait.
2. Bounded: a disk that is too slow for QUEUE_PIECES pieces of all sound loses whole pieces, which are counted, and
   never a recording's end: what it has is a whole file, with silence in their place. A recording that cannot be written ends, and its call
   goes on; so does every other recording.
3. In the WAV file left is the client as it was understood, losses concealed; right is what it was sent. A pass-through's
   files hold the frames as they came and as they went. All run in real time from the moment
   the call was connected.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import wave
from dataclasses import dataclass
from pathlib import Path

from relay.wire.log import get_logger

from .legs import Leg
from .media import MediaSession, RawFrame

POLL_S = 0.25
QUEUE_PIECES = 1_024
"""Pieces of POLL_S that may wait to be written, of all calls together."""

_SAMPLE_BYTES = 2
_CHANNELS = 2
_FRAME_BYTES = _SAMPLE_BYTES * _CHANNELS
_SKIP_BYTES = 65_536
_TAP_BLOCKS_A_S = 50
_TAP_FULL_S = 0.9
"""A tap that has so much may have lost some: it keeps a second (csrc/media/session.h)."""


Piece = bytes | list[RawFrame]
"""PCM of both sides, or frames of both."""


class _Sound:
    """Both sides' PCM in one file."""

    def __init__(self, path: Path, rate_hz: int) -> None:
        path.touch(0o600, exist_ok=False)
        self.file = wave.open(str(path), "wb")  # noqa: SIM115
        self.file.setnchannels(_CHANNELS)
        self.file.setsampwidth(_SAMPLE_BYTES)
        self.file.setframerate(rate_hz)

    def write(self, piece: Piece) -> None:
        assert isinstance(piece, bytes)
        # Brings the header up to date too: a file is readable whenever we die.
        self.file.writeframes(piece)

    def skip(self, size: int) -> None:
        """Silence, as long as a piece of so many bytes."""
        for at in range(0, size, _SKIP_BYTES):
            self.file.writeframes(bytes(min(_SKIP_BYTES, size - at)))

    def close(self) -> None:
        self.file.close()


class _Frames:
    """Each side's frames in a file of its own."""

    def __init__(self, path: Path, codec: str) -> None:
        now_s = time.monotonic()
        names = (f"{path.name}.client", f"{path.name}.server")
        self._legs = [Leg(path.with_name(name), codec, now_s) for name in names]

    def write(self, piece: Piece) -> None:
        assert isinstance(piece, list)
        for side, leg in enumerate(self._legs):
            leg.add(raw for raw in piece if raw[0] == side)

    def skip(self, size: int) -> None:
        """Nothing: the frames that follow tell where they belong."""

    def close(self) -> None:
        with contextlib.ExitStack() as closing:
            for leg in self._legs:
                closing.callback(leg.close)


@dataclass(eq=False, slots=True)
class _Recording:
    session: MediaSession
    sink: _Sound | _Frames
    path: Path
    missing: int = 0
    """Size of what was lost since the last piece that found room."""
    tap_blocks_lost: int = 0
    failed: bool = False


class Recorder:
    """The recordings of one process. `start`, `poll` and `stop` belong to one thread."""

    def __init__(self, directory: Path = Path()) -> None:
        self._directory = directory
        self._recordings: dict[MediaSession, _Recording] = {}
        self._pieces: queue.SimpleQueue[tuple[_Recording, int, Piece | None] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._write, name="recorder", daemon=True)
        self.lost_pieces = 0
        """Pieces that did not reach the disk: it is too slow, full or gone."""

    def __len__(self) -> int:
        """Calls that are being recorded."""
        return len(self._recordings)

    def start(self, session: MediaSession, path: Path, frames_of: str | None = None) -> None:
        """Records a session that was opened with `tap` into the new file `path`; of a pass-through, whose
        codec `frames_of` names, into two whose names begin so (legs.py). Raises OSError.
        """
        if self._thread.ident is None:
            self._thread.start()
        sink = _Sound(path, session.rate_hz) if frames_of is None else _Frames(path, frames_of)
        self._recordings[session] = _Recording(session, sink, path)

    def begin(self, session: MediaSession, name: str, frames_of: str | None = None) -> None:
        """As `start`, into the recorder's directory; a failure is logged, and the call goes on."""
        path = self._directory / (f"{name}.wav" if frames_of is None else name)
        try:
            self.start(session, path, frames_of)
        except OSError as error:
            get_logger().error("recording_failed", path=str(path), error=error.strerror)

    def poll(self) -> None:
        """Takes what every tap has kept. Call it every POLL_S; a second's pause loses sound."""
        for recording in self._recordings.values():
            self._take(recording)

    def stop(self, session: MediaSession) -> None:
        """Ends a session's recording, if there is one; call it before the session is closed."""
        recording = self._recordings.pop(session, None)
        if recording is not None:
            self._take(recording)
            self._put(recording, None)

    def close(self, timeout_s: float = 5.0) -> None:
        """Ends all recordings and waits until they are written, at most so long."""
        for session in list(self._recordings):
            self.stop(session)
        if self._thread.ident is not None:
            self._pieces.put(None)
            self._thread.join(timeout_s)

    def _take(self, recording: _Recording) -> None:
        has_frames = isinstance(recording.sink, _Frames)
        session = recording.session
        piece = session.read_frame_tap() if has_frames else session.read_tap()
        if len(piece) >= _TAP_FULL_S * session.rate_hz * _FRAME_BYTES and not has_frames:
            lost = session.stats()["tap_blocks_lost"]
            recording.missing += (
                (lost - recording.tap_blocks_lost)
                * session.rate_hz
                // _TAP_BLOCKS_A_S
                * _FRAME_BYTES
            )
            recording.tap_blocks_lost = lost
        if piece:
            self._put(recording, piece)

    def _put(self, recording: _Recording, piece: Piece | None) -> None:
        # An end, one a recording, has room always.
        if piece is not None and self._pieces.qsize() >= QUEUE_PIECES:
            self.lost_pieces += 1
            recording.missing += len(piece)
            return
        missing, recording.missing = recording.missing, 0
        self._pieces.put((recording, missing, piece))

    def _write(self) -> None:
        while (item := self._pieces.get()) is not None:
            recording, missing, piece = item
            if recording.failed:
                self.lost_pieces += piece is not None
                continue
            try:
                recording.sink.skip(missing)
                if piece is None:
                    recording.sink.close()
                else:
                    recording.sink.write(piece)
            except Exception as error:
                # Not OSError alone: a WAV file past 4 GiB is a struct.error, and other calls are recorded, too.
                recording.failed = True
                self.lost_pieces += 1
                with contextlib.suppress(Exception):
                    recording.sink.close()
                get_logger().error(
                    "recording_failed", path=str(recording.path), error=_reason(error)
                )


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or repr(error)
