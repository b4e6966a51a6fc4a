"""The transceiver under measurement: `transceiver serve` with a backend that hands all sound back.

Its environment says how: MIRROR=pcm decodes, brings PCM to Python and encodes it again; MIRROR=echo is
the built-in pass-through. COMPLEXITY is the encoder's. At its end each PCM call writes one JSON line
with its counters to the file NUMBERS.
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any

import transceiver.engine_call
import transceiver.worker
from transceiver.cli import main
from transceiver.media import MediaConfig, MediaSession


class Mirror:
    """A backend in PCM that says what it hears, at once."""

    name = "mirror"
    rate_hz = 24_000

    def converse(self, line: object, sound: MediaSession, session: object) -> Reflection:
        """See Backend.converse."""
        return Reflection(sound)


class Reflection:
    """One call's mirror."""

    def __init__(self, sound: MediaSession) -> None:
        self._sound = sound

    def on_sound(self, pcm: bytes) -> None:
        """The client's next samples go back."""
        self._sound.write(1, pcm)

    def on_open(self) -> None:
        """Nothing: there are no events."""

    def on_event(self, message: str | bytes) -> None:
        """Nothing: there are no events."""

    def close(self) -> None:
        """Leaves the numbers of the call."""
        numbers: dict[str, Any] = self._sound.stats()
        with open(os.environ["NUMBERS"], "a") as file:
            file.write(json.dumps(numbers) + "\n")


if __name__ == "__main__":
    if os.environ["MIRROR"] == "pcm":
        vars(transceiver.worker)["EchoBackend"] = Mirror
    vars(transceiver.engine_call)["MediaConfig"] = functools.partial(
        MediaConfig, complexity=int(os.environ.get("COMPLEXITY", "0")), fec=False, live_ms=80
    )
    main()
