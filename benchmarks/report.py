"""Results to read: `python -m benchmarks.report` measures and writes benchmarks/results anew.

1. With `--from FILE.json` (of pytest-benchmark) it measures nothing. What else is said on the command
   line goes to pytest, such as `-k up`. Cases that were not measured again then keep their figures
   (with `--keep` in any case): each is a ratio within one run. A whole run keeps nothing: what it did not
   measure is named, with the reason, and has no figures.
2. results.json has the figures, README.md the tables, *.svg the plots; a whole run also writes scale.md,
   which is simulated (scale.py). The machine is described by what
   matters for the figures, not by its name.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks import scale
from benchmarks.plots import Bar, bars, squares

HERE = Path(__file__).parent
RESULTS = HERE / "results"
FIRST = ("bench_relay.py", "bench_grid.py", "bench_live.py", "bench_attack.py", "bench_wire.py")
SUITES = (*FIRST, *sorted({path.name for path in HERE.glob("bench_*.py")} - set(FIRST)))

Case = dict[str, Any]
Missing = dict[str, str]
"""What was not measured: `suite`, `name`, and `why`."""

TARGETS: list[tuple[str, float]] = [
    (r"test_up\[1-\d+-mix-256\]", 0.90),
    (r"test_up\[1-\d+-(60|172|1200)-256\]", 0.55),
    (r"test_up\[16-\d+-mix-256\]", 0.95),
    (r"test_up\[16-\d+-(60|172|1200)-256\]", 0.65),
    (r"test_down\[.*\]", 1.15),
    (r"test_down_runs\[.*\]", 1.15),
    (r"test_a_million_flows\[.*\]", 1.3),
    (r"test_part\[token_open\]", 300),
    (r"test_part\[lookup_hot\]", 50),
    (r"test_part\[lookup_cold_batch\]", 110),
]
"""Case and what it should not exceed: its ratio, or nanoseconds of a part."""


@dataclass(frozen=True)
class AtLeast:
    """A goal that a figure should reach; others are what it should not exceed."""

    value: float


Goal = float | AtLeast | tuple[float | None, ...]
"""Of a figure, or of each of several."""

GOALS: list[tuple[str, dict[str, Goal]]] = [
    (
        r"test_setup\[\d+-calls\]",
        {
            "server_answer_ms_median": 5,
            "server_answer_ms_p99": 5,
            "first_loud_ms_median": 120,
        },
    ),
    (
        r"test_both_ways\[\d+-calls\]",
        {
            "up_beyond_buffer_ms_median": 40,
            "up_beyond_buffer_ms_p99": 40,
            "down_ms_median": 40,
            "down_ms_p99": 40,
            "barge_in_ms_p99": 40,
        },
    ),
    (r"test_added_delay\[0\.5-\w+-0\]", {"ratio": (1.5, 2, None)}),
    (r"test_added_delay_down\[0\.5-\w+-0\]", {"ratio": (1.5, 2, None)}),
    (
        r"test_decode_encode_and_pcm_to_python\[0\]",
        {
            "times_stock_aiortc": AtLeast(10),
            "of_what_the_codecs_allow": AtLeast(0.75),
            "memory_kib_per_session": 300,
        },
    ),
    (r"test_pass_through\[\w+\]", {"times_stock_aiortc": AtLeast(40)}),
    (
        r"test_age_of_sound",
        {
            "age_less_target_ms_p50_p99_p999": (None, 5, None),
            "age_less_target_with_starts_ms_p50_p99_p999": (None, 5, None),
            "send_clock_late_ms_p99": 2,
        },
    ),
    (r"test_setup", {"channel_ms": 50, "server_cpu_ms": 20}),
]
"""Case, and what its figures are measured against."""


def main(arguments: Sequence[str]) -> int:
    """Measure unless told not to, and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE.json")
    parser.add_argument("--keep", action="store_true")
    known, to_pytest = parser.parse_known_args(arguments)
    status, raw, missing = 0, {}, list[Missing]()
    if known.source:
        raw = json.loads(known.source.read_text())
    else:
        status, raw, missing = measured(to_pytest)
    cases = [
        {"name": bench["name"], "group": bench["group"], **bench["extra_info"]}
        for bench in raw["benchmarks"]
        if bench["extra_info"]
    ]
    RESULTS.mkdir(exist_ok=True)
    if known.keep or known.source or to_pytest:
        before = former()
        missing = still_missing(before.get("not_measured", []), missing, cases)
        cases = merged(before["cases"], cases)
    else:
        (RESULTS / "scale.md").write_text(scale_document())
    results = {"machine": machine(), "cases": cases, "not_measured": missing}
    (RESULTS / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    plots = {name: text for name, text in all_plots(cases).items() if text}
    for name, text in plots.items():
        (RESULTS / name).write_text(text)
    (RESULTS / "README.md").write_text(document(results, sorted(plots)))
    return status


def measured(to_pytest: Sequence[str]) -> tuple[int, Any, list[Missing]]:
    """pytest's status, what it recorded without the benchmarks that failed, and which those are or were skipped."""
    with tempfile.TemporaryDirectory() as directory:
        output, junit = Path(directory) / "benchmark.json", Path(directory) / "junit.xml"
        suites = [str(HERE / suite) for suite in SUITES]
        options = ["--benchmark-enable", "--benchmark-only", "--timeout=0", "-q"]
        command = [sys.executable, "-m", "pytest", *suites, *options, f"--junitxml={junit}"]
        status = subprocess.run([*command, f"--benchmark-json={output}", *to_pytest]).returncode
        if not output.exists() or not output.stat().st_size:
            sys.exit(status or "nothing was measured")
        return status, json.loads(output.read_text()), not_measured(junit)


def not_measured(junit: Path) -> list[Missing]:
    """What pytest's report says was skipped, or failed."""
    missing = []
    for case in ElementTree.parse(junit).iter("testcase"):
        suite = case.get("classname", "").rpartition(".")[2] + ".py"
        for outcome in case:
            if outcome.tag not in ("skipped", "failure", "error"):
                continue
            why = outcome.get("message", "").strip().partition("\n")[0][:200]
            if outcome.tag != "skipped":
                why = f"FAILED: {why}"
            missing.append({"suite": suite, "name": case.get("name", ""), "why": why})
            break
    return missing


def former() -> dict[str, Any]:
    """What results.json says."""
    path = RESULTS / "results.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"cases": []}
    return found


def still_missing(
    before: Sequence[Missing], now: Sequence[Missing], cases: Sequence[Case]
) -> list[Missing]:
    """What was missing before and was not measured this time, and what is missing now."""
    told = {case["name"] for case in [*now, *cases]}
    return [*(one for one in before if one["name"] not in told), *now]


def merged(before: Sequence[Case], cases: Sequence[Case]) -> list[Case]:
    """These cases, and the former ones that were not measured again, suite by suite."""
    by_name = {case["name"]: case for case in before} | {case["name"]: case for case in cases}
    groups: dict[str, list[Case]] = {}
    for case in by_name.values():
        groups.setdefault(case["group"] or "", []).append(case)
    return [case for group in groups.values() for case in group]


# --- the machine ---


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    compiler = subprocess.run(["cc", "--version"], capture_output=True, text=True).stdout
    return {
        "cpu": cpu[1] if cpu else platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release().split("-")[0],
        "irq_time_accounting": kernel_option("CONFIG_IRQ_TIME_ACCOUNTING"),
        "python": platform.python_version(),
        "compiler": compiler.splitlines()[0] if compiler else "unknown",
    }


def kernel_option(name: str) -> str:
    """`y`, `n`, or `unknown` where the kernel's configuration cannot be read."""
    candidates = [Path("/proc/config.gz"), Path(f"/boot/config-{platform.release()}")]
    for path in candidates:
        if path.exists():
            text = (gzip.open if path.suffix == ".gz" else open)(path, "rt").read()
            return "y" if f"\n{name}=y" in text else "n"
    return "unknown"


# --- plots ---


def target_of(name: str) -> float | None:
    """What the ratio of a case should not exceed."""
    return next((target for pattern, target in TARGETS if re.fullmatch(pattern, name)), None)


def goals_of(name: str) -> dict[str, Goal]:
    """What the figures of a case are measured against."""
    return next((goals for pattern, goals in GOALS if re.fullmatch(pattern, name)), {})


def all_plots(cases: Sequence[Case]) -> dict[str, str]:
    """File name to SVG; empty where nothing was measured."""
    ratio_note = "CPU time per packet, null forwarder of the same run = 1; the mark is the target"
    plots = {}
    for direction in ("up", "down"):
        rows = [
            Bar(label(case["name"]), case["ratio"], target_of(case["name"]))
            for case in cases
            if case["name"].startswith(f"test_{direction}[")
        ]
        plots[f"{direction}.svg"] = (
            bars(f"Forwarding {direction}", ratio_note, rows) if rows else ""
        )
    live = [case for case in cases if case["name"].startswith("test_added_delay")]
    rows = [
        Bar(f"{label(case['name'])}, {who} {quantile}", case[f"{who}_added_us"][i])
        for case in live
        if case["name"].endswith("-0]")
        for i, quantile in enumerate(("p50", "p99"))
        for who in ("relay", "null")
    ]
    note = "Added to the direct way, at a share of what the null forwarder can do"
    plots["delay.svg"] = bars("Delay added", note, rows, " µs") if rows else ""
    if cells := [case for case in cases if case["name"].startswith("test_cell")]:
        plots["grid.svg"] = grid_plot(cells)
    return plots | global_plots(cases)


def global_plots(cases: Sequence[Case]) -> dict[str, str]:
    """Of bench_global.py."""
    ways = [case for case in cases if case["name"].startswith("test_way[")]
    shown = {
        "sound_ms": "set-up to first sound",
        "rtt_ms": "round trip",
        "rtt_ms_p99": "round trip, 99 %",
        "jitter_ms": "jitter",
    }
    rows = [
        Bar(f"{name}, {label(case['name'])}", case[column])
        for column, name in shown.items()
        for case in ways
    ]
    note = "5 ms to the entry and 40 ms of backbone, against 60 ms with jitter and 1 % loss"
    stories = [
        Bar(label(case["name"]), case["silent_ms"])
        for case in cases
        if case["name"].startswith("test_story[")
    ]
    silent = "The longest time in which the caller heard nothing, median of the rounds"
    return {
        "global.svg": bars("A call between regions", note, rows, " ms") if rows else "",
        "failures.svg": bars("What fails mid-call", silent, stories, " ms") if stories else "",
    }


# --- the grid: a row for what is started, a column for what is sent ---


def row_of(case: Case) -> str:
    """`256 flows, 2 workers, 16 transceivers` for people."""
    names = ("flows", "workers", "transceivers")
    counts = ((case[name], name) for name in names)
    return ", ".join(f"{n:,} {name if n > 1 else name[:-1]}" for n, name in counts)


def column_of(case: Case) -> tuple[str, str]:
    """Direction and sizes."""
    return case["direction"], str(case["sizes"])


def grid_order(cells: Sequence[Case]) -> tuple[list[str], list[tuple[str, str]]]:
    """Rows and columns, as they should be read."""
    order = ("flows", "workers", "transceivers")
    ordered = sorted(cells, key=lambda case: [case[name] for name in order])
    rows = list(dict.fromkeys(map(row_of, ordered)))
    columns = [(d, s) for d in ("up", "down", "both") for s in ("60", "172", "1200", "mix")]
    return rows, [column for column in columns if column in {column_of(case) for case in cells}]


def grid_plot(cells: Sequence[Case]) -> str:
    """A cell is the darker the more it costs."""
    rows, columns = grid_order(cells)
    values = {(row_of(case), column_of(case)): float(case["ratio"]) for case in cells}
    note = "CPU time per packet, null forwarder of the same run = 1"
    return squares("The grid", note, rows, columns, values)


def grid_table(cells: Sequence[Case]) -> str:
    """Ratio, and CPU µs per packet of the relay alone."""
    rows, columns = grid_order(cells)
    found = {(row_of(case), column_of(case)): case for case in cells}
    lines = [
        ["", *(f"{direction} {sizes}" for direction, sizes in columns)],
        ["---"] * (len(columns) + 1),
    ]
    for row in rows:
        here = [found.get((row, column)) for column in columns]
        lines.append([row, *(f"{c['ratio']:.2f} ({c['relay_us']:.1f})" if c else "" for c in here)])
    loads = [case["load"] for case in cells if "load" in case]
    note = "Ratio to the null forwarder, and CPU µs of a packet. Two workers are two processes, compared with one null forwarder. Packets a second and quartiles are in results.json; lost: 0."
    if loads:
        note += f" Load of the machine meanwhile: {min(loads):g} to {max(loads):g}."
    return note + "\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines)


def label(name: str) -> str:
    """`test_up[16-256-mix-32]` for people."""
    inside = name.partition("[")[2].rstrip("]")
    parts = inside.split("-")
    if name.startswith(("test_up[", "test_down[")):
        many, flows = ("" if part == "1" else "s" for part in parts[:2])
        size = parts[2] if parts[2] == "mix" else f"{parts[2]} bytes"
        return (
            f"{parts[0]} transceiver{many}, {int(parts[1]):,} flow{flows}, {size}, batch {parts[3]}"
        )
    if name.startswith("test_down_runs"):
        many = "" if parts[0] == "1" else "s"
        return f"{parts[0]} transceiver{many}, {parts[1] if parts[1] == 'mix' else parts[1] + ' bytes'}"
    if name.startswith("test_added_delay"):
        waits = f", waits {parts[2]} µs" if parts[2] != "0" else ""
        size = parts[1] if parts[1] == "mix" else f"{parts[1]} bytes"
        way = "down, " if name.startswith("test_added_delay_down") else ""
        return f"{way}{float(parts[0]):.0%}, {size}{waits}"
    words = name.partition("[")[0].removeprefix("test_").replace("_", " ")
    if calls := re.fullmatch(r"(\d+)-calls", inside):
        return "1 call" if calls[1] == "1" else f"{calls[1]} calls"
    if name.startswith(("test_decode_encode", "test_pass_through")):
        return f"{words}, {inside}"
    return inside or words


# --- tables ---


def document(results: dict[str, Any], plots: Sequence[str]) -> str:
    """README.md of the results."""
    described = ", ".join(
        f"{name.replace('_', ' ')} {value}" for name, value in results["machine"].items()
    )
    parts = [
        "# Results",
        "Written by `python -m benchmarks.report`; the method is in [benchmarks/README.md](../README.md).",
        f"Machine: {described}.",
        *(f"![{name.removesuffix('.svg')}]({name})" for name in plots),
    ]
    groups: dict[str, list[Case]] = {}
    for case in results["cases"]:
        groups.setdefault(case["group"] or "other", []).append(case)
    for group, cases in groups.items():
        text = grid_table(cases) if cases[0]["name"].startswith("test_cell") else table(cases)
        parts += [f"## {group[0].upper()}{group[1:]}", text]
    if missing := results.get("not_measured"):
        parts += ["## Not measured", missing_list(missing, results["cases"])]
    return "\n\n".join(parts) + "\n"


def scale_document() -> str:
    """scale.md of the results."""
    about = (
        "Simulated by `python -m benchmarks.scale`, and the same on every machine; what it assumes and what "
        'follows from it is in [benchmarks/README.md](../README.md), "Scale on paper".'
    )
    return f"# Sessions in large numbers\n\n{about}\n\n{scale.tables()}\n"


def table(cases: Sequence[Case]) -> str:
    """One line a case, one column a figure."""
    columns = list(dict.fromkeys(key for case in cases for key in case))
    columns = [column for column in columns if column not in ("name", "group")]
    targets = any(target_of(case["name"]) for case in cases)
    head = [
        "case",
        *(column.replace("_", " ") for column in columns),
        *(["target"] if targets else []),
    ]
    lines = [head, ["---"] * len(head)]
    for case in cases:
        cells = [label(case["name"]), *(figure(case, column) for column in columns)]
        lines.append([*cells, *([cell(target_of(case["name"]) or "")] if targets else [])])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def missing_list(missing: Sequence[Missing], cases: Sequence[Case]) -> str:
    """One line for each suite and reason."""
    known = {case["name"] for case in cases}
    lines: dict[tuple[str, str], list[str]] = {}
    for one in missing:
        why = one["why"]
        if one["name"] in known:
            why += "; its figures are of an earlier run"
        lines.setdefault((one["suite"], why), []).append(one["name"].removeprefix("test_"))
    return "\n".join(
        f"* `{suite}`, {', '.join(names)}: {why}" for (suite, why), names in lines.items()
    )


def figure(case: Case, column: str) -> str:
    """A figure with its goal, if it has one; bold where it is missed."""
    goal = goals_of(case["name"]).get(column)
    if column not in case:
        return ""
    if isinstance(goal, tuple):
        return ", ".join(judged(*pair) for pair in zip(case[column], goal, strict=True))
    return judged(case[column], goal)


def judged(value: Any, goal: float | AtLeast | None) -> str:
    """A figure with its goal, bold where it is missed."""
    if goal is None:
        return cell(value)
    least = isinstance(goal, AtLeast)
    bound = goal.value if isinstance(goal, AtLeast) else goal
    text = f"{cell(value)} ({'≥' if least else '≤'} {bound:g})"
    missed = value < bound if least else value > bound
    return f"**{text}**" if missed else text


def cell(value: object) -> str:
    """A figure, or several."""
    if isinstance(value, list):
        return ", ".join(cell(item) for item in value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
