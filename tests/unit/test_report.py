"""The report of the benchmarks: which figures it keeps, which goals it shows, and that it names what was not measured."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of results, and suites of its own."""
    suites = tmp_path / "suites"
    suites.mkdir()
    (suites / "bench_some.py").write_text(
        textwrap.dedent(
            """
            import pytest

            @pytest.mark.benchmark(group="bridge")
            @pytest.mark.parametrize("calls", ["1-calls", "100-calls"])
            def test_setup(benchmark, calls):
                benchmark.pedantic(lambda: None)
                p99_ms = 4.5 if calls == "1-calls" else 6.5
                benchmark.extra_info |= {"server_answer_ms_p99": p99_ms, "dtls_ms_p99": 7.0}

            @pytest.mark.parametrize("size", [1, 2])
            def test_peer(benchmark, size):
                pytest.skip("the peer is not installed\\nand more")

            def test_breaks(benchmark):
                assert benchmark is None
            """
        )
    )
    folder = tmp_path / "results"
    monkeypatch.setattr(report, "HERE", suites)
    monkeypatch.setattr(report, "SUITES", ("bench_some.py",))
    monkeypatch.setattr(report, "RESULTS", folder)
    return folder


def figures(results: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((results / "results.json").read_text())
    return found


def former_run(results: Path, *names: str) -> None:
    """Figures of another day."""
    results.mkdir()
    cases = [{"name": name, "group": "old", "answer_ms": 1.0} for name in names]
    (results / "results.json").write_text(json.dumps({"machine": {}, "cases": cases}))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest without what only the project's own tests need."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p pytest_benchmark.plugin -p pytest_timeout")
    # Benchmarks refuse to run in a worker of pytest-xdist, which this test may be in.
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


@pytest.mark.usefixtures("quick")
def test_a_whole_run_keeps_no_figure_and_names_what_it_did_not_measure(results: Path) -> None:
    former_run(results, "test_peer[1]", "test_gone")
    assert report.main([]) == 1  # one of them breaks
    written = figures(results)
    assert [case["name"] for case in written["cases"]] == [
        "test_setup[1-calls]",
        "test_setup[100-calls]",
    ]
    skipped = {"suite": "bench_some.py", "why": "the peer is not installed"}
    *peers, broken = written["not_measured"]
    assert peers == [skipped | {"name": "test_peer[1]"}, skipped | {"name": "test_peer[2]"}]
    assert broken["name"] == "test_breaks"
    assert broken["why"].startswith("FAILED: assert ")
    tables = (results / "README.md").read_text()
    assert "* `bench_some.py`, peer[1], peer[2]: the peer is not installed\n" in tables
    assert "| 1 call | 4.5 (≤ 5) | 7 |" in tables
    assert "| 100 calls | **6.5 (≤ 5)** | 7 |" in tables


@pytest.mark.usefixtures("quick")
def test_a_part_of_a_run_keeps_the_others_figures(results: Path) -> None:
    former_run(results, "test_peer[1]", "test_other")
    assert report.main(["-k", "peer or 100"]) == 0
    written = figures(results)
    assert {case["name"] for case in written["cases"]} == {
        "test_peer[1]",
        "test_other",
        "test_setup[100-calls]",
    }
    tables = (results / "README.md").read_text()
    assert "peer[1]: the peer is not installed; its figures are of an earlier run\n" in tables
    assert "peer[2]: the peer is not installed\n" in tables
    # Once it is measured it is no longer missing; what was not tried again still is.
    source = results / "new.json"
    measured = {"name": "test_peer[1]", "group": "old", "extra_info": {"answer_ms": 2.0}}
    source.write_text(json.dumps({"benchmarks": [measured]}))
    assert report.main(["--from", str(source)]) == 0
    assert [one["name"] for one in figures(results)["not_measured"]] == ["test_peer[2]"]


def test_every_figure_with_a_goal_is_one_that_a_benchmark_records() -> None:
    """By the names in the suites: a figure that is renamed must not lose its goal."""
    suites = [path.read_text() for path in Path(report.__file__).parent.glob("bench_*.py")]
    for pattern, goals in report.GOALS:
        function = re.match(r"\w+", pattern)
        assert function is not None
        owners = [suite for suite in suites if f"def {function[0]}(" in suite]
        assert owners, pattern
        for column in goals:
            stems = {column, column.rpartition("_ms_")[0], column.removesuffix("_ms")} - {""}
            found = "|".join(rf"\b{stem}\b" for stem in stems)
            assert any(re.search(found, suite) for suite in owners), column


def test_a_goal_is_told_with_the_figure_and_missed_ones_stand_out() -> None:
    case = {"name": "test_pass_through[echo]", "times_stock_aiortc": 39.0, "sessions": 3}
    assert report.figure(case, "times_stock_aiortc") == "**39 (≥ 40)**"
    assert report.figure(case, "sessions") == "3"
    assert report.figure(case, "lost") == ""
    case = {"name": "test_added_delay_down[0.5-mix-0]", "ratio": [1.5, 2.1, 9.0]}
    assert report.figure(case, "ratio") == "1.5 (≤ 1.5), **2.1 (≤ 2)**, 9"
