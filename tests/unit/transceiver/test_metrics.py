"""The media engine's clock as Prometheus gets it: buckets, sums, and a process that is replaced."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.media_bench import Bench, until
from transceiver.board import Board
from transceiver.fleetboard import FleetBoard
from transceiver.media import ClockCounts
from transceiver.metrics import LATE_BUCKETS_S, Meter, board_names, render

LATE = "transceiver_media_clock_late_seconds"
SKIPPED = "transceiver_media_ticks_skipped_total"
STEPS = 1_001
"""Of ClockCounts.late_100us."""


@pytest.fixture
def board() -> Board:
    return Board(2, board_names())


def read(board: Board) -> dict[tuple[str, str], float]:
    """Samples by name and their bucket's bound."""
    text = render(board, FleetBoard(board.rows, [])).decode()
    return {
        (sample.name, sample.labels.get("le", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def clock(late_100us: dict[int, int], late_ns: int = 0, skipped: int = 0) -> ClockCounts:
    """So many ticks of each lateness."""
    return ClockCounts([late_100us.get(step, 0) for step in range(STEPS)], late_ns, skipped)


@pytest.mark.parametrize(
    ("step", "bucket"),
    [
        (0, "0.0005"),
        (4, "0.0005"),
        (5, "0.001"),
        (19, "0.002"),
        (20, "0.005"),
        (199, "0.02"),
        (200, "0.05"),
        (999, "0.1"),
        (1_000, "+Inf"),
    ],
)
def test_a_tick_is_in_the_bucket_of_its_lateness(board: Board, step: int, bucket: str) -> None:
    Meter(board, 1).ticked(clock({step: 1}))
    bounds = [*map(str, LATE_BUCKETS_S), "+Inf"]
    samples = read(board)
    counted = [samples[f"{LATE}_bucket", bound] for bound in bounds]
    below = bounds.index(bucket)
    assert counted == [0] * below + [1] * (len(bounds) - below)


def test_the_clock_adds_up_over_time_and_processes(board: Board) -> None:
    Meter(board, 0).ticked(clock({0: 90, 30: 10}, late_ns=35_000_000, skipped=3))
    Meter(board, 0).ticked(clock({0: 1}, late_ns=5_000))
    Meter(board, 1).ticked(clock({1_000: 2}, late_ns=240_000_000, skipped=4))
    samples = read(board)
    assert samples[f"{LATE}_bucket", "0.0005"] == 91
    assert samples[f"{LATE}_bucket", "0.005"] == 101
    assert samples[f"{LATE}_bucket", "0.1"] == 101
    assert samples[f"{LATE}_bucket", "+Inf"] == samples[f"{LATE}_count", ""] == 103
    assert samples[f"{LATE}_sum", ""] == pytest.approx(0.275005)
    assert samples[SKIPPED, ""] == 7


async def test_the_engine_tells_lateness_as_far_as_the_last_bound(bench: Bench) -> None:
    steps = bench.engine.counts()["lateness_100us"]
    assert len(steps) == STEPS
    assert LATE_BUCKETS_S[-1] * 1e4 == STEPS - 1


async def test_ticks_are_taken_once_and_outlive_their_process(board: Board) -> None:
    served = late_ns = 0
    for _ in range(2):
        bench, meter = Bench(), Meter(board, 0)
        try:
            bench.open()
            for ticks in (1, 20):
                await until(lambda: bench.engine.counts()["ticks"] >= ticks)  # noqa: B023
                meter.ticked(bench.engine.take_clock())
                assert served < read(board)[f"{LATE}_count", ""]
        finally:
            bench.close()
        meter.ticked(bench.engine.take_clock())
        counts = bench.engine.counts()
        served += counts["ticks"]
        late_ns += counts["late_ns"]
        samples = read(board)
        assert samples[f"{LATE}_count", ""] == served
        assert samples[f"{LATE}_sum", ""] == pytest.approx(late_ns / 1e9)
        assert bench.engine.take_clock() == clock({})
