"""The C reader against a slow one on made, broken and random messages; aioice is a third opinion."""

from __future__ import annotations

import zlib
from dataclasses import asdict
from ipaddress import IPv4Address, IPv6Address

from aioice import stun as aioice
from hypothesis import example, given
from hypothesis import strategies as st

from relay.wire import stun
from relay.wire._codec import StunClass, crc32
from relay.wire.address import Endpoint
from tests.support import stun as slow

TYPES = st.sampled_from(
    [0x0006, 0x0008, 0x001C, 0x0024, 0x0025, 0x8028, 0x8029, 0x802A, 0xC057, 0x0020]
)
SIZES = st.one_of(st.sampled_from([0, 4, 8, 20, 508, 509]), st.integers(0, 40))


@st.composite
def attributes(draw: st.DrawFn) -> bytes:
    value = bytes(draw(SIZES)) if draw(st.booleans()) else draw(st.binary(max_size=24))
    pad = draw(st.sampled_from([b"\0", b" ", b"\xff"]))
    claimed = draw(st.one_of(st.none(), st.none(), st.none(), st.integers(0, 0xFFFF)))
    return slow.attribute(draw(TYPES), value, pad=pad, claimed=claimed)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Mostly well-formed, with a lie here and there."""
    made = slow.message(
        *draw(st.lists(attributes(), max_size=6)),
        kind=draw(st.one_of(st.just(1), st.integers(0, 0xFFFF))),
        cookie=draw(st.one_of(st.just(slow.COOKIE), st.integers(0, 0xFFFFFFFF))),
        transaction_id=draw(st.binary(min_size=12, max_size=12)),
        claimed=draw(st.one_of(st.none(), st.none(), st.integers(0, 0xFFFF))),
        key=draw(st.sampled_from([None, b"key"])),
        fingerprint=draw(st.booleans()),
    )
    cut = draw(st.one_of(st.just(len(made)), st.integers(0, len(made))))
    return made[:cut] + draw(st.sampled_from([b"", b"", b"", b"\0", b"\0" * 4]))


def read(datagram: bytes) -> slow.Slow:
    """What relay.wire reads, in the slow reader's terms."""
    try:
        m = stun.Message.read(datagram)
    except stun.StunError as error:
        return slow.Slow(error.status.name.lower())
    return slow.Slow(**{name: getattr(m, name) for name in asdict(slow.Slow()) if name != "status"})


@given(messages())
def test_made_messages(datagram: bytes) -> None:
    assert read(datagram) == slow.read_slowly(datagram)


@given(st.binary(max_size=200))
def test_random_bytes(datagram: bytes) -> None:
    assert read(datagram) == slow.read_slowly(datagram)


@given(st.sampled_from(sorted(slow.vectors())), st.integers(0, 116 * 8), st.integers(0, 116))
def test_a_flipped_bit_or_a_cut_in_a_published_message(name: str, bit: int, cut: int) -> None:
    flipped = bytearray(slow.vectors()[name])
    flipped[bit // 8 % len(flipped)] ^= 1 << bit % 8
    assert read(bytes(flipped)) == slow.read_slowly(bytes(flipped))
    assert read(bytes(flipped[:cut])) == slow.read_slowly(bytes(flipped[:cut]))


@given(st.binary(max_size=300))
def test_crc32_is_zlibs(data: bytes) -> None:
    assert crc32(data) == zlib.crc32(data)


@given(
    name=st.text(min_size=1, max_size=100),
    priority=st.integers(0, 0xFFFFFFFF),
    tie_breaker=st.integers(0, 2**64 - 1),
    nominate=st.booleans(),
    key=st.binary(min_size=1, max_size=40),
)
def test_aioice_builds_a_check(
    name: str, priority: int, tie_breaker: int, nominate: bool, key: bytes
) -> None:
    check = aioice.Message(aioice.Method.BINDING, aioice.Class.REQUEST)
    check.attributes["USERNAME"] = name
    check.attributes["PRIORITY"] = priority
    check.attributes["ICE-CONTROLLING"] = tie_breaker
    if nominate:
        check.attributes["USE-CANDIDATE"] = None
    check.add_message_integrity(key)
    m = stun.Message.read(bytes(check))
    assert m.is_binding_request
    assert m.transaction_id == check.transaction_id
    assert m.username == name.encode()
    assert (m.priority, m.tie_breaker, m.use_candidate) == (priority, tie_breaker, nominate)
    assert m.ice_controlling
    assert m.fingerprint
    assert m.verify(key)
    assert not m.verify(key + b"x")


@given(
    ip=st.ip_addresses(),
    port=st.integers(0, 0xFFFF),
    transaction_id=st.binary(min_size=12, max_size=12),
    key=st.binary(min_size=1, max_size=40),
)
@example(ip=Endpoint.of("0.0.0.0", 0).ip, port=0x2112, transaction_id=bytes(12), key=b"k")
def test_aioice_reads_our_answers(
    ip: IPv4Address | IPv6Address, port: int, transaction_id: bytes, key: bytes
) -> None:
    request = stun.Message.read(
        stun.encode(StunClass.REQUEST, transaction_id, [(stun.USERNAME, b"a:b")], key=key)
    )
    success = aioice.parse_message(stun.success(request, Endpoint(ip, port), key))
    assert success.check_message_integrity(key)
    assert success.message_class == aioice.Class.RESPONSE
    assert success.transaction_id == transaction_id
    assert success.attributes["XOR-MAPPED-ADDRESS"] == (str(ip), port)
    assert "FINGERPRINT" in success.attributes

    conflict = aioice.parse_message(stun.error(request, 487, "Role Conflict", key))
    assert conflict.check_message_integrity(key)
    assert conflict.message_class == aioice.Class.ERROR
    assert conflict.attributes["ERROR-CODE"] == (487, "Role Conflict")
