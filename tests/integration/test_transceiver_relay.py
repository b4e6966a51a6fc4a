"""Calls through a real relay: `relay serve` in front of `transceiver serve`, each of two processes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from relay.wire.keyring import generate_line
from tests.integration.test_transceiver_calls import closed, stats_of
from tests.support.calls import stock_call, until
from tests.support.process import Process, Processes

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def relay(module_processes: Processes, tmp_path_factory: pytest.TempPathFactory) -> Process:
    keys = _keys(module_processes)
    keys.write_text(generate_line() + "\n")
    run_dir = tmp_path_factory.mktemp("relay")
    return module_processes.relay(
        "serve", "--listen=127.0.0.1:0", "--internal=127.0.0.1:0", "--workers=2", "--cluster=9",
        f"--keyring={keys}", "--allow-transceiver=127.0.0.0/8", "--admin=127.0.0.1:0",
        f"--run-dir={run_dir}", "--drain-timeout=0", "--log-format=json",
    )  # fmt: skip


@pytest.fixture(scope="module")
def base(module_processes: Processes, relay: Process) -> str:
    server = module_processes.transceiver(
        "serve", "--backend=loopback", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=2", "--cluster=9",
        f"--keyring={_keys(module_processes)}", f"--ingress=here={relay.listening('public')[0]}",
        "--drain-timeout=0", "--log-format=json",
    )  # fmt: skip
    return f"http://{server.listening('http')[0]}"


def _keys(processes: Processes) -> Path:
    return processes.directory / "keyring"


@pytest.mark.alone
async def test_twenty_clients_at_once_over_two_processes(base: str, relay: Process) -> None:
    public = relay.listening("public")[0]
    async with AsyncExitStack() as stack, aiohttp.ClientSession(base) as http:
        calls = await asyncio.gather(
            *(stack.enter_async_context(stock_call(base, encoded=True)) for _ in range(20))
        )
        await asyncio.gather(*(call.wait() for call in calls))

        async def all_hear_a_full_stream() -> bool:
            before = [call.frames for call in calls]
            await asyncio.sleep(2)
            return min(call.frames - count for call, count in zip(calls, before, strict=True)) >= 90

        await until(all_hear_a_full_stream)
        stats = [await stats_of(http, call.location) for call in calls]
    assert {one["transceiver"]["process"] for one in stats} == {0, 1}
    assert {one["flow"]["proxy"] for one in stats} == {public}
    assert len({one["flow"]["client"] for one in stats}) == 20
    for call in calls:
        assert call.events[0]["type"] == "session.created"
        assert call.answer.count("a=candidate:") == 1
        assert f" {public.replace(':', ' ')} typ host" in call.answer
    async with aiohttp.ClientSession(base) as http:
        for call in calls:
            assert await closed(http, call.location) in ("sctp_abort", "dtls_close_notify")


async def test_one_client_after_another(base: str) -> None:
    for _ in range(3):
        async with stock_call(base) as call:
            await call.wait()
