"""A call from offer to end with a client in memory and the time set by hand: states, clocks, reasons."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from relay.wire.address import Endpoint
from relay.wire.keyring import Keyring, generate_line
from relay.wire.spp import FlowKey
from relay.wire.token import TokenCodec, TransceiverAddress
from tests.support.offers import CHROMIUM, changed, split
from tests.unit.transceiver.test_ice import check
from transceiver.answer import Candidate
from transceiver.auth import OPEN, Principal
from transceiver.backends.loopback import LoopbackBackend
from transceiver.board import Board
from transceiver.callid import CallIds, Owner
from transceiver.calls import ENDED_KEPT_S, Calls, Place
from transceiver.dtls import Dtls, Identity, Phase, Sctp
from transceiver.ice import IceAgent, Source
from transceiver.limits import Span
from transceiver.metrics import board_names
from transceiver.offer import Fingerprint, read_offer
from transceiver.rtp import ReceptionReport, RtpPacket, SenderReport, read_rtcp, read_rtp, write_rtp
from transceiver.session import LAST_WORDS_S, Call, CallRequest, CallState

SERVER, CLIENT = Identity.generate(), Identity.generate()
OFFER = changed(CHROMIUM, CHROMIUM.split("fingerprint:sha-256 ")[1][:95], CLIENT.fingerprint_sha256)
RELAY = Source(("127.0.0.1", 4_000), None, False)
FLOW = FlowKey(Endpoint.of("203.0.113.7", 5_000), Endpoint.of("192.0.2.1", 3_478))


class FakeMux:
    """Keeps what is sent, by flow key."""

    def __init__(self) -> None:
        self.sent: list[tuple[FlowKey, bytes]] = []
        self.drops: dict[str, int] = {}

    def send(self, source: Source, key: FlowKey, payload: bytes) -> bool:
        self.sent.append((key, payload))
        return True


class World:
    """A process's calls without sockets, and a client."""

    def __init__(self) -> None:
        self.now_s = 5_000.0
        self.agent = IceAgent()
        self.mux = FakeMux()
        self.board = Board(1, board_names())
        address = Endpoint.of("127.0.0.1", 9)
        self.calls = Calls(
            place=Place(
                Owner(0, 0),
                TransceiverAddress(0, address.ip, address.port),
                (Candidate(address.ip, 3_478),),
                {},
            ),
            codec=TokenCodec(Keyring.parse(generate_line())),
            call_ids=CallIds(bytes(32)),
            identity=SERVER,
            mux=self.mux,  # type: ignore[arg-type]
            agent=self.agent,
            board=self.board,
            row=0,
            clock=lambda: self.now_s,
        )
        self.client_received: list[bytes] = []
        self.span = Span()

    def open(self, offer: str = OFFER, *, principal: Principal = OPEN, dcid: bool = True) -> Call:
        assert self.board.admit(0, 100)
        request = CallRequest(
            read_offer(offer), principal, {}, LoopbackBackend(), self.span, dcid, self.now_s
        )
        return self.calls.open(request)[0]

    def check(self, call: Call, key: FlowKey = FLOW, *, use_candidate: bool = False) -> None:
        pwd = call.ice.pwd.decode()
        datagram = check(call.ice.username.decode(), pwd, use_candidate=use_candidate)
        checked = self.agent.check(datagram, key, RELAY, self.now_s)
        assert checked is not None
        assert checked.path is not None
        call.on_check(checked.path, self.now_s)

    def pass_time(self, seconds: float, each: Callable[[], None] = lambda: None) -> None:
        for _ in range(round(seconds / 0.05)):
            self.now_s += 0.05
            each()
            self.calls.tick()

    def states(self) -> tuple[int, int, int]:
        return (
            self.board.get(0, "state.new"),
            self.board.get(0, "state.connecting"),
            self.board.get(0, "state.connected"),
        )


