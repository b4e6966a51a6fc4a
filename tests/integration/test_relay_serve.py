"""`relay serve` from outside: real processes, a client on one side, a sink for a transceiver on the other."""

from __future__ import annotations

import os
import struct
import sys
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from relay.wire._codec import StunClass
from relay.wire.stun import USERNAME, encode
from relay.wire.token import TokenCodec, TransceiverAddress
from tests.support import deny
from tests.support.process import Processes
from tests.support.relayed import (
    CLUSTER,
    HAS_IPV6,
    PASSWORD,
    RTP,
    Client,
    Relay,
    Transceiver,
    binding_request,
)

needs_ipv6 = pytest.mark.skipif(not HAS_IPV6, reason="this host has no IPv6 loopback")
can_deny = pytest.mark.skipif(deny.why_not() is not None, reason=str(deny.why_not()))

V1 = bytes.fromhex(
    "000100582112a442b7e7a701bc34d686fa87dfae802200105354554e207465737420636c69656e740024"
    "00046e0001ff80290008932ff9b151263b36000600096576746a3a68367659202020000800149aeaa70c"
    "bfd8cb56781ef2b5b2d3f249c1b571a280280004e57a3bcf"
)
"""RFC 5769 2.1: a check for the ufrag `evtj`."""


@pytest.fixture(scope="module")
def relay(module_processes: Processes, tmp_path_factory: pytest.TempPathFactory) -> Relay:
    return Relay(module_processes, tmp_path_factory.mktemp("relay"))


# --- a call ---------------------------------------------------------------------------------------


def test_a_check_goes_up_its_success_down_then_media_both_ways(
    relay: Relay, client: Client, transceiver: Transceiver
) -> None:
    public = relay.public[0]
    ufrag = transceiver.ufrag(relay.keyring)
    with relay.changed({"rx public": 1, "tx internal": 1, "created": 1}):
        check = client.check(ufrag, public)
        key, payload, sender = transceiver.receive()
    assert payload == check
    assert (key.client, (str(key.proxy.ip), key.proxy.port)) == (client.address, public)
    assert sender in relay.internal
    with relay.changed({"rx public": 1, "drop half_open": 1}):
        client.send(RTP, public)
    with relay.changed({"rx internal": 1, "drop half_open": 1}):
        transceiver.send(key, RTP, sender)
    with relay.changed(
        {"rx public": 2, "tx internal": 2, "rx internal": 2, "tx public": 2, "promoted": 1}
    ):
        client.establish(ufrag, public, transceiver)
        client.send(RTP, public)
        assert transceiver.receive() == (key, RTP, sender)
        transceiver.send(key, RTP[::-1], sender)
        assert client.receive() == (RTP[::-1], public)
    assert relay.metrics()['relay_flows{state="established"}'] >= 1


def test_an_error_response_passes_and_establishes_nothing(
    relay: Relay, client: Client, transceiver: Transceiver
) -> None:
    with relay.changed(
        {"rx public": 1, "tx internal": 1, "rx internal": 1, "tx public": 1, "created": 1}
    ):
        client.check(transceiver.ufrag(relay.keyring), relay.public[0])
        transceiver.refuse()
        client.receive()


def test_an_ice_restart_from_the_same_port_reaches_the_new_transceiver(
    relay: Relay, client: Client, transceiver: Transceiver
) -> None:
    """Case B03: the new token decides, and both owners get what carries none."""
    public = relay.public[0]
    client.establish(transceiver.ufrag(relay.keyring), public, transceiver)
    with Transceiver() as other:
        client.establish(other.ufrag(relay.keyring), public, other)
        client.send(RTP, public)
        assert transceiver.receive()[1] == other.receive()[1] == RTP


# --- what is dropped (cases.md a), each with the exact counter ------------------------------------


def attribute(number: int, value: bytes) -> bytes:
    return struct.pack("!HH", number, len(value)) + value + bytes(-len(value) % 4)


def named(username: bytes) -> bytes:
    return encode(StunClass.REQUEST, os.urandom(12), [(USERNAME, username)], key=PASSWORD)


