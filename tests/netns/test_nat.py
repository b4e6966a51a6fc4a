"""A NAT that forgets a call's mapping: both directions come back with the next check, and nothing is left.

The NAT is the kernel's. The client notices nothing: its packets leave from another outer port, media
first, and what comes to the old port dies at the NAT.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.support.caller import Caller
from tests.support.lab import VIP, Lab, RelayHost, TransceiverHost
from tests.support.nat import Nat
from tests.support.process import Process, Processes
from tests.support.relayed import wait_until

pytestmark = [pytest.mark.netns, pytest.mark.timeout(120)]

SLACK_S = 1.5
WATCHED_S = 3.0
"""Longer than the longest gap that is let pass."""
STOCK_INTERVAL_S = 6.0
"""aioice: 5 s between consent checks, and up to a fifth more."""
SWAPS = 3


@pytest.fixture(scope="module")
def relay(module_lab: Lab) -> RelayHost:
    made = RelayHost(module_lab, "--idle-timeout", "3")
    module_lab.lead(VIP, made.host)
    return made


@pytest.fixture(scope="module")
def transceiver(module_lab: Lab) -> TransceiverHost:
    return TransceiverHost(module_lab)


@pytest.fixture
def nat(module_lab: Lab) -> Nat:
    return Nat(module_lab)


def test_both_directions_come_back_with_the_next_check(
    relay: RelayHost, transceiver: TransceiverHost, nat: Nat
) -> None:
    clients = set()
    with Caller(nat.client, transceiver) as caller:
        caller.wait_connected()
        for swap in range(SWAPS):
            time.sleep(0.3 * swap)  # at another time between two checks
            nat.rebind()
            outcome = caller.observe(WATCHED_S)
            print(outcome, relay.flows())
            assert outcome.gap_s < caller.check_interval_s + SLACK_S
            assert outcome.lost < 50 * (caller.check_interval_s + SLACK_S)
            stats = transceiver.stats(caller.location)
            clients.add(stats["flow"]["client"])
            assert stats["state"] == "connected"
        assert len(clients) == SWAPS
        assert caller.foreign == 0
        assert caller.paths[0].refused == 0
        wait_until(lambda: relay.flows() == {"half_open": 0, "established": 1}, "old routes gone")
        assert caller.observe(0.5).lost == 0


def test_a_stock_client_stays_connected(
    processes: Processes, relay: RelayHost, transceiver: TransceiverHost, nat: Nat
) -> None:
    origin = "http://{}:{}".format(*transceiver.http)
    client = processes.start(
        *nat.client.namespace.prefix, sys.executable, "-m", "tests.netns.stock_client", origin,
        name="stock-client", cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    client.wait_events("report", count=10)
    nat.rebind()
    swapped_s = time.monotonic()
    heard_again_s = first_sound_after(client, swapped_s + 0.2) - swapped_s
    print(f"heard again after {heard_again_s:.2f} s")
    assert heard_again_s < STOCK_INTERVAL_S + SLACK_S
    assert {report["state"] for report in client.events("report")} == {"connected"}


def first_sound_after(client: Process, moment_s: float) -> float:
    """When loud frames came again, on the monotonic clock that all processes share."""
    found: list[float] = []

    def sounded() -> bool:
        reports = [r for r in client.events("report") if r["at_s"] > moment_s]
        found[:] = [r["at_s"] for r in reports if r["loud_frames"] > reports[0]["loud_frames"] + 5]
        return bool(found)

    wait_until(sounded, "sound after the swap")
    return found[0]
