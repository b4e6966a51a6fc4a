"""The answer: known lines only, the offer's sections in order, the ingress as the only candidate."""

from __future__ import annotations

import ipaddress
import re

import pytest
from aiortc.sdp import SessionDescription

from tests.support.offers import (
    ANDROID,
    CHROMIUM,
    FIREFOX,
    SAFARI_IOS_12,
    SAFARI_IOS_18,
    STOPPED,
    VIDEO,
    changed,
    join,
    split,
    without,
)
from transceiver.answer import Candidate, Local, write_answer
from transceiver.offer import read_offer

SESSION, AUDIO, DATA = split(CHROMIUM)
LOCAL = Local(
    ice_ufrag="A" * 28,
    ice_pwd="p" * 24,
    fingerprint_sha256="AA:BB",
    candidates=(
        Candidate(ipaddress.ip_address("192.0.2.1"), 3478),
        Candidate(ipaddress.ip_address("2001:db8::1"), 3479),
    ),
    ssrc=1234,
    name="voice1",
)


def answer(offer: str, local: Local = LOCAL) -> str:
    return write_answer(read_offer(offer), local)


def sections(text: str) -> list[str]:
    return split(text)[1:]


def test_the_whole_answer_to_chromium() -> None:
    assert answer(CHROMIUM).split("\r\n") == [
        "v=0",
        "o=- 1234 2 IN IP4 127.0.0.1",
        "s=-",
        "t=0 0",
        "a=group:BUNDLE 0 1",
        "a=ice-lite",
        "a=msid-semantic:WMS *",
        "m=audio 3478 UDP/TLS/RTP/SAVPF 111 110",
        "c=IN IP4 192.0.2.1",
        "a=candidate:1 1 udp 2130706431 192.0.2.1 3478 typ host",
        "a=candidate:2 1 udp 2130706175 2001:db8::1 3479 typ host",
        "a=end-of-candidates",
        "a=ice-ufrag:" + "A" * 28,
        "a=ice-pwd:" + "p" * 24,
        "a=fingerprint:sha-256 AA:BB",
        "a=setup:active",
        "a=mid:0",
        "a=sendrecv",
        "a=rtcp-mux",
        "a=rtpmap:111 opus/48000/2",
        "a=fmtp:111 minptime=10;useinbandfec=1",
        "a=rtpmap:110 telephone-event/48000",
        "a=fmtp:110 0-16",
        "a=msid:voice1 voice1-audio",
        "a=ssrc:1234 cname:voice1",
        "m=application 3478 UDP/DTLS/SCTP webrtc-datachannel",
        "c=IN IP4 192.0.2.1",
        "a=ice-ufrag:" + "A" * 28,
        "a=ice-pwd:" + "p" * 24,
        "a=fingerprint:sha-256 AA:BB",
        "a=setup:active",
        "a=mid:1",
        "a=sctp-port:5000",
        "a=max-message-size:262144",
        "",
    ]


@pytest.mark.parametrize("offer", [CHROMIUM, FIREFOX, CHROMIUM.replace("\r\n", "\n")])
def test_line_ends_are_crlf_and_a_stock_parser_reads_it(offer: str) -> None:
    text = answer(offer)
    assert "\n" not in text.replace("\r\n", "")
    assert text.endswith("\r\n")
    parsed = SessionDescription.parse(text)
    assert [media.kind for media in parsed.media] == ["audio", "application"]
    assert all(media.ice is not None and media.ice.iceLite for media in parsed.media)


def test_nothing_unknown_is_echoed() -> None:
    hostile = join(
        SESSION + "a=ice-options:trickle goog-sped-v1\r\na=extmap-allow-mixed\r\n",
        AUDIO + "a=crypto:1 AES inline:x\r\na=x-evil:1\r\n",
        DATA + "a=sctp-init:AAAA\r\na=sctpmap:5000 webrtc-datachannel 1024\r\n",
    )
    assert answer(hostile) == answer(CHROMIUM)
    known = re.compile(
        r"(group:BUNDLE|ice-lite|msid-semantic:|candidate:|end-of-candidates|ice-ufrag:|ice-pwd:|"
        r"fingerprint:sha-256 |setup:|mid:|sendrecv|rtcp-mux|rtpmap:|fmtp:|msid:|ssrc:1234 cname:|"
        r"sctp-port:5000|max-message-size:)"
    )
    for line in answer(FIREFOX).split("\r\n"):
        assert not line.startswith("a=") or known.match(line[2:]), line


def test_d04_declined_sections_keep_their_place_with_port_0_and_a_format() -> None:
    first = sections(answer(join(SESSION, STOPPED, AUDIO, DATA)))
    assert first[0].startswith("m=audio 0 UDP/TLS/RTP/SAVPF 111\r\n")
    assert "a=mid:stopped\r\n" in first[0]
    assert first[1].startswith("m=audio 3478 ")
    last = sections(answer(join(SESSION, AUDIO, DATA, STOPPED)))
    assert last[2].startswith("m=audio 0 ")


def test_d07_mids_are_echoed_exactly_or_left_out() -> None:
    long = "m" * 300
    text = changed(changed(CHROMIUM, "BUNDLE 0 1", f"BUNDLE {long} 1"), "a=mid:0", f"a=mid:{long}")
    assert f"a=mid:{long}\r\n" in answer(text)
    assert f"a=group:BUNDLE {long} 1\r\n" in answer(text)
    bare = answer(join(without(SESSION, "a=group"), without(AUDIO, "a=mid")))
    assert "a=mid" not in bare
    assert "a=group" not in bare


