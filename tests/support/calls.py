"""Stock aiortc clients for tests: place a call over HTTP, talk, count what comes back.

1. The client is a plain RTCPeerConnection; nothing of the server is used.
2. The offer is posted without candidates, as browsers' SDKs do.
"""

from __future__ import annotations

import array
import asyncio
import fractions
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import aiohttp
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCDataChannel,
    RTCPeerConnection,
    RTCSessionDescription,
)
from av import AudioCodecContext, AudioFormat, AudioFrame, AudioLayout, Packet

CALLS_PATH = "/v1/realtime/calls"
CONNECT_TIMEOUT_S = 30.0

T = TypeVar("T")

_RATE_HZ = 48_000
_FRAME = 960
_SILENCE = bytes(2 * _FRAME)


def _tone() -> list[bytes]:
    """Five frames hold 44 whole waves, so they repeat without a click."""
    step = 2 * math.pi * 440 / _RATE_HZ
    wave = array.array("h", (int(11_000 * math.sin(i * step)) for i in range(5 * _FRAME)))
    return [wave[at : at + _FRAME].tobytes() for at in range(0, len(wave), _FRAME)]


_TONE = _tone()
"""Computed once: a client that computes its sine while it talks leaves no time for twenty of them."""


def _frame(count: int, *, silent: bool = False) -> AudioFrame:
    frame = AudioFrame(format="s16", layout="mono", samples=_FRAME)
    frame.planes[0].update(_SILENCE if silent else _TONE[count % len(_TONE)])
    frame.sample_rate = _RATE_HZ
    return frame


@cache
def _encoded_tone() -> list[bytes]:
    """A second of it as Opus packets of 20 ms."""
    encoder = AudioCodecContext.create("libopus", "w")
    encoder.sample_rate = _RATE_HZ
    encoder.format = AudioFormat("s16")
    encoder.layout = AudioLayout("mono")
    return [bytes(packet) for count in range(50) for packet in encoder.encode(_frame(count))]


def _packet(count: int) -> Packet:
    tone = _encoded_tone()
    return Packet(tone[count % len(tone)])


class Tone(MediaStreamTrack):
    """440 Hz at a third of full scale, 20 ms a frame; silent while `silent` is set.

    `encoded` gives Opus packets, as a MediaPlayer that does not decode does: a client that encodes and
    measures levels takes so much time of one interpreter that a dozen of them fill it.
    """

    kind = "audio"

    def __init__(self, *, encoded: bool = False) -> None:
        super().__init__()
        self.silent = False
        self._encoded = encoded
        self._samples = 0
        self._began_s: float | None = None

    @property
    def frames(self) -> int:
        """How many it has given so far."""
        return self._samples // _FRAME

    async def recv(self) -> Any:
        now_s = time.monotonic()
        self._began_s = self._began_s or now_s
        await asyncio.sleep(max(0.0, self._began_s + self._samples / _RATE_HZ - now_s))
        count = self.frames
        item = _packet(count) if self._encoded else _frame(count, silent=self.silent)
        item.pts = self._samples
        item.time_base = fractions.Fraction(1, _RATE_HZ)
        self._samples += _FRAME
        return item


async def until(probe: Callable[[], Awaitable[T]], timeout_s: float = CONNECT_TIMEOUT_S) -> T:
    """Asks until the answer is true, and returns it; AssertionError with the last answer when it never is."""
    found = None
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                if found := await probe():
                    return found
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {timeout_s} s; the last answer was {found!r}") from None


async def hears(call: StockCall, frames: int) -> None:
    """The call goes on: so many frames more are heard, in whatever time this machine takes for them."""
    wanted = call.frames + frames

    async def heard() -> bool:
        return call.frames >= wanted

    await until(heard)