class Client:
    """The other end of a call, on one flow key."""

    def __init__(self, world: World, call: Call, key: FlowKey = FLOW) -> None:
        self.world, self.call, self.key = world, call, key
        server = Fingerprint("sha-256", SERVER.fingerprint_sha256)
        self.dtls = Dtls(CLIENT, "server", [server], self.to_call)
        self.events: list[dict[str, Any]] = []
        self.audio: list[RtpPacket] = []
        self.reports: list[SenderReport | ReceptionReport] = []
        self.sctp = Sctp(
            self.dtls,
            on_channel=lambda: None,
            on_message=lambda text: self.events.append(json.loads(text)),
            on_end=lambda reason: None,
        )
        self.dtls.begin(world.now_s)

    def to_call(self, datagram: bytes) -> None:
        handle = self.call.on_dtls if datagram[0] < 64 else self.call.on_media
        if (path := self.call.ice.paths.get(self.key)) is not None:
            handle(datagram, path, RELAY, self.world.now_s)

    def pump(self) -> None:
        while self.world.mux.sent:
            key, datagram = self.world.mux.sent.pop(0)
            if key != self.key:
                continue
            if datagram[0] < 64:
                self.dtls.receive(datagram, self.world.now_s)
            elif (compound := self.dtls.unprotect_rtcp(datagram)) is not None:
                self.reports += read_rtcp(compound)
            elif (plain := self.dtls.unprotect(datagram)) is not None:
                packet = read_rtp(plain)
                assert packet is not None
                self.audio.append(packet)

    async def settle(self) -> None:
        """Lets aiortc's scheduled sends run."""
        for _ in range(50):
            await asyncio.sleep(0)
            self.pump()

    def connect(self) -> None:
        self.world.check(self.call, self.key)
        self.pump()
        assert self.dtls.phase is Phase.CONNECTED

    def talk(
        self, sequence: int = 1, ssrc: int = 42, payload: bytes = b"opus", pt: int = 111
    ) -> None:
        packet = RtpPacket(pt, False, sequence & 0xFFFF, 960 * sequence & 0xFFFFFFFF, ssrc, payload)
        protected = self.dtls.protect(write_rtp(packet))
        assert protected is not None
        self.to_call(protected)
        self.pump()


@pytest.fixture
async def world() -> World:
    return World()


@pytest.fixture
async def talking(world: World) -> Client:
    """A connected call with its client."""
    client = Client(world, world.open())
    client.connect()
    client.talk()
    return client


# States


async def test_a_call_goes_through_its_states(world: World) -> None:
    call = world.open()
    seen = [(call.state.value, world.states())]
    client = Client(world, call)
    steps: list[Callable[[], None]] = [
        lambda: world.check(call),
        client.pump,
        lambda: call.close("hangup"),
    ]
    for step in steps:
        step()
        seen.append((call.state.value, world.states()))
    assert seen == [
        ("new", (1, 0, 0)),
        ("connecting", (0, 1, 0)),
        ("connected", (0, 0, 1)),
        ("closed", (0, 0, 0)),
    ]
    assert world.board.get(0, "ended.hangup") == 1
    assert len(world.calls) == 0
    assert len(world.agent) == 0


async def test_dtls_starts_with_the_first_check_and_only_then(world: World) -> None:
    call = world.open()
    assert world.mux.sent == []
    world.check(call)
    assert [datagram[0] for _, datagram in world.mux.sent] == [22]
    world.check(call)
    assert len(world.mux.sent) == 1


async def test_b16_the_handshake_follows_the_clients_dtls(world: World) -> None:
    call = world.open()
    other = FlowKey(Endpoint.of("203.0.113.7", 6_000), Endpoint.of("192.0.2.1", 3_478))
    client = Client(world, call, other)
    world.check(call, FLOW)
    hello = world.mux.sent.pop()[1]
    world.check(call, other)
    client.dtls.receive(hello, world.now_s)
    client.pump()
    assert call.state is CallState.CONNECTED
    client.talk()
    assert len(client.audio) == 1


