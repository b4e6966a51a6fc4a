"""One side of a pass-through call into a file of its own: Opus into Ogg as it is, G.711 into WAV.

1. Frames come in the order of their arrival and are written in the order of their timestamps, up to
   REORDER_S late; one that is later, or comes twice, is left out. No more than EARLY_FRAMES wait for
   others, whatever their timestamps say.
2. Time is kept: the file begins when the call was connected, and what was lost or not said is a
   pause, never beyond the moment at which the frame behind it came (a client's timestamps may jump anywhere).
3. A client's clock is not ours, and it sleeps. Where even the most punctual frames of some seconds come
   late, a pause takes its place in the file; where they come early, a frame is left out now and then. So both
   sides of a call are a frame apart at most, however long it is.
"""

from __future__ import annotations

import array
import heapq
import sys
import wave
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from .media import Frame, FrameLine, RawFrame
from .ogg import CLOCK_HZ, PAUSE_SAMPLES, OggOpusWriter, pause_packet

REORDER_S = 0.2
EARLY_FRAMES = 128
"""More than REORDER_S of the shortest frames (2.5 ms) are: 80."""
SLACK_S = 0.02
"""By so much a pause may end after the frame behind it came."""
PUNCTUAL_S = 0.008
"""What a side may be off before it is put right; a packet of a pause, which is never divided, adds 10 ms."""
WATCH_S = 2.0
WATCH_FRAMES = 20
"""What both must be over before a side's punctuality is judged; a few frames alone may all be late."""


class Leg:
    """A file and the side that it holds. Raises OSError."""

    def __init__(self, path: Path, codec: str, begins_s: float) -> None:
        """Makes the file `path`, which must not be there, with `.opus` or `.wav` added."""
        self._sink: _OpusSink | _WaveSink
        if codec == "opus":
            self._sink = _OpusSink(_new_file(path.with_name(path.name + ".opus")))
        else:
            self._sink = _WaveSink(path.with_name(path.name + ".wav"), codec)
        self._begins_s = begins_s
        self._line = FrameLine()
        self._early: list[tuple[int, int, Frame]] = []
        self._taken = 0
        self._offset: int | None = None
        self._newest = 0
        self._newest_sequence = -1
        self._written = 0
        self._watched = 0
        self._watched_from_s = begins_s
        self._lateness: int | None = None
        self._lateness_before: int | None = None

    def add(self, frames: Iterable[RawFrame]) -> None:
        """The next frames of this side."""
        rate_hz = self._sink.rate_hz
        for raw in frames:
            frame = self._line.place(raw)
            if frame.duration == 0:
                continue
            at = self._place(frame)
            self._newest = max(self._newest, at)
            self._taken += 1
            heapq.heappush(self._early, (at, self._taken, frame))
            while self._early and (
                self._early[0][0] <= self._newest - REORDER_S * rate_hz
                or len(self._early) > EARLY_FRAMES
            ):
                self._write_next()

    def _place(self, frame: Frame) -> int:
        """Where in the file a frame belongs; frames are placed in the order in which they came."""
        came = round((frame.at_s - self._begins_s) * self._sink.rate_hz)
        if self._offset is None:
            self._offset = max(0, came) - frame.timestamp
        at = frame.timestamp + self._offset
        if frame.sequence > self._newest_sequence:
            self._newest_sequence = frame.sequence
            if at < self._newest - REORDER_S * self._sink.rate_hz:
                # Its timestamps have jumped back: it goes on where it was.
                self._offset += self._newest + frame.duration - at
                self._watch_anew(frame.at_s)
        self._offset += self._correction(came - (frame.timestamp + self._offset), frame)
        return frame.timestamp + self._offset

    def _correction(self, lateness: int, frame: Frame) -> int:
        """By how much later the side belongs into the file from this frame on."""
        if self._lateness is None or lateness < self._lateness:
            self._lateness = lateness
        self._watched += 1
        if frame.at_s - self._watched_from_s < WATCH_S or self._watched < WATCH_FRAMES:
            return 0
        before, least = self._lateness_before, self._lateness
        self._watch_anew(frame.at_s)
        self._lateness_before = least
        if before is None or abs(min(least, before)) < PUNCTUAL_S * self._sink.rate_hz:
            return 0
        change = max(min(least, before), -frame.duration)
        self._lateness_before = least - change
        return change

    def _watch_anew(self, now_s: float) -> None:
        self._watched, self._watched_from_s = 0, now_s
        self._lateness = self._lateness_before = None

    def close(self) -> None:
        """Writes what waits and ends the file."""
        try:
            while self._early:
                self._write_next()
        finally:
            self._sink.close()

    def _write_next(self) -> None:
        at, _, frame = heapq.heappop(self._early)
        pause = at - self._written
        came = round((frame.at_s - self._begins_s + SLACK_S) * self._sink.rate_hz)
        longest = max(0, came - self._written)
        if pause > longest:
            assert self._offset is not None
            self._offset -= pause - longest
            self._newest -= pause - longest
            self._early = [(a - pause + longest, s, f) for a, s, f in self._early]
            pause = longest
        if pause < -self._sink.rate_hz // 100:
            return
        self._written += self._sink.pause(pause, frame.payload) if pause > 0 else 0
        self._sink.write(frame.payload, frame.duration)
        self._written += frame.duration


