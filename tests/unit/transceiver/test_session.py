"""A call from offer to end with a client in memory and the time set by hand: states, clocks, reasons.

The media engine is a fake that keeps what is sent; what it does with packets is tests/c's business.
"""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Literal

import pytest
from aiortc import RTCDataChannel, RTCDataChannelParameters

from relay.wire.address import Endpoint
from relay.wire.keyring import Keyring, generate_line
from relay.wire.spp import FlowKey
from relay.wire.token import TokenCodec, TransceiverAddress
from tests.support.offers import CHROMIUM, changed, split
from transceiver.answer import Candidate
from transceiver.auth import OPEN, Principal
from transceiver.backends.base import Backend, Event, FrameSound, Line, Sound
from transceiver.backends.loopback import LoopbackBackend, LoopbackConversation
from transceiver.board import Board
from transceiver.callid import CallIds, Owner
from transceiver.calls import ENDED_KEPT_S, Calls, Home
from transceiver.dtls import Dtls, Identity, Phase, Sctp
from transceiver.entry import Entry
from transceiver.errors import RequestError
from transceiver.limits import Span
from transceiver.media import (
    ClockCounts,
    EngineFullError,
    Frame,
    MediaConfig,
    MediaHandler,
    SrtpKeys,
)
from transceiver.metrics import board_names
from transceiver.offer import Fingerprint, read_offer
from transceiver.session import CONNECT_TIMEOUT_S, LAST_WORDS_S, Call, CallRequest, CallState
from transceiver.sites import Ingress

SERVER, CLIENT = Identity.generate(), Identity.generate()
OFFER = changed(CHROMIUM, CHROMIUM.split("fingerprint:sha-256 ")[1][:95], CLIENT.fingerprint_sha256)
FLOW = FlowKey(Endpoint.of("203.0.113.7", 5_000), Endpoint.of("192.0.2.1", 3_478))


class FakeSession:
    """A call's place in the fake engine."""

    rate_hz = 24_000

    def __init__(self, ufrag: str, config: MediaConfig, handler: MediaHandler) -> None:
        self.ufrag, self.config, self.handler = ufrag, config, handler
        self.sent: list[bytes] = []
        self.keys: SrtpKeys | None = None
        self.first: tuple[float | None, float | None] = (None, None)
        self.open = True
        self.written: list[bytes] = []

    def write_frames(self, payloads: Iterable[bytes]) -> int:
        self.written += payloads
        return len(self.written)

    def write(self, generation: int, pcm: bytes) -> int:
        return 0

    def played_ms(self, generation: int) -> float:
        return 0

    def queued_ms(self) -> float:
        return 0

    def flush(self) -> None:
        self.written.clear()

    def send(self, datagram: bytes) -> bool:
        self.sent.append(datagram)
        return self.open

    def set_keys(self, keys: SrtpKeys) -> None:
        self.keys = keys

    def path(self) -> FlowKey | None:
        return FLOW if self.open else None

    def marks(self) -> tuple[float | None, float | None]:
        return self.first

    def stats(self) -> Counter[str]:
        return Counter()


class FakeEngine:
    """Takes any number of calls, or as many as `places`."""

    def __init__(self) -> None:
        self.sessions: list[FakeSession] = []
        self.places = 1_000

    def open(
        self, ufrag: str, pwd: str, remote_ufrag: str, config: MediaConfig, handler: MediaHandler
    ) -> FakeSession:
        if len(self.sessions) >= self.places:
            raise EngineFullError
        self.sessions.append(FakeSession(ufrag, config, handler))
        return self.sessions[-1]

    def close(self, session: FakeSession) -> None:
        session.open = False
        self.sessions.remove(session)

    def take_drops(self) -> Counter[str]:
        return Counter()

    def take_packets(self) -> tuple[int, int]:
        return 0, 0

    def take_clock(self) -> ClockCounts:
        return ClockCounts([0], 0, 0)