@pytest.mark.parametrize(
    "reason", ["client_close", "hangup", "shutdown", "consent_expired", "backend"]
)
async def test_close_is_idempotent_and_the_first_reason_stays(talking: Client, reason: str) -> None:
    call, world = talking.call, talking.world
    path = call.ice.paths[FLOW]
    call.close(reason)
    call.close("hangup")
    call.end("anything")
    world.pass_time(1)
    assert call.close_reason == reason
    assert world.board.get(0, "admitted") == 0
    assert world.board.total("ended.hangup") == (1 if reason == "hangup" else 0)
    talking.pump()
    assert talking.dtls.phase is Phase.CLOSED, "the client was told"
    assert not call.on_dtls(b"\x16" * 50, path, RELAY, world.now_s)
    assert not call.on_media(b"\x80" * 50, path, RELAY, world.now_s)


async def test_what_a_backend_says_at_the_end_is_kept_to_known_reasons(talking: Client) -> None:
    talking.call.end("some secret of the backend")
    assert talking.call.close_reason is None  # what was said before still goes out
    talking.world.pass_time(LAST_WORDS_S + 0.1)
    assert talking.call.close_reason == "backend"


async def test_numbers_are_kept_for_a_minute_for_their_owner(world: World) -> None:
    owner, other = Principal("alice"), Principal("bob")
    call = world.open(principal=owner)
    assert world.calls.stats(call.call_id, other) is None
    call.close("hangup")
    stats = world.calls.stats(call.call_id, owner)
    assert stats is not None
    assert (stats["state"], stats["close_reason"]) == ("closed", "hangup")
    assert world.calls.stats(call.call_id, other) is None
    world.pass_time(ENDED_KEPT_S + 2)
    assert world.calls.stats(call.call_id, owner) is None


# Ends that nobody asked for


async def test_15_s_without_connecting_end_a_call(world: World) -> None:
    idle, checking = world.open(), world.open()
    world.pass_time(14.9, lambda: None if checking.close_reason else world.check(checking))
    reasons = [idle.close_reason]
    world.pass_time(0.2)
    reasons.append(idle.close_reason)
    assert reasons == [None, "connect_timeout"]
    assert checking.close_reason == "dtls_failed", "10 s without an answer to the ClientHello"


async def test_30_s_of_silence_end_a_call(talking: Client) -> None:
    reasons = []
    for seconds in (29.9, 0.2):
        talking.world.pass_time(seconds)
        reasons.append(talking.call.close_reason)
    assert reasons == [None, "consent_expired"]


async def test_a_check_every_29_s_keeps_a_call(talking: Client) -> None:
    for _ in range(5):
        talking.world.pass_time(29)
        talking.world.check(talking.call)
    assert talking.call.state is CallState.CONNECTED


async def test_close_notify_and_abort_end_a_call(world: World) -> None:
    reasons = []
    for end in ("dtls", "sctp"):
        client = Client(world, world.open())
        client.connect()
        client.sctp.begin(5_000, 65_536)
        client.pump()
        getattr(client, end).close()
        reasons.append(client.call.close_reason)
    assert reasons == ["dtls_close_notify", "sctp_abort"]


async def test_c08_a_wrong_certificate_ends_a_call_before_any_audio(world: World) -> None:
    call = world.open(CHROMIUM)  # the fingerprint of somebody else
    client = Client(world, call)
    world.check(call)
    client.pump()
    assert (call.close_reason, call.packets_in) == ("dtls_failed", 0)


# Sound


async def test_frames_come_back_as_they_are(talking: Client) -> None:
    for sequence in range(2, 12):
        talking.talk(sequence, payload=bytes([sequence]))
    assert [packet.payload for packet in talking.audio[1:]] == [bytes([i]) for i in range(2, 12)]
    assert len({packet.ssrc for packet in talking.audio}) == 1
    assert talking.audio[0].ssrc != 42
    steps = {b.sequence - a.sequence & 0xFFFF for a, b in zip(talking.audio, talking.audio[1:], strict=False)}  # fmt: skip
    assert steps == {1}


async def test_c12_a_new_ssrc_and_any_jump_is_heard(talking: Client) -> None:
    for sequence, ssrc in ((2, 42), (20_002, 43), (20_003, 43), (3, 44), (4, 44)):
        before = len(talking.audio)
        talking.talk(sequence, ssrc)
        assert len(talking.audio) == before + 1
    sequences = [packet.sequence for packet in talking.audio]
    assert [b - a & 0xFFFF for a, b in itertools.pairwise(sequences)] == [1] * 5


