"""Offers from the field: recorded ones are read right, odd ones served or refused with a clear word."""

from __future__ import annotations

import time

import pytest

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
from transceiver.errors import OfferError
from transceiver.formats import Codec
from transceiver.offer import Fingerprint, Offer, read_offer

SESSION, AUDIO, DATA = split(CHROMIUM)
SHA256 = "05:26:09:F9:29:73:70:A5:85:CA:A2:73:2A:47:61:C3:B5:04:63:EA:B9:BF:3D:EE:D6:67:81:F8:88:78:59:6F"


def refused(text: str) -> tuple[int, str]:
    with pytest.raises(OfferError) as caught:
        read_offer(text)
    assert len(caught.value.message) < 200
    return caught.value.status, caught.value.code


def bundle(*mids: str) -> str:
    return changed(SESSION, "a=group:BUNDLE 0 1", "a=group:BUNDLE " + " ".join(mids))


# Recorded offers


def test_chromium() -> None:
    offer = read_offer(CHROMIUM)
    assert (offer.audio, offer.data) == (0, 1)
    assert offer.codec == Codec("opus", 111, 48_000)
    assert offer.direction == "sendrecv"
    assert (offer.ice_ufrag, offer.ice_pwd) == ("jbUj", "yqybGScCT9h/vMB9cVS6P6JF")
    assert offer.fingerprints == (Fingerprint("sha-256", SHA256),)
    assert offer.setup == "active"
    assert offer.sections[1].max_message_bytes == 262_144


def test_firefox_has_its_fingerprint_and_options_at_session_level() -> None:
    offer = read_offer(FIREFOX)
    assert offer.codec == Codec("opus", 109, 48_000)
    assert offer.fingerprints[0].value.startswith("58:5B:C0:32")
    assert offer.sections[1].max_message_bytes == 1_073_741_823


# Offers shaped like those of phones, which nobody has tried here


@pytest.mark.parametrize("text", [SAFARI_IOS_18, ANDROID], ids=["safari-ios-18", "android"])
def test_phones_of_today_get_sound_and_events(text: str) -> None:
    offer = read_offer(text)
    assert (offer.audio, offer.data) == (0, 1)
    assert (offer.codec.name, offer.codec.payload_type) == ("opus", 111)
    assert offer.direction == "sendrecv"
    assert offer.setup == "active"


def test_a_data_channel_described_the_old_way_is_left_out() -> None:
    offer = read_offer(SAFARI_IOS_12)
    assert (offer.sections[offer.audio].mid, offer.data) == ("audio", None)
    assert offer.codec.name == "opus"


# D01: small legal lines that break parsers


@pytest.mark.parametrize(
    "line",
    ["a=fmtp:111", "a=fmtp:", "a=rtpmap:", "a=rtpmap:111", "a=ssrc:", "a=group:", "a=", "a=:",
     "a=extmap:", "a=candidate:", "a=rtcp-fb:", "b=", "y=odd", "a=msid", "a=sctpmap:"],
)  # fmt: skip
def test_d01_odd_lines_are_tolerated(line: str) -> None:
    assert read_offer(join(SESSION, AUDIO + f"{line}\r\n", DATA)).codec.name == "opus"


def test_d01_no_rtpmap_at_all_falls_back_to_static_types() -> None:
    assert read_offer(without(CHROMIUM, "a=rtpmap", "a=fmtp")).codec == Codec("PCMU", 0, 8_000)


@pytest.mark.parametrize("line", ["m=", "m=audio", "m=audio 9", "m=audio 9 UDP/TLS/RTP/SAVPF",
                                  "m=audio x UDP/TLS/RTP/SAVPF 111", "m=audio 70000 X 1",
                                  "m=a\x01dio 9 X 1", "m=audio 9 X ä"])  # fmt: skip
def test_d01_unreadable_m_lines_are_malformed(line: str) -> None:
    assert refused(join(SESSION, AUDIO, DATA, f"{line}\r\n")) == (400, "invalid_offer")