GARBAGE = [
    ("A01 a ufrag of somebody else", V1, "token_malformed"),
    ("A05 no attributes", bytes.fromhex("000100002112a442") + bytes(12), "no_flow"),
    ("A05 nineteen bytes", V1[:19], "stun_malformed"),
    ("A05 one byte", V1[:1], "stun_malformed"),
    ("A05 cut in USERNAME", V1[:74], "stun_malformed"),
    ("A07 length not a multiple of 4", V1[:2] + b"\0\x0d" + V1[4:33], "stun_malformed"),
    ("A07 one byte more", V1[:3] + b"\x59" + V1[4:] + b"\0", "stun_malformed"),
    ("A11 no magic cookie", V1[:4] + b"\x12\x34\x56\x78" + V1[8:], "stun_malformed"),
    ("A12 USERNAME of 509 bytes", named(b"a" * 28 + b":" + b"b" * 480), "stun_username"),
    ("A12 USERNAME of 600 bytes", named(b"a" * 28 + b":" + b"b" * 571), "stun_username"),
    ("A12 USERNAME of 0 bytes", named(b""), "stun_username"),
    ("A16 no colon", named(b"a" * 28), "stun_username"),
    ("A16 nothing before the colon", named(b":" + b"a" * 28), "stun_username"),
    ("A16 reversed", named(b"cLnt:" + b"a" * 28), "token_malformed"),
    ("A16 leading space", named(b" " + b"a" * 28 + b":cLnt"), "token_malformed"),
    ("A21 wrong FINGERPRINT", V1[:-1] + b"\0", "stun_fingerprint"),
    ("A23 an answer of a stranger", b"\x01\x01" + V1[2:-8], "stun_malformed"),
    ("A24 TURN Allocate", encode(StunClass.REQUEST, bytes(12), [], method=3), "stun_method"),
    ("A24 TURN channel data", bytes.fromhex("40000008") + bytes(8), "protocol"),
    ("A29 a datagram of 9,000 bytes", b"\x80" + bytes(8999), "truncated"),
    ("A31 an empty datagram", b"", "empty"),
    ("A31 DNS", bytes.fromhex("123401000001000000000000"), "protocol"),
    ("A31 QUIC", b"\xc0\0\0\0\1" + bytes(1195), "protocol"),
    ("a token under no key", named(b"I" + b"A" * 27 + b":cLnt"), "token_unknown_key"),
    ("a token without a hint", named(b"4" + b"A" * 27 + b":cLnt"), "token_no_hint"),
    ("RTP of a stranger", RTP, "no_flow"),
    ("DTLS of a stranger", b"\x16\xfe\xfd" + bytes(60), "no_flow"),
]


@pytest.mark.parametrize(
    ("datagram", "reason"), [case[1:] for case in GARBAGE], ids=[case[0] for case in GARBAGE]
)
def test_garbage_costs_one_counter_and_gets_no_answer(
    relay: Relay, client: Client, datagram: bytes, reason: str
) -> None:
    with relay.changed({"rx public": 1, f"drop {reason}": 1}):
        client.send(datagram, relay.public[0])
    assert client.hears_nothing(0.02)


def test_a25_first_byte_edges_of_a_known_flow(
    relay: Relay, client: Client, transceiver: Transceiver
) -> None:
    public = relay.public[0]
    client.establish(transceiver.ufrag(relay.keyring), public, transceiver)
    passing = [20, 63, 128, 191]
    failing = [4, 15, 16, 19, 64, 79, 80, 127, 192, 255]
    expected = {"rx public": 16, "drop protocol": 10, "drop stun_malformed": 2, "tx internal": 4}
    with relay.changed(expected):
        for first in [2, 3, *passing, *failing]:
            client.send(bytes([first]) + bytes(49), public)
        heard = [transceiver.receive()[1][0] for _ in passing]
    assert heard == passing


def test_tokens_that_may_not_pass(relay: Relay, client: Client, transceiver: Transceiver) -> None:
    public = relay.public[0]
    outside = TokenCodec(relay.keyring).seal(
        TransceiverAddress(CLUSTER, ip_address("192.0.2.1"), 40000)
    )
    cases = [
        (outside, "transceiver_not_allowed"),
        (transceiver.ufrag(relay.keyring, cluster=CLUSTER + 1), "cluster_unknown"),
    ]
    forged = transceiver.ufrag(relay.keyring)
    forged = forged[:8] + ("A" if forged[8] != "A" else "B") + forged[9:]
    cases.append((forged, "token_forged"))
    for ufrag, reason in cases:
        with relay.changed({"rx public": 1, f"drop {reason}": 1}):
            client.check(ufrag, public)
    assert client.hears_nothing(0.02)


