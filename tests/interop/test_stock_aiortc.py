"""Twenty stock aiortc clients at once talk through `relay demo`, on both of its transceivers.

The clients are plain RTCPeerConnections: a track out, a track in, the data channel, no knowledge
of the relay.
"""

from __future__ import annotations

import array
import asyncio
import fractions
import itertools
import json
import math
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from av import AudioCodecContext, AudioFrame, Packet

from tests.interop.demo import Demo, start_demo
from tests.support.process import Processes

pytestmark = [pytest.mark.slow, pytest.mark.alone]

CLIENTS = 20
SAMPLE_RATE = 48_000
FRAME_SAMPLES = 960
WINDOW_S = 3.0
WINDOWS = 6
"""Within one of so many, everybody must have been served: twenty clients are one Python program on this machine, too."""
LEAST_SHARE = 0.9
"""Of what each stage got from the one before it."""
LEAST_PER_S = 20
"""Of the 50 packets that a client sends on a machine with time for twenty of them."""
STAGES = ["answer", "ice", "dtls", "channel", "first_audio_in", "first_audio_out"]
CONNECT_TIMEOUT_S = 60.0


def encoded_tone() -> list[bytes]:
    """A 400 Hz tone at a third of full scale as Opus packets of 20 ms, to be repeated for ever."""
    encoder = AudioCodecContext.create("libopus", "w")
    encoder.sample_rate = SAMPLE_RATE
    encoder.layout = "mono"
    encoder.format = "s16"
    step = 2 * math.pi * 400 / SAMPLE_RATE
    wave = array.array("h", (int(11_000 * math.sin(i * step)) for i in range(FRAME_SAMPLES)))
    packets: list[bytes] = []
    for number in range(60):
        frame = AudioFrame(format="s16", layout="mono", samples=FRAME_SAMPLES)
        frame.planes[0].update(wave.tobytes())
        frame.sample_rate = SAMPLE_RATE
        frame.pts = number * FRAME_SAMPLES
        packets += [bytes(packet) for packet in encoder.encode(frame)]
    return packets[10:]


class Tone(MediaStreamTrack):
    """The encoded tone, paced by the clock. Encoded once: twenty encoders would measure the test."""

    kind = "audio"
    packets = encoded_tone()

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self._began = time.monotonic()

    async def recv(self) -> Packet:
        await asyncio.sleep(max(0.0, self._began + self.number * 0.02 - time.monotonic()))
        packet = Packet(self.packets[self.number % len(self.packets)])
        packet.pts = self.number * FRAME_SAMPLES
        packet.time_base = fractions.Fraction(1, SAMPLE_RATE)
        self.number += 1
        return packet


@dataclass
class Client:
    """One call as its client saw it."""

    connection: RTCPeerConnection
    tone: Tone
    url: str = ""
    candidates: list[str] = field(default_factory=list)
    """Of the answer, HOST:PORT."""
    frames: int = 0
    loud_frames: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    created: asyncio.Event = field(default_factory=asyncio.Event)
    connected: asyncio.Event = field(default_factory=asyncio.Event)

    def selected(self) -> str:
        """The remote candidate of the pair that ICE nominated, HOST:PORT."""
        assert self.connection.sctp is not None
        ice: Any = self.connection.sctp.transport.transport
        (pair,) = ice._connection._nominated.values()
        return f"{pair.remote_candidate.host}:{pair.remote_candidate.port}"

    async def listen(self, track: MediaStreamTrack) -> None:
        """Count what comes back until the track ends."""
        while True:
            frame = await track.recv()
            assert isinstance(frame, AudioFrame)
            samples = array.array("h", bytes(frame.planes[0]))
            self.frames += 1
            self.loud_frames += max(samples) > 3000

    def on_event(self, text: str) -> None:
        """Keep what the data channel said."""
        self.events.append(json.loads(text))
        self.created.set()


@asynccontextmanager
async def call(base: str) -> AsyncIterator[Client]:
    """Place a call at the demo and hold it; DELETE ends it."""
    connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    client = Client(connection, Tone())
    listening: list[asyncio.Task[None]] = []
    connection.addTrack(client.tone)
    channel = connection.createDataChannel("oai-events")
    channel.on("message", client.on_event)
    connection.on(
        "track", lambda track: listening.append(asyncio.create_task(client.listen(track)))
    )

    def on_state() -> None:
        if connection.connectionState == "connected":
            client.connected.set()

    connection.on("connectionstatechange", on_state)
    # A TCP connection of its own: the kernel then picks one of the transceivers.
    async with aiohttp.ClientSession(base) as http:
        try:
            await connection.setLocalDescription(await connection.createOffer())
            async with http.post(
                "/v1/realtime/calls",
                data=connection.localDescription.sdp,
                headers={"Content-Type": "application/sdp"},
            ) as response:
                answer = await response.text()
                assert response.status == 201, answer
                client.url = response.headers["Location"]
            client.candidates = [
                ":".join(line.split()[4:6])
                for line in answer.splitlines()
                if line.startswith("a=candidate:")
            ]
            await connection.setRemoteDescription(RTCSessionDescription(answer, "answer"))
            yield client
            async with http.delete(client.url) as response:
                assert response.status == 200
        finally:
            await connection.close()
            await asyncio.gather(*listening, return_exceptions=True)


