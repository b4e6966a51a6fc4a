"""After the table of pytest-benchmark: what the runs recorded beside their times, such as ratios."""

from __future__ import annotations

import pytest


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
