"""SDP offers for tests: recorded ones, and a way to bend them."""

from __future__ import annotations

from pathlib import Path

_OFFERS = Path(__file__).resolve().parent.parent / "fixtures" / "offers"

CHROMIUM = (_OFFERS / "chromium-156-audio-datachannel.sdp").read_bytes().decode()
FIREFOX = (_OFFERS / "firefox-esr-153-audio-datachannel.sdp").read_bytes().decode()
# Written, not recorded: see tests/fixtures/offers/README.md
SAFARI_IOS_18 = (_OFFERS / "safari-ios-18-shaped.sdp").read_bytes().decode()
SAFARI_IOS_12 = (_OFFERS / "safari-ios-12-shaped.sdp").read_bytes().decode()
ANDROID = (_OFFERS / "android-shaped.sdp").read_bytes().decode()

VIDEO = (
    "m=video 9 UDP/TLS/RTP/SAVPF 45 46\r\n"
    "c=IN IP4 0.0.0.0\r\n"
    "a=mid:v\r\n"
    "a=rtpmap:45 AV1/90000\r\n"
    "a=rtpmap:46 H265/90000\r\n"
)
STOPPED = "m=audio 0 UDP/TLS/RTP/SAVPF 111\r\nc=IN IP4 0.0.0.0\r\na=mid:stopped\r\na=inactive\r\n"


def split(offer: str) -> list[str]:
    """The session part, then each m= section."""
    lines = offer.replace("\r\n", "\n").rstrip("\n").split("\n")
    parts: list[list[str]] = [[]]
    for line in lines:
        if line.startswith("m="):
            parts.append([])
        parts[-1].append(line)
    return ["".join(f"{line}\r\n" for line in part) for part in parts]


def join(*parts: str) -> str:
    """The opposite of `split`."""
    return "".join(parts)


def without(offer: str, *starts: str) -> str:
    """The offer without the lines that start so."""
    lines = offer.replace("\r\n", "\n").rstrip("\n").split("\n")
    return "".join(f"{line}\r\n" for line in lines if not line.startswith(starts))


def changed(offer: str, old: str, new: str) -> str:
    """The offer with every `old` replaced; there must be one."""
    assert old in offer, old
    return offer.replace(old, new)
