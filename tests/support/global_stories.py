"""What can go wrong between regions in the middle of a call, and what the caller then hears.

1. A story places a call in a `World`, lets something happen, waits until a packet sent afterwards comes back, and
   puts the world in order again. It judges nothing: tests and the benchmark do.
2. Lost and silent are facts of the caller's diary (`caller.py`): one numbered packet each 20 ms, there and back.
3. No relay has a cache here, so what a relay does not know it learns from the client's next check, one a second.
4. Entries find out by themselves that a relay does not answer (probes); nobody tells them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.support.caller import Caller
from tests.support.lab import PORT, Host, RelayHost
from tests.support.regions import ANYCAST, CELLULAR, World
from tests.support.relayed import wait_until

NOTICED_S = 0.5
"""How long a network takes to withdraw the route to a dead site."""
PATIENCE_S = 1.0
"""How long a client hears nothing before it takes its second candidate."""
RECOVERY_LIMIT_S = 30.0
AFTERWARDS_S = 0.5
SPRAY_S = 0.05
SPRAYS = 30
LAST_ECHO_S = 2.0
"""What has not come back by then never does."""
IN_FLIGHT_S = 0.2
"""What was sent so shortly before an event is lost by it, too."""


@dataclass(frozen=True)
class Told:
    """What became of the call."""

    silent_s: float
    """The longest time in which the caller heard nothing."""
    lost: int
    """Packets that did not come back, of those sent from just before the event until all was well again."""
    lost_afterwards: int
    """Of the packets of half a second after the first came back."""
    connected: bool
    """The transceiver still has the call."""


Story = Callable[[World, Host], Told]


def entry_dies_and_its_address_leads_elsewhere(world: World, client: Host) -> Told:
    """kill -9 of the entry; half a second later the network leads its address to the entry next door."""
    near = world.frankfurt.relays[0]

    def happen() -> None:
        near.kill()
        time.sleep(NOTICED_S)
        world.lead(world.frankfurt, world.london)

    with (
        _afterwards(lambda: world.lead(world.frankfurt, world.frankfurt)),
        _afterwards(lambda: _revive(near)),
        called(world, client, ANYCAST) as caller,
    ):
        return _watch(world, caller, happen)


def entry_dies_and_the_client_takes_its_second_candidate(world: World, client: Host) -> Told:
    """kill -9 of the entry; a second of silence later the client sends to the other one it was told."""
    near = world.frankfurt.relays[0]
    entries = (world.frankfurt.public, world.london.public)
    with _afterwards(lambda: _revive(near)), called(world, client, *entries) as caller:
        wait_until(lambda: caller.paths[1].answered_s, "the second candidate is checked")

        def happen() -> None:
            near.kill()
            wait_until(lambda: _heard_ago_s(caller) > PATIENCE_S, "silence")
            caller.selected = 1

        return _watch(world, caller, happen)


def backbone_link_dies(world: World, client: Host) -> Told:
    """The link that carries the call is cut; the entry has another to the same cluster."""
    with contextlib.ExitStack() as stack:
        caller = stack.enter_context(called(world, client, ANYCAST))
        link = world.backbones[_carrier(world)]
        stack.callback(_wait_routes_up, world)
        stack.callback(link.cut, False, False)
        return _watch(world, caller, link.cut)


def cluster_relay_is_killed_and_started(world: World, client: Host) -> Told:
    """kill -9 of the cluster's relay that has the call, which is started at once."""
    with contextlib.ExitStack() as stack:
        caller = stack.enter_context(called(world, client, ANYCAST))
        relay = world.oregon.relays[_carrier(world)]
        stack.callback(_wait_routes_up, world)
        stack.callback(relay.wait_ready)

        def happen() -> None:
            relay.kill()
            relay.start()

        return _watch(world, caller, happen)


