"""Call setup as a browser's user gets it: Chromium, on loopback, through `relay demo`.

Method (README.md): one page, one call after the other with the page's test tone, each ended as soon
as it is heard. Times are the page's own marks, counted from the moment the offer was made. The
server's share is what it takes to answer (Server-Timing) plus the CPU time of relay and transceivers
until the call is heard. Every round asserts that the call connected.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tests.interop.demo import Demo, start_demo
from tests.support.browser import (
    FAKE_MICROPHONE,
    BrowserMissingError,
    chromium,
    chromium_path,
    driver,
)
from tests.support.process import Processes

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.benchmark(group="call set-up in Chromium")

ROUNDS = 40
WARM_UP_ROUNDS = 3
MOMENTS = ("answer", "ice", "dtls", "channel", "first_audio_out")
REST_S = 0.3
"""Between two calls: the browser closes the old connection in its own time."""


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    """A demo, ended after the run."""
    with Processes(tmp_path) as processes:
        yield start_demo(processes)


@pytest.fixture
def page(demo: Demo) -> Iterator[Page]:
    """The demo's page in Chromium; skips without one."""
    try:
        chromium_path()
    except BrowserMissingError as missing:
        pytest.skip(str(missing))
    with driver() as playwright, chromium(playwright, *FAKE_MICROPHONE) as browser:
        page = browser.new_page()
        page.goto(demo.url)
        yield page


def cpu_ms(leader: int) -> float:
    """CPU milliseconds so far of all processes below `leader`, itself not counted."""
    nanoseconds = 0
    waiting = [leader]
    while waiting:
        for task in Path(f"/proc/{waiting.pop()}/task").glob("*"):
            children = [int(pid) for pid in (task / "children").read_text().split()]
            waiting += children
            for child in children:
                for thread in Path(f"/proc/{child}/task").glob("*"):
                    nanoseconds += int((thread / "schedstat").read_text().split()[0])
    return nanoseconds / 1e6


def test_setup(benchmark: BenchmarkFixture, page: Page, demo: Demo) -> None:
    """Offer → answer → ICE → DTLS → session.created → first audio heard."""
    marks: dict[str, list[float]] = {moment: [] for moment in MOMENTS}
    server_answer_ms: list[float] = []
    idle_began, idle_cpu_ms = time.monotonic(), cpu_ms(demo.process.pid)
    time.sleep(1)
    idle_share = (cpu_ms(demo.process.pid) - idle_cpu_ms) / (time.monotonic() - idle_began)
    busy_ms: list[float] = []

    def one_call() -> None:
        time.sleep(REST_S)
        began, before_ms = time.monotonic(), cpu_ms(demo.process.pid)
        page.click("#tone")
        page.wait_for_function(
            "() => voiceRelay.call && 'first_audio_out' in voiceRelay.call.marks"
            " && 'channel' in voiceRelay.call.marks"
        )
        after_ms = cpu_ms(demo.process.pid)
        busy_ms.append(after_ms - before_ms - idle_share * (time.monotonic() - began))
        call = page.evaluate("({marks: voiceRelay.call.marks, server: voiceRelay.call.serverMs})")
        for moment in MOMENTS:
            marks[moment].append(call["marks"][moment])
        if call["server"] is not None:
            server_answer_ms.append(call["server"])
        page.click("#talk")
        page.wait_for_function("() => document.body.dataset.state === 'ended'")

    benchmark.pedantic(one_call, rounds=ROUNDS, warmup_rounds=WARM_UP_ROUNDS)
    for moment, values in marks.items():
        measured = sorted(values[WARM_UP_ROUNDS:])
        benchmark.extra_info[f"{moment}_ms"] = round(median(measured), 1)
        benchmark.extra_info[f"{moment}_quartiles_ms"] = [
            round(measured[len(measured) * quarter // 4], 1) for quarter in (1, 3)
        ]
    if server_answer_ms:
        benchmark.extra_info["server_answer_ms"] = round(median(server_answer_ms), 2)
    benchmark.extra_info["server_cpu_ms"] = round(sum(busy_ms) / len(busy_ms), 1)
