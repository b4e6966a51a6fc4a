"""Steered answers of a real pool: the nearest ingress, the second-best, and calls through either."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from relay.wire.keyring import generate_line
from tests.integration.test_transceiver_calls import metrics_of, stats_of
from tests.support.calls import post_offer, stock_call, until
from tests.support.mmdb import write_mmdb
from tests.support.offers import CHROMIUM
from tests.support.process import Process, Processes
from tests.support.relayed import is_running, wait_until

PROXY = "127.0.0.2"
"""The one peer whose headers count."""
SYDNEY = {"CF-IPLatitude": "-33.9", "CF-IPLongitude": "151.2"}
BERLIN = {"CF-IPLatitude": "52.5", "CF-IPLongitude": "13.4"}


@pytest.fixture
def keyring(tmp_path: Path) -> Path:
    path = tmp_path / "keyring"
    path.write_text(generate_line() + "\n")
    return path


@pytest.fixture
def relay(processes: Processes, tmp_path: Path, keyring: Path) -> Callable[[str], Process]:
    """Starts a relay."""

    def start(name: str) -> Process:
        return processes.relay(
            "serve", "--listen=127.0.0.1:0", "--internal=127.0.0.1:0", "--workers=1",
            f"--keyring={keyring}", "--allow-transceiver=127.0.0.0/8", "--admin=127.0.0.1:0",
            f"--run-dir={tmp_path / name}", "--drain-timeout=0", "--log-format=json",
        )  # fmt: skip

    return start


def serve(processes: Processes, keyring: Path, *arguments: str) -> tuple[Process, str]:
    server = processes.transceiver(
        "serve", "--backend=loopback", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=1",
        f"--keyring={keyring}", "--drain-timeout=0", "--log-format=json", *arguments,
    )  # fmt: skip
    return server, f"http://{server.listening('http')[0]}"


def die(relay: Process) -> None:
    """As a host does: every process of it at once."""
    workers = [event["pid"] for event in relay.events("worker_serving")]
    for pid in (relay.pid, *workers):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, workers)), "the workers' end")


async def answer(
    base: str, headers: Mapping[str, str], *, peer: str = PROXY, query: str = ""
) -> tuple[int, Any]:
    """Status, and the hosts of the candidates or the error."""
    connector = aiohttp.TCPConnector(local_addr=(peer, 0))
    async with aiohttp.ClientSession(base, connector=connector, headers=headers) as http:
        path = f"/v1/realtime/calls{query}"
        status, text, location = await post_offer(http, CHROMIUM, path=path)
        if status != 201:
            return status, text
        hosts = [line.split()[4] for line in text.splitlines() if line.startswith("a=candidate:")]
        stats = await stats_of(http, location)
        await http.delete(location)
        return status, (hosts, stats["ingress"]["viewpoint"], stats["cluster"])


async def test_the_nearest_ingress_is_named_and_counted(
    processes: Processes, keyring: Path, tmp_path: Path
) -> None:
    places = tmp_path / "places.mmdb"
    write_mmdb(
        places,
        {
            "127.0.0.1/32": {"location": {"latitude": 35.7, "longitude": 139.7}},
            "198.51.100.0/24": {"location": {"latitude": -33.9, "longitude": 151.2}},
        },
    )
    server, base = serve(
        processes, keyring, "--ingress=fra=192.0.2.1:3478,[2001:db8::1]:3478@50.1,8.7",
        "--ingress=iad=192.0.2.2:3478@38.9,-77.5", "--ingress=nrt=192.0.2.3:3478@35.8,140.4",
        "--cluster=5", "--place=39,-77", f"--trusted-proxy={PROXY}", f"--geoip={places}",
    )  # fmt: skip
    fra, iad, nrt = ["192.0.2.1", "2001:db8::1"], ["192.0.2.2"], ["192.0.2.3"]
    assert await answer(base, BERLIN) == (201, (fra, "coordinates", 5))
    assert await answer(base, {"CF-Ray": "8f2a-SYD"}) == (201, (nrt, "colo", 5))
    assert await answer(base, {"CF-IPCountry": "DE"}) == (201, (fra, "country", 5))
    assert await answer(base, {"X-Forwarded-For": "198.51.100.7"}) == (201, (nrt, "geoip", 5))
    assert await answer(base, {}) == (201, (iad, "default", 5))
    # Not from a trusted proxy: headers are nothing, the peer's own address counts.
    assert await answer(base, BERLIN, peer="127.0.0.1") == (201, (nrt, "geoip", 5))
    assert await answer(base, BERLIN, query="?ingress=iad") == (201, (iad, "explicit", 5))
    status, text = await answer(base, BERLIN, query="?ingress=lhr")
    assert status == 400
    assert '"code": "unknown_ingress"' in text
    async with aiohttp.ClientSession(base) as http:
        metrics = await metrics_of(http)
    decisions = "transceiver_steering_decisions_total"
    assert metrics[decisions, "geoip"] == 2
    assert metrics[decisions, "default"] == metrics[decisions, "explicit"] == 1
    assert metrics["transceiver_ingress_advertised_total", "nrt"] == 3
    assert metrics["transceiver_ingress_healthy", "fra"] == 1
    assert metrics["transceiver_offers_refused_total", "unknown_ingress"] == 1
    opened = server.events("call_opened")[0]
    assert (opened["ingress"], opened["viewpoint"], opened["cluster"]) == ("fra", "coordinates", 5)


@pytest.mark.parametrize("dead", [False, True])
async def test_calls_connect_by_the_first_or_by_the_second_entry(
    processes: Processes, keyring: Path, relay: Callable[[str], Process], *, dead: bool
) -> None:
    relays = {name: relay(name) for name in ("near", "far")}
    at = {name: one.listening("public")[0] for name, one in relays.items()}
    _, base = serve(
        processes, keyring, f"--ingress=near={at['near']}@50.1,8.7",
        f"--ingress=far={at['far']}@38.9,-77.5", "--place=52,13", "--second-ingress",
    )  # fmt: skip

    def between(text: str) -> str:
        lines = [line.split() for line in text.splitlines() if line.startswith("a=candidate:")]
        assert [f"{line[4]}:{line[5]}" for line in lines] == [at["near"], at["far"]]
        assert int(lines[0][3]) > int(lines[1][3])
        if dead:
            die(relays["near"])
        return text

    async with stock_call(base, change_answer=between) as call, aiohttp.ClientSession(base) as http:
        await call.wait()
        stats = await stats_of(http, call.location)

        async def steady() -> bool:
            nonlocal stats
            stats = await stats_of(http, call.location)
            return bool(stats["flow"]["proxy"] == at[stats["ingress"]["name"]])

        await until(steady)
    assert stats["ingress"]["advertised"] == ["near", "far"]
    if dead:
        assert stats["ingress"]["name"] == "far"
