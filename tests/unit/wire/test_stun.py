"""relay.wire.stun: published messages, the field's cases, and answers."""

from __future__ import annotations

import hashlib

import pytest

from relay.wire import stun
from relay.wire._codec import StunClass, StunReader, StunStatus
from relay.wire.address import Endpoint
from tests.support.stun import PASSWORD, attribute, message, vectors

VECTORS = vectors()
SERVER_UFRAG = b"AAAABBBBCCCCDDDDEEEEFFFFGGGG"


def status_of(datagram: bytes) -> str:
    try:
        stun.Message.read(datagram)
    except stun.StunError as error:
        return error.status.name
    return "OK"


def local_ufrag_of(name: bytes) -> bytes:
    return stun.Message.read(message(attribute(0x0006, name))).local_ufrag


# --- published messages


def test_a01_rfc5769_request() -> None:
    m = stun.Message.read(VECTORS["rfc5769_request"])
    assert m.is_binding_request
    assert m.username == b"evtj:h6vY"
    assert m.local_ufrag == b"evtj"
    assert m.priority == 0x6E0001FF
    assert m.tie_breaker == 0x932FF9B151263B36
    assert m.ice_controlled
    assert not m.ice_controlling
    assert not m.use_candidate
    assert m.fingerprint
    assert m.verify(PASSWORD)
    assert not m.verify(PASSWORD[:-1])


def test_a01_the_same_layout_with_our_ufrag() -> None:
    name = SERVER_UFRAG + b":h6vY!!"
    m = stun.Message.read(
        message(
            attribute(0x8022, b"STUN test client", pad=b" "),
            attribute(0x0024, bytes(4)),
            attribute(0x8029, bytes(8)),
            attribute(0x0006, name, pad=b" "),
            key=b"password",
        )
    )
    assert m.local_ufrag == SERVER_UFRAG
    assert m.username == name
    assert m.verify(b"password")


@pytest.mark.parametrize("name", ["rfc5769_ipv4_response", "rfc5769_ipv6_response"])
def test_rfc5769_responses(name: str) -> None:
    m = stun.Message.read(VECTORS[name])
    assert m.stun_class == StunClass.SUCCESS
    assert m.method == stun.BINDING
    assert m.username is None
    assert m.local_ufrag == b""
    assert m.verify(PASSWORD)


def test_rfc5769_long_term_request() -> None:
    m = stun.Message.read(VECTORS["rfc5769_long_term"])
    assert m.username == "マトリックス".encode()
    assert not m.fingerprint
    key = hashlib.md5("マトリックス:example.org:TheMatrIX".encode()).digest()
    assert m.verify(key)


def test_a03_chromium_check_with_a_vendor_attribute() -> None:
    m = stun.Message.read(VECTORS["chromium_check"])
    assert m.local_ufrag == b"e86e31"
    assert m.use_candidate
    assert m.ice_controlling
    assert m.fingerprint


@pytest.mark.parametrize("number", [0xC001, *range(0xC057, 0xC05E), 0xC060])
def test_a03_vendor_attributes_are_skipped(number: int) -> None:
    vendor = attribute(number, b"12345")
    assert stun.Message.read(message(vendor, attribute(6, b"a:b"), vendor)).username == b"a:b"


# --- what is refused


@pytest.mark.parametrize("name", sorted(VECTORS))
def test_a05_every_prefix(name: str) -> None:
    whole = VECTORS[name]
    assert {status_of(whole[:n]) for n in range(len(whole))} == {"SHORT"}
    assert status_of(whole) == "OK"


def test_a05_a_bare_header_has_no_name() -> None:
    m = stun.Message.read(bytes.fromhex("000100002112a442") + bytes(12))
    assert m.username is None
    assert m.local_ufrag == b""
    assert not m.verify(b"")


def test_a07_length_13_without_padding() -> None:
    raw = message(claimed=13, fingerprint=False) + bytes.fromhex("00060009") + b"evtj:h6vY"
    assert status_of(raw) == "LENGTH"


@pytest.mark.parametrize("extra", [1, 2, 3])
def test_a07_left_over_bytes(extra: int) -> None:
    good = VECTORS["rfc5769_request"]
    longer = (len(good) - 20 + extra).to_bytes(2, "big")
    assert status_of(good[:2] + longer + good[4:] + bytes(extra)) == "LENGTH"
    assert status_of(good + bytes(extra)) == "LENGTH"


def test_a11_no_magic_cookie() -> None:
    assert status_of(message(attribute(6, b"a:b"), cookie=0x12345678)) == "NOT_STUN"


@pytest.mark.parametrize("chars", [4, 32, 33, 64, 255, 256])
def test_a12_long_client_ufrags(chars: int) -> None:
    name = SERVER_UFRAG + b":" + b"x" * chars
    m = stun.Message.read(message(attribute(6, name), key=b"k"))
    assert m.username == name
    assert m.local_ufrag == SERVER_UFRAG


@pytest.mark.parametrize(
    ("size", "status"),
    [(0, "USERNAME"), (1, "OK"), (508, "OK"), (509, "USERNAME"), (600, "USERNAME")],
)
def test_a12_name_sizes(size: int, status: str) -> None:
    assert status_of(message(attribute(6, b"x" * size))) == status


def test_a16_odd_colons() -> None:
    assert local_ufrag_of(b"SRV") == b""
    assert local_ufrag_of(b":cli") == b""
    assert local_ufrag_of(b"SRV:") == b""
    assert local_ufrag_of(b"cli:SRV") == b"cli"
    assert local_ufrag_of(b"SRV:a:b") == b"SRV"
    assert local_ufrag_of(b" SRV:cli") == b" SRV"