def test_d09_as_many_sections_as_offered_in_their_order() -> None:
    offered = join(SESSION, DATA, VIDEO, AUDIO)
    parts = sections(answer(offered))
    assert [part.split()[0] for part in parts] == ["m=application", "m=video", "m=audio"]


@pytest.mark.parametrize(("group", "tagged"), [("0 1", "m=audio"), ("1 0", "m=application")])
def test_d09_the_group_keeps_its_order_and_its_first_section_names_the_transport(
    group: str, tagged: str
) -> None:
    offered = join(changed(SESSION, "BUNDLE 0 1", f"BUNDLE {group} gone"), DATA, VIDEO, AUDIO)
    assert f"a=group:BUNDLE {group}\r\n" in answer(offered)
    assert [part.split()[0] for part in sections(answer(offered)) if "a=candidate" in part] == [
        tagged
    ]


def test_a_group_that_was_not_offered_is_not_answered() -> None:
    assert "a=group" not in answer(join(without(SESSION, "a=group"), AUDIO))


def test_each_way_in_a_section_of_its_own() -> None:
    ear = changed(changed(AUDIO, "a=sendrecv", "a=recvonly"), "a=mid:0", "a=mid:ear")
    mouth = changed(changed(AUDIO, "a=sendrecv", "a=sendonly"), "a=mid:0", "a=mid:mouth")
    session = changed(SESSION, "BUNDLE 0 1", "BUNDLE ear mouth 1")
    text = answer(join(session, ear, mouth, DATA))
    assert "a=group:BUNDLE ear mouth 1\r\n" in text
    first, second, _ = sections(text)
    assert first.startswith("m=audio 3478 ")
    assert second.startswith("m=audio 3478 ")
    assert "a=sendonly\r\n" in first
    assert "a=msid:voice1 voice1-audio\r\n" in first
    assert "a=recvonly\r\n" in second
    assert "a=ssrc" not in second


def test_d15_video_is_declined_with_its_first_format() -> None:
    video = sections(answer(join(SESSION, AUDIO, VIDEO, DATA)))[1]
    assert (
        video == "m=video 0 UDP/TLS/RTP/SAVPF 45\r\nc=IN IP4 0.0.0.0\r\na=inactive\r\na=mid:v\r\n"
    )
    assert "a=group:BUNDLE 0 1\r\n" in answer(join(SESSION, AUDIO, VIDEO, DATA))


@pytest.mark.parametrize(
    ("offered", "answered"),
    [("recvonly", "sendonly"), ("sendonly", "recvonly"), ("inactive", "inactive")],
)
def test_d16_directions(offered: str, answered: str) -> None:
    audio = sections(answer(changed(CHROMIUM, "a=sendrecv", f"a={offered}")))[0]
    assert f"a={answered}\r\n" in audio
    assert ("a=msid:" in audio) == (answered == "sendonly")


def test_d22_the_only_candidates_are_the_ingress() -> None:
    text = answer(CHROMIUM)
    assert re.findall(r"a=candidate:\d+ 1 udp \d+ (\S+) (\d+) typ host", text) == [
        ("192.0.2.1", "3478"),
        ("2001:db8::1", "3479"),
    ]
    assert text.count("a=end-of-candidates") == 1


def test_an_ipv6_only_ingress() -> None:
    local = Local("A" * 28, "p" * 24, "AA", LOCAL.candidates[1:], 1, "n")
    audio = sections(answer(CHROMIUM, local))[0]
    assert audio.startswith("m=audio 3479 UDP/TLS/RTP/SAVPF 111 110\r\nc=IN IP6 2001:db8::1\r\n")


def test_g711_has_no_channels_and_no_fmtp() -> None:
    audio = sections(answer(changed(CHROMIUM, "111 63 9 0 8 13 110 126", "8")))[0]
    assert audio.startswith("m=audio 3478 UDP/TLS/RTP/SAVPF 8\r\n")
    assert "a=rtpmap:8 PCMA/8000\r\n" in audio
    assert "a=fmtp" not in audio


def test_an_active_client_is_answered_passive() -> None:
    assert "a=setup:passive\r\n" in answer(changed(CHROMIUM, "setup:actpass", "setup:active"))


@pytest.mark.parametrize(
    ("offer", "data"),
    [(SAFARI_IOS_18, "m=application 3478"), (ANDROID, "m=application 3478"), (SAFARI_IOS_12, "m=application 0 DTLS/SCTP 5000")],
    ids=["safari-ios-18", "android", "safari-ios-12"],
)  # fmt: skip
def test_phones_get_every_section_back_in_their_order(offer: str, data: str) -> None:
    written = answer(offer)
    audio, application = sections(written)
    assert audio.startswith("m=audio 3478 UDP/TLS/RTP/SAVPF 111")
    assert application.startswith(data)
    mids = re.findall(r"a=mid:(\S+)", offer)
    assert re.findall(r"a=mid:(\S+)", written)[0] == mids[0]
    for unknown in ("renomination", "ILBC", "ISAC", "extmap", "rtcp-fb"):
        assert unknown not in written
    SessionDescription.parse(written)
