"""The transceiver under measurement: `transceiver serve` with a backend that hands all sound back.

Its environment says how: MIRROR=pcm decodes, brings PCM to Python and encodes it again; MIRROR=frames
brings the packets as they are to Python and back; MIRROR=echo is the built-in pass-through. COMPLEXITY is the encoder's. At its end each PCM call writes one JSON line
with its counters to the file NUMBERS, with those after SETTLE_S of sound as `unsettled`.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import transceiver.session
import transceiver.worker
from transceiver.backends.base import Backend, Event, Line, Sound, Tally
from transceiver.backends.loopback import LoopbackBackend
from transceiver.cli import main
from transceiver.media import Frame, MediaConfig, MediaEngine, MediaSession

SETTLE_S = 3.0


class Mirror:
    """A backend in PCM that says what it hears, at once."""

    name = "mirror"
    rate_hz = 24_000

    def converse(
        self, line: Line, sound: Sound, session: Event, updatable: Iterable[str] | None = None
    ) -> Reflection:
        """See Backend.converse."""
        assert isinstance(sound, MediaSession)
        return Reflection(sound)


class Reflection:
    """One call's mirror."""

    def __init__(self, sound: MediaSession) -> None:
        self._sound = sound
        self._first_s: float | None = None
        self._unsettled: dict[str, Any] | None = None

    def on_sound(self, pcm: bytes) -> None:
        """The client's next samples go back."""
        self._sound.write(1, pcm)
        if self._first_s is None:
            self._first_s = time.monotonic()

    def on_wake(self, now_s: float) -> None:
        """Remembers the numbers of the beginning, while the jitter buffer learns."""
        if self._unsettled is None and self._first_s and now_s - self._first_s > SETTLE_S:
            self._unsettled = self._sound.stats()

    def on_digit(self, digit: str) -> None:
        """Nothing: nobody presses keys."""

    def tally(self) -> Tally:
        """Nothing is counted."""
        return Tally()

    def on_open(self) -> None:
        """Nothing: there are no events."""

    def on_event(self, message: str | bytes) -> None:
        """Nothing: there are no events."""

    def close(self) -> None:
        """Leaves the numbers of the call."""
        numbers: dict[str, Any] = dict(self._sound.stats())
        if self._unsettled is not None:
            numbers["unsettled"] = self._unsettled
        with open(os.environ["NUMBERS"], "a") as file:
            file.write(json.dumps(numbers) + "\n")


class FrameMirror:
    """A backend in the client's codec that says what it hears, at once."""

    name = "frames"
    rate_hz = None
    wants_frames: Literal[True] = True

    def converse(
        self, line: Line, sound: Sound, session: Event, updatable: Iterable[str] | None = None
    ) -> FrameReflection:
        """See Backend.converse."""
        assert isinstance(sound, MediaSession)
        return FrameReflection(sound)


class FrameReflection(Reflection):
    """One call's mirror of packets."""

    def on_frames(self, frames: list[Frame]) -> None:
        """The client's next packets go back."""
        self._sound.write_frames(frame.payload for frame in frames)


class CountingEngine(MediaEngine):
    """Leaves the engine's counters when it ends."""

    def stop(self) -> None:
        """See MediaEngine.stop."""
        super().stop()
        Path(os.environ["ENGINE_NUMBERS"]).write_text(json.dumps(self.counts()))


if __name__ == "__main__":
    vars(transceiver.worker)["MediaEngine"] = CountingEngine
    mirrors: dict[str, Backend] = {
        "pcm": Mirror(),
        "frames": FrameMirror(),
        "echo": LoopbackBackend(),
    }
    backend = mirrors[os.environ["MIRROR"]]
    vars(transceiver.worker)["_make_backends"] = lambda config, http: {backend.name: backend}
    vars(transceiver.session)["MediaConfig"] = functools.partial(
        MediaConfig, complexity=int(os.environ.get("COMPLEXITY", "0")), fec=False, live_ms=80
    )
    main()
