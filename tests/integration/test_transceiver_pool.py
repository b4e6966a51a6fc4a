"""The pool of `transceiver serve`: limits, drains, deaths, leaks."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from relay.wire.address import Endpoint
from tests.integration.test_transceiver_calls import closed, metrics_of, stats_of
from tests.support.calls import hears, post_offer, stock_call, until
from tests.support.offers import CHROMIUM
from tests.support.process import Process, Processes
from tests.support.relayed import wait_until
from transceiver.media import PYTHON_NICE
from transceiver.sockets import open_http, open_media

Serve = Callable[..., tuple[Process, str]]


@pytest.fixture
def serve(processes: Processes) -> Serve:
    """Starts a server of two processes; returns it and its origin."""

    def start(*arguments: str, env: dict[str, str] | None = None) -> tuple[Process, str]:
        server = processes.transceiver(
            "serve", "--backend=loopback", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=2", "--direct",
            "--log-format=json", "--drain-timeout=0.5", *arguments, env=env,
        )  # fmt: skip
        return server, f"http://{server.listening('http')[0]}"

    return start


def children(pid: int) -> list[int]:
    """The processes of a pool."""
    listing = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(item) for item in listing.split()]


async def place(base: str) -> tuple[int, str]:
    """One offer over a TCP connection of its own."""
    async with aiohttp.ClientSession(base) as http:
        status, _, location = await post_offer(http, CHROMIUM)
        return status, location


async def test_max_sessions_counts_the_whole_pool_and_frees_places(serve: Serve) -> None:
    _, base = serve("--max-sessions=5")
    placed = await asyncio.gather(*(place(base) for _ in range(20)))
    taken = [location for status, location in placed if status == 201]
    assert len(taken) == 5
    async with aiohttp.ClientSession(base) as http:
        async with http.post(
            "/v1/realtime/calls", data=CHROMIUM, headers={"Content-Type": "application/sdp"}
        ) as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) > 0
            assert (await response.json())["error"]["code"] == "session_limit"
        for location in taken:
            assert (await http.delete(location)).status == 200
    assert [status for status, _ in [await place(base) for _ in range(5)]] == [201] * 5
    assert (await place(base))[0] == 503


@pytest.mark.slow
async def test_a_call_that_never_connects_ends_after_15_s(serve: Serve) -> None:
    _, base = serve()
    started_s = time.monotonic()
    _, location = await place(base)
    async with aiohttp.ClientSession(base) as http:
        assert await closed(http, location) == "connect_timeout"
    assert 14 < time.monotonic() - started_s < 25


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_without_calls_a_signal_ends_the_pool_at_once(serve: Serve, signum: signal.Signals) -> None:
    server, _ = serve()
    started_s = time.monotonic()
    assert server.stop(signum) == 0
    assert time.monotonic() - started_s < 10, "2 s, with room for a busy machine"
    assert server.events("stopped")


async def test_a_drain_takes_no_calls_and_waits_for_the_others(serve: Serve) -> None:
    server, base = serve("--drain-timeout=60")
    async with stock_call(base) as call, aiohttp.ClientSession(base) as http:
        await call.wait()
        os.kill(server.pid, signal.SIGTERM)

        async def refused() -> bool:
            return (await place(base))[0] == 503

        await until(refused)
        async with http.get("/readyz") as response:
            assert response.status == 503
        async with http.get("/healthz") as response:
            assert response.status == 200
        await hears(call, 20)
        assert (await stats_of(http, call.location))["state"] == "connected"
        assert (await http.delete(call.location)).status == 200
    assert await asyncio.to_thread(server.wait) == 0


def test_a_watch_that_is_stopped_keeps_no_port(serve: Serve) -> None:
    server, base = serve(env={"TRANSCEIVER_REDIS": "redis://127.0.0.1:1"})
    server.wait_event("fleet_redis_lost")
    *_, watch = children(server.pid)  # forked after the two that serve
    media = server.listening("media", count=2)
    os.kill(watch, signal.SIGSTOP)
    try:
        assert server.stop() == 0
        for opened in open_http(endpoint(base.removeprefix("http://")), 2):
            opened.close()
        for at in map(endpoint, media):
            open_media(str(at.ip), at.port).close()
    finally:
        os.kill(watch, signal.SIGKILL)


def endpoint(text: str) -> Endpoint:
    """HOST:PORT."""
    host, _, port = text.rpartition(":")
    return Endpoint.of(host, int(port))


class _Visitors:
    """Clients that come all the time, each over a connection of its own, some of them slow to speak."""

    def __init__(self, base: str) -> None:
        self._host, _, port = base.removeprefix("http://").rpartition(":")
        self._port = int(port)
        self.answers: Counter[str] = Counter()
        self._gone = asyncio.Event()

    async def come_until_refused(self, clients: int) -> None:
        async with asyncio.TaskGroup() as group:
            for index in range(clients):
                group.create_task(self._come(pause_s=0.01 * (index % 8)))

    async def _come(self, pause_s: float) -> None:
        while not self._gone.is_set():
            self.answers[await self._visit(pause_s)] += 1

    async def _visit(self, pause_s: float) -> str:
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port)
        except ConnectionRefusedError:
            self._gone.set()
            return "refused"
        try:
            await asyncio.sleep(pause_s)
            writer.write(
                b"POST /v1/realtime/calls HTTP/1.1\r\nHost: t\r\nContent-Type: application/sdp\r\n"
                b"Content-Length: 4\r\n\r\nv=0\n"
            )
            head = await reader.readuntil(b"\r\n\r\n")
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            return type(error).__name__
        finally:
            writer.close()
        status = head.split()[1].decode()
        return status + (" later" if b"Retry-After: " in head else "")


@pytest.mark.parametrize("calls", [0, 1])
async def test_nobody_who_comes_during_a_drain_is_reset(serve: Serve, calls: int) -> None:
    """Before it 400 (their offers are none), then 503, and then nobody answers the door."""
    server, base = serve("--drain-timeout=1")
    visitors = _Visitors(base)
    async with AsyncExitStack() as stack:
        for _ in range(calls):
            await (await stack.enter_async_context(stock_call(base))).wait()
        coming = asyncio.create_task(visitors.come_until_refused(24))

        async def served() -> bool:
            return visitors.answers["400"] > 50

        await until(served)
        os.kill(server.pid, signal.SIGTERM)
        await coming
    assert set(visitors.answers) == {"400", "503 later", "refused"}, visitors.answers
    assert await asyncio.to_thread(server.wait) == 0


async def test_a_drain_ends_calls_when_its_time_is_up(serve: Serve) -> None:
    server, base = serve()
    async with stock_call(base) as call:
        await call.wait()
        os.kill(server.pid, signal.SIGTERM)
        assert await asyncio.to_thread(server.wait) == 0

        async def told() -> bool:
            return call.connection.connectionState == "closed"

        await until(told, timeout_s=10)
    assert [event["reason"] for event in server.events("call_ended")] == ["shutdown"]


async def test_a_second_signal_ends_at_once(serve: Serve) -> None:
    server, base = serve("--drain-timeout=60")
    async with stock_call(base) as call:
        await call.wait()
        pids = children(server.pid)
        os.kill(server.pid, signal.SIGTERM)
        await asyncio.to_thread(server.wait_event, "draining")
        os.kill(server.pid, signal.SIGTERM)
        started_s = time.monotonic()
        assert await asyncio.to_thread(server.wait) == 0
        assert time.monotonic() - started_s < 10
    wait_until(lambda: not [pid for pid in pids if _alive(pid)], "the killed processes' end")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_e26_a_killed_process_is_replaced_and_the_others_go_on(serve: Serve) -> None:
    server, base = serve()
    async with AsyncExitStack() as stack, aiohttp.ClientSession(base) as http:
        calls = [await stack.enter_async_context(stock_call(base)) for _ in range(6)]
        await asyncio.gather(*(call.wait() for call in calls))
        owners = [(await stats_of(http, call.location))["transceiver"]["pid"] for call in calls]
        victim = owners[0]
        others = [call for call, pid in zip(calls, owners, strict=True) if pid != victim]
        ticks = "transceiver_media_clock_late_seconds_count", ""
        ticks_before = (await metrics_of(http))[ticks]
        os.kill(victim, signal.SIGKILL)
        ended = await asyncio.to_thread(server.wait_event, "process_ended")
        assert ended["status"] == -signal.SIGKILL
        lost = len(calls) - len(others)
        assert ended["calls_lost"] == lost

        async def restarted() -> bool:
            async with aiohttp.ClientSession(base) as fresh:
                return (await metrics_of(fresh))["transceiver_processes", ""] == 2

        await until(restarted)
        for call in others:
            await hears(call, 10)
        async with (
            aiohttp.ClientSession(base) as fresh,
            fresh.get(f"{calls[0].location}/stats") as response,
        ):
            assert response.status == 404
        async with aiohttp.ClientSession(base) as fresh:
            metrics = await metrics_of(fresh)
        assert metrics["transceiver_worker_restarts_total", ""] == 1
        assert metrics[ticks] >= ticks_before
        assert metrics["transceiver_sessions", "connected"] == len(others)
        assert metrics["transceiver_calls_ended_total", "process_ended"] == lost
        statuses = [(await place(base))[0] for _ in range(6)]
        assert statuses == [201] * 6


async def test_a_process_that_stood_still_shows_in_the_media_clock(serve: Serve) -> None:
    _, base = serve()
    late, skipped = "transceiver_media_clock_late_seconds", "transceiver_media_ticks_skipped_total"
    async with aiohttp.ClientSession(base) as http, stock_call(base) as call:
        await call.wait()
        before = await metrics_of(http)
        owner = (await stats_of(http, call.location))["transceiver"]["pid"]
        os.kill(owner, signal.SIGSTOP)
        try:
            await asyncio.sleep(0.5)
        finally:
            os.kill(owner, signal.SIGCONT)

        async def seen() -> bool:
            after = await metrics_of(http)
            over_20_ms = after[f"{late}_count", ""] - after[f"{late}_bucket", "0.02"]
            return over_20_ms >= 4 and after[skipped, ""] - before[skipped, ""] >= 15

        await until(seen)


async def answers(base: str, count: int) -> list[int]:
    """The statuses of so many requests, each over a connection of its own."""
    return list(await asyncio.gather(*(_status_of_nonsense(base) for _ in range(count))))


async def _status_of_nonsense(base: str) -> int:
    timeout = aiohttp.ClientTimeout(total=20)
    async with (
        aiohttp.ClientSession(base, timeout=timeout) as http,
        http.post(
            "/v1/realtime/calls", data="v=0", headers={"Content-Type": "application/sdp"}
        ) as response,
    ):
        return response.status


async def test_nobody_hangs_on_a_process_that_is_stuck(serve: Serve) -> None:
    server, base = serve()
    stuck = children(server.pid)[0]
    os.kill(stuck, signal.SIGSTOP)
    try:
        assert await answers(base, 24) == [400] * 24
    finally:
        os.kill(stuck, signal.SIGCONT)


@pytest.mark.slow
async def test_a_process_that_is_stuck_is_replaced(serve: Serve) -> None:
    server, base = serve()
    os.kill(children(server.pid)[1], signal.SIGSTOP)
    hung = await asyncio.to_thread(server.wait_event, "process_hung")
    assert 10 <= hung["still_s"] < 30
    async with aiohttp.ClientSession(base) as http:

        async def restarted() -> bool:
            return (await metrics_of(http))["transceiver_processes", ""] == 2

        await until(restarted)
    assert await answers(base, 12) == [400] * 12


def test_a_pool_that_cannot_start_ends_and_says_so(processes: Processes, tmp_path: Path) -> None:
    """Each process dies as soon as it makes its event loop."""
    broken = tmp_path / "sitecustomize.py"
    broken.write_text(
        "import os, asyncio\n"
        "def fail(main, **options):\n"
        "    main.close()\n"
        "    os._exit(3)\n"
        "asyncio.run = fail\n"
    )
    server = processes.transceiver(
        "serve", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=2", "--direct",
        "--log-format=json", env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert server.wait() == 1
    assert server.events("start_failed")
    assert not server.events("listening", role="http")


def niceness(pid: int) -> dict[int, int]:
    """Of each thread of a process, by its id: the 19th field of a stat(5) line; the second may have spaces."""
    stats = {entry.name: entry / "stat" for entry in Path(f"/proc/{pid}/task").iterdir()}
    return {
        int(thread): int(stat.read_text().rpartition(")")[2].split()[16])
        for thread, stat in stats.items()
    }


async def test_the_media_thread_has_the_cpu_before_python(serve: Serve) -> None:
    """In each process one thread, the engine's, keeps the niceness that it was started with; Python has 10."""
    server, base = serve()
    assert (await place(base))[0] == 201
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert own < PYTHON_NICE, "these tests run too nicely to tell"
    workers = children(server.pid)
    assert len(workers) >= 2

    async def settled() -> bool:
        found = {pid: niceness(pid) for pid in workers}
        return all(
            nice[pid] == PYTHON_NICE and list(nice.values()).count(own) == 1
            for pid, nice in found.items()
        )

    await until(settled)


