"""The control process: admin HTTP and metrics, beside the packet path and never on it.

1. Nice 19 and unpinned: a busy Python thread at equal priority would cost the workers milliseconds.
2. It shares memory with the workers and holds nothing else, so it can die at any time; the supervisor starts another.
3. It ends when the supervisor does: the channel closes.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

from relay import channel
from relay._dataplane import Desks, Stats
from relay.admin import AdminServer
from relay.lineage import die_with
from relay.metrics import Health, registry
from relay.route_health import RouteAddress, RouteHealth, RouteWatch
from relay.status import State, StatusPage
from relay.wire.log import configure, get_logger

if TYPE_CHECKING:
    from relay.cache import FlowCache, Operation

NICE = 19


def main(description_fd: int) -> None:
    """The whole life of a control process, described by a JSON file (the supervisor writes it)."""
    os.nice(NICE)
    about: dict[str, Any] = channel.read_description(description_fd)
    die_with(about["parent"])
    configure(about["log_level"], about["log_format"])
    health = Health(
        Stats(about["stats"], about["slots"]), StatusPage(about["status"]), about["slots"]
    )
    routes = RouteHealth(
        health.stats, about["slots"], [RouteAddress(*route) for route in about["routes"]]
    )
    RouteWatch(routes, get_logger()).start()
    cache = start_cache(about["cache"], about["slots"]) if about["cache"] else None
    announced = start_announcer(about["announce"], health) if about["announce"] else None
    admin = AdminServer(
        socket.socket(fileno=about["admin"]),
        health,
        registry(health, routes, cache, announced),
        get_logger(),
    )
    threading.Thread(target=admin.serve_forever, name="admin", daemon=True).start()
    while (asked := channel.receive(about["control"])) is not None:
        channel.send(about["control"], asked)
    sys.exit(0)


def start_announcer(about: dict[str, Any], health: Health) -> Operation:
    """The announcements of this relay's ingress, on a thread of their own, and how they fare."""
    from relay.announcer import ANNOUNCE_LIMIT_S, Announcer
    from relay.cache import Operation
    from relay.redis_store import RedisStore
    from relay.wire.fleet import FleetState

    def state() -> FleetState | None:
        if health.not_ready() is None:
            return FleetState.SERVING
        return None if health.status.state is State.STARTING else FleetState.DRAINING

    operation = Operation(
        "announce", get_logger(), trouble_event="announce_failed", end_event="announce_restored"
    )
    store = RedisStore(about["url"], ANNOUNCE_LIMIT_S)
    Announcer(about["name"], about["announcer"], store, state, operation).start()
    return operation


def start_cache(about: dict[str, Any], slots: int) -> FlowCache:
    """The flow cache on its own threads; redis is imported only where there is one."""
    from relay.cache import LOOKUP_LIMIT_S, WRITE_LIMIT_S, FlowCache
    from relay.redis_store import RedisStore

    cache = FlowCache(
        Desks(about["desks"], slots),
        about["bell"],
        about["answers"],
        RedisStore(about["url"], LOOKUP_LIMIT_S),
        RedisStore(about["url"], WRITE_LIMIT_S),
        get_logger(),
        about["lookups_per_s"],
    )
    cache.start()
    return cache