# D04, D15: sections that are not served


@pytest.mark.parametrize("order", [(STOPPED, AUDIO), (AUDIO, STOPPED)])
def test_d04_a_stopped_section_before_or_after_the_good_one(order: tuple[str, str]) -> None:
    offer = read_offer(join(SESSION, *order, DATA))
    assert offer.sections[offer.audio].mid == "0"
    assert offer.sections[2 - 1 - offer.audio].mid == "stopped"


def test_d04_port_0_with_bundle_only_is_live() -> None:
    data = changed(DATA, "m=application 9", "m=application 0") + "a=bundle-only\r\n"
    assert read_offer(join(SESSION, AUDIO, data)).data == 1
    assert read_offer(join(SESSION, AUDIO, changed(DATA, "m=application 9", "m=application 0"))).data is None  # fmt: skip


def test_d15_video_is_beside_the_point() -> None:
    assert read_offer(join(bundle("0", "v", "1"), AUDIO, VIDEO, DATA)).audio == 0
    nonsense = changed(VIDEO, "SAVPF 45 46", "SAVPF 0")
    assert read_offer(join(bundle("0", "v", "1"), AUDIO, nonsense, DATA)).data == 2


# Several audio sections


def audio_section(mid: str, direction: str = "sendrecv", formats: str = "111") -> str:
    audio = changed(changed(AUDIO, "a=mid:0", f"a=mid:{mid}"), "a=sendrecv", f"a={direction}")
    return changed(audio, "111 63 9 0 8 13 110 126", formats)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("a", "inactive"), ("b", "sendrecv")),
        (("a", "recvonly"), ("b", "sendrecv")),
        (("a", "sendrecv", "9 13"), ("b", "recvonly")),
        (("alone", "sendrecv"), ("b", "sendrecv")),
    ],
    ids=["inactive", "one-way", "codec", "not bundled"],
)
def test_of_several_the_audio_section_that_serves_best(
    first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    text = join(bundle("a", "b", "1"), audio_section(*first), audio_section(*second), DATA)
    offer = read_offer(text)
    assert (offer.audio, offer.other_audio) == (1, None)
    assert read_offer(join(bundle("a", "b", "1"), AUDIO.replace("mid:0", "mid:a"), audio_section("b"), DATA)).audio == 0  # fmt: skip


@pytest.mark.parametrize("ways", [("sendonly", "recvonly"), ("recvonly", "sendonly")])
def test_each_way_in_a_section_of_its_own(ways: tuple[str, str]) -> None:
    both = [audio_section(mid, way) for mid, way in zip("ab", ways, strict=True)]
    offer = read_offer(join(bundle("a", "b", "1"), *both, DATA))
    assert (offer.audio, offer.other_audio, offer.direction, offer.sends) == (0, 1, "sendrecv", True)  # fmt: skip


@pytest.mark.parametrize(
    "second",
    [
        audio_section("b", "recvonly"),
        audio_section("b", "sendonly", "0"),
        audio_section("b", "sendonly", "9"),
        audio_section("alone", "sendonly"),
        changed(audio_section("b", "sendonly"), "m=audio 9", "m=audio 0"),
    ],
    ids=["same way", "other codec", "no codec", "not bundled", "stopped"],
)
def test_a_second_section_that_cannot_complete_the_first_is_declined(second: str) -> None:
    offer = read_offer(join(bundle("a", "b", "1"), audio_section("a", "recvonly"), second, DATA))
    assert (offer.audio, offer.other_audio, offer.direction) == (0, None, "sendonly")


def test_the_bundle_is_the_one_that_the_audio_is_in() -> None:
    groups = "a=group:LS 0 v\r\na=group:BUNDLE v\r\na=group:BUNDLE 0 1"
    text = join(changed(SESSION, "a=group:BUNDLE 0 1", groups), VIDEO, AUDIO, DATA)
    offer = read_offer(text)
    assert (offer.audio, offer.data, offer.bundle) == (1, 2, ("0", "1"))


# D06: transport lines only in the first section of the bundle


def test_d06_transport_lines_only_in_the_first_bundled_section() -> None:
    bare = without(DATA, "a=ice-", "a=fingerprint", "a=setup")
    assert read_offer(join(SESSION, AUDIO, bare)).ice_ufrag == "jbUj"
    assert read_offer(join(bundle("1", "0"), DATA, without(AUDIO, "a=ice-", "a=fingerprint", "a=setup"))).ice_ufrag == "jbUj"  # fmt: skip


def test_conflicting_credentials_the_first_bundled_section_decides() -> None:
    other = changed(DATA, "a=ice-ufrag:jbUj", "a=ice-ufrag:other")
    assert read_offer(join(SESSION, AUDIO, other)).ice_ufrag == "jbUj"
    assert read_offer(join(bundle("1", "0"), AUDIO, other)).ice_ufrag == "other"


def test_a_section_that_is_declined_has_no_transport() -> None:
    audio, digest = AUDIO, AUDIO.split("sha-256 ")[1].split("\r\n")[0]
    video = changed(without(audio, "a=rtpmap", "a=fmtp"), "m=audio", "m=video")
    for old, new in (("a=mid:0", "a=mid:v"), ("jbUj", "video"), (digest, digest[::-1]), ("actpass", "active")):  # fmt: skip
        video = changed(video, old, new)
    text = join(bundle("v", "0", "1"), video, audio, DATA)
    assert (read_offer(text).ice_ufrag, read_offer(text).setup) == ("jbUj", "active")
    assert read_offer(text).fingerprints == read_offer(CHROMIUM).fingerprints
    bare = without(audio + DATA, "a=ice-", "a=fingerprint", "a=setup")
    assert read_offer(join(bundle("v", "0", "1"), video, bare)).ice_ufrag == "video"


def test_what_a_section_leaves_out_is_the_sessions_before_it_is_anothers() -> None:
    own = [line for line in AUDIO.splitlines() if line.startswith(("a=ice-", "a=fing", "a=setup"))]
    other = changed(changed(DATA, "a=ice-ufrag:jbUj", "a=ice-ufrag:other"), "actpass", "passive")
    session = SESSION + "\r\n".join([*own, ""]).replace("a=setup:actpass", "a=setup:active")
    offer = read_offer(join(session, without(AUDIO, "a=ice-", "a=fing", "a=setup"), other))
    assert (offer.ice_ufrag, offer.setup) == ("jbUj", "passive")


# D07: mids


@pytest.mark.parametrize("mid", ["audio", "sdparta_0", "x" * 16, "m" * 300, "0"])
def test_d07_odd_mids_are_taken(mid: str) -> None:
    text = join(bundle(mid, "1"), changed(AUDIO, "a=mid:0", f"a=mid:{mid}"), DATA)
    assert read_offer(text).sections[0].mid == mid


def test_d07_no_mid_is_fine_for_one_section() -> None:
    offer = read_offer(join(without(SESSION, "a=group"), without(AUDIO, "a=mid")))
    assert offer.sections[0].mid is None


def test_d07_duplicate_and_unreadable_mids_are_malformed() -> None:
    assert refused(join(SESSION, AUDIO, changed(DATA, "a=mid:1", "a=mid:0"))) == (400, "invalid_offer")  # fmt: skip
    assert refused(changed(CHROMIUM, "a=mid:1", "a=mid:1 2")) == (400, "invalid_offer")


def test_a_data_channel_outside_the_bundle_is_refused() -> None:
    assert refused(without(CHROMIUM, "a=group")) == (422, "bundle_required")
    assert refused(join(bundle("0"), AUDIO, DATA)) == (422, "bundle_required")


# D09: which sections there are


def test_d09_audio_only_and_audio_with_video() -> None:
    assert read_offer(join(bundle("0"), AUDIO)).data is None
    assert read_offer(join(bundle("0", "v", "1"), AUDIO, VIDEO, DATA)).data == 2


def test_d09_data_only_and_nothing() -> None:
    assert refused(join(bundle("1"), DATA)) == (422, "no_audio")
    assert refused(SESSION) == (400, "invalid_offer")


# D11: line ends


@pytest.mark.parametrize(
    "text",
    [
        CHROMIUM.replace("\r\n", "\n"),
        CHROMIUM.rstrip("\r\n"),
        CHROMIUM + "\r\n\r\n\n",
        CHROMIUM.replace("\r\n", "\n").rstrip("\n"),
    ],
)
def test_d11_line_ends(text: str) -> None:
    assert read_offer(text) == read_offer(CHROMIUM)


# D13: codecs


def audio_with(formats: str, *rtpmaps: str) -> Offer:
    audio = without(AUDIO, "a=rtpmap", "a=fmtp", "a=rtcp-fb")
    audio = changed(audio, "111 63 9 0 8 13 110 126", formats)
    lines = "".join(f"a=rtpmap:{item}\r\n" for item in rtpmaps)
    return read_offer(join(SESSION, audio + lines, DATA))


@pytest.mark.parametrize(
    ("formats", "rtpmaps", "codec"),
    [
        ("35 9 0 8 111", ["35 odd/1", "111 opus/48000/2"], Codec("opus", 111, 48_000)),
        ("0 111", ["111 OPUS/48000/2"], Codec("opus", 111, 48_000)),
        ("8 0", [], Codec("PCMA", 8, 8_000)),
        ("0", [], Codec("PCMU", 0, 8_000)),
        ("100", ["100 pcmu/8000/1"], Codec("PCMU", 100, 8_000)),
        ("111 0", ["111 opus/48000"], Codec("PCMU", 0, 8_000)),
        ("111 112", ["112 opus/16000", "111 opus/48000/2"], Codec("opus", 111, 48_000)),
        ("0 8", ["0 PCMU/8000", "8 PCMA/8000"], Codec("PCMU", 0, 8_000)),
    ],
)
def test_d13_opus_in_any_order_and_case_else_g711(
    formats: str, rtpmaps: list[str], codec: Codec
) -> None:
    assert audio_with(formats, *rtpmaps).codec == codec


@pytest.mark.parametrize(
    ("formats", "rtpmaps"),
    [
        ("111", ["111 opus/16000"]),
        ("111", ["111 opus/48000"]),
        ("9 13", []),
        ("72", ["72 opus/48000/2"]),
        ("200", ["200 opus/48000/2"]),
        ("0", ["0 opus/16000"]),
        ("111", []),
    ],
)
def test_d13_no_codec_of_ours(formats: str, rtpmaps: list[str]) -> None:
    with pytest.raises(OfferError) as caught:
        audio_with(formats, *rtpmaps)
    assert (caught.value.status, caught.value.code) == (422, "no_codec")


# D16: directions


@pytest.mark.parametrize(
    ("offered", "answered", "sends"),
    [
        ("sendrecv", "sendrecv", True),
        ("recvonly", "sendonly", True),
        ("sendonly", "recvonly", False),
        ("inactive", "inactive", False),
        (None, "sendrecv", True),
    ],
)
def test_d16_directions_are_mirrored(offered: str | None, answered: str, sends: bool) -> None:
    audio = without(AUDIO, "a=sendrecv") + (f"a={offered}\r\n" if offered else "")
    offer = read_offer(join(SESSION, audio, DATA))
    assert (offer.direction, offer.sends) == (answered, sends)


def test_d16_a_direction_at_session_level_counts() -> None:
    offer = read_offer(join(SESSION + "a=recvonly\r\n", without(AUDIO, "a=sendrecv"), DATA))
    assert offer.direction == "sendonly"


# D19: size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CHROMIUM + "a=x\r\n" * 200_000, (413, "offer_too_large")),
        ("v=0\r\n" + "x" * 10_000_000, (413, "offer_too_large")),
        (CHROMIUM + "a=x\r\n" * 3_000, (400, "invalid_offer")),
        (CHROMIUM + "a=x:" + "y" * 5_000, (400, "invalid_offer")),
        (SESSION + AUDIO + "m=audio 0 X 0\r\n" * 1_000, (400, "invalid_offer")),
        (SESSION + f"m=audio {'9' * 3_000} X 0\r\n", (400, "invalid_offer")),
        (CHROMIUM + f"a=sctp-port:{'5' * 3_000}\r\n", (400, "invalid_offer")),
        (CHROMIUM + f"a=max-message-size:{'5' * 3_000}\r\n", (400, "invalid_offer")),
        (join(SESSION, AUDIO + f"a=fingerprint:sha-256 {SHA256}\r\n" * 100), (400, "invalid_offer")),
        ("\r\n" * 30_000, (400, "invalid_offer")),
        ("\0" * 60_000, (400, "invalid_offer")),
        ("a=" * 30_000, (400, "invalid_offer")),
    ],
    ids=range(12),
)  # fmt: skip
def test_d19_sizes_are_refused_at_once(text: str, expected: tuple[int, str]) -> None:
    started_s = time.thread_time()
    assert refused(text) == expected
    assert time.thread_time() - started_s < 0.5