def test_processes_end_with_their_supervisor(serve: Serve) -> None:
    server, _ = serve()
    pids = children(server.pid)
    assert len(pids) == 2
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not any(_alive(pid) for pid in pids), "the processes' end")


def test_a_pool_that_is_stopped_leaves_no_directory(
    serve: Serve, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("t")  # short: paths of unix sockets have 108 bytes
    server, _ = serve(env={"TMPDIR": str(home)})
    (directory,) = home.glob("transceiver-*")
    assert directory.stat().st_mode & 0o777 == 0o700
    server.stop()
    assert not directory.exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_f11_clients_that_vanish_are_noticed_and_cost_nothing(serve: Serve) -> None:
    """No goodbye: their sockets close without a word. Consent ends them 30 to 40 s later."""
    _, base = serve()
    async with aiohttp.ClientSession(base) as http:
        locations = []
        async with AsyncExitStack() as stack:
            calls = [await stack.enter_async_context(stock_call(base)) for _ in range(4)]
            await asyncio.gather(*(call.wait() for call in calls))
            for call in calls:
                locations.append(call.location)
                call.vanish()
            started_s = time.monotonic()
            reasons = [await closed(http, location, timeout_s=60) for location in locations]
            elapsed_s = time.monotonic() - started_s
        assert reasons == ["consent_expired"] * 4
        assert 25 < elapsed_s < 45


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_f11_many_calls_leave_no_descriptor_and_no_memory(serve: Serve) -> None:
    server, base = serve()
    pids = children(server.pid)

    async def round_of_calls() -> None:
        async with AsyncExitStack() as stack:
            calls = [await stack.enter_async_context(stock_call(base)) for _ in range(10)]
            await asyncio.gather(*(call.wait(audio=False) for call in calls))

    def weight() -> tuple[int, int]:
        descriptors = sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)
        resident = sum(
            int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4_096 for pid in pids
        )
        return descriptors, resident

    await round_of_calls()
    before = weight()
    for _ in range(6):
        await round_of_calls()
    async with aiohttp.ClientSession(base) as http:

        async def none_open() -> bool:
            metrics = await metrics_of(http)
            return metrics["transceiver_sessions", "connected"] == 0

        await until(none_open)
    await asyncio.sleep(1)
    after = weight()
    assert after[0] <= before[0] + 2
    assert after[1] - before[1] < 30_000_000