def packets_are_sprayed_over_two_entries(world: World, client: Host) -> Told:
    """The network changes its mind about the entry each 50 ms."""

    def happen() -> None:
        for turn in range(SPRAYS):
            world.lead(world.frankfurt, (world.london, world.frankfurt)[turn % 2])
            time.sleep(SPRAY_S)

    with called(world, client, ANYCAST) as caller:
        return _watch(world, caller, happen)


def client_moves_to_another_network(world: World, client: Host) -> Told:
    """Wi-Fi is gone; the first check over the mobile network lands on the entry next door."""
    mobile = world.connect(client, world.london, CELLULAR)
    wifi = world.ways[client.device]
    with contextlib.ExitStack() as stack:
        caller = stack.enter_context(
            called(world, client, ANYCAST, ANYCAST, local=(client, mobile), spare=True)
        )
        stack.callback(wifi.cut, False, False)

        def happen() -> None:
            wifi.cut()
            caller.paths[0].checks = False
            caller.paths[1].checks = True
            caller.selected = 1

        return _watch(world, caller, happen)


STORIES: dict[str, Story] = {
    "entry dies, its address leads elsewhere": entry_dies_and_its_address_leads_elsewhere,
    "entry dies, second candidate": entry_dies_and_the_client_takes_its_second_candidate,
    "backbone link dies": backbone_link_dies,
    "cluster relay is killed and started": cluster_relay_is_killed_and_started,
    "packets sprayed over two entries": packets_are_sprayed_over_two_entries,
    "client moves from Wi-Fi to mobile": client_moves_to_another_network,
}


@contextlib.contextmanager
def called(
    world: World, client: Host, *entries: str, local: tuple[Host, ...] = (), spare: bool = False
) -> Iterator[Caller]:
    """A call with a path to each of these addresses, and sound. `spare`: only the first is used so far."""
    remotes = [(entry, PORT) for entry in entries]
    sources = [(host.address, 0) for host in local or (client,) * len(entries)]
    with Caller(
        client, world.transceiver, *sources, remotes=remotes, check_all=not spare
    ) as caller:
        caller.wait_connected()
        yield caller


def _watch(world: World, caller: Caller, happen: Callable[[], None]) -> Told:
    time.sleep(IN_FLIGHT_S)
    since_s = time.monotonic()
    happen()
    caller.wait_heard_again(RECOVERY_LIMIT_S)
    well_s = time.monotonic()
    time.sleep(AFTERWARDS_S)
    until_s = time.monotonic()
    deadline_s = until_s + LAST_ECHO_S
    while caller.outcome(well_s, until_s).lost and time.monotonic() < deadline_s:
        time.sleep(0.02)
    whole = caller.outcome(since_s - IN_FLIGHT_S, until_s)
    afterwards = caller.outcome(well_s, until_s)
    state = world.transceiver.stats(caller.location)["state"]
    assert caller.foreign == 0
    return Told(whole.gap_s, whole.lost, afterwards.lost, state == "connected")


@contextlib.contextmanager
def _afterwards(restore: Callable[[], None]) -> Iterator[None]:
    try:
        yield
    finally:
        restore()


def _revive(relay: RelayHost) -> None:
    relay.start()
    relay.wait_ready()


def _wait_routes_up(world: World) -> None:
    """Until the entries send everything where they sent it before."""
    entries = [world.frankfurt.relays[0], world.london.relays[0]]
    wait_until(lambda: all(map(_has_all_routes, entries)), "routes up", RECOVERY_LIMIT_S)


def _has_all_routes(entry: RelayHost) -> bool:
    up = [one for name, one in entry.metrics().items() if name.startswith("relay_route_up{")]
    return len(up) > 0 and min(up) == 1


def _heard_ago_s(caller: Caller) -> float:
    return time.monotonic() - max(list(caller.heard_s.values()))


def _carrier(world: World) -> int:
    """Which link to oregon, and so which relay there, most packets take now."""

    def passed() -> list[int]:
        return [link.counts()[0]["received"] for link in world.backbones]

    before = passed()
    time.sleep(0.3)
    grown = [now - then for now, then in zip(passed(), before, strict=True)]
    return grown.index(max(grown))
