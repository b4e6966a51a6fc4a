"""Which of the offered audio formats a call uses.

1. Opus wherever it stands, else the first G.711: nothing else is decoded here.
2. Encodings are (payload type, name/clock/channels in lower case), in the client's order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .errors import OfferError

Encoding = tuple[int, str]

TELEPHONE_EVENT = "telephone-event"

_STATIC_RTPMAP = {"0": "pcmu/8000", "8": "pcma/8000"}  # RFC 3551 6
_CODECS = {
    "opus/48000/2": ("opus", 48_000),  # RFC 7587 7: always 48000/2
    "pcmu/8000": ("PCMU", 8_000),
    "pcmu/8000/1": ("PCMU", 8_000),
    "pcma/8000": ("PCMA", 8_000),
    "pcma/8000/1": ("PCMA", 8_000),
}


@dataclass(frozen=True, slots=True)
class Codec:
    """The one audio format of a call."""

    name: str
    """`opus`, `PCMU` or `PCMA`."""
    payload_type: int
    """As the client numbered it, 0..127."""
    clock_rate_hz: int


def read_encodings(formats: Iterable[str], rtpmaps: Mapping[str, str]) -> list[Encoding]:
    """What the formats of an m= line stand for, without payload types that cannot be used."""
    found: list[Encoding] = []
    for item in dict.fromkeys(formats):
        if item.isdigit() and len(item) <= 3:
            payload_type = int(item)
            # RFC 5761 4: with rtcp-mux, 64..95 look like RTCP
            if payload_type < 64 or 96 <= payload_type < 128:
                found.append((payload_type, rtpmaps.get(item) or _STATIC_RTPMAP.get(item, "")))
    return found


def codecs(encodings: Iterable[Encoding]) -> list[Codec]:
    """What can be decoded and encoded here, in the client's order."""
    return [
        Codec(_CODECS[encoding][0], payload_type, _CODECS[encoding][1])
        for payload_type, encoding in encodings
        if encoding in _CODECS
    ]


def choose_codec(encodings: Sequence[Encoding]) -> Codec:
    """The call's; OfferError 422 when there is none."""
    found = codecs(encodings)
    if not found:
        raise OfferError(
            422, "no_codec", "The audio section offers neither opus/48000/2 nor PCMU nor PCMA."
        )
    return next((codec for codec in found if codec.name == "opus"), found[0])


def choose_events(encodings: Iterable[Encoding], codec: Codec) -> Codec | None:
    """The telephone-event format (RFC 4733): at the codec's clock if there is one."""
    found: list[Codec] = []
    for payload_type, encoding in encodings:
        # Firefox writes /8000/1, whatever the codec's clock is
        name, _, rate = encoding.removesuffix("/1").partition("/")
        if name == TELEPHONE_EVENT and rate in ("8000", "48000"):
            found.append(Codec(name, payload_type, int(rate)))
    return next((item for item in found if item.clock_rate_hz == codec.clock_rate_hz), None) or (
        found[0] if found else None
    )
