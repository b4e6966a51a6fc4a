"""Whatever is posted as an offer is answered or refused with a 4xx, in time linear in its size."""

from __future__ import annotations

import ipaddress
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.offers import CHROMIUM, FIREFOX, STOPPED, VIDEO
from transceiver.answer import Candidate, Local, write_answer
from transceiver.errors import OfferError
from transceiver.offer import MAX_OFFER_BYTES, Offer, read_offer

LOCAL = Local(
    "A" * 28, "p" * 24, "AA:BB", [Candidate(ipaddress.ip_address("192.0.2.1"), 3_478)], 1, "voice"
)
LINES = sorted({*CHROMIUM.splitlines(), *FIREFOX.splitlines(), *VIDEO.splitlines(),
                *STOPPED.splitlines(), "a=ice-lite", "a=setup:holdconn", "a=bundle-only",
                "a=group:LS 0 1", "a=inactive", "m=audio 9 RTP/SAVPF 0", "m=text 9 X 1"})  # fmt: skip
line = st.one_of(
    st.sampled_from(LINES),
    st.text(max_size=60),
    st.builds(
        "{}={}:{}".format,
        st.sampled_from("vosmcatb"),
        st.sampled_from(
            ["mid", "setup", "rtpmap", "fmtp", "group", "fingerprint", "ice-ufrag", "ice-pwd",
             "sctp-port", "max-message-size", "candidate"]
        ),
        st.text(max_size=40),
    ),
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A recorded offer with lines deleted, doubled, moved, replaced and inserted."""
    lines = draw(st.sampled_from([CHROMIUM, FIREFOX])).splitlines()
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(lines) - 1))
        change = draw(st.sampled_from(["delete", "double", "swap", "replace", "insert", "cut"]))
        if change == "delete" and len(lines) > 1:
            del lines[at]
        elif change == "double":
            lines.insert(at, lines[at])
        elif change == "swap":
            other = draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], lines[at]
        elif change == "replace":
            lines[at] = draw(line)
        elif change == "insert":
            lines.insert(at, draw(line))
        else:
            lines[at] = lines[at][: draw(st.integers(0, len(lines[at])))]
    return draw(st.sampled_from(["\r\n", "\n"])).join(lines) + draw(st.sampled_from(["", "\r\n"]))


def read(text: str) -> Offer | OfferError:
    try:
        return read_offer(text)
    except OfferError as error:
        return error


def check(text: str) -> None:
    offer = read(text)
    if isinstance(offer, OfferError):
        assert offer.status in (400, 413, 422)
        assert 10 < len(offer.message) < 200
        assert offer.body()["error"]
        return
    answer = write_answer(offer, LOCAL)
    assert answer.isprintable() or set(answer) - {"\r", "\n"} <= set(map(chr, range(32, 127)))
    assert "\n" not in answer.replace("\r\n", "")
    m_lines = [item for item in answer.split("\r\n") if item.startswith("m=")]
    assert len(m_lines) == len(offer.sections)
    for written, section in zip(m_lines, offer.sections, strict=True):
        assert written.split()[0] == f"m={section.kind}"
        assert len(written.split()) >= 4
    assert 1 <= sum(item.split()[1] != "0" for item in m_lines) <= 2
    assert 4 <= len(offer.ice_ufrag) <= 256
    assert offer.fingerprints
    assert 0 <= offer.codec.payload_type < 128
    # What we write can be read: the answer to the same offer is the same.
    assert write_answer(read_offer(text), LOCAL) == answer


@given(mutated())
def test_mutated_offers(text: str) -> None:
    check(text)


@given(st.lists(line, max_size=80))
def test_heaps_of_lines(lines: list[str]) -> None:
    check("v=0\r\n" + "\r\n".join(lines))


@given(st.text(max_size=2_000))
def test_any_text(text: str) -> None:
    check(text)


@pytest.mark.alone
@pytest.mark.parametrize(
    "unit",
    ["m=audio 9 UDP/TLS/RTP/SAVPF 0\r\n", "a=rtpmap:0 PCMU/8000\r\n", "a=mid:x\r\n", "\r\n",
     "a=group:BUNDLE " + "x " * 1_000 + "\r\n", "m=audio 9 RTP/SAVPF" + " 0" * 1_900 + "\r\n",
     "a=fingerprint:sha-256 " + "AA:" * 1_000 + "\r\n", "a=ice-ufrag:" + "a" * 4_000 + "\r\n"],
    ids=range(8),
)  # fmt: skip
def test_time_is_linear_in_the_size(unit: str) -> None:
    text = (CHROMIUM + unit * (MAX_OFFER_BYTES // len(unit)))[:MAX_OFFER_BYTES]
    started_s = time.thread_time()
    for _ in range(5):
        check(text)
    assert (time.thread_time() - started_s) / 5 < 0.5
    assert min(seconds_to_answer(text) for _ in range(5)) < 0.05


def seconds_to_answer(text: str) -> float:
    """Or to refuse."""
    started_s = time.thread_time()
    offer = read(text)
    if isinstance(offer, Offer):
        write_answer(offer, LOCAL)
    return time.thread_time() - started_s
