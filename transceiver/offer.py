"""Reads a client's SDP offer into what the answer and the session need, and nothing else.

1. Size, line count and section count are bounded before anything is looked at; the work is
   linear in the size.
2. Only the attributes named here are read. Nothing unknown is kept, so nothing unknown can
   be echoed.
3. Malformed text raises OfferError 400, a legal offer that cannot be served here 422.
4. The client's candidates are not read: addresses are learnt from authenticated checks.

Sources: RFC 8866 (SDP), 8829 (JSEP), 8839 (ICE), 8842 (DTLS), 8843 (BUNDLE), 8841 (SCTP).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .errors import OfferError
from .formats import Codec, choose_codec, choose_events, codecs, read_encodings

MAX_OFFER_BYTES = 65_536
MAX_LINES = 2_000
MAX_LINE_CHARS = 4_096
MAX_SECTIONS = 32
MAX_FINGERPRINTS = 16

DEFAULT_MAX_MESSAGE_BYTES = 65_536  # RFC 8841 6.1: without the attribute
SCTP_PORT = 5_000

_HASH_BYTES = {"sha-256": 32, "sha-384": 48, "sha-512": 64}
_LARGEST_MESSAGE = re.compile(r"[0-9]{1,20}")  # RFC 8841 6.1 sets no limit; some say 2^64 - 1
_MIRRORED = {
    "sendrecv": "sendrecv",
    "sendonly": "recvonly",
    "recvonly": "sendonly",
    "inactive": "inactive",
}
SENDING = ("sendrecv", "sendonly")
"""Directions of the answer in which this side sends."""
_WAYS = {"sendrecv": 2, "sendonly": 1, "recvonly": 1, "inactive": 0}
_TOKEN = re.compile(r"[!#$%&'*+\-.0-9A-Z^_`a-z{|}~]+")  # RFC 8866 9
_PROTOCOL = re.compile(r"[A-Za-z0-9/\-]{1,40}")
_ICE_CHARS = re.compile(r"[A-Za-z0-9+/]+")  # RFC 8839 5.4
_NUMBER = re.compile(r"[0-9]{1,10}")
_AUDIO_PROTOCOLS = {"UDP/TLS/RTP/SAVPF", "UDP/TLS/RTP/SAVP", "RTP/SAVPF", "TCP/TLS/RTP/SAVPF"}
_DATA_PROTOCOLS = {"UDP/DTLS/SCTP", "TCP/DTLS/SCTP"}


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A certificate hash, `algorithm` in lower case, `value` as upper-case hex with colons."""

    algorithm: str
    value: str


@dataclass(slots=True)
class _Attributes:
    """What session and media level have in common."""

    ice_ufrag: str | None = None
    ice_pwd: str | None = None
    setup: str | None = None
    direction: str | None = None
    fingerprints: list[Fingerprint] = field(default_factory=list)
    weak_fingerprint: bool = False
    rtcp_mux: bool = False

    def inherit(self, session: _Attributes) -> None:
        """What a section does not say is what the session says."""
        self.ice_ufrag = self.ice_ufrag or session.ice_ufrag
        self.ice_pwd = self.ice_pwd or session.ice_pwd
        self.setup = self.setup or session.setup
        self.direction = self.direction or session.direction
        self.fingerprints = self.fingerprints or session.fingerprints
        self.weak_fingerprint |= session.weak_fingerprint


@dataclass(slots=True)
class Section:
    """One m= section, in the order of the offer."""

    kind: str
    port: int
    protocol: str
    formats: tuple[str, ...]
    mid: str | None = None
    bundle_only: bool = False
    rtpmaps: dict[str, str] = field(default_factory=dict)
    sctp_port: int = SCTP_PORT
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    attributes: _Attributes = field(default_factory=_Attributes)

    @property
    def direction(self) -> str:
        """Of the answer: the offered one, mirrored."""
        return _MIRRORED[self.attributes.direction or "sendrecv"]

    @property
    def encodings(self) -> list[tuple[int, str]]:
        """See formats.py."""
        return read_encodings(self.formats, self.rtpmaps)

    @property
    def live(self) -> bool:
        """Port 0 means rejected, unless the section only exists in its bundle (RFC 8843 6)."""
        return self.port != 0 or self.bundle_only