@pytest.mark.parametrize("name", ["SIGHUP", "SIGUSR1", "SIGUSR2"])
async def test_a_signal_without_meaning_ends_no_call(serve: Serve, name: str) -> None:
    server, base = serve()
    before = children(server.pid)
    async with stock_call(base) as call:
        await call.wait()
        os.killpg(server.pid, signal.Signals[name])
        await asyncio.to_thread(server.wait_event, "signal_without_meaning", signal=name)
        await hears(call, 10)
    assert children(server.pid) == before


def test_a_parent_that_ignored_sigchld_costs_no_replacement(processes: Processes) -> None:
    server = processes.transceiver(
        "serve", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=2", "--direct",
        "--log-format=json", "--drain-timeout=0", prefix=("env", "--ignore-signal=CHLD"),
    )  # fmt: skip
    server.listening("http")
    before = children(server.pid)
    os.kill(before[0], signal.SIGKILL)
    assert server.wait_event("process_ended")["status"] == -signal.SIGKILL
    assert server.stop() == 0


@pytest.mark.parametrize("descriptors", [16, 24])
def test_too_few_descriptors_are_one_line(processes: Processes, descriptors: int) -> None:
    server = processes.transceiver(
        "serve", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=2", "--direct",
        prefix=("prlimit", f"--nofile={descriptors}:{descriptors}"),
    )  # fmt: skip
    assert server.wait() == 1
    assert server.output().startswith(f"transceiver: only {descriptors} descriptors are allowed")
    assert len(server.output().splitlines()) == 1
