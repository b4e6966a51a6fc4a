"""`relay call`: headless calls through a relay, and what it says when something fails."""

from __future__ import annotations

import json
import os
import socket
import urllib.request
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import pytest

from relay.call import calls_url
from relay.certificate import write_self_signed
from relay.wire.keyring import generate_line
from tests.support.process import Process, Processes
from tests.support.relayed import wait_until

KEY = "key-of-ann-0123456789abcdef"


@pytest.fixture
def house(processes: Processes, tmp_path: Path) -> Callable[..., tuple[Process, str]]:
    """Starts a relay and a transceiver behind it; returns the transceiver and its origin."""
    keyring, keys = tmp_path / "keyring", tmp_path / "keys"
    keyring.write_text(generate_line())
    keys.write_text(f"ann {KEY}\n")

    def start(ingress: str | None = None) -> tuple[Process, str]:
        if ingress is None:
            relay = processes.relay(
                "serve", "--listen=127.0.0.1:0", "--internal=127.0.0.1:0", "--workers=1", "--admin=127.0.0.1:0",
                f"--keyring={keyring}", "--allow-transceiver=127.0.0.1/32",
                f"--run-dir={tmp_path / 'run'}", "--log-format=json", "--drain-timeout=0",
            )  # fmt: skip
            ingress = relay.listening("public")[0]
        server = processes.transceiver(
            "serve", "--backend=loopback", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=1",
            f"--keyring={keyring}", f"--ingress=main={ingress}", f"--api-keys={keys}",
            "--log-format=json", "--drain-timeout=0",
        )  # fmt: skip
        return server, f"http://{server.listening('http')[0]}"

    return start


def reports(caller: Process) -> list[dict[str, Any]]:
    return [json.loads(line) for line in caller.output().splitlines() if line.startswith("{")]


def test_good_calls_say_how_they_went(
    house: Callable[..., tuple[Process, str]], processes: Processes
) -> None:
    _, origin = house()
    caller = processes.relay(
        "call", origin, "--count=2", "--seconds=3", "--json", env={"RELAY_CALL_KEY": f"{KEY}\n"}
    )
    assert caller.wait() == 0
    assert len(reports(caller)) == 2
    for report in reports(caller):
        assert report["trouble"] is None
        assert report["call_id"].startswith("rtc_")
        timeline = report["timeline_ms"]
        assert 0 < timeline["answer"] < timeline["ice"] < timeline["dtls"]
        assert {"channel", "first_audio"} <= set(timeline)
        assert 0 < report["echo_ms"] < 2_000
        assert report["packets_in"] > 50


def test_a_wrong_key_is_a_failure(
    house: Callable[..., tuple[Process, str]], processes: Processes
) -> None:
    _, origin = house()
    caller = processes.relay("call", origin, "--key=wrong")
    assert caller.wait() == 1
    assert caller.output().startswith("call 1 | (no id) | FAILED: the offer got 401: The API key")
    assert "--key or RELAY_CALL_KEY" in caller.output()


def test_a_server_that_is_not_there_is_named(processes: Processes) -> None:
    origin = f"http://127.0.0.1:{processes.reserve_port()}"
    caller = processes.relay("call", origin)
    assert caller.wait() == 1
    assert f"FAILED: nobody answers at {origin}: " in caller.output()


def test_a_certificate_of_nobody_is_explained(processes: Processes, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    write_self_signed(certificate, key, ip_address("127.0.0.1"))
    server = processes.transceiver(
        "serve", "--direct", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=1",
        f"--tls-cert={certificate}", f"--tls-key={key}", "--log-format=json",
    )  # fmt: skip
    origin = f"https://{server.listening('http')[0]}"
    caller = processes.relay("call", origin)
    assert caller.wait() == 1
    assert "is not trusted" in caller.output()
    assert "--insecure" in caller.output()
    assert processes.relay("call", origin, "--insecure", "--seconds=3").wait() == 0


def test_a_call_too_short_for_an_answer_says_so(processes: Processes) -> None:
    server = processes.transceiver(
        "serve", "--direct", "--backend=echo", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=1",
        "--log-format=json",
    )  # fmt: skip
    caller = processes.relay("call", f"http://{server.listening('http')[0]}", "--seconds=0.3")
    assert caller.wait() == 1
    assert "came (who answers after a beep needs over a second: --seconds 2)" in caller.output()


def test_a_relay_that_is_not_reached_is_named(
    house: Callable[..., tuple[Process, str]], processes: Processes
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind(("127.0.0.1", 0))
        port = deaf.getsockname()[1]
        _, origin = house(f"127.0.0.1:{port}")
        caller = processes.relay("call", origin, env={"RELAY_CALL_KEY": KEY})
        assert caller.wait(60) == 1
        assert f"does UDP reach 127.0.0.1 port {port}?" in caller.output()
        assert "relay_drop_packets_total" in caller.output()


def test_a_call_that_is_cut_off_is_a_failure(
    house: Callable[..., tuple[Process, str]], processes: Processes
) -> None:
    server, origin = house()
    caller = processes.relay("call", origin, "--seconds=30", env={"RELAY_CALL_KEY": KEY})
    wait_until(lambda: is_talking(origin), "a call with sound from both sides")
    server.stop(SIGTERM)
    assert caller.wait(60) == 1
    assert "FAILED: cut off after" in caller.output()


def test_a_call_whose_transceiver_died_is_cut_off(
    house: Callable[..., tuple[Process, str]], processes: Processes
) -> None:
    server, origin = house()
    caller = processes.relay("call", origin, "--seconds=6", env={"RELAY_CALL_KEY": KEY})
    wait_until(lambda: is_talking(origin), "a call with sound from both sides")
    worker = int(Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text())
    os.kill(worker, SIGKILL)
    assert server.wait_event("process_ended")["calls_lost"] == 1
    assert caller.wait(60) == 1
    assert "FAILED: cut off: the server has no such call any more" in caller.output()


def is_talking(origin: str) -> bool:
    with urllib.request.urlopen(origin + "/metrics") as response:
        spoken_to = b'transceiver_setup_seconds_count{stage="first_audio_out"} 1.0'
        return spoken_to in response.read()


def test_wrong_input_is_one_line(processes: Processes) -> None:
    caller = processes.relay("call", "localhost:8080")
    assert caller.wait() == 2
    assert len(caller.output().splitlines()) == 1


@pytest.mark.parametrize(
    ("url", "at"),
    [
        ("http://a:1", "http://a:1/v1/realtime/calls"),
        ("http://a:1/?backend=echo", "http://a:1/v1/realtime/calls?backend=echo"),
        ("https://a/other", "https://a/other"),
    ],
)
def test_an_origin_gets_the_usual_path(url: str, at: str) -> None:
    assert calls_url(url) == at