@pytest.mark.parametrize("limit", [0, 1 << 40, (1 << 64) - 1])
def test_any_limit_of_messages_is_read(limit: int) -> None:
    text = changed(CHROMIUM, "a=max-message-size:262144", f"a=max-message-size:{limit}")
    assert read_offer(text).sections[1].max_message_bytes == limit


# Forms of the body


@pytest.mark.parametrize("space", ["\t", "  ", " \t "])
def test_any_white_space_separates(space: str) -> None:
    text = CHROMIUM
    for prefix in ("a=rtpmap:111", "a=fingerprint:sha-256", "m=audio", "a=group:BUNDLE"):
        text = changed(text, f"{prefix} ", prefix + space)
    assert read_offer(text) == read_offer(CHROMIUM)


@pytest.mark.parametrize("text", ["", " ", "hello", "{}", "v=1\r\n", "<html>", "v=0", "a=b\r\nv=0"])
def test_what_is_no_sdp_is_refused(text: str) -> None:
    assert refused(text) == (400, "invalid_offer")


@pytest.mark.parametrize("line", ["x", "=", "m", "aa=b", "A=b", "a=\0", "a=b\rc=d", "  a=b"])
def test_a_line_that_is_no_line_is_malformed(line: str) -> None:
    assert refused(CHROMIUM + f"{line}\r\n") == (400, "invalid_offer")


