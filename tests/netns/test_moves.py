"""Relays that share one address: the network moves clients from one to another in the middle of calls.

Without a cache, media that comes to a relay which does not know it is lost until the client's next
check; what comes down goes on by the old relay meanwhile, and by the new one afterwards. With the cache
its first packet waits for an answer and goes on. A relay that has had the call before loses nothing.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Iterator

import pytest

from tests.support.caller import Caller, Outcome
from tests.support.lab import VIP, CacheHost, Host, Lab, RelayHost, TransceiverHost
from tests.support.redis_server import missing_for_redis

pytestmark = [pytest.mark.netns, pytest.mark.timeout(120)]

SLACK_S = 1.5
PACKETS_PER_S = 50
CALLERS = 6
HASHED_CALLERS = 12
MOVES = 2
WATCHED_S = 3.0
"""Longer than the longest gap that is let pass."""
CACHED_LOST_MAX = 10
"""Ten times the target for a single move; the median has to keep it."""


@pytest.fixture(scope="module", params=["no-cache", "cache"])
def cache(request: pytest.FixtureRequest, module_lab: Lab) -> CacheHost | None:
    if request.param == "no-cache":
        return None
    if why := missing_for_redis():
        pytest.skip(why)
    return CacheHost(module_lab)


@pytest.fixture(scope="module")
def relays(module_lab: Lab, cache: CacheHost | None) -> Iterator[list[RelayHost]]:
    """Three relays with one address."""
    module_lab.shell("sysctl", "-qw", "net.ipv4.fib_multipath_hash_policy=1")
    arguments = () if cache is None else ("--redis", cache.url)
    made = [RelayHost(module_lab, *arguments, workers=1) for _ in range(3)]
    yield made
    for relay in made:
        relay.stop()


@pytest.fixture(scope="module")
def transceiver(module_lab: Lab) -> TransceiverHost:
    return TransceiverHost(module_lab)


@pytest.fixture(scope="module")
def clients(module_lab: Lab) -> list[Host]:
    return [module_lab.host() for _ in range(CALLERS)]


@contextlib.contextmanager
def calls(
    transceiver: TransceiverHost, hosts: list[Host], cache: CacheHost | None
) -> Iterator[list[Caller]]:
    """One connected caller on each of these hosts, in the cache if there is one."""
    with contextlib.ExitStack() as stack:
        callers = [stack.enter_context(Caller(host, transceiver)) for host in hosts]
        for caller in callers:
            caller.wait_connected()
        if cache is not None:
            cache.wait_written(caller.paths[0].flow for caller in callers)
        yield callers
        for caller in callers:
            assert caller.foreign == 0
            assert {path.other_source for path in caller.paths} == {0}, "replies leave from the VIP"
            assert transceiver.stats(caller.location)["state"] == "connected"


def watch(callers: list[Caller], seconds: float = WATCHED_S) -> list[Outcome]:
    """What becomes of everybody's packets from now on."""
    since_s = time.monotonic()
    time.sleep(seconds)
    until_s = time.monotonic()
    outcomes = [caller.settled(since_s, until_s) for caller in callers]
    print([(outcome.lost, round(outcome.gap_s, 3)) for outcome in outcomes])
    return outcomes


def flows(relays: list[RelayHost]) -> float:
    """On all relays together; those of earlier calls last for a while."""
    return sum(sum(relay.flows().values()) for relay in relays)


def check(outcomes: list[Outcome], *, cached: bool) -> None:
    """Lost is what is sent until the next check, and next to nothing with the cache."""
    for outcome in outcomes:
        assert outcome.gap_s < 1.0 + SLACK_S
        assert outcome.lost < PACKETS_PER_S * (1.0 + SLACK_S)
    if cached:
        assert max(outcome.lost for outcome in outcomes) <= CACHED_LOST_MAX
        assert statistics.median(outcome.lost for outcome in outcomes) <= 1


def test_a_call_moves_and_comes_back(
    module_lab: Lab,
    cache: CacheHost | None,
    relays: list[RelayHost],
    transceiver: TransceiverHost,
    clients: list[Host],
) -> None:
    module_lab.lead(VIP, relays[0].host)
    with calls(transceiver, clients[:1], cache) as callers:
        outcomes = []
        for target in (relays[1], relays[2]):
            module_lab.lead(VIP, target.host)
            outcomes += watch(callers)
        check(outcomes, cached=cache is not None)
        module_lab.lead(VIP, relays[0].host)
        assert watch(callers, 1.0)[0].lost <= 1, "it was known there"


def test_half_of_the_calls_move_again_and_again(
    module_lab: Lab,
    cache: CacheHost | None,
    relays: list[RelayHost],
    transceiver: TransceiverHost,
    clients: list[Host],
) -> None:
    dice = random.Random(10)
    flows_before = flows(relays)
    at = {client.address: number % 3 for number, client in enumerate(clients)}
    for address, number in at.items():
        module_lab.lead(VIP, relays[number].host, source=address)
    with calls(transceiver, clients, cache) as callers:
        outcomes = []
        for _ in range(MOVES):
            moved = dice.sample(callers, CALLERS // 2)
            for caller in moved:
                address = caller.host.address
                at[address] = (at[address] + dice.choice((1, 2))) % 3
                module_lab.lead(VIP, relays[at[address]].host, source=address)
            for caller, outcome in zip(callers, watch(callers), strict=True):
                if caller in moved:
                    outcomes.append(outcome)
                else:
                    assert outcome.lost == 0
        check(outcomes, cached=cache is not None)
        assert flows(relays) - flows_before <= 3 * CALLERS + 3
    for client in clients:
        module_lab.unlead(VIP, source=client.address)


@pytest.mark.parametrize("cache", ["cache"], indirect=True)
def test_a_relay_more_and_a_relay_less(
    module_lab: Lab,
    cache: CacheHost | None,
    relays: list[RelayHost],
    transceiver: TransceiverHost,
    clients: list[Host],
) -> None:
    """The kernel's own ECMP: a third of the calls move when a relay comes, more when one goes."""
    module_lab.lead(VIP, relays[0].host, relays[1].host)
    hosts = [clients[n % CALLERS] for n in range(HASHED_CALLERS)]
    with calls(transceiver, hosts, cache) as callers:
        outcomes = []
        for members in (relays, relays[1:]):
            module_lab.lead(VIP, *(relay.host for relay in members))
            outcomes += watch(callers)
        check(outcomes, cached=cache is not None)
