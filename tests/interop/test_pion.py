"""A Pion client (Go): another ICE, DTLS, SRTP and SCTP than the browsers', in both kinds of call."""

from __future__ import annotations

import array
import base64
import json
import math
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import av
import pytest

from tests.support.process import Processes

SOURCE = Path(__file__).with_name("pion")
SECONDS = {"loopback": 3, "echo": 6}
"""Of a call: the echo speaks when its client has said something and paused for half a second."""
TONE_HZ, RATE = 440, 48_000

BUILD_TIMEOUT_S = 600
"""Of the first build on a machine: a minute where nothing else runs."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(BUILD_TIMEOUT_S + 120)]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled client; skips where Go or its modules are not to be had."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no Go: install golang")
    made = tmp_path_factory.mktemp("pion") / "pion"
    done = subprocess.run(
        [go, "build", "-mod=readonly", "-o", str(made), "."],
        cwd=SOURCE,
        env={**os.environ, "GOFLAGS": "-buildvcs=false", "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"Pion does not build here: {done.stderr.strip().splitlines()[-1]}")
    return made


def opus_tone(seconds: float) -> list[bytes]:
    """Packets of 20 ms."""
    codec = av.CodecContext.create("libopus", "w")
    codec.sample_rate, codec.format, codec.layout = RATE, av.AudioFormat("s16"), "mono"
    packets: list[bytes] = []
    for first in range(0, round(seconds * RATE), RATE // 50):
        wave = [math.sin(2 * math.pi * TONE_HZ * (first + k) / RATE) for k in range(RATE // 50)]
        frame = av.AudioFrame("s16", "mono", RATE // 50)
        frame.planes[0].update(array.array("h", [int(8_000 * value) for value in wave]).tobytes())
        frame.sample_rate, frame.pts = RATE, first
        packets += [bytes(packet) for packet in codec.encode(frame)]
    return packets


def tone_seconds(payloads: list[bytes]) -> float:
    """How much of these Opus packets is the tone, and loud: in pieces of a whole number of its periods."""
    codec = av.CodecContext.create("libopus", "r")
    codec.sample_rate, codec.layout = RATE, "mono"
    heard = array.array("h")
    for payload in payloads:
        for frame in codec.decode(av.Packet(payload)):
            heard.frombytes(bytes(frame.planes[0])[: 2 * frame.samples])
    piece, loud = RATE // 20, 0  # 50 ms, 22 periods
    angles = [2 * math.pi * TONE_HZ * k / RATE for k in range(piece)]
    for at in range(0, len(heard) - piece, piece):
        part = heard[at : at + piece]
        energy = sum(sample * sample for sample in part)
        real = sum(sample * math.cos(angle) for sample, angle in zip(part, angles, strict=True))
        imaginary = sum(s * math.sin(angle) for s, angle in zip(part, angles, strict=True))
        of_tone = 2 * (real * real + imaginary * imaginary) / piece
        loud += energy > piece * 1_000**2 and of_tone > 0.8 * energy
    return loud * piece / RATE


@pytest.mark.parametrize("backend", ["loopback", "echo"])
def test_a_pion_client_talks(client: Path, processes: Processes, backend: str) -> None:
    server = processes.transceiver(
        "serve", f"--backend={backend}", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=1",
        "--direct", "--log-format=json", "--drain-timeout=0",
    )  # fmt: skip
    url = f"http://{server.listening('http')[0]}/v1/realtime/calls"
    done = subprocess.run(
        [client, url, str(SECONDS[backend])],
        input=json.dumps([base64.b64encode(packet).decode() for packet in opus_tone(1.5)]),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    call: dict[str, Any] = json.loads(done.stdout)
    received = [base64.b64decode(payload) for payload in call.pop("received")]
    assert call["state"] == "connected"
    assert call["events"][0] == "session.created"
    assert call["reports"] >= 1, "our reports reach it"
    assert call["codec"] == "audio/opus"
    # A turn begins when it is heard to be one: the loopback has all, the echo what the client said but for its edges.
    least = 0.9 * call["sent"] if backend == "loopback" else 50
    assert len(received) >= least, (call, len(received))
    assert tone_seconds(received) >= 1, (call, len(received))
    ended = server.wait_event("call_ended")
    assert ended["packets_in"] >= 0.9 * call["sent"]
