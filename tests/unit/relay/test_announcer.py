"""When a relay announces its ingress, with a stand-in for Redis and a clock in hand."""

from __future__ import annotations

import pytest

from relay.announcer import Announcer
from relay.cache import Operation
from relay.config import parse_ingress_name
from relay.errors import ConfigError
from relay.redis_store import StoreError
from relay.wire.fleet import ANNOUNCE_S, INGRESS_KEY, FleetState, read_announcement
from relay.wire.log import get_logger


class Rig:
    def __init__(self) -> None:
        self.state: FleetState | None = None
        self.is_down = False
        self.attempts = 0
        self.told: list[FleetState] = []
        self.operation = Operation("announce", get_logger())
        self.announcer = Announcer("fra", "0" * 16, self, lambda: self.state, self.operation)

    def announce(self, key: bytes, field: bytes, value: bytes) -> None:
        self.attempts += 1
        if self.is_down:
            raise StoreError("timeout", "no answer")
        told = read_announcement(field, value)
        assert told is not None
        assert (key, told.name) == (INGRESS_KEY, "fra")
        self.told.append(told.state)

    def look(self, *at_s: float) -> list[FleetState]:
        self.told.clear()
        for now_s in at_s:
            self.announcer.look(now_s, int(now_s * 1e3))
        return self.told


def test_nothing_is_said_before_the_relay_serves() -> None:
    assert Rig().look(1, 2, 3) == []


def test_every_half_second_and_at_once_when_it_drains() -> None:
    rig = Rig()
    rig.state = FleetState.SERVING
    assert rig.look(1.0, 1.1, 1.4, 1.0 + ANNOUNCE_S) == [FleetState.SERVING] * 2
    rig.state = FleetState.DRAINING
    assert rig.look(1.6, 1.7) == [FleetState.DRAINING]


def test_trouble_is_tried_again_at_the_usual_pace_and_counted() -> None:
    rig = Rig()
    rig.state, rig.is_down = FleetState.SERVING, True
    assert rig.look(1.0, 1.1, 1.2, 1.5, 1.6, 2.0) == []
    assert rig.attempts == 3
    assert rig.operation.errors["timeout"] == 3
    rig.is_down = False
    assert rig.look(2.5) == [FleetState.SERVING]
    assert rig.operation.trouble is None


@pytest.mark.parametrize(
    ("name", "redis", "why"),
    [("fra", None, "needs --redis"), ("f r", "redis://a", "letters"), ("", "redis://a", "letters")],
)
def test_wrong_names(name: str, redis: str | None, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_ingress_name("--ingress-name", name, redis)
    assert parse_ingress_name("--ingress-name", "fra-1.x_Y", "redis://a") == "fra-1.x_Y"
    assert parse_ingress_name("--ingress-name", None, None) is None