@dataclass(frozen=True, slots=True)
class Offer:
    """An offer that can be served."""

    sections: tuple[Section, ...]
    audio: int
    """Index of the section that carries the call's audio."""
    other_audio: int | None
    """Index of the section for the other way, where the client offers each way apart: sendonly in
    one, recvonly in the other.
    """
    data: int | None
    """Index of the data channel section."""
    bundle: tuple[str, ...]
    """The mids of the BUNDLE group that the audio is in, as offered; empty without one."""
    codec: Codec
    events: Codec | None
    """The telephone-event format (RFC 4733), when offered: at the codec's clock if there is one."""
    direction: str
    """Of the call's sound as answered, over all sections."""
    ice_ufrag: str
    ice_pwd: str
    fingerprints: tuple[Fingerprint, ...]
    """Of the strongest hash offered; one of them must match (RFC 8122 5)."""
    setup: str
    """Of the answer: `active` or `passive`."""

    @property
    def sends(self) -> bool:
        """Whether the answer lets this side send audio."""
        return self.direction in SENDING


def read_offer(text: str) -> Offer:
    """Reads an offer; raises OfferError for one that is malformed or not served here."""
    session, sections, groups = _split(text)
    data = _find_data(sections)
    audio = _find_audio(sections, groups, data)
    bundle = _group_of(sections[audio], groups)
    _require_bundle(sections, bundle, data)
    codec = choose_codec(sections[audio].encodings)
    other = _find_other_audio(sections, bundle, audio, codec)
    levels = _transport_levels(sections, bundle, audio, (audio, other, data))
    if not any(level.rtcp_mux for level in [*levels, session]):
        raise OfferError(422, "rtcp_mux_required", "The audio section has no a=rtcp-mux.")
    ufrag, pwd = _credentials(levels)
    return Offer(
        sections=tuple(sections),
        audio=audio,
        other_audio=other,
        data=data,
        bundle=bundle,
        codec=codec,
        events=choose_events(sections[audio].encodings, codec),
        direction=sections[audio].direction if other is None else "sendrecv",
        ice_ufrag=ufrag,
        ice_pwd=pwd,
        fingerprints=_fingerprints(levels),
        setup=_setup(levels),
    )


def _split(text: str) -> tuple[_Attributes, list[Section], list[tuple[str, ...]]]:
    """Session attributes, sections and the mids of each BUNDLE group."""
    if len(text) > MAX_OFFER_BYTES:
        raise OfferError(413, "offer_too_large", f"The offer is over {MAX_OFFER_BYTES} bytes.")
    lines = text.split("\n", MAX_LINES)
    if len(lines) > MAX_LINES:
        raise OfferError(400, "invalid_offer", f"The offer has over {MAX_LINES} lines.")
    session = _Attributes()
    sections: list[Section] = []
    groups: list[tuple[str, ...]] = []
    started = False
    for number, raw in enumerate(lines, 1):
        line = raw.rstrip("\r")
        if not line.strip():
            continue
        if len(line) > MAX_LINE_CHARS:
            raise _malformed(number, f"is over {MAX_LINE_CHARS} characters")
        if not started:
            if line.strip() != "v=0":
                raise OfferError(400, "invalid_offer", "The body is not SDP: it must begin v=0.")
            started = True
        if line[1:2] != "=" or not "a" <= line[0] <= "z" or "\0" in line or "\r" in line:
            raise _malformed(number, "is not of the form x=value")
        if line[0] == "m":
            if len(sections) == MAX_SECTIONS:
                raise OfferError(
                    400, "invalid_offer", f"The offer has over {MAX_SECTIONS} sections."
                )
            sections.append(_read_section(number, line[2:]))
        elif line[0] == "a":
            name, _, value = line[2:].partition(":")
            if name == "ice-lite":
                raise OfferError(
                    422, "ice_lite", "An ICE-lite client cannot be served: this side is lite too."
                )
            if name == "group" and not sections:
                words = value.split()
                if words[:1] == ["BUNDLE"]:
                    groups.append(tuple(words[1:]))
            elif sections:
                _read_media_attribute(number, sections[-1], name, value.strip())
            else:
                _read_attribute(number, session, name, value.strip())
    if not sections:
        raise OfferError(400, "invalid_offer", "The offer has no m= section.")
    mids = [section.mid for section in sections if section.mid is not None]
    if len(set(mids)) != len(mids):
        raise OfferError(400, "invalid_offer", "Two sections of the offer have the same a=mid.")
    for section in sections:
        section.attributes.inherit(session)
    return session, sections, groups


