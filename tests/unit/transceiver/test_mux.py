"""The media socket: which datagrams count, where replies leave, what each drop is called."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from relay.wire import stun
from relay.wire.address import Endpoint
from relay.wire.spp import FlowKey, unwrap, wrap
from tests.unit.transceiver.test_ice import PWD, REMOTE, UFRAG, check
from transceiver.ice import IceAgent, Path, Source
from transceiver.mux import Mux, open_socket

FLOW = FlowKey(Endpoint.of("203.0.113.7", 5_000), Endpoint.of("192.0.2.1", 3_478))
DTLS, SRTP = bytes([22]) * 30, bytes([0x80]) * 30


@dataclass
class Handler:
    """A session's owner that takes what it is told to."""

    authentic: bool = True
    checks: int = 0
    heard: list[bytes] = field(default_factory=list)

    def on_check(self, path: Path, now_s: float) -> None:
        self.checks += 1

    def on_dtls(self, datagram: bytes, path: Path, source: Source, now_s: float) -> bool:
        self.heard.append(datagram)
        return self.authentic

    def on_media(self, datagram: bytes, path: Path, source: Source, now_s: float) -> bool:
        self.heard.append(datagram)
        return self.authentic


@dataclass
class Ends:
    """A mux on a real socket, and a relay's."""

    mux: Mux
    agent: IceAgent
    media: socket.socket
    relay: socket.socket
    handler: Handler

    def deliver(self, datagram: bytes, sender: socket.socket | None = None) -> Counter[str]:
        """Sends one datagram to the mux; returns exactly the drops it caused."""
        self.mux.drops.clear()
        self.agent.drops.clear()
        (sender or self.relay).sendto(datagram, self.media.getsockname())
        self.mux._read_batch()
        return self.mux.drops + self.agent.drops

    def received(self) -> bytes | None:
        try:
            return self.relay.recv(2_048)
        except BlockingIOError:
            return None


def make(direct: bool = False, host: str = "127.0.0.1", allowed: str = "127.0.0.1/32") -> Ends:
    media, relay = open_socket(host, 0), socket.socket(type=socket.SOCK_DGRAM)
    relay.bind(("127.0.0.1", 0))
    relay.setblocking(False)
    agent, handler = IceAgent(), Handler()
    agent.open(UFRAG, PWD, REMOTE, handler, 0.0)
    mux = Mux(media, agent, allowed_relays=[ipaddress.ip_network(allowed)], direct=direct)
    return Ends(mux, agent, media, relay, handler)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = make()
    yield made
    made.media.close()
    made.relay.close()


def test_a_wrapped_check_is_answered_under_its_own_header(ends: Ends) -> None:
    request = check()
    assert ends.deliver(wrap(FLOW, request)) == Counter()
    reply = ends.received()
    assert reply is not None
    opened = unwrap(reply)
    assert opened is not None
    assert opened[0] == FLOW
    assert stun.Message.read(opened[1]).transaction_id == request[8:20]
    assert ends.handler.checks == 1


@pytest.mark.parametrize("payload", [DTLS, SRTP], ids=["DTLS", "SRTP"])
def test_media_reaches_validated_sessions_only(ends: Ends, payload: bytes) -> None:
    assert ends.deliver(wrap(FLOW, payload)) == Counter(not_authentic=1)
    assert ends.handler.heard == []
    ends.deliver(wrap(FLOW, check()))
    assert ends.deliver(wrap(FLOW, payload)) == Counter()
    assert ends.handler.heard == [payload]
    ends.handler.authentic = False
    assert ends.deliver(wrap(FLOW, payload)) == Counter(not_authentic=1)


def test_dtls_is_offered_to_every_session_and_media_until_it_is_taken(ends: Ends) -> None:
    other = Handler()
    ends.agent.open("other", PWD, REMOTE, other, 0.0)
    ends.deliver(wrap(FLOW, check()))
    ends.deliver(wrap(FLOW, check(f"other:{REMOTE}")))
    ends.deliver(wrap(FLOW, DTLS))
    ends.deliver(wrap(FLOW, SRTP))
    assert (ends.handler.heard, other.heard) == ([DTLS, SRTP], [DTLS])
    ends.handler.authentic = False
    ends.deliver(wrap(FLOW, SRTP))
    assert other.heard == [DTLS, SRTP]


