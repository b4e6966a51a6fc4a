"""After the table of pytest-benchmark: what the runs recorded beside their times, such as ratios."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pytest_benchmark.fixture import BenchmarkFixture


@pytest.fixture(autouse=True)
def load(benchmark: BenchmarkFixture) -> Iterator[None]:
    """Records the machine's load at the end of each case: neighbours cost caches, also where only CPU
    time counts.
    """
    yield
    if benchmark.extra_info:
        benchmark.extra_info["load"] = round(os.getloadavg()[0], 1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each benchmark that recorded something (`benchmark.extra_info`)."""
    session = getattr(terminalreporter.config, "_benchmarksession", None)
    recorded = [bench for bench in getattr(session, "benchmarks", []) if bench.extra_info]
    if not recorded:
        return
    terminalreporter.section("recorded")
    for bench in recorded:
        facts = ", ".join(f"{name} {value}" for name, value in bench.extra_info.items())
        terminalreporter.write_line(f"{bench.name}: {facts}")