def _read_section(number: int, value: str) -> Section:
    words = value.split()
    if len(words) < 4:
        raise _malformed(number, "is an m= line without kind, port, protocol or format")
    kind, port, protocol, *formats = words
    port = port.partition("/")[0]
    if not _NUMBER.fullmatch(port) or int(port) > 65_535:
        raise _malformed(number, "has a port that is no port")
    if len(kind) > 64 or not _TOKEN.fullmatch(kind) or not _PROTOCOL.fullmatch(protocol):
        raise _malformed(number, "has an unreadable m= line")
    if not all(len(item) <= 64 and _TOKEN.fullmatch(item) for item in formats):
        raise _malformed(number, "has an unreadable format")
    return Section(kind=kind, port=int(port), protocol=protocol, formats=tuple(formats))


def _read_media_attribute(number: int, section: Section, name: str, value: str) -> None:
    if name == "mid":
        if not _TOKEN.fullmatch(value):
            raise _malformed(number, "has an a=mid that is no token")
        section.mid = value
    elif name == "rtpmap":
        payload_type, encoding = _two_words(value)
        section.rtpmaps.setdefault(payload_type, encoding.lower())
    elif name == "bundle-only":
        section.bundle_only = True
    elif name == "sctp-port":
        if not _NUMBER.fullmatch(value) or not 0 < int(value) < 65_536:
            raise _malformed(number, "has an a=sctp-port that is no port")
        section.sctp_port = int(value)
    elif name == "max-message-size":
        if not _LARGEST_MESSAGE.fullmatch(value):
            raise _malformed(number, "has an unreadable a=max-message-size")
        section.max_message_bytes = int(value)
    else:
        _read_attribute(number, section.attributes, name, value)


def _read_attribute(number: int, into: _Attributes, name: str, value: str) -> None:
    if name == "ice-ufrag":
        if not 4 <= len(value) <= 256 or not _ICE_CHARS.fullmatch(value):
            raise _malformed(number, "has an a=ice-ufrag that is not 4 to 256 ice-chars")
        into.ice_ufrag = value
    elif name == "ice-pwd":
        if not 22 <= len(value) <= 256 or not _ICE_CHARS.fullmatch(value):
            raise _malformed(number, "has an a=ice-pwd that is not 22 to 256 ice-chars")
        into.ice_pwd = value
    elif name == "fingerprint":
        _read_fingerprint(number, into, value)
    elif name == "setup":
        into.setup = value.lower()
    elif name == "rtcp-mux":
        into.rtcp_mux = True
    elif name in _MIRRORED:
        into.direction = name


def _read_fingerprint(number: int, into: _Attributes, value: str) -> None:
    algorithm, digest = _two_words(value)
    algorithm, digest = algorithm.lower(), digest.upper()
    if algorithm not in _HASH_BYTES:
        into.weak_fingerprint = True
        return
    if not re.fullmatch(r"[0-9A-F]{2}(:[0-9A-F]{2})*", digest) or (
        len(digest) != 3 * _HASH_BYTES[algorithm] - 1
    ):
        raise _malformed(number, "has an unreadable a=fingerprint")
    if len(into.fingerprints) == MAX_FINGERPRINTS:
        raise _malformed(number, f"is one a=fingerprint too many (over {MAX_FINGERPRINTS})")
    into.fingerprints.append(Fingerprint(algorithm, digest))


def _two_words(value: str) -> tuple[str, str]:
    """The first word, and all behind the white space after it."""
    first, rest = [*value.split(None, 1), "", ""][:2]
    return first, rest


