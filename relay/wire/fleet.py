"""How relays and transceivers tell a fleet that they are there: one Redis hash for ingresses, one for clusters.

    HSET fleet:1:ingress  "frankfurt 5f0c2a8e91d3b764"  "1 serving 1764480000123"
    HSET fleet:1:cluster  "7 91d3b7645f0c2a8e"          "1 full 1764480000456"
          key             name, announcer               version, state, Unix milliseconds

1. An announcer writes its own field every ANNOUNCE_S, and at once when its state changes. It draws its id when it starts.
2. A reader takes a field as alive while its value changes, by the reader's own clock: clocks need not agree,
   and a field that stays behind means that its announcer is dead, not that it never was.
3. What is read is data of a stranger: a field that is not of this form is none. Nothing that stands here can
   bring an address into play; it can only keep a configured ingress or cluster from being chosen.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from enum import Enum
from typing import Final

INGRESS_KEY: Final = b"fleet:1:ingress"
CLUSTER_KEY: Final = b"fleet:1:cluster"
ANNOUNCE_S: Final = 0.5
TTL_S: Final = 3.0
"""Without a change for so long, an announcer is dead."""
FIELDS_MAX: Final = 4_096
"""Of one hash; what has more is not ours, and not read."""
NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
"""Of an ingress; of a cluster it is the id."""

_FIELD = re.compile(rb"([A-Za-z0-9._-]{1,64}) ([0-9a-f]{16})")
_VALUE = re.compile(rb"1 (serving|full|draining) ([0-9]{1,15})")


class FleetState(Enum):
    """What an announcer is doing."""

    SERVING = "serving"
    FULL = "full"
    """It works, and takes nothing more."""
    DRAINING = "draining"
    """It works, and will end."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """One field of a hash."""

    name: str
    announcer: str
    state: FleetState
    written_ms: int
    """By the announcer's clock, Unix time."""

    def field(self) -> bytes:
        """As in Redis."""
        return f"{self.name} {self.announcer}".encode()

    def value(self) -> bytes:
        """As in Redis."""
        return f"1 {self.state.value} {self.written_ms}".encode()


def draw_announcer() -> str:
    """An id that no other announcer has."""
    return secrets.token_hex(8)


def read_announcement(field: object, value: object) -> Announcement | None:
    """What a field says, or None when it is no such field."""
    if not isinstance(field, bytes) or not isinstance(value, bytes):
        return None
    named, told = _FIELD.fullmatch(field), _VALUE.fullmatch(value)
    if named is None or told is None:
        return None
    return Announcement(
        named[1].decode(), named[2].decode(), FleetState(told[1].decode()), int(told[2])
    )
