"""Twenty stock aiortc clients at once talk through `relay demo`, on both of its transceivers.

The clients are plain RTCPeerConnections: a track out, a track in, the data channel, no knowledge
of the relay.
"""

from __future__ import annotations

import array
import asyncio
import fractions
import json
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from av import AudioCodecContext, AudioFrame, Packet

from tests.interop.demo import Demo, start_demo
from tests.support.process import Processes

pytestmark = pytest.mark.slow

CLIENTS = 20
SAMPLE_RATE = 48_000
FRAME_SAMPLES = 960
TALK_S = 3.0
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
        self._number = 0
        self._began = time.monotonic()

    async def recv(self) -> Packet:
        await asyncio.sleep(max(0.0, self._began + self._number * 0.02 - time.monotonic()))
        packet = Packet(self.packets[self._number % len(self.packets)])
        packet.pts = self._number * FRAME_SAMPLES
        packet.time_base = fractions.Fraction(1, SAMPLE_RATE)
        self._number += 1
        return packet


@dataclass
class Client:
    """One call as its client saw it."""

    url: str = ""
    frames: int = 0
    loud_frames: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    created: asyncio.Event = field(default_factory=asyncio.Event)
    connected: asyncio.Event = field(default_factory=asyncio.Event)

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
    client = Client()
    connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    listening: list[asyncio.Task[None]] = []
    connection.addTrack(Tone())
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
            await connection.setRemoteDescription(RTCSessionDescription(answer, "answer"))
            yield client
            async with http.delete(client.url) as response:
                assert response.status == 200
        finally:
            await connection.close()
            await asyncio.gather(*listening, return_exceptions=True)


async def hold(base: str, together: asyncio.Barrier) -> tuple[Client, dict[str, Any]]:
    """One client's whole life; all talk at the same time. Returns the server's view as well."""
    async with call(base) as client:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await client.connected.wait()
            await client.created.wait()
        await together.wait()
        await asyncio.sleep(TALK_S)
        async with aiohttp.ClientSession(base) as http, http.get(f"{client.url}/stats") as stats:
            assert stats.status == 200
            seen = await stats.json()
        await together.wait()
    return client, seen


@pytest.fixture(scope="module")
def demo(module_processes: Processes) -> Demo:
    """Two relay workers, two transceivers, on loopback."""
    return start_demo(module_processes, "--workers", "2", "--transceivers", "2")


@pytest.mark.timeout(240)
async def test_twenty_clients_at_once(demo: Demo) -> None:
    before = demo.metrics()
    # The test itself is one party more, to look at the relay while all talk.
    together = asyncio.Barrier(CLIENTS + 1)
    base = demo.url.replace("localhost", "127.0.0.1")
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(hold(base, together)) for _ in range(CLIENTS)]
        await together.wait()
        await together.wait()
        during = await asyncio.to_thread(demo.metrics)
    finished = [one.result() for one in calls]

    assert during['relay_flows{state="established"}'] >= CLIENTS
    forwarded = 'relay_tx_packets_total{side="internal"}'
    assert during[forwarded] - before[forwarded] >= CLIENTS * TALK_S * 25

    assert len({client.url for client, _ in finished}) == CLIENTS
    assert len({seen["transceiver"]["process"] for _, seen in finished}) == 2
    for client, seen in finished:
        assert seen["state"] == "connected"
        assert seen["packets_in"] >= TALK_S * 25
        assert seen["packets_out"] >= 0.9 * seen["packets_in"]
        assert client.events[0]["type"] == "session.created"
        assert client.events[0]["session"]["id"].startswith("sess_")
        assert client.frames >= TALK_S * 25
        assert client.loud_frames >= 0.8 * client.frames - 10
