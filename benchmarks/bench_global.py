"""What a call between regions gains from an entry near the client, and what failures in the middle of one cost.

Method (README.md): three regions in network namespaces (tests/support/regions.py) with simulated links between them, real relays
and a real transceiver. Each round is one call; its client numbers and times every packet, there and back. Root only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tests.support.global_calls import STAGES, CallFigures, measure
from tests.support.global_stories import STORIES, Told
from tests.support.lab import Host
from tests.support.netns import missing_for_namespaces
from tests.support.process import Processes
from tests.support.regions import DIRECT, NEAR, World

CALLS = 10
TALK_S = 4.0
ROUNDS = 5


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """All cases share it."""
    why = missing_for_namespaces()
    if why is None and not Path("/dev/net/tun").exists():
        why = "the link simulator needs /dev/net/tun"
    if why:
        pytest.skip(why)
    directory = tmp_path_factory.mktemp("world")
    with (
        Processes(directory) as processes,
        World(processes, directory, near_signaling=True) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def near_client(world: World) -> Host:
    """5 ms from frankfurt."""
    return world.client(world.frankfurt, NEAR)


@pytest.mark.benchmark(group="between regions: one way against the other")
@pytest.mark.parametrize("way", ["through the near entry", "the direct way"])
def test_way(benchmark: BenchmarkFixture, world: World, near_client: Host, way: str) -> None:
    client, signaling, entry = near_client, world.near_signaling, None
    if way == "the direct way":
        client, signaling = world.client(world.oregon, DIRECT), world.transceiver
        entry = world.oregon.public
    assert signaling is not None
    calls: list[CallFigures] = []
    benchmark.pedantic(
        lambda: calls.append(measure(signaling, client, entry, TALK_S)),
        rounds=CALLS,
        warmup_rounds=0,
    )
    for stage in STAGES:
        times_s = [call.stages_s[stage] for call in calls]
        benchmark.extra_info[f"{stage}_ms"] = milliseconds(median(times_s))
    sound_s = sorted(call.stages_s["sound"] for call in calls)
    trips_s = [trip_s for call in calls for trip_s in call.round_trips_s]
    sent = sum(call.sent for call in calls)
    benchmark.extra_info |= {
        "sound_ms_p90": milliseconds(share(sound_s, 90)),
        "rtt_ms": milliseconds(median(trips_s)),
        "rtt_ms_p99": milliseconds(share(sorted(trips_s), 99)),
        "jitter_ms": milliseconds(sum(call.jitter_s for call in calls) / len(calls)),
        "lost_percent": round(100 * sum(call.lost for call in calls) / sent, 2),
    }


@pytest.mark.benchmark(group="between regions: failures in the middle of a call")
@pytest.mark.parametrize("story", STORIES)
def test_story(benchmark: BenchmarkFixture, world: World, near_client: Host, story: str) -> None:
    told: list[Told] = []
    benchmark.pedantic(
        lambda: told.append(STORIES[story](world, near_client)), rounds=ROUNDS, warmup_rounds=0
    )
    silent_s = sorted(one.silent_s for one in told)
    benchmark.extra_info |= {
        "silent_ms": milliseconds(median(silent_s)),
        "silent_ms_most": milliseconds(silent_s[-1]),
        "lost": median(one.lost for one in told),
        "lost_most": max(one.lost for one in told),
        "lost_afterwards": sum(one.lost_afterwards for one in told),
        "calls_cut": sum(not one.connected for one in told),
    }
    assert benchmark.extra_info["calls_cut"] == 0


def milliseconds(seconds: float) -> float:
    return round(1_000 * seconds, 1)


def share(ordered: Sequence[float], percent: int) -> float:
    """A quantile."""
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