def test_a21_wrong_fingerprint() -> None:
    good = VECTORS["rfc5769_request"]
    assert status_of(good[:-1] + bytes([good[-1] ^ 0xFF])) == "FINGERPRINT"


def test_an_absent_fingerprint_passes() -> None:
    assert not stun.Message.read(message(attribute(6, b"a:b"), fingerprint=False)).fingerprint


def test_a23_a_name_in_an_answer_is_no_check() -> None:
    m = stun.Message.read(message(attribute(6, SERVER_UFRAG + b":cli"), kind=0x0101, key=b"k"))
    assert m.local_ufrag == SERVER_UFRAG
    assert not m.is_binding_request


@pytest.mark.parametrize("kind", [0x0003, 0x0004, 0x0006, 0x0008, 0x0009, 0x0002, 0x0200])
def test_a24_other_methods_are_no_check(kind: int) -> None:
    assert not stun.Message.read(message(attribute(6, b"a:b"), kind=kind)).is_binding_request


@pytest.mark.parametrize("start", ["40000008", "4fff", "5000"])
def test_a24_channel_data_is_not_stun(start: str) -> None:
    raw = bytes.fromhex(start)
    assert status_of(raw + bytes(24 - len(raw))) == "NOT_STUN"


# --- verifying


def test_what_follows_message_integrity_is_not_covered_and_does_not_count() -> None:
    signed = message(attribute(6, b"a:b"), key=b"k", fingerprint=False)
    extra = attribute(0x0025, b"") + attribute(0x8022, b"x")
    raw = signed[:2] + (len(signed) - 20 + len(extra)).to_bytes(2, "big") + signed[4:] + extra
    m = stun.Message.read(raw)
    assert m.verify(b"k")
    assert not m.use_candidate


def test_a_message_without_integrity_never_verifies() -> None:
    assert not stun.Message.read(message(attribute(6, b"a:b"))).verify(b"")


def test_every_flipped_bit_before_the_mac_breaks_it() -> None:
    good = message(attribute(6, b"a:b"), attribute(0x24, bytes(4)), key=b"k", fingerprint=False)
    for bit in range(len(good) * 8):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        if status_of(bytes(flipped)) == "OK":
            assert not stun.Message.read(bytes(flipped)).verify(b"k")


# --- answering


def test_success_has_the_bytes_of_rfc5769_but_for_software() -> None:
    request = stun.Message.read(VECTORS["rfc5769_request"])
    answer = stun.success(request, Endpoint.of("192.0.2.1", 32853), PASSWORD)
    published = VECTORS["rfc5769_ipv4_response"]
    assert answer[20:32] == published[36:48]
    read = stun.Message.read(answer)
    assert read.stun_class == StunClass.SUCCESS
    assert read.transaction_id == request.transaction_id
    assert read.verify(PASSWORD)
    assert read.fingerprint


def test_success_over_ipv6() -> None:
    request = stun.Message.read(VECTORS["rfc5769_request"])
    source = Endpoint.of("2001:db8:1234:5678:11:2233:4455:6677", 32853)
    answer = stun.success(request, source, PASSWORD)
    assert answer[20:44] == VECTORS["rfc5769_ipv6_response"][36:60]


def test_encoding_a_published_message_again_gives_its_bytes() -> None:
    published = VECTORS["rfc5769_ipv6_response"]
    m = stun.Message.read(published)
    attributes = [(0x8022, b"test vector "), (0x0020, published[40:60])]
    again = stun.encode(m.stun_class, m.transaction_id, attributes, key=PASSWORD)
    assert len(again) == len(published)
    # RFC 5769 writes 11 for SOFTWARE's length and pads it with a space.
    assert again[:22] == published[:22]
    assert again[24:60] == published[24:60]


def test_role_conflict() -> None:
    request = stun.Message.read(VECTORS["rfc5769_request"])
    answer = stun.error(request, stun.ROLE_CONFLICT, "Role Conflict", PASSWORD)
    m = stun.Message.read(answer)
    assert m.stun_class == StunClass.ERROR
    assert m.transaction_id == request.transaction_id
    assert m.verify(PASSWORD)
    assert answer[20:28] == bytes.fromhex("0009001100000457")


def test_encode_writes_every_type_that_is_read() -> None:
    for stun_class in StunClass:
        for method in (0x001, 0x00F, 0x070, 0x080, 0xABC, 0xFFF):
            m = stun.Message.read(stun.encode(stun_class, bytes(12), [], method=method))
            assert (m.stun_class, m.method) == (stun_class, method)


# --- the reader over a buffer that is used again and again


def test_a_reader_reads_what_lies_in_its_buffer_now() -> None:
    buffer = bytearray(2048)
    reader = StunReader(buffer)
    for name in ("rfc5769_request", "chromium_check", "rfc5769_ipv4_response"):
        datagram = VECTORS[name]
        buffer[: len(datagram)] = datagram
        assert reader.read(len(datagram)) == StunStatus.OK
        assert reader.username == stun.Message.read(datagram).username
        assert reader.transaction_id == datagram[8:20]


def test_a_reader_without_a_message_has_nothing_to_say() -> None:
    reader = StunReader(bytearray(20))
    with pytest.raises(ValueError):
        _ = reader.username
    assert reader.read(20) == StunStatus.NOT_STUN
    with pytest.raises(ValueError):
        _ = reader.transaction_id


@pytest.mark.parametrize("size", [-1, 21, 2**62])
def test_a_reader_stays_inside_its_buffer(size: int) -> None:
    with pytest.raises(ValueError):
        StunReader(bytearray(20)).read(size)


def test_a_reader_holds_its_buffer() -> None:
    buffer = bytearray(64)
    reader = StunReader(buffer)
    with pytest.raises(BufferError):
        buffer.extend(b"x")
    del reader
    buffer.extend(b"x")