def test_a_truncated_offer_is_refused_or_read_at_every_length() -> None:
    statuses: set[int] = set()
    for length in range(len(CHROMIUM)):
        try:
            read_offer(CHROMIUM[:length])
        except OfferError as error:
            statuses.add(error.status)
    assert statuses == {400, 422}


# ICE (A15, B11)


@pytest.mark.parametrize("line", ["a=ice-ufrag:7ia", "a=ice-ufrag:" + "u" * 257, "a=ice-ufrag:ab-d",
                                  "a=ice-ufrag:", "a=ice-pwd:" + "p" * 21, "a=ice-pwd:" + "p" * 257,
                                  "a=ice-pwd:" + "p" * 21 + "ä"])  # fmt: skip
def test_a15_credentials_outside_the_standard_are_malformed(line: str) -> None:
    name = line.partition(":")[0]
    assert refused(join(SESSION, without(AUDIO, name) + line + "\r\n", DATA)) == (400, "invalid_offer")  # fmt: skip


def test_each_credential_is_the_sections_or_else_the_sessions() -> None:
    bare = without(AUDIO + DATA, "a=ice-ufrag")
    offer = read_offer(join(SESSION, "a=ice-ufrag:abcd\r\n", bare))
    assert (offer.ice_ufrag, offer.ice_pwd) == ("abcd", "yqybGScCT9h/vMB9cVS6P6JF")


