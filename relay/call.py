"""Headless calls for `relay call`: what a browser would do, its timeline, loss and echo delay.

1. A call is good when it was answered, connected, carried sound both ways until its end, and lost
   no more than allowed; everything else is its `trouble`, in one clause.
2. It speaks to signaling and to whatever address the answer names, as any client; it knows
   nothing of relays and shares no code with the transceiver.
3. What is sent is a beep every CYCLE_S, encoded once: a hundred encoders would measure themselves.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fractions
import functools
import json
import math
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from av import AudioCodecContext, AudioFrame, Packet
from yarl import URL

CALLS_PATH = "/v1/realtime/calls"
CONNECT_TIMEOUT_S = 20.0
REQUEST_TIMEOUT_S = 10.0
STAGGER_S = 0.05
CYCLE_S = 2.0
BEEP_S = 0.4
LOUD = 2_000
QUIET_S = 0.3
"""So long without a loud frame, and the next one begins an echo."""

_RATE_HZ = 48_000
_FRAME = 960
_FRAME_S = 0.02


@dataclass
class CallReport:
    """One call as its client saw it; times in milliseconds."""

    number: int
    call_id: str = ""
    timeline_ms: dict[str, float] = field(default_factory=dict)
    """From the offer until: answer, ice, dtls, channel, first_audio."""
    echo_ms: float | None = None
    """Median from the start of a beep until it is heard; None when none was."""
    longest_gap_ms: float | None = None
    """The longest time without a packet once there was one."""
    packets_in: int = 0
    lost_in: int = 0
    packets_out: int = 0
    lost_out: int = 0
    """As the other side reports it."""
    rtt_ms: float | None = None
    trouble: str | None = None

    def line(self) -> str:
        """For people."""
        parts = [f"call {self.number}", self.call_id or "(no id)"]
        parts.append(", ".join(f"{name} {at_ms:.0f}" for name, at_ms in self.timeline_ms.items()))
        if self.echo_ms is not None:
            parts.append(f"echo {self.echo_ms:.0f}")
        if self.longest_gap_ms is not None:
            parts.append(f"longest gap {self.longest_gap_ms:.0f}")
        if self.call_id:
            parts.append(
                f"lost {self.lost_in}/{self.packets_in + self.lost_in} in,"
                f" {self.lost_out}/{self.packets_out} out"
            )
        if self.rtt_ms is not None:
            parts.append(f"rtt {self.rtt_ms:.1f}")
        parts.append(f"FAILED: {self.trouble}" if self.trouble else "ok")
        return " | ".join(part for part in parts if part)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self)


@dataclass(frozen=True)
class CallPlan:
    """What each call does."""

    url: str
    seconds: float
    key: str | None = field(default=None, repr=False)
    max_loss: float = 0.05
    """The share of packets, either way, that may be lost."""
    verify_tls: bool = True


def calls_url(url: str) -> str:
    """The URL that takes offers: with an origin alone, the usual path is added."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=CALLS_PATH)) if parts.path in ("", "/") else url


async def place_calls(plan: CallPlan, count: int) -> AsyncIterator[CallReport]:
    """`count` calls at once; each report when its call is over."""
    calls = [
        asyncio.create_task(_place(plan, number, number * STAGGER_S)) for number in range(count)
    ]
    for call in asyncio.as_completed(calls):
        yield await call


async def _place(plan: CallPlan, number: int, wait_s: float) -> CallReport:
    await asyncio.sleep(wait_s)
    report = CallReport(number + 1)
    try:
        async with _Call(plan, report) as call:
            await call.connect()
            await call.talk()
    except _TroubleError as error:
        report.trouble = str(error)
    except (aiohttp.ClientError, OSError) as error:
        report.trouble = _told(plan, error)
    return report


