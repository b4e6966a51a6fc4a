"""Consent is time: what a call survives, and how soon everything is freed once a client is gone for good.

One test, because each silence takes half a minute: they run side by side.
"""

from __future__ import annotations

import signal
import time

import pytest

from tests.support.caller import Caller
from tests.support.lab import VIP, Lab, RelayHost, TransceiverHost
from tests.support.linksim import LinkProfile
from tests.support.relayed import wait_until

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(180)]

LOSS = 0.25
STALL_S = 8.0
CONSENT_S = 30.0
FREED_S = 40.0
IDLE_S = 5
FOREIGN_MAX = 100
"""Ten seconds until the pause, a report at least every 400 ms, and some room."""


def test_loss_and_a_stall_are_survived_and_a_cut_is_not(lab: Lab) -> None:
    relay = RelayHost(lab, "--idle-timeout", str(IDLE_S))
    first, second = TransceiverHost(lab), TransceiverHost(lab)
    lab.lead(VIP, relay.host)
    far, link = lab.far_host("far", LinkProfile(delay_ms=30))
    with link:
        far.ip("route", "replace", "default", "via", far.gateway, "dev", far.device)
        near = lab.host()
        reused = (near.address, 40_000)
        with Caller(far, first) as lossy, Caller(near, second, reused) as vanishing:
            lossy.wait_connected()
            vanishing.wait_connected()

            link.change(LinkProfile(delay_ms=30, loss=LOSS), LinkProfile(delay_ms=30, loss=LOSS))
            outcome = lossy.observe(4.0)
            print("25 % each way:", outcome)
            # 1 - 0.75 * 0.75 of the packets do not come back.
            assert 0.3 < outcome.lost / outcome.sent < 0.6
            assert first.stats(lossy.location)["state"] == "connected"

            link.change(LinkProfile(delay_ms=30), LinkProfile(delay_ms=30))
            first.signal(signal.SIGSTOP)
            time.sleep(STALL_S)
            first.signal(signal.SIGCONT)
            lossy.wait_heard_again(10.0)
            outcome = lossy.observe(1.0)
            print("after the stall:", outcome)
            assert outcome.lost == 0
            assert first.stats(lossy.location)["state"] == "connected"

            link.cut()
            vanishing.vanish()
            cut_s = time.monotonic()
            with Caller(near, first, reused) as successor:
                successor.wait_connected()
                print(f"successor talks after {time.monotonic() - cut_s:.2f} s")
                assert time.monotonic() - cut_s < 5.0
                check_copies(relay, owners=2)
                for caller, transceiver in ((lossy, first), (vanishing, second)):
                    stats = wait_closed(transceiver, caller.location, FREED_S + 10)
                    after_s = time.monotonic() - cut_s
                    print(f"freed after {after_s:.1f} s")
                    assert CONSENT_S - 1 < after_s < FREED_S
                    assert stats["close_reason"] == "consent_expired"
                wait_until(
                    lambda: relay.flows()["established"] == 1, "the cut call's route is gone"
                )
                # The former owner leaves when it has confirmed nothing for half a minute.
                time.sleep(max(0.0, cut_s + CONSENT_S + 3.0 - time.monotonic()))
                check_copies(relay, owners=1)
                # Until its call was paused the former owner went on sending to that address.
                print(f"{successor.foreign} packets of the former call")
                assert successor.foreign < FOREIGN_MAX
                whole = successor.settled(successor.sent_s[10], time.monotonic() - 1.0)
                print("successor:", whole)
                assert whole.lost == 0


def wait_closed(transceiver: TransceiverHost, location: str, timeout_s: float) -> dict[str, object]:
    """The call's statistics once it has ended."""
    wait_until(lambda: transceiver.stats(location)["state"] == "closed", "closed", timeout_s)
    return transceiver.stats(location)


def check_copies(relay: RelayHost, *, owners: int) -> None:
    """Packets without a token go up once per owner; checks go to their own."""
    names = 'relay_rx_packets_total{side="public"}', 'relay_tx_packets_total{side="internal"}'
    before = relay.metrics()
    time.sleep(1.0)
    after = relay.metrics()
    received, forwarded = (after[name] - before[name] for name in names)
    print(f"{received} received, {forwarded} forwarded")
    assert abs(forwarded - owners * received) <= 0.1 * received + 4
