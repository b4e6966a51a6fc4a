"""Attacks on calls through `relay serve` and `transceiver serve`: a victim and an attacker, both stock
clients with sound; the attacker knows the password of his own session, and addresses to spoof.

Afterwards both calls have gone on, and nobody else has heard media.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from relay.wire import stun
from relay.wire._codec import StunClass
from relay.wire.keyring import generate_line
from tests.integration.test_transceiver_calls import stats_of
from tests.support.calls import StockCall, stock_call
from tests.support.process import Process, Processes
from tests.support.relayed import parse_address
from tests.support.spoof import Spoofer, loopback

pytestmark = pytest.mark.timeout(180)

WATCHED_S = 2.0
LATE_S = 18.0
ROUNDS = 20


@dataclass
class Scene:
    """Two connected calls on one transceiver process, through one relay."""

    public: tuple[str, int]
    http: aiohttp.ClientSession
    victim: StockCall
    attacker: StockCall

    def check(self, call: StockCall) -> bytes:
        """A valid check of that call, with USE-CANDIDATE, as only its owner can make it."""
        ufrag, password = (_field(call.answer, f"a=ice-{name}:") for name in ("ufrag", "pwd"))
        theirs = _field(call.connection.localDescription.sdp, "a=ice-ufrag:")
        attributes = [
            (stun.USERNAME, f"{ufrag}:{theirs}".encode()),
            (stun.PRIORITY, bytes((110, 0, 30, 255))),
            (stun.ICE_CONTROLLING, bytes(8)),
            (stun.USE_CANDIDATE, b""),
        ]
        return stun.encode(StunClass.REQUEST, os.urandom(12), attributes, key=password.encode())

    async def go_on(self, attack: Callable[[], None] = lambda: None) -> None:
        """Both calls keep at least two thirds of their frames while the attack is repeated at 20 Hz,
        and the media of both goes where it went. A frame that this process decodes late is kept, too.
        """
        calls = (self.victim, self.attacker)
        flows = [await self._flow(call) for call in calls]
        before = [_sent_and_heard(call) for call in calls]
        ends_s, rounds = time.monotonic() + WATCHED_S, 0
        while True:
            attack()
            rounds += 1
            await asyncio.sleep(0.05)
            moved = [
                (sent - sent_before, heard - heard_before)
                for (sent, heard), (sent_before, heard_before) in zip(
                    map(_sent_and_heard, calls), before, strict=True
                )
            ]
            is_over = time.monotonic() > ends_s and rounds >= ROUNDS
            if is_over and all(heard > sent * 2 / 3 for sent, heard in moved):
                break
            assert time.monotonic() < ends_s + LATE_S, f"(sent, heard) of each: {moved}"
        assert [await self._flow(call) for call in (self.victim, self.attacker)] == flows

    async def _flow(self, call: StockCall) -> Any:
        stats = await stats_of(self.http, call.location)
        assert stats["state"] == "connected"
        return stats["flow"]


@pytest.fixture(scope="module")
def relay(module_processes: Processes, tmp_path_factory: pytest.TempPathFactory) -> Process:
    _keys(module_processes).write_text(generate_line() + "\n")
    return module_processes.relay(
        "serve", "--listen=127.0.0.1:0", "--internal=127.0.0.1:0", "--workers=1", "--cluster=9",
        f"--keyring={_keys(module_processes)}", "--allow-transceiver=127.0.0.0/8",
        "--admin=127.0.0.1:0", f"--run-dir={tmp_path_factory.mktemp('relay')}",
        "--drain-timeout=0", "--log-format=json",
    )  # fmt: skip


@pytest.fixture(scope="module")
def base(module_processes: Processes, relay: Process) -> str:
    server = module_processes.transceiver(
        "serve", "--backend=loopback", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=1", "--cluster=9",
        f"--keyring={_keys(module_processes)}", f"--ingress=here={relay.listening('public')[0]}",
        "--drain-timeout=0", "--log-format=json",
    )  # fmt: skip
    return f"http://{server.listening('http')[0]}"


def _keys(processes: Processes) -> Path:
    return processes.directory / "keyring"


@asynccontextmanager
async def scene_of(base: str, relay: Process) -> AsyncIterator[Scene]:
    public = parse_address(relay.listening("public")[0])
    async with (
        aiohttp.ClientSession(base) as http,
        stock_call(base) as victim,
        stock_call(base) as attacker,
    ):
        await victim.wait()
        await attacker.wait()
        yield Scene(public, http, victim, attacker)


async def test_a_spoofed_nomination_of_a_stranger_moves_no_media(base: str, relay: Process) -> None:
    """The stranger gets one STUN answer for each check and nothing else."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.setblocking(False)
        async with scene_of(base, relay) as scene:
            sent = 0

            def nominate() -> None:
                nonlocal sent
                sent += 1
                stranger.sendto(scene.check(scene.attacker), scene.public)

            await scene.go_on(nominate)
            heard = _all_received(stranger)
    assert 0 < len(heard) <= sent
    assert {datagram[:2] for datagram in heard} == {b"\x01\x01"}


