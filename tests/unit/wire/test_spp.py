"""relay.wire.spp and address: the bytes between relay and transceiver."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.wire.address import Endpoint, pack_ip, unpack_ip
from relay.wire.spp import HEADER_BYTES, FlowKey, unwrap, wrap

CLIENT = Endpoint.of("192.0.2.1", 0x1234)
PROXY = Endpoint.of("2001:db8::2", 3478)
HEADER = bytes.fromhex(
    "56ec00000000000000000000ffffc000020120010db800000000000000000000000212340d96"
)

endpoints = st.builds(Endpoint.of, st.ip_addresses().map(str), st.integers(0, 0xFFFF))


def test_the_documented_header() -> None:
    assert wrap(FlowKey(CLIENT, PROXY), b"payload") == HEADER + b"payload"


def test_a_header_says_what_was_written() -> None:
    unwrapped = unwrap(HEADER + b"payload")
    assert unwrapped is not None
    key, payload = unwrapped
    assert payload == b"payload"
    assert (key.client, key.proxy) == (CLIENT, PROXY)
    assert key == FlowKey(CLIENT, PROXY)
    assert repr(key) == str(key) == "FlowKey(client=192.0.2.1:4660, proxy=[2001:db8::2]:3478)"


def test_packed_is_the_order_of_tables_and_redis() -> None:
    packed = FlowKey(CLIENT, PROXY).packed
    assert packed.hex() == (
        "00000000000000000000ffffc0000201123420010db80000000000000000000000020d96"
    )


@given(client=endpoints, proxy=endpoints, payload=st.binary(max_size=100))
def test_roundtrip(client: Endpoint, proxy: Endpoint, payload: bytes) -> None:
    key = FlowKey(client, proxy)
    assert len(key) == HEADER_BYTES
    assert unwrap(wrap(key, payload)) == (key, payload)
    assert (key.client, key.proxy) == (client, proxy)
    assert {key: 1}[FlowKey(client, proxy)] == 1


@pytest.mark.parametrize("size", range(HEADER_BYTES))
def test_a_short_datagram_is_none(size: int) -> None:
    assert unwrap(HEADER[:size]) is None


def test_an_empty_payload_is_a_payload() -> None:
    assert unwrap(HEADER) == (FlowKey(CLIENT, PROXY), b"")


@pytest.mark.parametrize("magic", [b"\x56\xed", b"\xec\x56", b"\x00\x01", b"\x80\x6f"])
def test_another_magic_is_none(magic: bytes) -> None:
    assert unwrap(magic + HEADER[2:]) is None


def test_addresses() -> None:
    assert unpack_ip(pack_ip(IPv4Address("1.2.3.4"))) == IPv4Address("1.2.3.4")
    assert unpack_ip(pack_ip(IPv6Address("::1"))) == IPv6Address("::1")
    assert Endpoint.of("::ffff:1.2.3.4", 5) == Endpoint(IPv4Address("1.2.3.4"), 5)
    assert Endpoint.of("fe80::1%eth0", 5).ip == IPv6Address("fe80::1")
    assert str(Endpoint.of("::1", 5)) == "[::1]:5"
    with pytest.raises(ValueError):
        unpack_ip(bytes(15))
    with pytest.raises(OverflowError):
        FlowKey(Endpoint.of("::1", 65536), PROXY)
