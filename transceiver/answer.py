"""Writes the SDP answer from known lines only.

1. No attribute of the offer is copied, except mid, payload type, protocol and first format,
   which the offer's reader has checked.
2. As many sections as offered, in their order; what is not served has port 0.
3. The only candidates are the ingress addresses: one UDP host candidate per family.
4. Line ends are CRLF.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from .offer import SCTP_PORT, SENDING, Offer, Section

MAX_MESSAGE_BYTES = 262_144

_HOST_PREFERENCE = 126  # RFC 8445 5.1.2.2


@dataclass(frozen=True, slots=True)
class Candidate:
    """Where clients find us: an address of an ingress and its UDP port."""

    host: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int


@dataclass(frozen=True, slots=True)
class Local:
    """This side's half of the session description."""

    ice_ufrag: str
    ice_pwd: str
    fingerprint_sha256: str
    candidates: Sequence[Candidate]
    ssrc: int
    name: str
    """CNAME, stream and track id: an opaque token of the call."""


def write_answer(offer: Offer, local: Local) -> str:
    """The answer to `offer` as text, CRLF line ends."""
    sound = (offer.audio, offer.other_audio)
    served = [index for index in (*sound, offer.data) if index is not None]
    lines = [
        "v=0",
        f"o=- {local.ssrc} 2 IN IP4 127.0.0.1",
        "s=-",
        "t=0 0",
    ]
    mids = _bundled(offer, served)
    if mids:
        lines.append("a=group:BUNDLE " + " ".join(mids))
    lines += ["a=ice-lite", "a=msid-semantic:WMS *"]
    # RFC 8843 7.3.1: the first mid of the group names the section whose transport all share
    tagged = mids[0] if mids else offer.sections[offer.audio].mid
    for index, section in enumerate(offer.sections):
        if index not in served:
            lines += _declined(section)
            continue
        lines += _media_line(offer, index, local)
        lines += _transport(offer, section, local, with_candidates=section.mid == tagged)
        lines += _audio(offer, section, local) if index in sound else _data()
    return "\r\n".join(lines) + "\r\n"


def _bundled(offer: Offer, served: Sequence[int]) -> list[str]:
    """The served mids of the offered group, in its order."""
    mids = [offer.sections[index].mid for index in served]
    return [mid for mid in dict.fromkeys(offer.bundle) if mid in mids]


def _declined(section: Section) -> list[str]:
    lines = [
        f"m={section.kind} 0 {section.protocol} {section.formats[0]}",
        "c=IN IP4 0.0.0.0",
        "a=inactive",
    ]
    return [*lines, f"a=mid:{section.mid}"] if section.mid else lines


def _media_line(offer: Offer, index: int, local: Local) -> list[str]:
    section = offer.sections[index]
    default = local.candidates[0]
    form = "webrtc-datachannel"
    if index in (offer.audio, offer.other_audio):
        used = (offer.codec, offer.events)
        form = " ".join(str(item.payload_type) for item in used if item is not None)
    return [
        f"m={section.kind} {default.port} {section.protocol} {form}",
        f"c=IN IP{default.host.version} {default.host}",
    ]


def _transport(offer: Offer, section: Section, local: Local, *, with_candidates: bool) -> list[str]:
    lines = []
    if with_candidates:
        for rank, candidate in enumerate(local.candidates):
            priority = _HOST_PREFERENCE << 24 | (65_535 - rank) << 8 | 255
            lines.append(
                f"a=candidate:{rank + 1} 1 udp {priority} {candidate.host} {candidate.port} typ host"
            )
        lines.append("a=end-of-candidates")
    lines += [
        f"a=ice-ufrag:{local.ice_ufrag}",
        f"a=ice-pwd:{local.ice_pwd}",
        f"a=fingerprint:sha-256 {local.fingerprint_sha256}",
        f"a=setup:{offer.setup}",
    ]
    return [*lines, f"a=mid:{section.mid}"] if section.mid else lines


def _audio(offer: Offer, section: Section, local: Local) -> list[str]:
    codec = offer.codec
    channels = "/2" if codec.name == "opus" else ""
    lines = [
        f"a={section.direction}",
        "a=rtcp-mux",
        f"a=rtpmap:{codec.payload_type} {codec.name}/{codec.clock_rate_hz}{channels}",
    ]
    if codec.name == "opus":
        lines.append(f"a=fmtp:{codec.payload_type} minptime=10;useinbandfec=1")
    if offer.events is not None:
        events = offer.events
        lines.append(f"a=rtpmap:{events.payload_type} {events.name}/{events.clock_rate_hz}")
        # RFC 4733 2.4: 0-9, *, #, A-D and the hook flash
        lines.append(f"a=fmtp:{events.payload_type} 0-16")
    if section.direction in SENDING:
        # Browsers build event.streams[0] from msid: without it an SDK plays nothing (RFC 8830)
        lines.append(f"a=msid:{local.name} {local.name}-audio")
        lines.append(f"a=ssrc:{local.ssrc} cname:{local.name}")
    return lines


def _data() -> list[str]:
    return [f"a=sctp-port:{SCTP_PORT}", f"a=max-message-size:{MAX_MESSAGE_BYTES}"]