def _find_audio(sections: list[Section], groups: list[tuple[str, ...]], data: int | None) -> int:
    """Of several, the first of those that serve the client best: with a codec of ours, in the data
    channel's bundle, with sound both ways.
    """

    def worth(index: int) -> tuple[bool, bool, int]:
        section = sections[index]
        is_bundled = data is None or sections[data].mid in _group_of(section, groups)
        return bool(codecs(section.encodings)), is_bundled, _WAYS[section.direction]

    found = [index for index, section in enumerate(sections) if _is_audio(section)]
    if not found:
        raise OfferError(422, "no_audio", "The offer has no audio section over DTLS-SRTP.")
    return max(found, key=worth)


def _is_audio(section: Section) -> bool:
    return section.kind == "audio" and section.live and section.protocol in _AUDIO_PROTOCOLS


def _find_other_audio(
    sections: list[Section], bundle: tuple[str, ...], audio: int, codec: Codec
) -> int | None:
    """The section for the way that the audio section leaves out: on the same transport, with the
    same codec under the same number.
    """
    direction = sections[audio].direction
    missing = {"sendonly": "recvonly", "recvonly": "sendonly"}.get(direction)
    for index, section in enumerate(sections):
        if (
            _is_audio(section)
            and section.direction == missing
            and section.mid in bundle
            and sections[audio].mid in bundle
            and codec in codecs(section.encodings)
        ):
            return index
    return None


def _group_of(section: Section, groups: list[tuple[str, ...]]) -> tuple[str, ...]:
    """The mids of the BUNDLE group that a section is in."""
    return next((group for group in groups if section.mid in group), ())


def _find_data(sections: list[Section]) -> int | None:
    for index, section in enumerate(sections):
        if (
            section.kind == "application"
            and section.live
            and section.protocol in _DATA_PROTOCOLS
            and "webrtc-datachannel" in section.formats
        ):
            return index
    return None


def _require_bundle(sections: list[Section], bundle: tuple[str, ...], data: int | None) -> None:
    """Audio and data share one transport, or the offer has only audio (RFC 8843)."""
    if data is not None and sections[data].mid not in bundle:
        raise OfferError(
            422, "bundle_required", "Audio and data channel must be in one a=group:BUNDLE."
        )


def _transport_levels(
    sections: list[Section], bundle: tuple[str, ...], audio: int, served: tuple[int | None, ...]
) -> list[_Attributes]:
    """What may say how ICE and DTLS are done, best first: of the bundle's sections the first that is
    answered, since those that are not have no transport (RFC 8843 7.3.1); then the others, because
    all but one may leave it out (7.1.3).
    """
    if sections[audio].mid not in bundle:
        return [sections[audio].attributes]
    by_mid = {section.mid: index for index, section in enumerate(sections)}
    order = [by_mid[mid] for mid in dict.fromkeys(bundle) if mid in by_mid]
    order.sort(key=lambda index: index not in served)
    return [sections[index].attributes for index in order if sections[index].live]


def _credentials(levels: list[_Attributes]) -> tuple[str, str]:
    for level in levels:
        if level.ice_ufrag and level.ice_pwd:
            return level.ice_ufrag, level.ice_pwd
    raise OfferError(400, "invalid_offer", "The offer has no a=ice-ufrag and a=ice-pwd.")


def _fingerprints(levels: list[_Attributes]) -> tuple[Fingerprint, ...]:
    for level in levels:
        for algorithm in sorted(_HASH_BYTES, reverse=True):
            found = tuple(item for item in level.fingerprints if item.algorithm == algorithm)
            if found:
                return found
    if any(level.weak_fingerprint for level in levels):
        raise OfferError(
            422, "weak_fingerprint", "The offer has no sha-256, sha-384 or sha-512 fingerprint."
        )
    raise OfferError(400, "no_fingerprint", "The offer has no a=fingerprint.")


def _setup(levels: list[_Attributes]) -> str:
    offered = next((level.setup for level in levels if level.setup), "actpass")
    if offered == "holdconn":
        raise OfferError(422, "setup_holdconn", "An offer with a=setup:holdconn is not served.")
    if offered not in ("actpass", "active", "passive"):
        raise OfferError(400, "invalid_offer", "The offer has an unknown a=setup.")
    return "passive" if offered == "active" else "active"


def _malformed(number: int, what: str) -> OfferError:
    return OfferError(400, "invalid_offer", f"Line {number} of the offer {what}.")
