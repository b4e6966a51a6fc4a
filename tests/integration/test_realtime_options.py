"""What `transceiver serve` is told about its Realtime servers reaches them: certificates, headers, dialect, sound, session."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import ssl
from array import array
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import pytest

from relay.certificate import write_self_signed
from tests.support.process import Processes
from tests.support.rawmedia import FRAME_S, RawMediaCall, raw_media_call
from tests.support.realtime_server import RealtimeServer, realtime_server
from transceiver.backends import g711

HEADERS = ("X-Tenant: seven", "OpenAI-Beta: realtime=v1")
SESSION = {"instructions": "what every call starts with", "audio": {"output": {"voice": "v7"}}}
SPOKEN_HERTZ = 500
"""Of the square wave that a RawMediaCall says."""


def certificate(directory: Path, name: str) -> tuple[Path, ssl.SSLContext]:
    """One of its own making, and a server's TLS with it."""
    path, key = directory / f"{name}.crt", directory / f"{name}.key"
    write_self_signed(path, key, ipaddress.ip_address("127.0.0.1"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, key)
    return path, context


@pytest.fixture
async def trusted(tmp_path: Path) -> AsyncIterator[tuple[RealtimeServer, Path]]:
    """A server behind TLS and the file that vouches for it."""
    path, context = certificate(tmp_path, "trusted")
    async with realtime_server(tls=context) as server:
        yield server, path


@pytest.fixture
async def stranger(tmp_path: Path) -> AsyncIterator[RealtimeServer]:
    """A server whose certificate nobody vouches for."""
    async with realtime_server(tls=certificate(tmp_path, "stranger")[1]) as server:
        yield server


@pytest.fixture
def serve(
    processes: Processes, tmp_path: Path, trusted: tuple[RealtimeServer, Path]
) -> Callable[..., Any]:
    """Starts a transceiver for the trusted server, with these options more."""

    async def start(*options: str) -> str:
        server, ca = trusted
        session = tmp_path / "session.json"
        session.write_text(json.dumps(SESSION))
        process = processes.transceiver(
            "serve", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=1", "--direct",
            "--log-format=json", "--drain-timeout=0.5", f"--backend={server.url}",
            f"--backend-session={session}", *(f"--backend-header={line}" for line in HEADERS), *options,
            env={"SSL_CERT_FILE": str(ca)},
        )  # fmt: skip
        return f"http://{(await asyncio.to_thread(process.listening, 'http'))[0]}"

    return start


async def until(condition: Callable[[], Any], timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is waited for lies in another process
            await asyncio.sleep(0.01)


async def close_reason(http: aiohttp.ClientSession, call: RawMediaCall) -> str | None:
    async with http.get(f"{call.location}/stats") as response:
        reason: str | None = (await response.json())["close_reason"]
        return reason


def square_wave(seconds: float, rate_hz: int) -> bytes:
    half = rate_hz // 1_000
    samples = int(seconds * rate_hz)
    return array("h", (12_000 if at // half % 2 else -12_000 for at in range(samples))).tobytes()


def loud_part(pcm: bytes) -> list[int]:
    """From the first to the last sample that is no silence."""
    samples = array("h", pcm).tolist()
    loud = [at for at, sample in enumerate(samples) if abs(sample) > 3_000]
    return samples[loud[0] : loud[-1] + 1] if loud else []


def hertz(samples: list[int], rate_hz: int) -> float:
    """By the time between most changes of sign: a busy machine leaves gaps in what is said."""
    changes = [at for at, (a, b) in enumerate(pairwise(samples)) if (a < 0) != (b < 0)]
    return rate_hz / 2 / median(later - at for at, later in pairwise(changes))


def loud_frames(call: RawMediaCall) -> int:
    return sum(loud for _, loud in call.arrivals)


@pytest.mark.parametrize(
    ("dialect", "audio", "rate_hz"), [("ga", "pcm16", 16_000), ("beta", "pcmu", 8_000)]
)
async def test_a_server_behind_tls_is_told_all_that_its_options_say(
    serve: Callable[..., Any],
    trusted: tuple[RealtimeServer, Path],
    dialect: str,
    audio: str,
    rate_hz: int,
) -> None:
    base = await serve(f"--backend-dialect={dialect}", f"--backend-audio={audio}")
    decode, encode = (g711.from_ulaw, g711.to_ulaw) if audio == "pcmu" else (bytes, bytes)
    async with aiohttp.ClientSession(base) as http, raw_media_call(http) as call:
        (connection,) = trusted[0].connections
        assert connection.headers["X-Tenant"] == "seven"
        assert connection.headers["OpenAI-Beta"] == "realtime=v1"
        await until(lambda: connection.events)
        session = connection.events[0]["session"]
        assert session["instructions"] == SESSION["instructions"]
        if dialect == "ga":
            wanted = {"type": "audio/pcm", "rate": rate_hz}
            assert session["audio"]["input"]["format"] == wanted
            assert session["audio"]["output"] == {"format": wanted, "voice": "v7"}
        else:
            names = ("input_audio_format", "output_audio_format", "voice")
            assert [session[name] for name in names] == ["g711_ulaw", "g711_ulaw", "v7"]
            assert "audio" not in session
        # up: what is said has its pitch at the rate that the server was told
        call.speak(0.5)
        await until(lambda: len(loud_part(decode(bytes(connection.audio)))) > 0.3 * rate_hz)
        heard = loud_part(decode(bytes(connection.audio)))
        assert hertz(heard, rate_hz) == pytest.approx(SPOKEN_HERTZ, rel=0.1)
        # down: sound takes its time at that rate, and a client hears GA names
        delta = "response.audio.delta" if dialect == "beta" else "response.output_audio.delta"
        where = {"response_id": "r", "item_id": "i", "output_index": 0, "content_index": 0}
        sound = base64.b64encode(encode(square_wave(0.4, rate_hz))).decode()
        await connection.send("response.created", response={"id": "r"})
        await connection.send(delta, delta=sound, **where)
        text = delta.replace("audio.delta", "audio_transcript.delta")
        await connection.send(text, delta="hello", **where)
        await connection.send("response.done", response={"id": "r", "status": "completed"})
        await call.event("output_audio_buffer.stopped")
        assert (await call.event("response.output_audio_transcript.delta"))["delta"] == "hello"
        await until(lambda: loud_frames(call) >= 0.36 / FRAME_S)
        assert loud_frames(call) <= 0.44 / FRAME_S
        assert not [event for event in call.events if event["type"] == "error"]


async def test_a_server_that_nobody_vouches_for_gets_no_key_and_the_call_hears_why(
    serve: Callable[..., Any], trusted: tuple[RealtimeServer, Path], stranger: RealtimeServer
) -> None:
    base = await serve(f"--backend=stranger={stranger.url}")
    bearer = {"Authorization": "Bearer ek_test"}
    async with aiohttp.ClientSession(base, headers=bearer) as http:
        async with raw_media_call(http, backend="stranger") as call:
            error = (await call.event("error"))["error"]
            assert error["code"] == "backend_lost"
            assert "certificate is not trusted (self-signed certificate)" in error["message"]
            assert "127.0.0.1" not in error["message"]
            async with asyncio.timeout(20):
                # what is waited for lies in another process
                while (reason := await close_reason(http, call)) is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert reason == "backend"
        async with raw_media_call(http) as call:
            assert (await call.event("session.created"))["session"]
    assert (len(stranger.connections), len(trusted[0].connections)) == (0, 1)
