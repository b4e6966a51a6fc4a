"""A Pion client (Go): another ICE, DTLS, SRTP and SCTP than the browsers', in both kinds of call."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import Processes

SOURCE = Path(__file__).with_name("pion")
SECONDS = 3

pytestmark = pytest.mark.slow


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
        timeout=110,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"Pion does not build here: {done.stderr.strip().splitlines()[-1]}")
    return made


@pytest.mark.parametrize("backend", ["loopback", "echo"])
def test_a_pion_client_talks(client: Path, processes: Processes, backend: str) -> None:
    server = processes.transceiver(
        "serve", f"--backend={backend}", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=1",
        "--direct", "--log-format=json", "--drain-timeout=0",
    )  # fmt: skip
    url = f"http://{server.listening('http')[0]}/v1/realtime/calls"
    done = subprocess.run(
        [client, url, str(SECONDS)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    call: dict[str, Any] = json.loads(done.stdout)
    assert call["state"] == "connected"
    assert call["events"][0] == "session.created"
    assert call["reports"] >= 1, "our reports reach it"
    if backend == "loopback":
        assert call["codec"] == "audio/opus"
        assert call["received"] >= 0.9 * call["sent"]
    ended = server.wait_event("call_ended")
    assert ended["packets_in"] >= 0.9 * call["sent"]