def test_no_credentials() -> None:
    assert refused(without(CHROMIUM, "a=ice-pwd")) == (400, "invalid_offer")


@pytest.mark.parametrize("at", ["session", "media"])
def test_b11_two_lite_sides_never_check(at: str) -> None:
    session = SESSION + ("a=ice-lite\r\n" if at == "session" else "")
    audio = AUDIO + ("a=ice-lite\r\n" if at == "media" else "")
    assert refused(join(session, audio, DATA)) == (422, "ice_lite")


def test_candidates_are_not_looked_at() -> None:
    odd = "".join(
        f"a=candidate:{text}\r\n"
        for text in ("1 1 udp 1 abcd.local 9 typ host", "x", "1 1 tcp 1 999.9.9.9 -1 typ host")
    )
    assert read_offer(join(SESSION, AUDIO + odd, DATA)).audio == 0


# DTLS (C08)


@pytest.mark.parametrize(
    ("setup", "answered"),
    [("actpass", "active"), ("passive", "active"), ("active", "passive"), ("ACTPASS", "active")],
)
def test_the_role_is_ours_unless_the_client_takes_it(setup: str, answered: str) -> None:
    assert read_offer(changed(CHROMIUM, "a=setup:actpass", f"a=setup:{setup}")).setup == answered


