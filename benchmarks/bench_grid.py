"""The whole grid in short: direction, size, flows, workers, transceivers; 192 cells, 7 rounds each.

Method (README.md): drain, as bench_relay.py, which measures the cases with targets longer. What a row of
the grid needs is started once. A cell's ratio is to one null forwarder of the same run: plain for
what goes up, fanning out to the same clients for what goes down, and both of them, each with half of the
packets, for both. Every packet must arrive.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.bench_relay import CLOCK, MILLION, measure
from benchmarks.rig import Load, Rig, rig

ROUNDS = 7
PACKETS = 4096

ROWS = [
    (flows, workers, transceivers)
    for flows in (1, 256, 10_000, MILLION)
    for workers in (1, 2)
    for transceivers in (1, 16)
]


@pytest.fixture(scope="module", params=ROWS, ids=lambda row: "-".join(map(str, row)))
def row(request: pytest.FixtureRequest) -> Iterator[Rig]:
    flows, workers, transceivers = request.param
    load = Load(transceivers=transceivers, flows=flows, workers=workers, null="plain+fanout")
    with rig(load) as started:
        yield started


@pytest.mark.benchmark(timer=CLOCK, group="grid: CPU time of a drain")
@pytest.mark.parametrize("sizes", [60, 172, 1200, "mix"])
@pytest.mark.parametrize("direction", ["up", "down", "both"])
def test_cell(benchmark: BenchmarkFixture, row: Rig, direction: str, sizes: object) -> None:
    measure(
        benchmark,
        lambda: row.drain(row.relay_fills(direction, PACKETS), sizes),
        lambda: row.drain(row.null_fills(direction, PACKETS), sizes),
        PACKETS,
        rounds=ROUNDS,
        warmup_rounds=1,
    )
    benchmark.extra_info.update(
        direction=direction,
        sizes=sizes,
        flows=row.load.flows,
        workers=row.load.workers,
        transceivers=row.load.transceivers,
    )
