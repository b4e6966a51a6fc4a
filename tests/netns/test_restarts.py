"""Programs that die under load and come back on their old addresses: who finds his way again, and how soon.

Nothing that belonged to a dead session may reach a living one, whichever side died.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import time
from collections.abc import Iterator

import pytest

from tests.support.caller import Caller, Outcome
from tests.support.lab import VIP, CacheHost, Host, Lab, RelayHost, TransceiverHost
from tests.support.redis_server import missing_for_redis
from tests.support.relayed import wait_until

pytestmark = [pytest.mark.netns, pytest.mark.timeout(120)]

SLACK_S = 1.5
WATCHED_S = 3.0
"""Longer than the longest gap that is let pass."""
CALLERS = 8
CACHED_LOST_MAX = 10


@pytest.fixture(scope="module")
def relay(module_lab: Lab) -> RelayHost:
    """With its route and without a cache."""
    made = RelayHost(module_lab)
    module_lab.lead(VIP, made.host)
    return made


@pytest.fixture
def cache(module_lab: Lab) -> CacheHost:
    if why := missing_for_redis():
        pytest.skip(why)
    return CacheHost(module_lab)


@pytest.fixture
def cached_relay(module_lab: Lab, relay: RelayHost, cache: CacheHost) -> Iterator[RelayHost]:
    """In the place of `relay`, with a cache."""
    made = RelayHost(module_lab, "--redis", cache.url)
    module_lab.lead(VIP, made.host)
    yield made
    module_lab.lead(VIP, relay.host)
    made.stop()


@pytest.fixture(scope="module")
def transceiver(module_lab: Lab) -> TransceiverHost:
    return TransceiverHost(module_lab, workers=2)


@pytest.fixture(scope="module")
def client(module_lab: Lab) -> Host:
    return module_lab.host()


@contextlib.contextmanager
def calls(transceiver: TransceiverHost, host: Host, count: int) -> Iterator[list[Caller]]:
    """Callers on one host, connected, and some on each process of the pool."""
    with contextlib.ExitStack() as stack:
        callers = [stack.enter_context(Caller(host, transceiver)) for _ in range(count)]
        for caller in callers:
            caller.wait_connected()
        yield callers


def process_of(transceiver: TransceiverHost, caller: Caller) -> dict[str, int]:
    """Number and pid of the process that has the call."""
    found: dict[str, int] = transceiver.stats(caller.location)["transceiver"]
    return found


def statuses(transceiver: TransceiverHost, callers: list[Caller]) -> set[int]:
    """Of the answers to who asks for these calls."""
    return {transceiver.answer(f"{caller.location}/stats")[0] for caller in callers}


def test_the_whole_relay_is_killed_and_started_again(
    relay: RelayHost, transceiver: TransceiverHost, client: Host
) -> None:
    with calls(transceiver, client, CALLERS) as callers:
        for caller, outcome in kill_and_start(relay, callers):
            assert outcome.gap_s < caller.check_interval_s + SLACK_S
            check_own(transceiver, caller)
        assert relay.flows()["established"] == CALLERS


def test_with_a_cache_the_first_packet_of_each_call_routes(
    cache: CacheHost, cached_relay: RelayHost, transceiver: TransceiverHost, client: Host
) -> None:
    with calls(transceiver, client, CALLERS) as callers:
        cache.wait_written(caller.paths[0].flow for caller in callers)
        outcomes = list(kill_and_start(cached_relay, callers, check_interval_s=30.0))
        # No check comes within the time that is looked at: all of it is the cache's doing.
        assert statistics.median(outcome.lost for _, outcome in outcomes) <= 1
        assert max(outcome.lost for _, outcome in outcomes) <= CACHED_LOST_MAX
        for caller, _ in outcomes:
            check_own(transceiver, caller)


def kill_and_start(
    relay: RelayHost, callers: list[Caller], check_interval_s: float = 1.0
) -> Iterator[tuple[Caller, Outcome]]:
    """kill -9, a second of nothing, and what becomes of the packets once it is ready again."""
    for caller in callers:
        caller.check_rarely(check_interval_s)
    relay.kill()
    time.sleep(1.0)
    relay.start()
    relay.wait_ready()
    since_s = time.monotonic()
    time.sleep(WATCHED_S)
    until_s = time.monotonic()
    outcomes = [caller.settled(since_s, until_s) for caller in callers]
    print([(outcome.lost, round(outcome.gap_s, 3)) for outcome in outcomes])
    yield from zip(callers, outcomes, strict=True)


def check_own(transceiver: TransceiverHost, caller: Caller) -> None:
    """The call lives, and nobody else's packets came to either end."""
    stats = transceiver.stats(caller.location)
    assert stats["state"] == "connected"
    assert stats["packets_in"] <= len(caller.sent_s)
    assert caller.foreign == 0


def test_the_whole_transceiver_is_killed_and_started_again(
    relay: RelayHost, transceiver: TransceiverHost, client: Host
) -> None:
    with calls(transceiver, client, CALLERS // 2) as old:
        transceiver.kill()
        died_s = time.monotonic()
        transceiver.start()
        transceiver.wait_ready()
        assert statuses(transceiver, old) == {404}
        assert {caller.hang_up() for caller in old} == {404}
        with calls(transceiver, client, CALLERS // 2) as new:
            outcomes = [caller.observe(1.0) for caller in new]
            print(outcomes)
            for caller, outcome in zip(new, outcomes, strict=True):
                assert outcome.lost == 0
                assert caller.foreign == 0
                assert transceiver.stats(caller.location)["packets_in"] <= len(caller.sent_s)
        for caller in old:
            assert caller.foreign == 0
            assert not [at_s for at_s in caller.heard_s.values() if at_s > died_s + SLACK_S]


def test_one_process_of_the_pool_is_killed(
    relay: RelayHost, transceiver: TransceiverHost, client: Host
) -> None:
    """Its successor has the same socket; the other process' calls lose nothing."""
    with calls(transceiver, client, CALLERS) as callers:
        processes = {caller: process_of(transceiver, caller) for caller in callers}
        victim = processes[callers[0]]
        lost = [c for c in callers if processes[c]["process"] == victim["process"]]
        kept = [c for c in callers if c not in lost]
        os.kill(victim["pid"], signal.SIGKILL)
        died_s = time.monotonic()
        wait_until(lambda: statuses(transceiver, lost) == {404}, "reported lost")
        time.sleep(1.0)
        until_s = time.monotonic()
        assert statuses(transceiver, lost) == {404}
        for caller in kept:
            assert caller.settled(died_s, until_s).lost == 0
            assert transceiver.stats(caller.location)["state"] == "connected"
        assert kept or len(callers) == len(lost)
        for caller in lost:
            assert not [at_s for at_s in caller.heard_s.values() if at_s > died_s + SLACK_S]
        with calls(transceiver, client, CALLERS) as new:
            for caller in new:
                assert caller.observe(0.3).lost == 0
                assert caller.foreign == 0
