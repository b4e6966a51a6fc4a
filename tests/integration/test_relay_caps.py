"""Every cap of the relay: set by `--limit NAME=N`, reached, counted under its own reason.

A rate is counted in seconds of the monotonic clock, so a burst starts with a new second, and one
that did not end within it is repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from relay._dataplane import DROP_REASONS, LIMITS
from tests.support.process import Processes
from tests.support.relayed import Client, Relay, Transceiver, binding_request, wait_until
from tests.support.spoof import Spoofer, loopback

SENT = 12


def _from_many_sources(relay: Relay, sink: Transceiver, spoofer: Spoofer) -> None:
    """One token, a new source each time."""
    ufrag = sink.ufrag(relay.keyring)
    for i in range(SENT):
        spoofer.send(binding_request(f"{ufrag}:x".encode()), loopback(i), relay.public[0])


def _on_one_flow(relay: Relay, sink: Transceiver, spoofer: Spoofer) -> None:
    """One token, one source."""
    ufrag = sink.ufrag(relay.keyring)
    for _ in range(SENT):
        spoofer.send(binding_request(f"{ufrag}:x".encode()), loopback(0), relay.public[0])


def _with_many_tokens(relay: Relay, sink: Transceiver, spoofer: Spoofer) -> None:
    """A new token and a new source each time, one transceiver."""
    for i in range(SENT):
        check = binding_request(f"{sink.ufrag(relay.keyring)}:x".encode())
        spoofer.send(check, loopback(i), relay.public[0])


def _from_many_ports(relay: Relay, sink: Transceiver, spoofer: Spoofer) -> None:
    """A new token and a new port each time, one address."""
    for _ in range(SENT):
        check = binding_request(f"{sink.ufrag(relay.keyring)}:x".encode())
        with Spoofer() as other:
            other.send(check, loopback(0), relay.public[0])


Burst = Callable[[Relay, Transceiver, Spoofer], None]

RATES: list[tuple[str, str, Burst, int]] = [
    ("token_new_flows_per_s", "cap_token_flows_rate", _from_many_sources, 4),
    ("flow_checks_per_s", "cap_flow_checks", _on_one_flow, 1),
    ("transceiver_new_flows_per_s", "cap_transceiver_flows", _with_many_tokens, 4),
    ("source_unanswered", "cap_source_unanswered", _from_many_ports, 4),
]
"""Limit, reason, what reaches it, new flows when 4 of SENT packets pass."""


@pytest.mark.parametrize(("limit", "reason", "burst", "created"), RATES)
def test_a_burst_over_the_cap(
    processes: Processes, tmp_path: Path, limit: str, reason: str, burst: Burst, created: int
) -> None:
    relay = Relay(processes, tmp_path, "--limit", f"{limit}=4", workers=1)
    for _ in range(20):
        # The relay's clock is some milliseconds coarse: at the very edge it still reads the second before.
        time.sleep(1.05 - time.monotonic() % 1)
        with Transceiver() as sink, Spoofer() as spoofer:
            before = relay.counters()
            second = int(time.monotonic())
            burst(relay, sink, spoofer)
            after = _once_received(relay, before["rx public"] + SENT)
        if int(time.monotonic()) == second:
            break
        wait_until(lambda: relay.metrics()['relay_flows{state="half_open"}'] == 0, "all expired")
    assert {name: after[name] - before[name] for name in after if after[name] != before[name]} == {
        "rx public": SENT,
        "tx internal": 4,
        "created": created,
        f"drop {reason}": SENT - 4,
    }


def _once_received(relay: Relay, packets: float) -> dict[str, float]:
    wait_until(lambda: relay.counters()["rx public"] == packets, "all received")
    return relay.counters()


def test_established_flows_of_one_token(processes: Processes, tmp_path: Path) -> None:
    relay = Relay(processes, tmp_path, "--limit", "token_established_flows=2", workers=1)
    public = relay.public[0]
    with Transceiver() as sink, Client() as one, Client() as two, Client() as three:
        ufrag = sink.ufrag(relay.keyring)
        one.establish(ufrag, public, sink)
        two.establish(ufrag, public, sink)
        with relay.changed({"rx public": 1, "drop cap_token_flows": 1}):
            three.check(ufrag, public)
        two.establish(ufrag, public, sink)
        three.establish(sink.ufrag(relay.keyring), public, sink)


def test_each_limit_has_a_case_and_a_reason_of_its_own() -> None:
    reasons = {limit: reason for limit, reason, *_ in RATES}
    reasons["token_established_flows"] = "cap_token_flows"
    caps = {label for label, _ in DROP_REASONS if label.startswith("cap_")}
    assert set(reasons.values()) == caps
    assert len(caps) == len(reasons)
    assert set(reasons) <= set(LIMITS)


def test_the_defaults_are_those_of_the_design() -> None:
    assert {
        "token_new_flows_per_s": 20,
        "token_established_flows": 16,
        "flow_checks_per_s": 50,
        "transceiver_new_flows_per_s": 2000,
        "source_unanswered": 64,
    }.items() <= LIMITS.items()
