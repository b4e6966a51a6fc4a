"""What one Redis tells of the fleet, as its reader remembers it. Pure: time is an argument.

1. An announcer is alive while its value changes (relay/wire/fleet.py, rule 2): TTL_S without a change, seen by
   reads that went well, and it is dead. A name is well while any of its announcers is alive and serves.
2. A name that never announced itself is configuration only, and well.
3. Reads that fail change nothing: the last known picture stands. After a failure, or a pause of the reader, who
   was alive has TTL_S to be heard of again, so that a Redis that comes back empty empties nothing.
4. Who is dead stays known, so that its name is not taken for one that never announced itself; he is forgotten
   once another of his name lives.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from relay.wire.fleet import FIELDS_MAX, TTL_S, Announcement, FleetState

FORGET_MS = 600_000
"""How old the value of a dead announcer must be before it is taken out of Redis, by the announcer's clock."""


@dataclass(slots=True)
class _Record:
    last: Announcement
    changed_s: float
    """When a value that differs was last read; monotonic."""


class Picture:
    """Of one hash."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], _Record] = {}
        self._read_s: float | None = None
        self._failed = False

    def read(self, announcements: Iterable[Announcement], now_s: float) -> None:
        """All that stands in Redis now."""
        if self._read_s is not None and (self._failed or now_s - self._read_s > TTL_S / 2):
            for record in self._records.values():
                if self._is_alive(record):
                    record.changed_s = now_s
        self._failed = False
        self._read_s = now_s
        dead = iter([key for key, one in self._records.items() if not self._is_alive(one)])
        for told in announcements:
            key = (told.name, told.announcer)
            known = self._records.get(key)
            if known is not None and known.last == told:
                continue
            if known is None and len(self._records) >= FIELDS_MAX:
                gone = next(dead, None)
                if gone is None:
                    continue
                self._records.pop(gone, None)
            self._records[key] = _Record(told, now_s)

    def failed(self) -> None:
        """A read failed."""
        self._failed = True

    def well(self) -> frozenset[str]:
        """Names with an announcer that is alive and serves."""
        return frozenset(
            name
            for (name, _), record in self._records.items()
            if record.last.state is FleetState.SERVING and self._is_alive(record)
        )

    def known(self) -> frozenset[str]:
        """Names that ever announced themselves."""
        return frozenset(name for name, _ in self._records)

    def forget(self, now_ms: int) -> list[bytes]:
        """Forgets the dead whose name lives on, and names their fields. Unix time."""
        alive = {name for (name, _), record in self._records.items() if self._is_alive(record)}
        old = [
            (key, record.last.field())
            for key, record in self._records.items()
            if key[0] in alive
            and not self._is_alive(record)
            and now_ms - record.last.written_ms > FORGET_MS
        ]
        for key, _ in old:
            del self._records[key]
        return [field for _, field in old]

    def _is_alive(self, record: _Record) -> bool:
        return self._read_s is not None and self._read_s - record.changed_s < TTL_S


def unhealthy(pictures: Iterable[Picture]) -> frozenset[str]:
    """Names that some picture knows and that are well in none."""
    known: frozenset[str] = frozenset()
    well: frozenset[str] = frozenset()
    for picture in pictures:
        known |= picture.known()
        well |= picture.well()
    return known - well
