"""relay.wire.token: what a ufrag says, and what it refuses to say."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

import pytest

from relay.wire._codec import StunReader, TokenCipher, TokenStatus
from relay.wire.keyring import Keyring, generate_line
from relay.wire.token import RoutingToken, TokenCodec, TokenError, TransceiverAddress
from tests.support.stun import attribute, message

RING = Keyring.parse(generate_line(2))
HERE = TransceiverAddress(7, IPv4Address("192.0.2.10"), 40000)
PREFIXES = {3: IPv6Network("2001:db8:0:1::/64"), 15: IPv6Network("2001:db8:0:2::/64")}


def status_of(codec: TokenCodec, ufrag: str | bytes) -> str:
    with pytest.raises(TokenError) as caught:
        codec.open(ufrag)
    assert caught.value.value == ufrag
    return caught.value.status


def test_an_ipv4_address_comes_back() -> None:
    codec = TokenCodec(RING)
    ufrag = codec.seal(HERE)
    assert codec.open(ufrag) == RoutingToken(2, 4, 7, HERE.address, 40000, 0)
    assert codec.open(ufrag.encode()) == codec.open(ufrag)


@pytest.mark.parametrize(("text", "index"), [("2001:db8:0:1::5", 3), ("2001:db8:0:2:ff::", 15)])
def test_an_ipv6_address_comes_back_with_its_index(text: str, index: int) -> None:
    codec = TokenCodec(RING, PREFIXES)
    where = TransceiverAddress(65535, ip_address(text), 1)
    assert codec.open(codec.seal(where)) == RoutingToken(2, 6, 65535, IPv6Address(text), 1, index)


def test_a_mapped_address_is_the_ipv4_address() -> None:
    codec = TokenCodec(RING)
    where = TransceiverAddress(0, IPv6Address("::ffff:192.0.2.1"), 9)
    assert codec.open(codec.seal(where)).address == IPv4Address("192.0.2.1")


def test_another_cluster_opens_ipv6_without_an_address() -> None:
    ufrag = TokenCodec(RING, PREFIXES).seal(
        TransceiverAddress(1, IPv6Address("2001:db8:0:1::5"), 9)
    )
    token = TokenCodec(RING).open(ufrag)
    assert token.address is None
    assert (token.cluster_id, token.port, token.prefix_index) == (1, 9, 3)


def test_what_does_not_fit_is_not_sealed() -> None:
    codec = TokenCodec(RING, PREFIXES)
    outside = IPv6Address("2001:db8:0:3::1")
    with pytest.raises(TokenError, match="no_prefix") as caught:
        codec.seal(TransceiverAddress(1, outside, 9))
    assert caught.value.value == outside
    with pytest.raises(TokenError, match="kind"):
        codec.seal(TransceiverAddress(1, HERE.address, 0))
    with pytest.raises(OverflowError):
        codec.seal(TransceiverAddress(65536, HERE.address, 9))
    with pytest.raises(OverflowError):
        codec.seal(TransceiverAddress(1, HERE.address, 65536))


@pytest.mark.parametrize(
    "prefixes",
    [{16: PREFIXES[3]}, {-1: PREFIXES[3]}, {0: IPv6Network("2001:db8::/48")}],
)
def test_prefixes_are_64s_with_a_small_index(prefixes: dict[int, IPv6Network]) -> None:
    with pytest.raises(ValueError):
        TokenCodec(RING, prefixes)


def test_every_reason_has_its_name() -> None:
    codec = TokenCodec(RING)
    ufrag = codec.seal(HERE)
    assert status_of(codec, "") == "length"
    assert status_of(codec, ufrag + "A") == "length"
    assert status_of(codec, ufrag[:27]) == "length"
    assert status_of(codec, "é" * 28) == "alphabet"
    assert status_of(codec, "7" + ufrag[1:]) == "no_hint"
    assert status_of(codec, "C" + ufrag[1:]) == "format"
    assert status_of(codec, "A" + ufrag[1:]) == "unknown_key"
    assert status_of(codec, ufrag[:-1] + ("A" if ufrag[-1] != "A" else "B")) == "forged"


def test_a14_a_hundred_thousand_ufrags_are_ice_chars_open_and_differ() -> None:
    codec = TokenCodec(RING, PREFIXES)
    places = [HERE, TransceiverAddress(9, IPv6Address("2001:db8:0:1::5"), 4000)]
    ice_chars = re.compile(r"[A-Za-z0-9+/]{28}", re.ASCII)
    seen = set()
    for number in range(100_000):
        where = places[number % 2]
        ufrag = codec.seal(where)
        assert ice_chars.fullmatch(ufrag)
        assert codec.open(ufrag).address == where.address
        seen.add(ufrag)
    # 24 random bits of nonce and 3 of byte 0 for IPv6: a few dozen pairs may meet, not more.
    assert len(seen) > 99_900


def test_rotation_opens_old_tokens_and_seals_with_the_first_line() -> None:
    old, new = generate_line(0), generate_line(1)
    before = TokenCodec(Keyring.parse(old))
    during = TokenCodec(Keyring.parse(f"{new}\n{old}"))
    after = TokenCodec(Keyring.parse(new))
    ufrag = before.seal(HERE)
    assert during.open(ufrag).key_id == 0
    assert during.open(during.seal(HERE)).key_id == 1
    assert status_of(after, ufrag) == "unknown_key"


def test_the_token_of_a_check_opens_in_place() -> None:
    codec = TokenCodec(RING)
    cipher = TokenCipher()
    cipher.add(2, RING.keys[0].secret)
    buffer = bytearray(2048)
    reader = StunReader(buffer)
    for name, expected in [
        (codec.seal(HERE).encode() + b":abcd", (2, 4, 0, 7, 40000, HERE.address.packed)),
        (b"evtj:abcd", TokenStatus.LENGTH),
        (codec.seal(HERE).encode(), TokenStatus.LENGTH),
    ]:
        check = message(attribute(6, name))
        buffer[: len(check)] = check
        assert not reader.read(len(check))
        assert cipher.open_check(reader) == expected


def test_a_cipher_refuses_wrong_keys_and_numbers() -> None:
    cipher = TokenCipher()
    with pytest.raises(ValueError):
        cipher.add(7, bytes(32))
    with pytest.raises(ValueError):
        cipher.add(0, bytes(31))
    with pytest.raises(OverflowError):
        cipher.add(-1, bytes(32))
    assert cipher.open(b"A" * 28) == TokenStatus.UNKNOWN_KEY
    assert cipher.seal(4, 0, 0, 1, bytes(4), bytes(8)) == TokenStatus.NO_KEY
    with pytest.raises(ValueError):
        cipher.seal(4, 0, 0, 1, bytes(8), bytes(8))
    with pytest.raises(ValueError):
        cipher.seal(6, 0, 0, 1, bytes(4), bytes(8))
    with pytest.raises(ValueError):
        cipher.seal(4, 0, 0, 1, bytes(4), bytes(7))