@dataclass
class Counts:
    """What has come and gone so far, in packets, in the order of its way."""

    at_s: float
    sent: int
    server_in: int
    server_out: int
    heard: int
    loud: int

    def since(self, before: Counts) -> list[float]:
        """Of each so many a second."""
        elapsed_s = self.at_s - before.at_s
        return [
            (self.sent - before.sent) / elapsed_s,
            (self.server_in - before.server_in) / elapsed_s,
            (self.server_out - before.server_out) / elapsed_s,
            (self.heard - before.heard) / elapsed_s,
            (self.loud - before.loud) / elapsed_s,
        ]


async def stats_of(http: aiohttp.ClientSession, client: Client) -> dict[str, Any]:
    """The server's view of a call."""
    async with http.get(f"{client.url}/stats") as response:
        assert response.status == 200
        seen: dict[str, Any] = await response.json()
        return seen


async def counts_of(http: aiohttp.ClientSession, client: Client) -> Counts:
    """Both views at one moment."""
    seen = await stats_of(http, client)
    at_s = time.monotonic()
    server = seen["packets_in"], seen["packets_out"]
    return Counts(at_s, client.tone.number, *server, client.frames, client.loud_frames)


def is_served(rates: list[float]) -> bool:
    """Whether a client talks, and each stage passes on what it got."""
    passed_on = all(later >= LEAST_SHARE * rate for rate, later in itertools.pairwise(rates))
    return rates[0] >= LEAST_PER_S and passed_on


async def served(http: aiohttp.ClientSession, demo: Demo, clients: list[Client]) -> list[str]:
    """Whose packets did not all come through in a window of time, with the rates of `Counts`; nothing when all is well."""
    forwarded = 'relay_tx_packets_total{side="internal"}'
    began_s, passed = time.monotonic(), (await asyncio.to_thread(demo.metrics))[forwarded]
    before = [await counts_of(http, client) for client in clients]
    await asyncio.sleep(WINDOW_S)
    after = [await counts_of(http, client) for client in clients]
    passed = (await asyncio.to_thread(demo.metrics))[forwarded] - passed
    rates = [now.since(then) for then, now in zip(before, after, strict=True)]
    short = [f"client {i}: {one}" for i, one in enumerate(rates) if not is_served(one)]
    relayed, sent = passed / (time.monotonic() - began_s), sum(one[0] for one in rates)
    return short + ([f"relay: {relayed} of {sent}"] if relayed < LEAST_SHARE * sent else [])


@pytest.fixture(scope="module")
def demo(module_processes: Processes) -> Demo:
    """Two relay workers, two transceivers, on loopback."""
    return start_demo(module_processes, "--workers", "2", "--transceivers", "2")


@pytest.mark.timeout(240)
async def test_twenty_clients_at_once(demo: Demo) -> None:
    base = demo.url.replace("localhost", "127.0.0.1")
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession(base))
        async with asyncio.TaskGroup() as group:
            placing = [
                group.create_task(stack.enter_async_context(call(base))) for _ in range(CLIENTS)
            ]
        clients = [one.result() for one in placing]
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            for client in clients:
                await client.connected.wait()
                await client.created.wait()
        for _ in range(WINDOWS):
            if not (short := await served(http, demo, clients)):
                break
        assert not short, "\n".join(short)
        during = await asyncio.to_thread(demo.metrics)
        seen = [await stats_of(http, client) for client in clients]
        selected = [client.selected() for client in clients]

    assert during['relay_flows{state="established"}'] >= CLIENTS
    assert len({client.url for client in clients}) == CLIENTS
    assert len({stats["transceiver"]["process"] for stats in seen}) == 2
    assert [client.candidates for client in clients] == [[demo.relay]] * CLIENTS
    assert selected == [demo.relay] * CLIENTS
    for client, stats in zip(clients, seen, strict=True):
        assert stats["state"] == "connected"
        assert list(stats["timeline_ms"]) == STAGES
        assert None not in stats["timeline_ms"].values()
        assert client.events[0]["type"] == "session.created"
        assert client.events[0]["session"]["id"].startswith("sess_")