def _told(plan: CallPlan, error: Exception) -> str:
    """Why signaling was not reached, and what to do about it."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        why = getattr(error.certificate_error, "verify_message", error.certificate_error)
        return f"the certificate of {plan.url} is not trusted ({why}); --insecure takes any"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"nobody answers at {plan.url}: {error.os_error.strerror or error.os_error}"
    return f"{type(error).__name__}: {error}"


class _TroubleError(Exception):
    """Why a call is not good."""


class _Call:
    def __init__(self, plan: CallPlan, report: CallReport) -> None:
        self._plan = plan
        self._report = report
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._beeps = _Beeps()
        self._ear = _Ear(self._beeps)
        self._settled = asyncio.Event()
        """Connected, or never to be."""
        self._ended = asyncio.Event()
        self._offered_s = 0.0
        self._listening: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> _Call:
        headers = {"Authorization": f"Bearer {self._plan.key}"} if self._plan.key else {}
        tls = ssl.create_default_context()
        if not self._plan.verify_tls:
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        self._http = aiohttp.ClientSession(
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S),
            connector=aiohttp.TCPConnector(ssl=tls),
        )
        connection = self._connection
        connection.addTrack(self._beeps)
        channel = connection.createDataChannel("oai-events")
        channel.on("open", lambda: self._mark("channel"))
        channel.on("close", self._ended.set)
        connection.on("iceconnectionstatechange", self._on_ice)
        connection.on("connectionstatechange", self._on_state)
        connection.on("track", self._on_track)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()
        for task in self._listening:
            task.cancel()
        await asyncio.gather(*self._listening, return_exceptions=True)
        await self._http.close()

    async def connect(self) -> None:
        """Offer, answer, ICE, DTLS."""
        url = calls_url(self._plan.url)
        await self._connection.setLocalDescription(await self._connection.createOffer())
        self._offered_s = time.monotonic()
        async with self._http.post(
            url,
            data=self._connection.localDescription.sdp.encode(),
            headers={"Content-Type": "application/sdp"},
        ) as response:
            text = await response.text()
            if response.status != 201:
                hint = (
                    "; a key comes from --key or RELAY_CALL_KEY" if response.status == 401 else ""
                )
                raise _TroubleError(f"the offer got {response.status}: {_words(text)[:200]}{hint}")
            location = URL(response.headers.get("Location", ""))
            self._location = str(response.url.join(location))
        self._report.call_id = self._location.rpartition("/")[2]
        self._mark("answer")
        await self._connection.setRemoteDescription(RTCSessionDescription(text, "answer"))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._settled.wait(), CONNECT_TIMEOUT_S)
        if "dtls" not in self._report.timeline_ms:
            state = f"{self._connection.iceConnectionState}/{self._connection.connectionState}"
            raise _TroubleError(
                f"not connected (ICE and DTLS: {state}); does UDP reach {_candidates(text)}?"
                " If so, the relay's relay_drop_packets_total names what is wrong"
            )

    async def talk(self) -> None:
        """Sound both ways for the planned time, the count, and the end."""
        began_s = time.monotonic()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), self._plan.seconds)
        talked_s = time.monotonic() - began_s
        cut = self._ended.is_set()
        await self._count()
        if not cut:
            async with self._http.delete(self._location) as response:
                if response.status == 404:
                    raise _TroubleError("cut off: the server has no such call any more")
                if response.status != 200:
                    self._report.trouble = f"ending the call got {response.status}"
        self._judge(talked_s if cut else None)

    def _judge(self, cut_after_s: float | None) -> None:
        report = self._report
        if cut_after_s is not None:
            raise _TroubleError(f"cut off after {cut_after_s:.1f} s")
        if not self._ear.loud_frames:
            trouble = "only silence came" if report.packets_in else "no audio came"
            if self._plan.seconds < CYCLE_S:
                trouble += (
                    f" (who answers after a beep needs over a second: --seconds {CYCLE_S:.0f})"
                )
            raise _TroubleError(trouble)
        for way, lost, total in (
            ("in", report.lost_in, report.packets_in + report.lost_in),
            ("out", report.lost_out, report.packets_out),
        ):
            if lost > self._plan.max_loss * total:
                raise _TroubleError(f"lost {lost} of {total} packets {way}")

    async def _count(self) -> None:
        report, ear = self._report, self._ear
        for stats in (await self._connection.getStats()).values():
            if stats.type == "inbound-rtp":
                report.packets_in, report.lost_in = stats.packetsReceived, max(0, stats.packetsLost)
            elif stats.type == "outbound-rtp":
                report.packets_out = stats.packetsSent
            elif stats.type == "remote-inbound-rtp":
                report.lost_out = max(0, stats.packetsLost)
                report.rtt_ms = round(1e3 * stats.roundTripTime, 1) if stats.roundTripTime else None
        if ear.heard_s is not None:
            gap_s = max(ear.longest_gap_s, time.monotonic() - ear.heard_s)
            report.longest_gap_ms = round(1e3 * gap_s, 1)
        if ear.echoes_s:
            report.echo_ms = round(1e3 * median(ear.echoes_s), 1)

    def _mark(self, stage: str) -> None:
        elapsed_ms = round(1e3 * (time.monotonic() - self._offered_s), 1)
        self._report.timeline_ms.setdefault(stage, elapsed_ms)

    def _on_ice(self) -> None:
        if self._connection.iceConnectionState == "completed":
            self._mark("ice")

    def _on_state(self) -> None:
        if self._connection.connectionState == "connected":
            self._mark("dtls")
            self._beeps.begin()
            self._settled.set()
        elif self._connection.connectionState in ("failed", "closed"):
            self._settled.set()
            self._ended.set()

    def _on_track(self, track: MediaStreamTrack) -> None:
        self._listening.append(
            asyncio.create_task(self._ear.listen(track, lambda: self._mark("first_audio")))
        )


class _Beeps(MediaStreamTrack):
    """A beep at the start of every cycle, paced by the clock."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._number = 0
        self._began_s: float | None = None

    def begin(self) -> None:
        """The first cycle starts now."""
        self._began_s, self._number = time.monotonic(), 0

    def last_beep_s(self, now_s: float) -> float:
        """When the beep before `now_s` began."""
        began_s = self._began_s if self._began_s is not None else now_s
        return began_s + CYCLE_S * math.floor(max(0.0, now_s - began_s) / CYCLE_S)

    async def recv(self) -> Packet[Any]:
        """The next packet, when it is due."""
        if self._began_s is None:
            self.begin()
        assert self._began_s is not None
        await asyncio.sleep(max(0.0, self._began_s + self._number * _FRAME_S - time.monotonic()))
        packets = _encoded_cycle()
        packet = Packet(packets[self._number % len(packets)])
        packet.pts = self._number * _FRAME
        packet.time_base = fractions.Fraction(1, _RATE_HZ)
        self._number += 1
        return packet


