"""CPU time per forwarded packet: workers of the relay against a null forwarder.

Method (README.md): drain; the relay and the null forwarder in turn, in the same run; the ratio of
each pair, and their median. Every round asserts that each packet arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.rig import PACKETS, Direction, Load, Rig, rig

ROUNDS = 25
WARMUP_ROUNDS = 2
MILLION = 1_000_000
BIG_DRAIN = 32768
"""Packets of a drain over many flows, so that it meets many of them."""


class CpuClock:
    """A timer for pytest-benchmark: what the last drain cost in CPU seconds, added up."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


CLOCK = CpuClock()

UP = [
    # transceivers, flows, sizes, batch
    *[(1, flows, 172, 256) for flows in (1, 256, 10_000)],
    *[(1, 256, size, 256) for size in (60, 1200, "mix")],
    *[(1, 256, size, 32) for size in (172, "mix")],
    *[(16, flows, 172, 256) for flows in (256, 10_000)],
    *[(16, 256, size, 256) for size in (60, 1200, "mix")],
    *[(16, 256, size, 32) for size in (172, "mix")],
]
DOWN = [
    *[(1, flows, 172, 256) for flows in (1, 256, 10_000)],
    *[(1, 256, size, 256) for size in (60, 1200, "mix")],
    *[(16, 256, size, 256) for size in (172, "mix")],
    (16, 256, 172, 32),
    (16, 10_000, 172, 256),
]
DOWN_RUNS = [(transceivers, sizes) for transceivers in (1, 16) for sizes in (172, "mix")]