@dataclass
class StockCall:
    """One call as its client sees it."""

    connection: RTCPeerConnection
    channel: RTCDataChannel | None
    answer: str = ""
    location: str = ""
    frames: int = 0
    loud_frames: int = 0
    loud_at_s: list[float] = field(default_factory=list)
    """When each loud frame was heard, monotonic."""
    tone: Tone | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    timeline_s: dict[str, float] = field(default_factory=dict)
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    spoken_to: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, *, audio: bool = True, events: bool = True) -> None:
        """Until there is loud audio, and an event."""
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if audio:
                await self.heard.wait()
            if events:
                await self.spoken_to.wait()

    async def ask(self, event: dict[str, Any]) -> dict[str, Any]:
        """Sends an event and returns the next one that comes."""
        assert self.channel is not None
        seen = len(self.events)
        self.channel.send(json.dumps(event))

        async def answered() -> bool:
            return len(self.events) > seen

        await until(answered)
        return self.events[seen]

    def mark(self, stage: str) -> None:
        """Notes when a stage was first reached."""
        self.timeline_s.setdefault(stage, time.monotonic())

    def packets_received(self) -> int:
        """Datagrams of DTLS and SRTP."""
        assert self.connection.sctp is not None
        (stats,) = self.connection.sctp.transport._get_stats().values()
        return int(stats.packetsReceived)

    def vanish(self) -> None:
        """Closes the sockets without a word."""
        assert self.connection.sctp is not None
        ice: Any = self.connection.sctp.transport.transport
        for protocol in ice._connection._protocols:
            protocol.transport.abort()

    async def listen(self, track: MediaStreamTrack) -> None:
        while True:
            frame = await track.recv()
            assert isinstance(frame, AudioFrame)
            self.frames += 1
            if max(array.array("h", bytes(frame.planes[0]))) > 3_000:
                self.loud_frames += 1
                self.loud_at_s.append(time.monotonic())
                self.mark("heard")
                self.heard.set()

    def on_message(self, text: str) -> None:
        self.events.append(json.loads(text))
        self.mark("event")
        self.spoken_to.set()


def make_call(
    *, audio: bool = True, encoded: bool = False, channel: str | None = "in-band"
) -> StockCall:
    """A client that has not called yet; `channel` is `in-band`, `negotiated` or None."""
    connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    events = None
    if channel is not None:
        options: dict[str, Any] = {"negotiated": True, "id": 0} if channel == "negotiated" else {}
        events = connection.createDataChannel("oai-events", **options)
    call = StockCall(connection, events)
    if events is not None:
        events.on("message", call.on_message)
    if audio:
        call.tone = Tone(encoded=encoded)
        connection.addTrack(call.tone)
    else:
        connection.addTransceiver("audio", "recvonly")
    return call


async def post_offer(
    http: aiohttp.ClientSession, sdp: str, *, path: str = CALLS_PATH, bearer: str = "ek_test"
) -> tuple[int, str, str]:
    """Status, body and Location of the response to an offer."""
    headers = {"Content-Type": "application/sdp", "Authorization": f"Bearer {bearer}"}
    async with http.post(path, data=sdp.encode(), headers=headers) as response:
        return response.status, await response.text(), response.headers.get("Location", "")


def bare(sdp: str) -> str:
    """The offer without its candidates."""
    lines = sdp.splitlines()
    return "".join(
        f"{line}\r\n" for line in lines if not line.startswith(("a=candidate", "a=end-of-"))
    )


@asynccontextmanager
async def stock_call(
    base: str,
    *,
    query: str = "",
    bearer: str = "ek_test",
    codec: str | None = None,
    change_answer: Callable[[str], str] = str,
    **options: Any,
) -> AsyncIterator[StockCall]:
    """Places a call at `base` (an origin) and closes the client at the end, without a DELETE."""
    call = make_call(**options)
    connection = call.connection
    listening: list[asyncio.Task[None]] = []
    connection.on("track", lambda track: listening.append(asyncio.create_task(call.listen(track))))
    async with aiohttp.ClientSession(base) as http:
        try:
            await connection.setLocalDescription(await connection.createOffer())
            sdp = bare(connection.localDescription.sdp)
            if codec is not None:
                sdp = only_codec(sdp, codec)
            call.mark("offer")
            status, call.answer, call.location = await post_offer(
                http, sdp, path=CALLS_PATH + query, bearer=bearer
            )
            assert status == 201, call.answer
            call.mark("answer")
            call.answer = change_answer(call.answer)
            await connection.setRemoteDescription(RTCSessionDescription(call.answer, "answer"))
            yield call
        finally:
            await connection.close()
            for task in listening:
                task.cancel()
            await asyncio.gather(*listening, return_exceptions=True)


def only_codec(sdp: str, payload_type: str) -> str:
    """The offer with one payload type in its audio section."""
    lines = []
    for line in sdp.splitlines():
        if line.startswith("m=audio"):
            line = " ".join([*line.split()[:3], payload_type])
        lines.append(line)
    return "".join(f"{line}\r\n" for line in lines)