class _Ear:
    """What is heard, and when."""

    def __init__(self, beeps: _Beeps) -> None:
        self._beeps = beeps
        self._loud_s = -math.inf
        self.heard_s: float | None = None
        self.longest_gap_s = 0.0
        self.loud_frames = 0
        self.echoes_s: list[float] = []

    async def listen(self, track: MediaStreamTrack, first: Any) -> None:
        """Until the track ends; `first` is called with the first frame."""
        while True:
            try:
                frame = await track.recv()
            except MediaStreamError:
                return
            now_s = time.monotonic()
            if self.heard_s is None:
                first()
            else:
                self.longest_gap_s = max(self.longest_gap_s, now_s - self.heard_s)
            self.heard_s = now_s
            if (
                isinstance(frame, AudioFrame)
                and max(array.array("h", bytes(frame.planes[0]))) > LOUD
            ):
                self.loud_frames += 1
                if now_s - self._loud_s > QUIET_S:
                    self.echoes_s.append(now_s - self._beeps.last_beep_s(now_s))
                self._loud_s = now_s


@functools.cache
def _encoded_cycle() -> tuple[bytes, ...]:
    """One beep and the silence after it as Opus packets of 20 ms."""
    encoder = AudioCodecContext.create("libopus", "w")
    encoder.sample_rate = _RATE_HZ
    encoder.layout = "mono"
    encoder.format = "s16"
    packets: list[bytes] = []
    step = 2 * math.pi * 440 / _RATE_HZ
    for number in range(round(2 * CYCLE_S / _FRAME_S)):
        loud = number * _FRAME_S % CYCLE_S < BEEP_S
        first = number * _FRAME
        wave = array.array(
            "h", (int(loud * 11_000 * math.sin((first + i) * step)) for i in range(_FRAME))
        )
        frame = AudioFrame(format="s16", layout="mono", samples=_FRAME)
        frame.planes[0].update(wave.tobytes())
        frame.sample_rate = _RATE_HZ
        frame.pts = first
        packets += [bytes(packet) for packet in encoder.encode(frame)]
    half = round(CYCLE_S / _FRAME_S)
    return tuple(packets[:half])


def _words(refusal: str) -> str:
    """The message of an error in OpenAI's shape; what has none, as it came."""
    with contextlib.suppress(ValueError, LookupError, TypeError):
        refusal = str(json.loads(refusal)["error"]["message"])
    return " ".join(refusal.split()).removesuffix(".")


def _candidates(answer: str) -> str:
    """The addresses that the answer names."""
    found = [line.split() for line in answer.splitlines() if line.startswith("a=candidate")]
    return (
        ", ".join(f"{words[4]} port {words[5]}" for words in found if len(words) > 5) or "nowhere"
    )
