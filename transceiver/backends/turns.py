"""How long the user was listened to: turns as the backend's detection or the client's commits bound them. Sans-IO.

1. A turn that the backend detects is as long as its events say, on the clock of the sound.
2. A turn that the client commits (`turn_detection: null`) is the sound since its last `clear` or `commit`.
"""

from __future__ import annotations

from .dialect import Event


class Turns:
    """The account of one call."""

    def __init__(self) -> None:
        self._began_ms: float | None = None
        self._gathered_ms = 0.0
        self.heard_ms = 0.0

    def sound(self, duration_ms: float) -> None:
        """So much of the user's sound went up."""
        self._gathered_ms += duration_ms

    def from_client(self, kind: str) -> None:
        """The type of an event of the client."""
        if kind == "input_audio_buffer.commit":
            self.heard_ms += self._gathered_ms
        if kind in ("input_audio_buffer.commit", "input_audio_buffer.clear"):
            self._gathered_ms = 0.0

    def from_backend(self, event: Event) -> None:
        """An event of the backend."""
        if event["type"] == "input_audio_buffer.speech_started":
            self._began_ms = _milliseconds(event.get("audio_start_ms"))
        elif event["type"] == "input_audio_buffer.speech_stopped":
            ended_ms = _milliseconds(event.get("audio_end_ms"))
            if self._began_ms is not None and ended_ms is not None:
                self.heard_ms += max(0.0, ended_ms - self._began_ms)
            self._began_ms = None


def _milliseconds(value: object) -> float | None:
    """A moment of a call, which is shorter than a month; None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 2.6e9 else None  # type: ignore[arg-type,operator]