def test_a12_a_client_ufrag_of_256_characters_passes(
    relay: Relay, client: Client, transceiver: Transceiver
) -> None:
    name = f"{transceiver.ufrag(relay.keyring)}:{'c' * 256}".encode()
    client.send(binding_request(name), relay.public[0])
    assert transceiver.receive()[1][20:].find(name) == 4


def test_what_no_owner_sent_stays_inside(
    relay: Relay, client: Client, transceiver: Transceiver
) -> None:
    """Rule 6: magic, length, sender and flow; the relay is no reflector."""
    public = relay.public[0]
    key = client.establish(transceiver.ufrag(relay.keyring), public, transceiver)
    client.send(RTP, public)
    internal = transceiver.receive()[2]
    with Transceiver() as stranger, Client() as victim:
        unknown = type(key)(victim.address, key.proxy)
        for datagram, reason in [
            (key + RTP, "sender_not_owner"),
            (key[:30], "spp_malformed"),
            (b"\x57" + key[1:] + RTP, "spp_malformed"),
        ]:
            with relay.changed({"rx internal": 1, f"drop {reason}": 1}):
                stranger.socket.sendto(datagram, internal)
        with relay.changed({"rx internal": 1, "drop no_flow": 1}):
            transceiver.send(unknown, RTP, internal)
        assert victim.hears_nothing(0.02)
    assert client.hears_nothing(0.02)


# --- addresses ------------------------------------------------------------------------------------


def test_a_wildcard_answers_from_the_address_that_was_asked(
    processes: Processes, tmp_path: Path, transceiver: Transceiver
) -> None:
    relay = Relay(processes, tmp_path, listen=("0.0.0.0:0",))
    port = relay.public[0][1]
    ufrag = transceiver.ufrag(relay.keyring)
    for host in ("127.0.0.1", "127.0.0.2", "127.8.9.10"):
        with Client() as client:
            key = client.establish(ufrag, (host, port), transceiver)
            assert (str(key.proxy.ip), key.proxy.port) == (host, port)


def test_the_advertised_address_is_the_proxy(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    relay = Relay(processes, tmp_path, listen=("127.0.0.1:0=203.0.113.7:443",))
    key = client.establish(transceiver.ufrag(relay.keyring), relay.public[0], transceiver)
    assert (str(key.proxy.ip), key.proxy.port) == ("203.0.113.7", 443)
    assert relay.process.events("listening", role="public")[0]["public"] == "203.0.113.7:443"


@needs_ipv6
def test_both_families_and_a_transceiver_on_ipv6(processes: Processes, tmp_path: Path) -> None:
    relay = Relay(
        processes,
        tmp_path,
        *("--ipv6-prefix", "3=::/64"),
        listen=("127.0.0.1:0", "[::1]:0"),
        internal="[::]:0",
    )
    prefixes = {3: ip_network("::/64")}
    for client_host, relay_address in zip(("127.0.0.1", "::1"), relay.public, strict=True):
        for transceiver_host in ("127.0.0.1", "::1"):
            with Client(client_host) as client, Transceiver(transceiver_host) as transceiver:
                ufrag = transceiver.ufrag(relay.keyring, prefixes=prefixes)
                key = client.establish(ufrag, relay_address, transceiver)
                assert key.client == client.address


@can_deny
def test_e18_a_host_without_ipv6_serves_ipv4(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    prefix = (sys.executable, "-m", "tests.support.deny", "socket=10:EAFNOSUPPORT", "--")
    relay = Relay(processes, tmp_path, listen=("*:0",), prefix=prefix)
    assert len(relay.public) == 1
    assert relay.process.events("address_family_absent", level="warning")
    public = ("127.0.0.1", relay.public[0][1])
    client.establish(transceiver.ufrag(relay.keyring), public, transceiver)
