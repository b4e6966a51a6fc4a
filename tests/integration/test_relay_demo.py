"""`relay demo` as a process: what it prints, what it starts, how it ends. Calls are tested in interop."""

from __future__ import annotations

import os
import re
import signal
import ssl
import urllib.request
from pathlib import Path

import aiohttp
import pytest

from tests.integration.test_transceiver_calls import stats_of
from tests.support.calls import stock_call
from tests.support.process import Process, Processes, session_members
from tests.support.relayed import bind_udp, is_running, wait_until

FREE = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0")


def start(processes: Processes, *arguments: str) -> tuple[Process, str]:
    """A demo that is ready, and the URL that it printed."""
    process = processes.relay("demo", *FREE, *arguments)
    wait_until(
        lambda: "open http" in process.output() or process.returncode is not None, "ready", 60
    )
    found = re.search(r"open (https?://\S+)", process.output())
    assert found, process.output()
    return process, found[1]


def children(pid: int) -> list[int]:
    """The processes that `pid` started and that run."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()]


def keyring_of(pid: int) -> Path:
    """The file that the programs of the demo `pid` were given."""
    words = Path(f"/proc/{children(pid)[0]}/cmdline").read_text().split("\0")
    return Path(words[words.index("--keyring") + 1])


def test_one_line_a_page_and_a_quiet_end(processes: Processes) -> None:
    process, url = start(processes)
    assert re.fullmatch(r"http://localhost:\d+", url)
    assert len(process.output().splitlines()) == 1
    with urllib.request.urlopen(f"{url}/demo/config.json", timeout=10) as response:
        assert response.status == 200
    started = children(process.pid)
    assert len(started) == 2
    assert process.stop(signal.SIGINT) == 0
    assert not any(is_running(pid) for pid in started)
    assert len(process.output().splitlines()) == 1


async def test_regions_have_a_page_each_and_a_call_enters_at_any(processes: Processes) -> None:
    """It enters at the second region and lives in the first, with the long way between them."""
    process, url = start(processes, "--regions", "2")
    lines = process.output().splitlines()
    pages = re.findall(
        r"^  (\w+): open \S+ +\(relay at (\S+) over UDP, cluster (\d+)", process.output(), re.M
    )
    assert len(lines) == 3
    relays = {name: address for name, address, _ in pages}
    assert [(name, cluster) for name, _, cluster in pages] == [("frankfurt", "1"), ("oregon", "2")]
    delay = re.search(r"(\d+) ms by backbone", lines[2])
    assert delay
    async with aiohttp.ClientSession(url) as http:
        for ingress, advertised in (("", "frankfurt"), ("?ingress=oregon", "oregon")):
            async with stock_call(url, query=ingress) as call:
                await call.wait()
                stats = await stats_of(http, call.location)
                passed_s = call.timeline_s["event"] - call.timeline_s["answer"]
            assert stats["cluster"] == 1
            assert stats["ingress"]["name"] == advertised
            assert stats["flow"]["proxy"] == relays[advertised]
    assert passed_s > 2 * int(delay[1]) / 1000, "it came by the backbone"
    started = children(process.pid)
    assert len(started) == 4
    assert process.stop(signal.SIGINT) == 0
    assert not any(is_running(pid) for pid in started)


def test_a_public_address_serves_https(processes: Processes) -> None:
    process, url = start(processes, "--public-address", "127.0.0.1")
    assert url.startswith("https://127.0.0.1:")
    trusting = ssl._create_unverified_context()
    with urllib.request.urlopen(f"{url}/", timeout=10, context=trusting) as response:
        assert response.status == 200
    keyring = keyring_of(process.pid)
    assert keyring.exists()
    assert process.stop(signal.SIGHUP) == 0  # its terminal was closed
    assert not keyring.parent.exists()


@pytest.mark.parametrize("victim", ["relay", "transceiver"])
def test_a_child_that_dies_ends_the_demo_with_a_line(processes: Processes, victim: str) -> None:
    process, _ = start(processes)
    relay, transceiver = children(process.pid)
    os.kill(relay if victim == "relay" else transceiver, signal.SIGKILL)
    assert process.wait() == 1
    assert f"{victim} serve was ended by SIGKILL" in process.output()
    assert not any(is_running(pid) for pid in (relay, transceiver))


def test_children_end_with_a_demo_that_is_killed(processes: Processes) -> None:
    process, _ = start(processes)
    started = children(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not any(is_running(pid) for pid in started), "children end")


def test_two_signals_leave_nothing_behind(processes: Processes, tmp_path: Path) -> None:
    """The second kills the programs, which then take nothing away themselves."""
    process = processes.relay("demo", *FREE, env={"TMPDIR": str(tmp_path)})
    wait_until(lambda: "open http" in process.output(), "ready", 60)
    os.kill(process.pid, signal.SIGINT)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait() == 0
    wait_until(lambda: session_members(process.pid) == [], "the killed programs' end")
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    assert "Traceback" not in process.output()


def test_a_port_in_use_is_named(processes: Processes) -> None:
    with bind_udp() as taken:
        port = taken.getsockname()[1]
        process = processes.relay("demo", *FREE, "--listen", f"127.0.0.1:{port}")
        assert process.wait() == 1
        assert f"UDP port {port} is in use" in process.output()


@pytest.mark.parametrize(
    "arguments",
    [("--public-address", "here"), ("--public-address", "0.0.0.0"), ("--listen", "0.0.0.0:0")],
)
def test_wrong_input_is_one_line_and_status_2(
    processes: Processes, arguments: tuple[str, ...]
) -> None:
    process = processes.relay("demo", *FREE, *arguments)
    assert process.wait() == 2
    assert len(process.output().strip().splitlines()) == 1
