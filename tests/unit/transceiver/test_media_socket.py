"""The rules of the transceiver's socket on a real one: what counts, where replies leave, each drop by name.

The rules by themselves are tests/c/test_ice*.c's business; here are those that need the engine.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from relay.wire import stun
from relay.wire.address import Endpoint
from relay.wire.spp import FlowKey, wrap
from tests.support.media_bench import RATE, Bench, Client, check, received, relay_socket, until
from tests.support.relayed import HAS_IPV6
from tests.support.rtp import is_rtcp
from transceiver.media import ANSWERED
from transceiver.metrics import DROP_REASONS
from transceiver.sockets import BUFFER_BYTES, open_media

FLOW = FlowKey(Endpoint.of("203.0.113.7", 5_000), Endpoint.of("192.0.2.1", 3_478))
DTLS, SRTP = bytes([22]) * 30, bytes([0x80]) * 30


@pytest.fixture
def other_relay() -> Iterator[socket.socket]:
    with relay_socket() as opened:
        yield opened


# What counts


@pytest.mark.parametrize(
    ("datagram", "reason"),
    [
        (check("nobody"), "not_wrapped"),
        (DTLS, "not_wrapped"),
        (b"", "not_wrapped"),
        (bytes(FLOW)[:-1], "not_wrapped"),
        (bytes(FLOW), "empty"),
        (wrap(FLOW, b"\x00"), "malformed"),
        (wrap(FLOW, check("nobody")), "unknown_ufrag"),
        (wrap(FLOW, b"\x56\xec" + bytes(60)), "unknown_protocol"),
        (wrap(FLOW, DTLS), "no_member"),
        (wrap(FLOW, SRTP), "no_member"),
    ],
    ids=range(10),
)
async def test_each_drop_has_its_name(
    bench: Bench, other_relay: socket.socket, datagram: bytes, reason: str
) -> None:
    bench.open()
    assert await bench.outcome(datagram, over=other_relay) == Counter({reason: 1})
    assert received(other_relay) == []


async def test_each_check_has_its_name(bench: Bench, other_relay: socket.socket) -> None:
    _, _, ufrag = bench.open()
    good = check(ufrag)
    elsewhere = [
        FlowKey(Endpoint.of("203.0.113.8", port), Endpoint.of("192.0.2.1", 3_478))
        for port in range(1, 17)
    ]
    for datagram, key, reason in (
        (good, FLOW, "ok"),
        (good, FLOW, "ok"),
        (good, elsewhere[0], "replayed_check"),
        (check(ufrag, pwd="x" * 24), FLOW, "wrong_integrity"),
        *((check(ufrag), key, "ok") for key in elsewhere[:15]),
        (check(ufrag), elsewhere[15], "flow_key_limit"),
    ):
        counted = await bench.outcome(wrap(key, datagram), over=other_relay)
        assert counted == Counter({reason: 1})
        assert len(received(other_relay)) == (reason == "ok")


async def test_every_outcome_but_success_has_a_label_in_the_metrics(bench: Bench) -> None:
    counts = bench.engine.counts()
    names = {*counts["drops"], *counts["checks"]} - ANSWERED
    ours = {"send_failed", "receive_failed", "handler_failed", "other"}
    assert names | ours == set(DROP_REASONS)


async def test_a25_every_first_byte_is_sorted(bench: Bench) -> None:
    client = bench.client()
    await bench.connected(client)
    for first in range(256):
        expected = "unknown_protocol"
        if first <= 3:
            expected = "malformed"
        elif 20 <= first <= 63:
            expected = "dtls_in"
        elif 128 <= first <= 191:
            expected = "not_authentic"
        datagram = wrap(client.key, bytes([first]) + bytes(49))
        assert await bench.outcome(datagram, over=client.socket) == Counter({expected: 1}), first
    assert len(client.receive()) <= 20, "reports"


async def test_wrapped_datagrams_of_others_than_relays_are_dropped() -> None:
    bench = Bench(relays="127.0.0.2/32")
    _, _, ufrag = bench.open()
    with relay_socket() as foreign, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as relay:
        relay.bind(("127.0.0.2", 0))
        relay.setblocking(False)
        datagram = wrap(FLOW, check(ufrag))
        assert await bench.outcome(datagram, over=foreign) == Counter(foreign_relay=1)
        assert await bench.outcome(datagram, over=relay) == Counter(ok=1)
        assert (len(received(foreign)), len(received(relay))) == (0, 1)
    bench.close()


async def test_bare_clients_are_served_when_direct() -> None:
    bench = Bench(direct=True)
    session, handler, ufrag = bench.open()
    with relay_socket() as client:
        assert await bench.outcome(check(ufrag), over=client) == Counter(ok=1)
        [reply] = received(client)
        assert stun.Message.read(reply).stun_class == 2
        handler.authentic = True
        assert await bench.outcome(DTLS, over=client) == Counter(dtls_in=1)
        await until(lambda: handler.dtls == [DTLS])
        assert session.send(b"\x16reply")
        await until(lambda: b"\x16reply" in received(client))
        here, there = client.getsockname(), bench.socket.getsockname()
        assert session.path() == FlowKey(Endpoint.of(*here), Endpoint.of(*there))
    bench.close()


@pytest.mark.parametrize("size", [1_473, 1_501, 2_047, 2_049, 9_000, 65_000])
async def test_a29_a_datagram_of_any_size_is_whole_or_nothing(bench: Bench, size: int) -> None:
    client = bench.client()
    _, handler = await bench.connected(client)
    dtls = b"\x16" * size
    assert await bench.outcome(wrap(client.key, dtls), over=client.socket) == Counter(dtls_in=1)
    await until(lambda: handler.dtls == [dtls])
    expected = "not_authentic" if size <= 2_048 else "too_big"
    srtp = wrap(client.key, b"\x80" * size)
    assert await bench.outcome(srtp, over=client.socket) == Counter({expected: 1})


# Who gets what


async def test_two_calls_on_one_flow_key_hear_their_own_media_and_all_dtls(bench: Bench) -> None:
    one, two = bench.client(), bench.client()
    two.key = one.key
    first, first_handler = await bench.connected(one, echo=True)
    second, second_handler = await bench.connected(two, echo=True, ssrc=100)
    for _ in range(5):
        one.rtp(b"one")
        two.rtp(b"two")
    await until(lambda: second.stats()["packets_in"] == 5)
    await until(lambda: first.stats()["packets_in"] == 5)
    await bench.came_round()
    assert {packet[12:] for packet in one.opened()} == {b"one"}
    assert {packet[12:] for packet in two.opened()} == {b"two"}
    assert await bench.outcome(wrap(one.key, DTLS), over=one.socket) == Counter(dtls_in=2)
    await until(lambda: first_handler.dtls == second_handler.dtls == [DTLS])
    assert (first.path(), second.path()) == (one.key, one.key)


async def test_a_fault_of_ours_costs_its_event_only(bench: Bench) -> None:
    client = bench.client()
    _, handler = await bench.connected(client)
    taken: list[bytes] = []

    def stumble(datagram: bytes, _on_authentic: Callable[[], None], _now_s: float) -> None:
        taken.append(datagram)
        if len(taken) == 1:
            raise RuntimeError("a bug")

    handler.on_dtls = stumble  # type: ignore[assignment,method-assign]
    client.send(b"\x16first")
    client.send(b"\x16second")
    await until(lambda: len(taken) == 2)
    assert bench.engine.take_drops()["handler_failed"] == 1
    assert bench.engine.take_drops()["handler_failed"] == 0


# Where packets leave


async def test_b16_a_handshake_is_answered_where_the_client_speaks_from(bench: Bench) -> None:
    client = bench.client()
    session, handler, ufrag = bench.open()
    handler.authentic = True
    client.check(ufrag)
    await until(lambda: handler.checks == 1)
    speaks_from = FlowKey(Endpoint.of("203.0.113.9", 6_000), Endpoint.of("192.0.2.1", 3_478))
    client.send(check(ufrag), speaks_from)
    await until(lambda: handler.checks == 2)
    await bench.came_round()
    received(client.socket)
    client.send(b"\x16hello", speaks_from)
    await until(lambda: handler.dtls)
    assert session.send(b"\x16reply")
    await until(lambda: bench.engine.counts()["dtls_out"] == 1)
    await bench.came_round()
    assert received(client.socket) == [wrap(speaks_from, b"\x16reply")]


async def test_a_reply_goes_back_and_everything_else_to_where_the_last_packet_came_from(
    bench: Bench, other_relay: socket.socket
) -> None:
    """An ECMP move heals with the first authenticated packet, and with no other."""
    client = bench.client()
    session, _, ufrag = bench.open(echo=True)
    client.check(ufrag)
    await until(lambda: bench.engine.counts()["checks"]["ok"] == 1)
    await bench.came_round()
    session.set_keys(client.server_keys)
    assert len(client.receive()) == 1
    client.send(b"\x80" * 50, over=other_relay)
    client.send(check(ufrag, pwd="x" * 24), over=other_relay)
    client.rtp(b"here")
    await until(lambda: session.stats()["packets_in"] == 1)
    await bench.came_round()
    assert (len(_media(client, client.socket)), received(other_relay)) == (1, [])
    client.send(client.protected(b"there"), over=other_relay)
    await until(lambda: session.stats()["packets_in"] == 2)
    await until(lambda: _media(client, other_relay))
    assert session.send(b"\x16there")
    await until(lambda: b"\x16there" in client.receive(other_relay))
    client.check(ufrag)
    await until(lambda: client.receive())
    assert session.send(b"\x16here")
    await until(lambda: b"\x16here" in client.receive())


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_a_wildcard_socket_replies_from_the_address_that_was_asked(host: str) -> None:
    bench = Bench(host)
    session, _, ufrag = bench.open()
    port = bench.socket.getsockname()[1]
    with relay_socket() as relay:
        for asked in ("127.0.0.1", "127.0.0.5"):
            datagram = wrap(FLOW, check(ufrag))
            assert await bench.outcome(datagram, over=relay, host=asked) == Counter(ok=1)
            assert relay.recvfrom(2_048)[1] == (asked, port)
            assert session.send(b"\x16x")
            await until(lambda: bench.engine.counts()["dtls_out"])
            await bench.came_round()
            assert relay.recvfrom(2_048)[1] == (asked, port)
    bench.close()


# What is not sent


@pytest.mark.parametrize("echo", [True, False])
async def test_a_client_that_only_sends_gets_reports_and_no_sound(bench: Bench, echo: bool) -> None:
    client = bench.client()
    session, _ = await bench.connected(client, echo=echo, sends=False, start_ms=0)
    session.write(1, bytes(RATE))
    for _ in range(10):
        client.rtp(b"\x20" * 160)
    await until(lambda: session.stats()["packets_in"] == 10)
    if not echo:
        await until(lambda: session.played_ms(1) >= 100)
    await asyncio.sleep(0.5)
    heard = client.receive()
    assert heard
    assert all(is_rtcp(datagram) for datagram in heard)
    assert session.stats()["packets_out"] == 0


async def test_c19_payload_types_nobody_asked_for_are_not_echoed(bench: Bench) -> None:
    client = bench.client()
    session, _ = await bench.connected(client, echo=True)
    for payload_type in (13, 63, 110, 126, 35):
        client.rtp(b"x", payload_type)
    client.rtp(b"asked for")
    await until(lambda: session.stats()["packets_out"] == 1)
    await bench.came_round()
    assert [packet[12:] for packet in client.opened()] == [b"asked for"]
    assert session.stats()["echo_dropped"] == 5


async def test_a_paused_call_is_told_from_a_new_one(bench: Bench) -> None:
    session, _, _ = bench.open()
    assert session.path() is None
    assert session.send(b"\x16nowhere to go")
    await until(lambda: bench.engine.counts()["drops"]["paused"] == 1)


# The socket


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::", "0.0.0.0"])
def test_a_media_socket_has_room_for_a_burst(host: str) -> None:
    if host == "::1" and not HAS_IPV6:
        pytest.skip("this host has no IPv6 loopback")
    with open_media(host, 0) as opened:
        # The kernel doubles what it grants; without privileges it grants rmem_max.
        granted = opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        with open("/proc/sys/net/core/rmem_max") as limit:
            assert granted >= 2 * min(BUFFER_BYTES, int(limit.read()))
        assert opened.getblocking() is False


def _media(client: Client, at: socket.socket) -> list[bytes]:
    return [datagram for datagram in client.receive(at) if datagram[0] >= 128]
