"""Recordings of calls, off by default: both sides of a call's sound as one stereo WAV file.

1. The engine keeps a second of both sides (`MediaConfig.tap`); `poll` takes what is there, several
   times a second for all calls, and hands it to one thread that writes. Nothing here makes a call
   wait.
2. Bounded: a disk that is too slow for QUEUE_S of all sound loses whole pieces, which are counted;
   a recording that cannot be written ends, and its call goes on.
3. Left is the client as it was understood, losses concealed; right is what it was sent. Both run
   in real time from the moment the call was connected. Pass-through calls have no sound to keep.
"""

from __future__ import annotations

import queue
import threading
import wave
from dataclasses import dataclass
from pathlib import Path

from .log import get_logger
from .media import MediaSession

POLL_S = 0.25
QUEUE_PIECES = 1_024
"""Pieces of POLL_S that may wait to be written, of all calls together."""

_SAMPLE_BYTES = 2
_CHANNELS = 2


@dataclass(eq=False, slots=True)
class _Recording:
    session: MediaSession
    file: wave.Wave_write
    path: Path
    failed: bool = False


class Recorder:
    """The recordings of one process. `start`, `poll` and `stop` belong to one thread."""

    def __init__(self, directory: Path = Path()) -> None:
        self._directory = directory
        self._recordings: dict[MediaSession, _Recording] = {}
        self._pieces: queue.Queue[tuple[_Recording, bytes | None] | None] = queue.Queue(
            QUEUE_PIECES
        )
        self._thread = threading.Thread(target=self._write, name="recorder", daemon=True)
        self.lost_pieces = 0
        """Pieces that did not reach the disk: it is too slow, full or gone."""

    def __len__(self) -> int:
        """Calls that are being recorded."""
        return len(self._recordings)

    def start(self, session: MediaSession, path: Path) -> None:
        """Records a session that was opened with `tap` into a new file. Raises OSError."""
        if self._thread.ident is None:
            self._thread.start()
        path.touch(0o600, exist_ok=False)
        file = wave.open(str(path), "wb")  # noqa: SIM115
        file.setnchannels(_CHANNELS)
        file.setsampwidth(_SAMPLE_BYTES)
        file.setframerate(session.rate_hz)
        self._recordings[session] = _Recording(session, file, path)

    def begin(self, session: MediaSession, name: str) -> None:
        """As `start`, into the recorder's directory; a failure is logged, and the call goes on."""
        path = self._directory / f"{name}.wav"
        try:
            self.start(session, path)
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
            try:
                self._pieces.put(None, timeout=timeout_s)
            except queue.Full:
                return
            self._thread.join(timeout_s)

    def _take(self, recording: _Recording) -> None:
        pcm = recording.session.read_tap()
        if pcm:
            self._put(recording, pcm)

    def _put(self, recording: _Recording, piece: bytes | None) -> None:
        try:
            self._pieces.put_nowait((recording, piece))
        except queue.Full:
            self.lost_pieces += 1

    def _write(self) -> None:
        while (item := self._pieces.get()) is not None:
            recording, piece = item
            if recording.failed:
                self.lost_pieces += piece is not None
                continue
            try:
                if piece is None:
                    recording.file.close()
                else:
                    # Brings the header up to date too: a file is readable whenever we die.
                    recording.file.writeframes(piece)
            except OSError as error:
                recording.failed = True
                self.lost_pieces += 1
                get_logger().error(
                    "recording_failed", path=str(recording.path), error=error.strerror
                )