class _OpusSink:
    rate_hz = CLOCK_HZ

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._writer: OggOpusWriter | None = None

    def write(self, payload: bytes, duration: int) -> None:
        self._begun(payload).add(payload, duration)

    def pause(self, samples: int, payload: bytes) -> int:
        """The nearest whole number of packets; the rest is made up for at the next pause."""
        packets = (samples + PAUSE_SAMPLES // 2) // PAUSE_SAMPLES
        for _ in range(packets):
            self._begun(payload).add(pause_packet(payload), PAUSE_SAMPLES)
        return packets * PAUSE_SAMPLES

    def close(self) -> None:
        try:
            self._begun(b"\0").close()
        finally:
            self._file.close()

    def _begun(self, payload: bytes) -> OggOpusWriter:
        if self._writer is None:
            stereo = payload[0] >> 2 & 1  # RFC 6716 3.1
            self._writer = OggOpusWriter(self._file, channels=1 + stereo)
        return self._writer


class _WaveSink:
    rate_hz = 8_000

    def __init__(self, path: Path, codec: str) -> None:
        self._samples = _ULAW if codec == "pcmu" else _ALAW
        self._raw = _new_file(path)
        self._file = wave.open(self._raw, "wb")  # noqa: SIM115
        self._file.setnchannels(1)
        self._file.setsampwidth(2)
        self._file.setframerate(self.rate_hz)

    def write(self, payload: bytes, duration: int) -> None:
        pcm = array.array("h", map(self._samples.__getitem__, payload))
        if sys.byteorder == "big":
            pcm.byteswap()
        self._file.writeframes(pcm.tobytes())

    def pause(self, samples: int, payload: bytes) -> int:
        self._file.writeframes(bytes(2 * samples))
        return samples

    def close(self) -> None:
        try:
            self._file.close()
        finally:
            self._raw.close()


def _new_file(path: Path) -> BinaryIO:
    path.touch(0o600, exist_ok=False)
    return path.open("wb", buffering=0)


def _expand_ulaw(code: int) -> int:
    """ITU-T G.711: sign, 3 bits of segment, 4 of interval, all inverted."""
    code ^= 0xFF
    magnitude = (((code & 0x0F) << 3) + 0x84 << (code >> 4 & 7)) - 0x84
    return -magnitude if code & 0x80 else magnitude


def _expand_alaw(code: int) -> int:
    """ITU-T G.711: every other bit inverted; the sign bit is set for positive values."""
    code ^= 0x55
    segment, magnitude = code >> 4 & 7, (code & 0x0F) << 4
    magnitude += 8 if segment == 0 else 0x108
    magnitude <<= max(0, segment - 1)
    return magnitude if code & 0x80 else -magnitude


_ULAW = tuple(map(_expand_ulaw, range(256)))
_ALAW = tuple(map(_expand_alaw, range(256)))