async def test_an_attackers_check_from_the_victims_address(base: str, relay: Process) -> None:
    """Two sessions of one transceiver on one flow key: authentication tells them apart."""
    async with scene_of(base, relay) as scene:
        send = _transport(scene.victim).sendto
        await scene.go_on(lambda: send(scene.check(scene.attacker), scene.public))
        await scene.go_on()


async def test_a_captured_check_from_another_address_is_not_answered(
    base: str, relay: Process
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.setblocking(False)
        async with scene_of(base, relay) as scene:
            captured = scene.check(scene.victim)
            _transport(scene.victim).sendto(captured, scene.public)
            await asyncio.sleep(0.2)
            await scene.go_on(lambda: _ignore(stranger.sendto(captured, scene.public)))
            assert _all_received(stranger) == []


async def test_off_path_handshakes_reach_nobody(base: str, relay: Process) -> None:
    """Case B20: from unknown sources, and mid-call from the address of another client."""
    hello = b"\x16\xfe\xfd" + bytes(8) + b"\0\x50\1\0\0\x44" + bytes(74)
    async with scene_of(base, relay) as scene:
        send = _transport(scene.attacker).sendto
        with Spoofer() as spoofer:

            def attack() -> None:
                for i in range(50):
                    spoofer.send(hello, loopback(i), scene.public)
                    send(hello, scene.public)

            await scene.go_on(attack)


async def test_a_flood_of_replays_leaves_the_transceiver_responsive(
    base: str, relay: Process
) -> None:
    """4,000 spoofed checks a second with a valid token: the relay's cap lets 20 a second through."""
    async with scene_of(base, relay) as scene:
        with Spoofer() as spoofer:
            captured, sent, slowest_s = scene.check(scene.victim), 0, 0.0

            def attack() -> None:
                nonlocal sent
                for _ in range(200):
                    sent += 1
                    spoofer.send(captured, loopback(sent), scene.public)

            async def ask() -> None:
                nonlocal slowest_s
                while True:
                    asked_s = time.monotonic()
                    async with scene.http.get("/healthz") as response:
                        assert response.status == 200
                    slowest_s = max(slowest_s, time.monotonic() - asked_s)
                    await asyncio.sleep(0.02)

            asking = asyncio.create_task(ask())
            await scene.go_on(attack)
            asking.cancel()
    assert sent > 2_000
    assert slowest_s < 1


def _sent_and_heard(call: StockCall) -> tuple[int, int]:
    assert call.tone is not None
    return call.tone.frames, call.frames


def _transport(call: StockCall) -> Any:
    """The UDP transport whose candidate was nominated."""
    assert call.connection.sctp is not None
    ice: Any = call.connection.sctp.transport.transport
    return ice._connection._nominated[1].protocol.transport


def _all_received(sock: socket.socket) -> list[bytes]:
    heard = []
    while True:
        try:
            heard.append(sock.recv(65536))
        except BlockingIOError:
            return heard


def _ignore(_: object) -> None:
    pass


def _field(text: str, start: str) -> str:
    return text.split(start, 1)[1].split("\r\n", 1)[0]
