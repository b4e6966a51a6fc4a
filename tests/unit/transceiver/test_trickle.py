"""Which SDP fragments are candidates of the session that was offered, and which ask for another one."""

from __future__ import annotations

import pytest

from tests.support.offers import CHROMIUM, changed, split
from transceiver.offer import read_offer
from transceiver.trickle import is_fragment, is_restart

OFFER = read_offer(CHROMIUM)
PWD = "a=ice-pwd:0123456789012345678901\r\n"
CANDIDATE = "a=candidate:1 1 udp 2130706431 192.0.2.7 50000 typ host\r\n"


def of(ufrag: str) -> bytes:
    media = f"m=audio 9 UDP/TLS/RTP/SAVPF 0\r\na=mid:0\r\n{CANDIDATE}a=end-of-candidates\r\n"
    return f"a=ice-ufrag:{ufrag}\r\n{PWD}{media}".encode()


@pytest.mark.parametrize(
    ("fragment", "restarts"),
    [
        (of(OFFER.ice_ufrag), False),
        (of("another"), True),
        (of(""), True),
        (of(OFFER.ice_ufrag + "x"), True),
        (of(OFFER.ice_ufrag) + of("another"), True),
        (of("another").replace(b"\r\n", b"\n"), True),
        (b"", False),
        (CANDIDATE.encode(), False),
        (b"a=candidate:1 1 udp 1 h 1 typ host ufrag a=ice-ufrag:another\r\n", False),
    ],
)
def test_another_ufrag_is_a_restart(fragment: bytes, restarts: bool) -> None:
    assert is_restart(fragment, OFFER) is restarts


@pytest.mark.parametrize(
    "fragment",
    [of("u"), of("u").replace(b"\r\n", b"\n"), of("u").rstrip(), b"", b"\r\n", b"s=\xe4\r\n"],
)
def test_fragments(fragment: bytes) -> None:
    assert is_fragment(fragment)


@pytest.mark.parametrize(
    "body",
    [b"\xff\x00 nonsense", b"<html>", b"{}", b"a=x\ra=y", b"a=\0", b" a=ice-ufrag:another", b"A=x"],
)
def test_what_is_no_fragment(body: bytes) -> None:
    assert not is_fragment(body)
    assert not is_fragment(of("u") + body)


def test_the_ufrags_of_all_sections_are_the_sessions() -> None:
    session, audio, data = split(CHROMIUM)
    offer = read_offer(session + audio + changed(data, OFFER.ice_ufrag, "second"))
    assert not is_restart(of("second"), offer)
    assert not is_restart(of(OFFER.ice_ufrag), offer)
