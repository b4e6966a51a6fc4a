"""What a night brings: a relay host dies, packets are sprayed over two, the cache hangs, networks and programs stall.

Calls go on through all of it. Checks are rare where a test shows that none was needed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.support.caller import Caller
from tests.support.lab import VIP, CacheHost, Host, Lab, RelayHost, TransceiverHost
from tests.support.linksim import LinkProfile
from tests.support.process import session_members
from tests.support.redis_server import missing_for_redis

pytestmark = [pytest.mark.netns, pytest.mark.redis, pytest.mark.timeout(120)]

NO_CHECKS_S = 60.0
WATCHED_S = 3.0
"""Longer than the longest gap that is let pass."""
LOST_MAX = 10
"""The target is one packet; the machine may be busy."""
SLACK_S = 1.5
BAD = LinkProfile(delay_ms=40, jitter_ms=60, loss=0.1, duplicate=0.2, reorder=0.2)


@pytest.fixture(scope="module")
def cache(module_lab: Lab) -> CacheHost:
    if why := missing_for_redis():
        pytest.skip(why)
    return CacheHost(module_lab)


@pytest.fixture(scope="module")
def relays(module_lab: Lab, cache: CacheHost) -> tuple[RelayHost, RelayHost]:
    """Two with one address."""
    return (
        RelayHost(module_lab, "--redis", cache.url, workers=1),
        RelayHost(module_lab, "--redis", cache.url, workers=1),
    )


@pytest.fixture(scope="module")
def transceiver(module_lab: Lab) -> TransceiverHost:
    return TransceiverHost(module_lab)


@pytest.fixture(scope="module")
def client(module_lab: Lab) -> Host:
    return module_lab.host()


@pytest.fixture
def caller(
    module_lab: Lab,
    cache: CacheHost,
    relays: tuple[RelayHost, RelayHost],
    transceiver: TransceiverHost,
    client: Host,
) -> Iterator[Caller]:
    """In a call by the first relay, in the cache; at the end the call still lives."""
    module_lab.lead(VIP, relays[0].host)
    with Caller(client, transceiver) as placed:
        placed.wait_connected()
        cache.wait_written([placed.paths[0].flow])
        yield placed
        assert transceiver.stats(placed.location)["state"] == "connected"
        assert placed.foreign == 0


def test_a_relay_host_dies_and_the_address_goes_to_another(
    module_lab: Lab, relays: tuple[RelayHost, RelayHost], caller: Caller
) -> None:
    caller.check_rarely(NO_CHECKS_S)
    relays[0].kill()
    time.sleep(0.5)
    module_lab.lead(VIP, relays[1].host)
    outcome = caller.observe(1.5)
    print(outcome)
    assert outcome.lost <= LOST_MAX
    relays[0].start()
    relays[0].wait_ready()


def test_packets_of_one_call_are_sprayed_over_two_relays(
    module_lab: Lab, relays: tuple[RelayHost, RelayHost], caller: Caller
) -> None:
    caller.check_rarely(NO_CHECKS_S)
    since_s = time.monotonic()
    for turn in range(30):
        module_lab.lead(VIP, relays[turn % 2].host)
        time.sleep(0.05)
    outcome = caller.settled(since_s, time.monotonic())
    print(outcome)
    assert outcome.lost <= LOST_MAX
    assert caller.paths[0].other_source == 0


def test_a_move_while_the_cache_hangs_heals_with_the_next_check(
    module_lab: Lab,
    cache: CacheHost,
    relays: tuple[RelayHost, RelayHost],
    transceiver: TransceiverHost,
    client: Host,
) -> None:
    module_lab.lead(VIP, relays[0].host)
    with Caller(client, transceiver) as caller:
        caller.wait_connected()
        cache.pause()
        try:
            module_lab.lead(VIP, relays[1].host)
            outcome = caller.observe(WATCHED_S)
            print(outcome)
            assert outcome.gap_s < caller.check_interval_s + SLACK_S
            assert [relay.get("/readyz")[0] for relay in relays] == [200, 200]
        finally:
            cache.resume()


def test_the_inside_network_goes_away_for_a_while(
    module_lab: Lab, transceiver: TransceiverHost, caller: Caller
) -> None:
    caller.check_rarely(NO_CHECKS_S)
    module_lab.ip("link", "set", transceiver.host.device, "down")
    time.sleep(2.0)
    module_lab.ip("link", "set", transceiver.host.device, "up")
    caller.wait_heard_again(10.0)
    outcome = caller.observe(1.0)
    print(outcome)
    assert outcome.lost == 0


def test_all_of_a_relay_is_frozen_for_a_while(
    relays: tuple[RelayHost, RelayHost], caller: Caller
) -> None:
    """As with a snapshot of its machine; nobody is taken for hung, and what waited is forwarded."""
    caller.check_rarely(NO_CHECKS_S)
    since_s = time.monotonic()
    pids = session_members(relays[0].process.pid)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            os.kill(pid, number)
        time.sleep(2.0)
    outcome = caller.settled(since_s, time.monotonic())
    print(outcome)
    assert outcome.lost == 0
    assert not relays[0].process.events("worker_hung")
    assert not relays[0].process.events("worker_died")


@pytest.mark.parametrize("seed", [1, 2])
def test_a_call_over_a_bad_network(
    module_lab: Lab, relays: tuple[RelayHost, RelayHost], transceiver: TransceiverHost, seed: int
) -> None:
    """Loss, duplicates and reordering from the first packet on: connected, and as good as the network."""
    module_lab.lead(VIP, relays[0].host)
    far, link = module_lab.far_host(f"bad{seed}", LinkProfile(delay_ms=40), seed=seed)
    with link:
        far.ip("route", "replace", "default", "via", far.gateway, "dev", far.device)
        with Caller(far, transceiver) as caller:
            link.change(BAD, BAD)
            caller.wait_connected()
            outcome = caller.observe(2.0)
            print(outcome)
            # 1 - 0.9 * 0.9 of the packets do not come back.
            assert outcome.lost < 0.4 * outcome.sent
            assert transceiver.stats(caller.location)["state"] == "connected"
            link.change(LinkProfile(), LinkProfile())
