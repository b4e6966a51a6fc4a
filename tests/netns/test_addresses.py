"""Callers and relays with several addresses, over both families and over links with small frames."""

from __future__ import annotations

import time

import pytest

from tests.support.caller import Caller
from tests.support.lab import PORT, VIP, VIP6, Host, Lab, RelayHost, TransceiverHost
from tests.support.linksim import LinkProfile
from tests.support.relayed import wait_until

pytestmark = [pytest.mark.netns, pytest.mark.timeout(120)]

IDLE_S = 3
OTHER_VIP = "198.19.0.2"
OTHER_VIP6 = "fd00:19::2"
NOMINATION_GAP_S = 0.2 * 10
"""Ten times the target: the machine may be busy."""
CONNECT_TIMEOUT_S = 10.0
FRAME_MIN_BYTES = 1_280
MEDIA_BYTES = 1_200
"""Fits into 1,280 bytes outside, and not inside, where the SPP header is added."""


@pytest.fixture(scope="module")
def relay(module_lab: Lab) -> RelayHost:
    """On the wildcard of both families, with two addresses of each."""
    made = RelayHost(module_lab, "--idle-timeout", str(IDLE_S), listen=(f"*:{PORT}",))
    for address in (VIP, OTHER_VIP, VIP6, OTHER_VIP6):
        made.host.adopt(address)
        module_lab.lead(address, made.host)
    return made


@pytest.fixture(scope="module")
def transceiver(module_lab: Lab, relay: RelayHost) -> TransceiverHost:
    return TransceiverHost(module_lab, ingress=f"vip={VIP}:{PORT},[{VIP6}]:{PORT}")


@pytest.fixture(scope="module")
def client(module_lab: Lab) -> Host:
    """With four addresses."""
    host = module_lab.host()
    for address in addresses(host)[1:]:
        host.adopt(address)
        module_lab.lead(address, host)
    return host


def addresses(host: Host) -> list[str]:
    """The client's own address and three more."""
    number = host.address.split(".")[2]
    return [host.address, *(f"198.19.{number}.{n}" for n in (1, 2, 3))]


def test_four_addresses_and_the_third_is_nominated(
    relay: RelayHost, transceiver: TransceiverHost, client: Host
) -> None:
    wait_until(lambda: not any(relay.flows().values()), "no routes of others")
    local = [(address, 0) for address in addresses(client)]
    with Caller(client, transceiver, *local, selected=2, nominate_all=False) as caller:
        caller.wait_connected()
        caller.wait_checked()
        outcome = caller.observe(2.0)
        print(outcome)
        assert outcome.lost == 0
        assert [path.refused + path.other_source for path in caller.paths] == [0] * 4
        assert [bool(path.heard) for path in caller.paths] == [False, False, True, False]
        assert relay.flows()["established"] == 4
        for index in (0, 1, 3):
            caller.paths[index].checks = False
        wait_until(lambda: relay.flows()["established"] == 1, "the others expire", 3 * IDLE_S)
        assert caller.observe(0.5).lost == 0


def test_the_nomination_moves(relay: RelayHost, transceiver: TransceiverHost, client: Host) -> None:
    """To another pair for good, then with every check; a caller without sound is followed as well."""
    local = [(address, 0) for address in addresses(client)[:2]]
    with Caller(client, transceiver, *local, nominate_all=False, check_interval_s=0.5) as caller:
        caller.wait_connected()
        caller.wait_checked()
        nominate(caller, 1)
        caller.paths[0].checks = False
        outcome = caller.observe(2.0)
        print("moved", outcome)
        assert outcome.lost == 0
        assert outcome.gap_s < NOMINATION_GAP_S
        since_s = time.monotonic()
        caller.paths[0].checks = True
        # Its route may have expired on a machine that was slow.
        wait_until(lambda: caller.paths[0].answered_s[-1] > since_s, "checked again")
        for step in range(10):
            nominate(caller, step % 2)
            time.sleep(0.3)
        outcome = caller.settled(since_s, time.monotonic())
        print("alternating", outcome)
        assert outcome.lost == 0
        assert outcome.gap_s < NOMINATION_GAP_S
        heard = sum(path.heard for path in caller.paths)
        assert heard <= len(caller.sent_s), "no packet runs in circles"


def nominate(caller: Caller, index: int) -> None:
    """From now on media takes this path and only its checks nominate."""
    for number, path in enumerate(caller.paths):
        path.nominates = number == index
    caller.paths[index].next_check_s = 0.0
    caller.selected = index


