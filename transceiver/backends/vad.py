"""When somebody speaks, by the energy of the sound; enough to try turn taking without a model.

1. Time is the audio's own: milliseconds since the first sample. Nothing here reads a clock.
2. A pause shorter than `silence_duration_ms` never ends a turn.
"""

from __future__ import annotations

import math
import operator
import sys
from array import array
from dataclasses import dataclass
from typing import Final, Literal

WINDOW_MS: Final = 20
ONSET_WINDOWS: Final = 2
"""Loud windows in a row before speech starts: a click is no speech."""
QUIETEST_DBFS: Final = -60.0
LOUDEST_DBFS: Final = -20.0


@dataclass(frozen=True)
class VadSettings:
    """As `turn_detection` of type `server_vad` has them."""

    threshold: float = 0.5
    """0..1; 0 takes -60 dBFS for speech, 1 takes only -20 dBFS."""
    prefix_padding_ms: int = 300
    """Audio before the onset that belongs to the turn."""
    silence_duration_ms: int = 500
    """Silence that ends the turn."""

    @property
    def threshold_dbfs(self) -> float:
        """The level from which a window counts as loud."""
        return QUIETEST_DBFS + (LOUDEST_DBFS - QUIETEST_DBFS) * min(1.0, max(0.0, self.threshold))


@dataclass(frozen=True)
class SpeechEdge:
    """Speech started or stopped, in milliseconds of audio since the beginning of the call."""

    kind: Literal["started", "stopped"]
    at_ms: int


def level_dbfs(pcm: bytes) -> float:
    """RMS level of 16-bit little-endian mono samples; -100 for silence."""
    samples = array("h", pcm[: len(pcm) // 2 * 2])
    if sys.byteorder == "big":
        samples.byteswap()
    if not samples:
        return -100.0
    mean = sum(map(operator.mul, samples, samples)) / len(samples)
    return 10 * math.log10(mean / 32768**2) if mean > 0 else -100.0


class EnergyVad:
    """One call's voice activity detection."""

    def __init__(self, rate_hz: int, settings: VadSettings | None = None) -> None:
        self.settings = settings or VadSettings()
        self._window_bytes = rate_hz * WINDOW_MS // 1000 * 2
        self._rest = b""
        self._now_ms = 0
        self._loud_windows = 0
        self._last_loud_ms = 0
        self.speaking = False

    def feed(self, pcm: bytes) -> list[SpeechEdge]:
        """The next samples, of any length; what changed in them."""
        data = self._rest + pcm
        end = len(data) - len(data) % self._window_bytes
        self._rest = data[end:]
        windows = (
            data[start : start + self._window_bytes] for start in range(0, end, self._window_bytes)
        )
        return [edge for window in windows if (edge := self._window(window)) is not None]

    def _window(self, pcm: bytes) -> SpeechEdge | None:
        loud = level_dbfs(pcm) >= self.settings.threshold_dbfs
        self._now_ms += WINDOW_MS
        self._loud_windows = self._loud_windows + 1 if loud else 0
        if loud:
            self._last_loud_ms = self._now_ms
        if not self.speaking and self._loud_windows >= ONSET_WINDOWS:
            self.speaking = True
            return SpeechEdge("started", self._now_ms - ONSET_WINDOWS * WINDOW_MS)
        if self.speaking and self._now_ms - self._last_loud_ms >= self.settings.silence_duration_ms:
            self.speaking = False
            return SpeechEdge("stopped", self._last_loud_ms)
        return None
