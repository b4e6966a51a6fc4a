"""The health of a fleet through a real Redis: who drains or is dead is not advertised, and Redis decides nothing.

Times are generous for a busy machine; what a quiet one needs is 0.6 s for a drain and 4 s for a death.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest

from relay.wire.fleet import CLUSTER_KEY, INGRESS_KEY, TTL_S
from relay.wire.keyring import generate_line
from tests.integration.test_global_entry import die
from tests.integration.test_transceiver_calls import metrics_of, stats_of
from tests.support.calls import post_offer, until
from tests.support.offers import CHROMIUM
from tests.support.process import Process, Processes, session_members
from tests.support.redis_server import PASSWORD, RedisServer, missing_for_redis

pytestmark = [
    pytest.mark.redis,
    pytest.mark.skipif(missing_for_redis() is not None, reason=str(missing_for_redis())),
]

AT = {"near": "192.0.2.1:3478", "far": "192.0.2.2:3478"}
LIMIT_S = 30.0


class Fleet(NamedTuple):
    """Two relays, a transceiver, and what tells the one of the others."""

    relays: dict[str, Process]
    server: Process
    base: str
    redis: RedisServer


@pytest.fixture
def keyring(tmp_path: Path) -> Path:
    path = tmp_path / "keyring"
    path.write_text(generate_line() + "\n")
    return path


@pytest.fixture
async def fleet(processes: Processes, tmp_path: Path, keyring: Path) -> AsyncIterator[Fleet]:
    redis = RedisServer(processes, tmp_path)
    relays = {
        name: processes.relay(
            "serve", f"--listen=127.0.0.1:0={AT[name]}", "--internal=127.0.0.1:0", "--workers=1",
            f"--keyring={keyring}", "--allow-transceiver=127.0.0.0/8", "--admin=127.0.0.1:0",
            f"--run-dir={tmp_path / name}", "--drain-timeout=60", "--drain-min-flows=0",
            f"--ingress-name={name}", "--log-format=json", env={"RELAY_REDIS": redis.url},
        )
        for name in AT
    }  # fmt: skip
    server = processes.transceiver(
        "serve", "--backend=loopback", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=1",
        f"--keyring={keyring}", f"--ingress=near={AT['near']}@50,8", f"--ingress=far={AT['far']}@39,-77",
        "--place=52,13", "--drain-timeout=0", "--log-format=json", env={"TRANSCEIVER_REDIS": redis.url},
    )  # fmt: skip
    base = f"http://{server.listening('http')[0]}"
    made = Fleet(relays, server, base, redis)
    with redis.client() as client:

        async def announced() -> bool:
            names = [field.split()[0].decode() for field in client.hkeys(INGRESS_KEY)]
            return sorted(names) == ["far", "near"] and client.hlen(CLUSTER_KEY) == 1

        await until(announced)
    yield made
    for relay in relays.values():
        if relay.returncode is None:
            die(relay)


async def entry(base: str) -> str:
    """The ingress that an offer is told."""
    async with aiohttp.ClientSession(base) as http:
        status, answer, location = await post_offer(http, CHROMIUM)
        assert status == 201, answer
        await http.delete(location)
    at = next(line.split()[4:6] for line in answer.splitlines() if line.startswith("a=candidate:"))
    return next(name for name, address in AT.items() if address == ":".join(at))


def becomes(base: str, name: str) -> Callable[[], Awaitable[bool]]:
    async def probe() -> bool:
        return await entry(base) == name

    return probe


async def healthy(base: str) -> dict[str, float]:
    async with aiohttp.ClientSession(base) as http:
        return {
            labels: value
            for (name, labels), value in (await metrics_of(http)).items()
            if name == "transceiver_ingress_healthy"
        }


async def watch_of(fleet: Fleet) -> int:
    """The one child of the pool that answers nobody."""
    async with aiohttp.ClientSession(fleet.base) as http:
        _, _, location = await post_offer(http, CHROMIUM)
        worker = (await stats_of(http, location))["transceiver"]["pid"]
        await http.delete(location)
    (watch,) = set(session_members(fleet.server.pid)) - {worker, fleet.server.pid}
    return watch


async def test_a_draining_and_then_a_dead_ingress_are_not_advertised(fleet: Fleet) -> None:
    os.kill(await watch_of(fleet), signal.SIGKILL)
    fleet.server.wait_event("watch_ended")
    assert await entry(fleet.base) == "near"
    began_s = time.monotonic()
    fleet.relays["near"].signal(signal.SIGTERM)
    await until(becomes(fleet.base, "far"), LIMIT_S)
    print(f"draining was known after {time.monotonic() - began_s:.1f} s")
    assert fleet.relays["near"].returncode is None, "it drains, and still forwards"
    assert await healthy(fleet.base) == {"near": 0, "far": 1}
    began_s = time.monotonic()
    die(fleet.relays["far"])
    # None is well: health is what is broken, and the nearest is named.
    await until(becomes(fleet.base, "near"), LIMIT_S)
    print(f"death was known after {time.monotonic() - began_s:.1f} s")
    assert await healthy(fleet.base) == {"near": 0, "far": 0}


async def test_a_redis_that_goes_and_comes_back_empty_changes_nothing(fleet: Fleet) -> None:
    fleet.relays["near"].signal(signal.SIGTERM)
    await until(becomes(fleet.base, "far"), LIMIT_S)
    fleet.redis.kill()
    fleet.server.wait_event("fleet_redis_lost")
    frozen_s = time.monotonic() + TTL_S + 0.5
    while time.monotonic() < frozen_s:
        assert await healthy(fleet.base) == {"near": 0, "far": 1}
    fleet.redis.start()
    fleet.server.wait_event("fleet_redis_restored")
    with fleet.redis.client() as client:

        async def back() -> bool:
            assert await healthy(fleet.base) == {"near": 0, "far": 1}
            return bool(client.hlen(INGRESS_KEY) == 2)

        await until(back, LIMIT_S)
    assert await entry(fleet.base) == "far"
    for process in (fleet.server, *fleet.relays.values()):
        assert PASSWORD not in process.output()


async def test_a_cluster_that_is_full_or_drains_is_not_chosen(
    processes: Processes, tmp_path: Path, keyring: Path
) -> None:
    redis = RedisServer(processes, tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("a secret of at least thirty-two bytes")
    ports = [processes.reserve_port(), processes.reserve_port()]
    peers = [
        f"--cluster-peer={number}=http://127.0.0.1:{port}@{place}"
        for number, port, place in zip((1, 2), ports, ("50,8", "35,139"), strict=True)
    ]
    here, there = (
        processes.transceiver(
            "serve", "--backend=loopback", f"--http=127.0.0.1:{port}", "--media=127.0.0.1:0",
            "--workers=1", "--direct", f"--keyring={keyring}", f"--auth-secret={secret}", "--insecure-open",
            f"--cluster={number}", *peers, "--trusted-proxy=127.0.0.1", "--max-sessions=3",
            f"--drain-timeout={drain_s}", "--log-format=json", env={"TRANSCEIVER_REDIS": redis.url},
        )
        for number, port, drain_s in zip((1, 2), ports, (0, 60), strict=True)
    )  # fmt: skip
    bases = [f"http://{server.listening('http')[0]}" for server in (here, there)]
    tokyo = {"CF-IPLatitude": "35", "CF-IPLongitude": "139", "Content-Type": "application/sdp"}

    async with aiohttp.ClientSession(bases[0]) as http, aiohttp.ClientSession(bases[1]) as other:

        async def second_is(value: float) -> None:
            async def probe() -> bool:
                return (await metrics_of(http))["transceiver_cluster_healthy", "2"] == value

            await until(probe, LIMIT_S)

        async def handed() -> dict[str, float]:
            return {
                labels: value
                for (name, labels), value in (await metrics_of(http)).items()
                if name == "transceiver_handovers_total" and value
            }

        placed = [(await post_offer(other, CHROMIUM))[2] for _ in range(3)]
        await second_is(0)
        async with http.post("/v1/realtime/calls", data=CHROMIUM, headers=tokyo) as response:
            assert response.status == 201
            await http.delete(response.headers["Location"])
        assert await handed() == {}, "nobody had to ask"
        await other.delete(placed[0])
        await second_is(1)
        async with http.post("/v1/realtime/calls", data=CHROMIUM, headers=tokyo) as response:
            assert response.status == 201
        before = await handed()
        assert sum(before.values()) == 1, "asked, and answered unless the machine was too busy"
        await other.delete(placed[1])
        there.signal(signal.SIGTERM)
        await second_is(0)
        assert there.returncode is None
        async with http.post("/v1/realtime/calls", data=CHROMIUM, headers=tokyo) as response:
            assert response.status == 201
        assert await handed() == before
    there.signal(signal.SIGTERM)