def measure(
    benchmark: BenchmarkFixture,
    relay: Callable[[], float],
    null: Callable[[], float],
    packets: int = PACKETS,
    rounds: int = ROUNDS,
    warmup_rounds: int = WARMUP_ROUNDS,
) -> None:
    """Takes turns, and records the medians in µs and of the ratios. Nothing was lost: drains assert it."""
    relay_ns: list[float] = []
    null_ns: list[float] = []

    def prepare() -> None:
        null_ns.append(null())

    def drain() -> None:
        relay_ns.append(relay())
        CLOCK.seconds += relay_ns[-1] * packets / 1e9

    benchmark.pedantic(drain, setup=prepare, rounds=rounds, warmup_rounds=warmup_rounds)
    del relay_ns[:warmup_rounds], null_ns[:warmup_rounds]
    ratios = sorted(r / n for r, n in zip(relay_ns, null_ns, strict=True))
    benchmark.extra_info.update(
        relay_us=round(median(relay_ns) / 1e3, 3),
        null_us=round(median(null_ns) / 1e3, 3),
        packets_per_s=round(1e6 / median(relay_ns)) * 1000,
        lost=0,
        ratio=round(median(ratios), 3),
        ratio_quartiles=[round(ratios[len(ratios) * q // 4], 3) for q in (1, 3)],
    )


def measure_up(benchmark: BenchmarkFixture, started: Rig, sizes: object) -> None:
    """Against a null forwarder that sends everything to one destination."""
    measure(
        benchmark,
        lambda: started.drain_relay("up", sizes),
        lambda: started.drain_null("up", sizes, arrives="up"),
    )


@pytest.mark.benchmark(timer=CLOCK, group="up: CPU time of a drain")
@pytest.mark.parametrize(("transceivers", "flows", "sizes", "batch"), UP)
def test_up(
    benchmark: BenchmarkFixture, transceivers: int, flows: int, sizes: object, batch: int
) -> None:
    with rig(Load(transceivers=transceivers, flows=flows, batch=batch)) as started:
        measure_up(benchmark, started, sizes)


@pytest.mark.benchmark(timer=CLOCK, group="down: CPU time of a drain")
@pytest.mark.parametrize(("transceivers", "flows", "sizes", "batch"), DOWN)
def test_down(
    benchmark: BenchmarkFixture, transceivers: int, flows: int, sizes: object, batch: int
) -> None:
    """Against a null forwarder that sends to the same clients, from the same address."""
    load = Load(transceivers=transceivers, flows=flows, batch=batch, null="fanout")
    with rig(load) as started:
        measure(
            benchmark,
            lambda: started.drain_relay("down", sizes),
            lambda: started.drain_null("down", sizes, arrives="down", added=-38),
        )


@pytest.mark.benchmark(timer=CLOCK, group="down, sent in runs: CPU time of a drain")
@pytest.mark.parametrize(("transceivers", "sizes"), DOWN_RUNS)
def test_down_runs(benchmark: BenchmarkFixture, transceivers: int, sizes: object) -> None:
    """From transceivers that send runs (UDP_SEGMENT), which the relay takes as they are (UDP_GRO)."""
    with rig(Load(transceivers=transceivers, null="fanout")) as started:
        measure(
            benchmark,
            lambda: started.drain_relay("down-runs", sizes),
            lambda: started.drain_null("down-runs", sizes, arrives="down", added=-38),
        )


@pytest.mark.benchmark(timer=CLOCK, group="both ways at once: CPU time of a drain")
@pytest.mark.parametrize("sizes", [172, "mix"])
def test_both(benchmark: BenchmarkFixture, sizes: object) -> None:
    """Half up, half down, in one worker; against two null forwarders, one each way."""
    with rig(Load(transceivers=16, null="plain+fanout")) as started:
        measure(
            benchmark,
            lambda: started.drain(started.relay_fills("both"), sizes),
            lambda: started.drain(started.null_fills("both"), sizes),
        )


@pytest.mark.benchmark(timer=CLOCK, group="any address: CPU time of a drain")
@pytest.mark.parametrize("direction", ["up", "down"])
def test_wildcard(benchmark: BenchmarkFixture, direction: Direction) -> None:
    """Bound to every address: each datagram says which one it was sent to (IP_PKTINFO)."""
    null = "plain" if direction == "up" else "fanout"
    with rig(Load(transceivers=16, listen="0.0.0.0", null=null)) as started:
        measure(
            benchmark,
            lambda: started.drain_relay(direction, 172),
            lambda: started.drain_null(
                direction, 172, arrives=direction, added=0 if direction == "up" else -38
            ),
        )


@pytest.mark.benchmark(timer=CLOCK, group="a million flows: CPU time of a drain")
@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_million_flows(benchmark: BenchmarkFixture, direction: Direction) -> None:
    """Against the relay itself with 256 flows: each packet meets a flow that no cache holds."""
    load = Load(transceivers=16)
    with (
        rig(load) as few,
        rig(Load(transceivers=16, flows=MILLION)) as many,
    ):
        measure(
            benchmark,
            lambda: many.drain_relay(direction, 172, BIG_DRAIN),
            lambda: few.drain_relay(direction, 172, BIG_DRAIN),
            BIG_DRAIN,
            rounds=10,
        )


@pytest.mark.benchmark(timer=CLOCK, group="two workers: CPU time of a drain")
def test_two_workers(benchmark: BenchmarkFixture) -> None:
    """On one port and two CPUs at once, against one worker alone."""
    with rig(Load(transceivers=16)) as one, rig(Load(transceivers=16, workers=2)) as two:
        measure(
            benchmark,
            lambda: two.drain_relay("up", 172),
            lambda: one.drain_relay("up", 172),
        )


@pytest.mark.benchmark(timer=CLOCK, group="baselines: CPU time of a drain")
@pytest.mark.parametrize("mode", ["runs", "single", "fanout"])
def test_baseline(benchmark: BenchmarkFixture, mode: str) -> None:
    """Other forwarders of our own against the plain null forwarder."""
    direction: Direction = "down" if mode == "fanout" else "up"
    with rig(Load(transceivers=1, null=mode)) as other, rig(Load(transceivers=1)) as plain:
        measure(
            benchmark,
            lambda: other.drain_null(
                direction, 172, arrives=direction, added=-38 if mode == "fanout" else 0
            ),
            lambda: plain.drain_null("up", 172, arrives="up"),
        )