async def test_c19_payload_types_nobody_asked_for_are_not_echoed(talking: Client) -> None:
    for pt in (13, 63, 110, 126, 35):
        talking.talk(10 + pt, pt=pt)
    talking.talk(200, payload=b"")
    assert len(talking.audio) == 1
    assert talking.call.packets_in == 1


async def test_a_client_that_only_sends_gets_no_sound(world: World) -> None:
    client = Client(world, world.open(changed(OFFER, "a=sendrecv", "a=sendonly")))
    client.connect()
    client.talk()
    assert client.call.packets_in == 1
    assert client.audio == []


# Rule 7: something at least every 400 ms


async def test_silence_is_filled_with_reports_at_least_every_400_ms(talking: Client) -> None:
    world, times = talking.world, [talking.world.now_s]

    def watch() -> None:
        if world.mux.sent:
            times.append(world.now_s)
            talking.pump()

    world.pass_time(9, watch)
    assert max(b - a for a, b in itertools.pairwise(times)) <= 0.4
    assert talking.reports


async def test_audio_is_joined_by_a_report_each_second(talking: Client) -> None:
    sequence = iter(range(2, 10_000))
    talking.world.pass_time(5, lambda: talking.talk(next(sequence)))
    senders = [report for report in talking.reports if isinstance(report, SenderReport)]
    assert 4 <= len(senders) <= 6


async def test_a_paused_call_is_silent_and_goes_on_with_the_next_check(talking: Client) -> None:
    world = talking.world
    world.pass_time(10.1)
    world.mux.sent.clear()
    world.pass_time(5)
    assert world.mux.sent == []
    world.check(talking.call)
    world.pass_time(0.5)
    assert world.mux.sent


# Events


async def test_events_need_an_open_channel(world: World) -> None:
    call = world.open(dcid=False)
    client = Client(world, call)
    assert not call.send_event({"type": "early"})
    client.connect()
    client.sctp.negotiate_channel()
    client.sctp.begin(5_000, 65_536)
    client.pump()
    assert not call.send_event({"type": "early"})
    world.pass_time(0.7, client.pump)
    await client.settle()
    assert [event["type"] for event in client.events] == ["session.created"]
    assert call.send_event({"type": "late"})


async def test_a_client_that_reads_no_events_ends_its_call(world: World) -> None:
    client = Client(world, world.open())
    client.connect()
    client.sctp.negotiate_channel()
    client.sctp.begin(5_000, 65_536)
    client.pump()
    for _ in range(200):
        if not client.call.send_event({"type": "x", "text": "y" * 60_000}):
            break
    assert client.call.close_reason == "event_backlog"


async def test_an_offer_without_data_channel_has_no_sctp(world: World) -> None:
    session, audio, _ = split(OFFER)
    call = world.open(session + audio)
    client = Client(world, call)
    client.connect()
    client.talk()
    assert len(client.audio) == 1
    assert not call.send_event({"type": "x"})


# Nothing is left behind


@pytest.mark.parametrize("end", ["client", "server", "unconnected"])
async def test_an_ended_call_is_garbage_and_its_keys_are_gone_at_once(
    world: World, end: str
) -> None:
    client = Client(world, world.open())
    call = client.call
    if end != "unconnected":
        client.connect()
        client.sctp.negotiate_channel()
        client.sctp.begin(5_000, 65_536)
        client.pump()
        client.talk()
        await client.settle()
    if end == "client":
        client.dtls.close()
    else:
        call.close("hangup")
    await client.settle()
    assert (call._dtls._ssl, call._dtls._rx_srtp, call._dtls._tx_srtp) == (None, None, None)
    left = [weakref.ref(item) for item in (call, call._dtls, call._sctp or call)]
    world.mux.sent.clear()
    del client, call
    gc.collect()
    assert [ref() for ref in left] == [None] * 3