class World:
    """A process's calls without sockets, and a client."""

    def __init__(self) -> None:
        self.now_s = 5_000.0
        self.engine = FakeEngine()
        self.board = Board(1, board_names())
        address = Endpoint.of("127.0.0.1", 9)
        self.calls = Calls(
            home=Home(
                Owner(0, 0),
                TransceiverAddress(0, address.ip, address.port),
                {},
            ),
            codec=TokenCodec(Keyring.parse(generate_line())),
            call_ids=CallIds(bytes(32)),
            identity=SERVER,
            engine=self.engine,  # type: ignore[arg-type]
            board=self.board,
            row=0,
            clock=lambda: self.now_s,
        )
        self.entry = Entry((Ingress("here", (Candidate(address.ip, 3_478),)),), "unknown")
        self.span = Span()

    def open(
        self,
        offer: str = OFFER,
        *,
        principal: Principal = OPEN,
        dcid: bool = True,
        backend: Backend | None = None,
    ) -> Call:
        assert self.board.admit(0, 100)
        request = CallRequest(
            read_offer(offer),
            principal,
            {},
            backend or LoopbackBackend(),
            self.span,
            dcid,
            self.now_s,
            self.entry,
        )
        return self.calls.open(request)[0]

    def check(self, call: Call) -> None:
        """A check was answered on a new path."""
        call.on_check(self.now_s)

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
    """The other end of a call."""

    def __init__(self, world: World, call: Call) -> None:
        self.world, self.call = world, call
        self.media: FakeSession = call.media  # type: ignore[assignment]
        server = Fingerprint("sha-256", SERVER.fingerprint_sha256)
        self.dtls = Dtls(CLIENT, "server", [server], self.to_call)
        self.authentic = 0
        self.events: list[dict[str, Any]] = []
        self.sctp = Sctp(
            self.dtls,
            on_channel=lambda: None,
            on_message=lambda text: self.events.append(json.loads(text)),
            on_end=lambda reason: None,
        )
        self.dtls.begin(world.now_s)

    def to_call(self, datagram: bytes) -> None:
        def on_authentic() -> None:
            self.authentic += 1

        self.call.on_dtls(datagram, on_authentic, self.world.now_s)

    def pump(self) -> None:
        while self.media.sent:
            self.dtls.receive(self.media.sent.pop(0), self.world.now_s)

    async def settle(self) -> None:
        """Lets aiortc's scheduled sends run."""
        for _ in range(50):
            await asyncio.sleep(0)
            self.pump()

    def connect(self) -> None:
        self.world.check(self.call)
        self.pump()
        assert self.dtls.phase is Phase.CONNECTED

    def begin_channel(self) -> None:
        """Stream 0 as agreed upon, and the association under way."""
        self.sctp.negotiate_channel()
        self.sctp.begin(5_000, 65_536)
        self.pump()

    async def open_channel(self) -> None:
        self.begin_channel()
        await self.settle()
        assert [event["type"] for event in self.events] == ["session.created"]


@pytest.fixture
async def world() -> World:
    return World()


@pytest.fixture
async def connected(world: World) -> Client:
    """A connected call with its client."""
    client = Client(world, world.open())
    client.connect()
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
    assert world.engine.sessions == []


async def test_dtls_starts_with_the_first_check_and_only_then(world: World) -> None:
    call = world.open()
    media = world.engine.sessions[0]
    assert media.sent == []
    world.check(call)
    assert [datagram[0] for datagram in media.sent] == [22]
    world.check(call)
    assert len(media.sent) == 1


async def test_keys_reach_the_engine_and_each_end_has_the_others(connected: Client) -> None:
    ours, theirs = connected.media.keys, connected.dtls.srtp_keys
    assert ours is not None
    assert theirs is not None
    assert (ours.send_key, ours.receive_key) == (theirs.receive_key, theirs.send_key)
    assert (ours.send_salt, ours.receive_salt) == (theirs.receive_salt, theirs.send_salt)


async def test_a_process_that_is_full_says_so_and_gives_the_place_back(world: World) -> None:
    world.engine.places = 0
    with pytest.raises(RequestError) as caught:
        world.open()
    assert (caught.value.status, caught.value.retry_after_s) == (503, 1)
    assert world.board.get(0, "admitted") == 0


async def test_a_backend_that_fails_at_once_leaves_nothing(world: World) -> None:
    backend = LoopbackBackend()
    backend.converse = lambda *_: 1 / 0  # type: ignore[assignment,method-assign]
    with pytest.raises(ZeroDivisionError):
        world.open(backend=backend)
    assert (world.board.get(0, "admitted"), world.engine.sessions) == (0, [])


@pytest.mark.parametrize(
    "reason", ["client_close", "hangup", "shutdown", "consent_expired", "backend"]
)
async def test_close_is_idempotent_and_the_first_reason_stays(
    connected: Client, reason: str
) -> None:
    call, world = connected.call, connected.world
    call.close(reason)
    call.close("hangup")
    call.end("anything")
    world.pass_time(1)
    assert call.close_reason == reason
    assert world.board.get(0, "admitted") == 0
    assert world.board.total("ended.hangup") == (1 if reason == "hangup" else 0)
    connected.pump()
    assert connected.dtls.phase is Phase.CLOSED, "the client was told"
    before = connected.authentic
    connected.to_call(b"\x17" * 50)
    assert connected.authentic == before


