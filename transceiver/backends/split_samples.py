"""Samples that a backend cuts through: one half ends a delta of audio, the other begins the next. Sans-IO.

Without its half a sample would shift all that follow by a byte, which is noise as loud as it gets.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

Where = tuple[str, str, int]
"""Response id, item id and content index."""

PARTS_MAX: Final = 16
"""Content parts with a half sample at once; the oldest gives way."""


class SplitSamples:
    """Of one call."""

    def __init__(self) -> None:
        self._halves: OrderedDict[Where, bytes] = OrderedDict()

    def join(self, where: Where, audio: bytes, sample_bytes: int) -> bytes:
        """The whole samples that have come of a content part with this delta of it."""
        audio = self._halves.pop(where, b"") + audio
        whole_bytes = len(audio) - len(audio) % sample_bytes
        if whole_bytes < len(audio):
            self._halves[where] = audio[whole_bytes:]
            if len(self._halves) > PARTS_MAX:
                self._halves.popitem(last=False)
        return audio[:whole_bytes]

    def forget(self) -> None:
        """The connection that audio came over is gone."""
        self._halves.clear()