@pytest.mark.parametrize("blocked", [0, 1])
def test_two_flagged_pairs_and_one_is_blocked_downwards(
    module_lab: Lab, relay: RelayHost, transceiver: TransceiverHost, blocked: int
) -> None:
    """Each in turn: flagged first, flagged last. The handshake ends up on the pair that works."""
    host, link = module_lab.far_host(f"far{blocked}", LinkProfile(delay_ms=40))
    with link:
        host.ip("route", "replace", "default", "via", host.gateway, "dev", host.device)
        second = f"198.19.{100 + blocked}.1"
        host.adopt(second)
        module_lab.lead(second, host)
        local = [(host.address, 0), (second, 0)]
        module_lab.block(f"ip daddr {local[blocked][0]} meta l4proto udp")
        try:
            with Caller(
                host, transceiver, *local, check_interval_s=2.0, selected=1 - blocked
            ) as caller:
                caller.resend = True
                began_s = time.monotonic()
                caller.wait_connected()
                print(f"connected after {time.monotonic() - began_s:.2f} s")
                assert time.monotonic() - began_s < CONNECT_TIMEOUT_S
                outcome = caller.observe(2.0)
                print(outcome)
                assert outcome.lost == 0
                assert not caller.paths[blocked].heard
        finally:
            module_lab.unblock()


def test_replies_leave_from_the_address_that_was_asked(
    relay: RelayHost, transceiver: TransceiverHost, client: Host
) -> None:
    """A wildcard bind with two addresses of each family: four paths, four sources."""
    remotes = [(address, PORT) for address in (VIP, OTHER_VIP, VIP6, OTHER_VIP6)]
    local = [(client.of_family(address), 0) for address, _ in remotes]
    with Caller(client, transceiver, *local, remotes=remotes) as caller:
        for index in range(4):
            caller.selected = index
            if index == 0:
                caller.wait_connected()
                caller.wait_checked()
            assert caller.observe(0.5).lost == 0
        assert all(path.heard for path in caller.paths)
        assert [path.other_source for path in caller.paths] == [0] * 4
        proxies = {transceiver.stats(caller.location)["flow"]["proxy"]}
        assert proxies == {f"[{OTHER_VIP6}]:{PORT}"}


@pytest.mark.parametrize("family", [4, 6])
def test_small_frames_on_the_internal_leg_lose_nothing(lab: Lab, family: int) -> None:
    """Media that does not fit inside, single and in trains, from the first packet on.

    With IPv4 either side in turn does not know of the other's small frames, and the router's word does
    not reach it. With IPv6, where routers never fragment, both have small frames.
    """
    inside = lab.host()
    prefix = ("--ipv6-prefix", f"0={inside.prefix6}")
    vip = VIP if family == 4 else f"[{VIP6}]"
    relay = RelayHost(lab, *prefix, listen=(f"{vip}:{PORT}",), family=family)
    lab.lead(vip.strip("[]"), relay.host)
    transceiver = TransceiverHost(
        lab, *prefix, host=inside, ingress=f"vip={vip}:{PORT}", family=family
    )
    client = lab.host()
    lab.block("icmp type destination-unreachable")
    narrow = [(inside,), (relay.host,)] if family == 4 else [(inside, relay.host)]
    for frame_bytes in (FRAME_MIN_BYTES, 1400):
        for hosts in narrow:
            for host in (inside, relay.host):
                lab.set_mtu(host, frame_bytes if host in hosts else 1500)
            for burst in (1, 8) if frame_bytes == FRAME_MIN_BYTES else (8,):
                local = (client.of_family(vip), 0)
                with Caller(
                    client, transceiver, local, payload_bytes=MEDIA_BYTES, burst=burst
                ) as caller:
                    caller.muted = True
                    caller.wait_handshake()
                    wait_connected(transceiver, caller)
                    since_s = time.monotonic()
                    caller.muted = False
                    time.sleep(0.6)
                    outcome = caller.settled(since_s, time.monotonic())
                    print(frame_bytes, burst, outcome)
                    assert outcome.sent > 0
                    assert outcome.lost == 0, "from the first on"


def wait_connected(transceiver: TransceiverHost, caller: Caller) -> None:
    """Until the server has the keys, too: media may overtake the end of a handshake."""

    def is_connected() -> bool:
        return bool(transceiver.stats(caller.location)["state"] == "connected")

    wait_until(is_connected, "connected at the server")