async def test_what_a_backend_says_at_the_end_is_kept_to_known_reasons(connected: Client) -> None:
    await connected.open_channel()
    connected.call.end("some secret of the backend")
    assert connected.call.close_reason is None  # what was said before still goes out
    connected.world.pass_time(LAST_WORDS_S + 0.1)
    assert connected.call.close_reason == "backend"


async def test_a_backend_that_is_gone_at_once_waits_for_its_client_to_hear_it(world: World) -> None:
    class Gone(LoopbackConversation):
        def on_open(self) -> None:
            super().on_open()
            self._send("error")

    class GoneBackend(LoopbackBackend):
        def converse(
            self, line: Line, sound: Sound, session: Event, updatable: Iterable[str] | None = None
        ) -> Gone:
            line.end("backend")
            return Gone(line, session, updatable)

    client, other = (Client(world, world.open(backend=GoneBackend())) for _ in range(2))
    world.pass_time(3)
    client.connect()
    other.connect()
    world.pass_time(3, client.pump)
    assert client.call.close_reason is None
    client.begin_channel()
    await client.settle()
    assert [event["type"] for event in client.events] == ["session.created", "error"]
    reasons = []
    for step_s in (LAST_WORDS_S - 0.1, 0.2, CONNECT_TIMEOUT_S - 6.5, 0.6):
        world.pass_time(step_s)
        reasons.append((client.call.close_reason, other.call.close_reason))
    # the other one never opens its channel
    assert reasons == [(None, None), *[("backend", None)] * 2, ("backend", "backend")]


async def test_a_call_without_events_for_its_idle_limit_is_told_and_ends(world: World) -> None:
    world.span = Span(idle_s=20)
    client = Client(world, world.open())
    client.connect()
    await client.open_channel()
    assert client.call.send_event({"type": "x"})
    world.pass_time(15)
    client.call._on_message('{"type": "input_audio_buffer.clear"}')
    world.pass_time(19.5)
    await client.settle()
    seen = [event["type"] for event in client.events]
    assert seen == ["session.created", "x", "input_audio_buffer.cleared"]
    world.pass_time(0.6)
    await client.settle()
    assert client.events[-1]["error"]["code"] == "session_idle"
    assert world.board.get(0, "ended.idle") == 0, "its last words are on their way"
    world.pass_time(LAST_WORDS_S)
    assert world.board.get(0, "ended.idle") == 1
    assert client.call.close_reason == "idle"


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


async def test_a_call_ends_when_the_engine_finds_no_consent(connected: Client) -> None:
    connected.world.pass_time(60)
    assert connected.call.state is CallState.CONNECTED
    connected.media.handler.on_expired()
    assert connected.call.close_reason == "consent_expired"


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
    assert (call.close_reason, client.media.keys) == ("dtls_failed", None)


# Sound


@pytest.mark.parametrize(("direction", "sends"), [("sendrecv", True), ("sendonly", False)])
async def test_a_client_that_only_sends_gets_no_sound(
    world: World, direction: str, sends: bool
) -> None:
    world.open(changed(OFFER, "a=sendrecv", f"a={direction}"))
    config = world.engine.sessions[0].config
    assert (config.sends, config.echo, config.codec) == (sends, True, "opus")
    assert config.payload_types == {"opus": 111}


class OpusSpeaker(LoopbackConversation):
    """Says the client's packets again, two at a time."""

    def __init__(self, line: Line, sound: Sound) -> None:
        super().__init__(line, {}, None)
        self._sound = sound

    def on_frames(self, frames: list[Frame]) -> None:
        assert isinstance(self._sound, FrameSound)
        self._sound.write_frames(2 * [frame.payload for frame in frames])


class OpusBackend(LoopbackBackend):
    """A model that speaks Opus."""

    wants_frames: Literal[True] = True

    def converse(
        self, line: Line, sound: Sound, session: Event, updatable: Iterable[str] | None = None
    ) -> OpusSpeaker:
        return OpusSpeaker(line, sound)


async def test_a_backend_that_speaks_opus_gets_packets_as_they_are(world: World) -> None:
    call = world.open(backend=OpusBackend())
    media = world.engine.sessions[0]
    assert (media.config.frames, media.config.echo) == (True, False)
    call.on_frames([Frame(b"one", 0, 0, 960, 1.0, True), Frame(b"two", 1, 960, 960, 1.02, False)])
    assert media.written == [b"one", b"two", b"one", b"two"]
    world.open().on_frames([Frame(b"", 0, 0, 960, 1.0, True)])  # nobody is there for it


async def test_the_first_sound_is_on_the_timeline(connected: Client) -> None:
    connected.media.first = (connected.world.now_s + 0.25, None)
    connected.world.pass_time(0.1)
    timeline = connected.call.timeline_ms
    assert (timeline["first_audio_in"], timeline["first_audio_out"]) == (250.0, None)
    connected.media.first = (1.0, connected.world.now_s)
    connected.call.close("hangup")
    assert timeline["first_audio_in"] == 250.0
    assert timeline["first_audio_out"] == 100.0


