"""Three regions (tests/support/regions.py): what a call through the near entry is like, and what goes wrong mid-call.

`benchmarks/bench_global.py` measures the same; here is asserted that each call goes on, loosely in time.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import pytest

from tests.support.global_calls import measure
from tests.support.global_stories import STORIES
from tests.support.lab import Host
from tests.support.process import Processes
from tests.support.regions import BACKBONE, DIRECT, NEAR, World

pytestmark = [pytest.mark.netns, pytest.mark.timeout(120)]

TALK_S = 1.5
TRIES = 5
SILENT_MAX_S = 15.0
"""Ten times what a check a second and what a story itself waits come to."""


@pytest.fixture(scope="module")
def world(
    namespaces: None, module_processes: Processes, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    if not Path("/dev/net/tun").exists():
        pytest.skip("the link simulator needs /dev/net/tun")
    with World(module_processes, tmp_path_factory.mktemp("world")) as made:
        yield made


@pytest.fixture(scope="module")
def client(world: World) -> Host:
    """Near frankfurt."""
    return world.client(world.frankfurt)


def test_the_near_entry_is_the_quicker_way(world: World, client: Host) -> None:
    far = world.client(world.oregon, DIRECT)
    near_ms, direct_ms = NEAR.delay_ms + BACKBONE.delay_ms, DIRECT.delay_ms
    tried = []
    # The near way has more links, each a program: where they wait for a CPU it looks long, but not each time.
    for _ in range(TRIES):
        with ThreadPoolExecutor() as threads:
            through = threads.submit(
                measure, world.transceiver, client, world.frankfurt.public, TALK_S
            )
            straight = threads.submit(measure, world.transceiver, far, world.oregon.public, TALK_S)
            near, direct = through.result(), straight.result()
        for figures, delay_ms in ((near, near_ms), (direct, direct_ms)):
            assert min(figures.round_trips_s) > 2 * delay_ms / 1000, "the links are what they say"
        assert near.sent > 20
        tried.append((median(near.round_trips_s), median(direct.round_trips_s)))
        if tried[-1][0] < tried[-1][1]:
            return
    pytest.fail(f"medians of round trips, near and direct: {tried}")


@pytest.mark.parametrize("story", STORIES)
def test_a_call_goes_on_when(world: World, client: Host, story: str) -> None:
    told = STORIES[story](world, client)
    print(told)
    assert told.connected
    assert told.silent_s < SILENT_MAX_S
    assert told.lost_afterwards <= 10