def test_holdconn_and_unknown_roles_are_refused() -> None:
    assert refused(changed(CHROMIUM, "setup:actpass", "setup:holdconn")) == (422, "setup_holdconn")
    assert refused(changed(CHROMIUM, "setup:actpass", "setup:both")) == (400, "invalid_offer")


def fingerprints(*lines: str) -> str:
    text = without(CHROMIUM, "a=fingerprint")
    session, audio, data = split(text)
    return join(session, audio + "".join(f"a=fingerprint:{line}\r\n" for line in lines), data)


HEX384, HEX512 = ":".join(["AB"] * 48), ":".join(["CD"] * 64)


def test_c08_the_strongest_hash_counts() -> None:
    offer = read_offer(
        fingerprints(f"sha-256 {SHA256}", f"SHA-512 {HEX512.lower()}", f"sha-384 {HEX384}")
    )
    assert offer.fingerprints == (Fingerprint("sha-512", HEX512),)


def test_c08_several_of_one_hash_are_kept() -> None:
    other = SHA256.replace("05", "06", 1)
    offer = read_offer(fingerprints(f"sha-256 {SHA256}", f"sha-256 {other}", "sha-1 AA:BB"))
    assert [item.value for item in offer.fingerprints] == [SHA256, other]


def test_c08_weak_missing_and_unreadable_ones_are_refused() -> None:
    assert refused(fingerprints("sha-1 AA:BB")) == (422, "weak_fingerprint")
    assert refused(fingerprints()) == (400, "no_fingerprint")
    for value in ("", "AA", SHA256[:-3], SHA256 + ":00", SHA256.replace(":", ""), "G" + SHA256[1:]):
        assert refused(fingerprints(f"sha-256 {value}")) == (400, "invalid_offer")


def test_rtcp_must_be_multiplexed() -> None:
    assert refused(without(CHROMIUM, "a=rtcp-mux")) == (422, "rtcp_mux_required")


# Telephone events


def test_telephone_events_are_taken_at_the_codecs_clock() -> None:
    events = read_offer(CHROMIUM).events
    assert events is not None
    assert (events.payload_type, events.clock_rate_hz) == (110, 48_000)


def test_firefox_offers_them_at_another_clock() -> None:
    events = read_offer(FIREFOX).events
    assert events is not None
    assert (events.payload_type, events.clock_rate_hz) == (101, 8_000)


def test_an_offer_without_telephone_events_is_served() -> None:
    assert read_offer(CHROMIUM.replace("telephone-event", "unknown-event")).events is None