async def test_where_a_call_was_is_known_after_its_end(connected: Client) -> None:
    expected = {"client": "203.0.113.7:5000", "proxy": "192.0.2.1:3478"}
    assert connected.call.stats()["flow"] == expected
    connected.call.close("hangup")
    assert connected.call.stats()["flow"] == expected


# Events


@pytest.mark.parametrize("says", [False, True])
async def test_a_channel_that_opens_late_gets_what_was_said_before(
    world: World, says: bool
) -> None:
    """The packet that opens it was lost: it comes again when the server has long taken stream 0 for the channel."""
    client = Client(world, world.open(dcid=False))
    client.connect()
    client.sctp.begin(5_000, 65_536)
    client.pump()
    await client.settle()
    world.pass_time(1.0, client.pump)
    assert client.call.send_event({"type": "early"})
    await client.settle()
    if says:
        client.sctp.negotiate_channel()
        client.sctp.send_text('{"type": "response.create"}')
        await client.settle()
    heard: list[Any] = []
    channel = RTCDataChannel(client.sctp, RTCDataChannelParameters(label="oai-events"))
    channel.on("message", lambda text: heard.append(json.loads(text)["type"]))
    await client.settle()
    assert channel.readyState == "open"
    assert heard == ([] if says else ["session.created", "early"])
    assert client.call.send_event({"type": "late"})
    await client.settle()
    assert heard[-1] == "late"


async def test_events_need_an_open_channel(world: World) -> None:
    call = world.open(dcid=False)
    client = Client(world, call)
    assert not call.send_event({"type": "early"})
    client.connect()
    client.begin_channel()
    assert not call.send_event({"type": "early"})
    world.pass_time(0.7, client.pump)
    await client.settle()
    assert [event["type"] for event in client.events] == ["session.created"]
    assert call.send_event({"type": "late"})


@pytest.mark.parametrize(
    ("limit", "told"), [(1, []), (200, []), (400, ["session.created", "error"])]
)
async def test_a_channel_that_takes_next_to_nothing_costs_events_only(
    world: World, limit: int, told: list[str]
) -> None:
    offer = changed(OFFER, "a=max-message-size:262144", f"a=max-message-size:{limit}")
    client = Client(world, world.open(offer))
    client.connect()
    client.begin_channel()
    await client.settle()
    assert client.call.send_event({"type": "x" * 1_000})
    await client.settle()
    assert [event["type"] for event in client.events] == told
    assert client.call.state is CallState.CONNECTED


@pytest.mark.parametrize("limit", [0, 262_144, 1_073_741_823])
async def test_a_retrieved_turn_comes_without_its_sound_where_that_is_too_much(
    world: World, limit: int
) -> None:
    offer = changed(OFFER, "a=max-message-size:262144", f"a=max-message-size:{limit}")
    client = Client(world, world.open(offer))
    client.connect()
    client.begin_channel()
    await client.settle()

    def retrieved(sound: str) -> dict[str, Any]:
        part = {"type": "input_audio", "audio": sound, "transcript": "hello"}
        return {"type": "conversation.item.retrieved", "item": {"id": "u1", "content": [part]}}

    for event in (retrieved("A" * 5_000_000), retrieved("AAAA"), {"type": "x" * 5_000_000}):
        assert client.call.send_event(event)
    await client.settle()
    _, large, small, huge = client.events
    assert large["item"]["content"] == [{"type": "input_audio", "transcript": "hello"}]
    assert small == retrieved("AAAA")
    assert huge["error"]["code"] == "event_too_large"
    assert client.call.state is CallState.CONNECTED


async def test_a_client_that_reads_no_events_ends_its_call(world: World) -> None:
    client = Client(world, world.open())
    client.connect()
    client.begin_channel()
    for _ in range(200):
        if not client.call.send_event({"type": "x", "text": "y" * 60_000}):
            break
    assert client.call.close_reason == "event_backlog"


async def test_an_offer_without_data_channel_has_no_sctp(world: World) -> None:
    session, audio, _ = split(OFFER)
    call = world.open(session + audio)
    client = Client(world, call)
    client.connect()
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
        client.begin_channel()
        await client.settle()
    if end == "client":
        client.dtls.close()
    else:
        call.close("hangup")
    await client.settle()
    assert (call._dtls._ssl, call._dtls.srtp_keys) == (None, None)
    left = [weakref.ref(item) for item in (call, call._dtls, call._channel or call)]
    del client, call
    gc.collect()
    assert [ref() for ref in left] == [None] * 3