@pytest.mark.parametrize(
    ("datagram", "reason"),
    [
        (check(), "not_wrapped"),
        (DTLS, "not_wrapped"),
        (b"", "not_wrapped"),
        (bytes(FLOW)[:-1], "not_wrapped"),
        (bytes(FLOW), "empty"),
        (wrap(FLOW, b"\x00"), "malformed"),
        (wrap(FLOW, check(pwd="x" * 24)), "wrong_integrity"),
        (wrap(FLOW, b"\x56\xec" + bytes(60)), "unknown_protocol"),
    ],
    ids=range(8),
)
def test_each_drop_has_its_name(ends: Ends, datagram: bytes, reason: str) -> None:
    assert ends.deliver(datagram) == Counter({reason: 1})
    assert ends.received() is None


def test_a25_every_first_byte_is_sorted(ends: Ends) -> None:
    ends.deliver(wrap(FLOW, check()))
    ends.handler.authentic = False
    for first in range(256):
        expected = "unknown_protocol"
        if first <= 3:
            expected = "malformed"
        elif 20 <= first <= 63 or 128 <= first <= 191:
            expected = "not_authentic"
        assert ends.deliver(wrap(FLOW, bytes([first]) * 50)) == Counter({expected: 1}), first
    assert ends.agent.members(FLOW, 0.0)


def test_only_allowed_relays_are_unwrapped() -> None:
    ends = make(allowed="10.0.0.0/8")
    assert ends.deliver(wrap(FLOW, check())) == Counter(foreign_relay=1)
    assert ends.received() is None
    ends.media.close()
    ends.relay.close()


def test_direct_clients_are_answered_bare_and_relays_wrapped() -> None:
    ends = make(direct=True)
    assert ends.deliver(check()) == Counter()
    reply = ends.received()
    assert reply is not None
    assert stun.Message.read(reply).stun_class == 2
    assert ends.deliver(wrap(FLOW, check())) == Counter()
    reply = ends.received()
    assert reply is not None
    assert reply.startswith(FLOW)
    ends.media.close()
    ends.relay.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_wildcard_socket_replies_from_the_address_that_was_asked(host: str) -> None:
    ends = make(host=host, allowed="127.0.0.0/8")
    port = ends.media.getsockname()[1]
    for asked in ("127.0.0.1", "127.0.0.5"):
        ends.relay.sendto(wrap(FLOW, check()), (asked, port))
        ends.mux._read_batch()
        _, address = ends.relay.recvfrom(2_048)
        assert address == (asked, port)
    ends.media.close()
    ends.relay.close()


def test_a_datagram_of_any_size_is_whole_or_nothing(ends: Ends) -> None:
    ends.deliver(wrap(FLOW, check()))
    for size in (1_473, 1_501, 2_048, 9_000, 65_000):
        assert ends.deliver(wrap(FLOW, b"\x80" * size)) == Counter()
        assert len(ends.handler.heard[-1]) == size


def test_a_send_that_fails_is_counted_and_nothing_else(ends: Ends) -> None:
    path_source = Source(("127.0.0.1", 0), None, False)
    assert not ends.mux.send(path_source, FLOW, b"x")
    assert ends.mux.drops == Counter(send_failed=1)


def test_a_fault_of_ours_costs_its_datagram_only(ends: Ends) -> None:
    ends.deliver(wrap(FLOW, check()))

    def fail(*_: object) -> bool:
        raise RuntimeError("a bug")

    ends.handler.on_media = fail  # type: ignore[assignment]
    for datagram in (SRTP, DTLS):
        ends.relay.sendto(wrap(FLOW, datagram), ends.media.getsockname())
    ends.mux.drops.clear()
    ends.mux._read_batch()
    assert ends.mux.drops == Counter(handler_failed=1)
    assert ends.handler.heard == [DTLS]


async def test_attached_it_reads_by_itself(ends: Ends) -> None:
    ends.mux.attach(asyncio.get_running_loop())
    ends.relay.sendto(wrap(FLOW, check()), ends.media.getsockname())
    for _ in range(100):
        await asyncio.sleep(0.01)
        if (reply := ends.received()) is not None:
            break
    assert reply is not None
    ends.mux.detach()
    ends.mux.detach()
