"""The regions of a demo, and the backbone between them: datagrams that arrive when light in glass would let them.

1. A region is one relay, which is an entry to all clusters and the relay of its own, and one pool of transceivers.
2. All is on this machine, at loopback and at ports next to each other. Namespaces would need root and routes in
   this machine's network for its browser; what the backbone does is seen without.
3. A delay line (delay_line.py) stands in a cluster route for the relay that it leads to.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from relay.addresses import HostPort
from relay.delay_line import DelayLine
from relay.wire.earth import great_circle_km

MS_PER_KM = 0.0075
"""One way: 200 km a millisecond in glass, and half as far again as the crow flies."""


@dataclass(frozen=True)
class Region:
    """One place."""

    name: str
    cluster: int
    latitude: float = math.nan
    longitude: float = math.nan

    @property
    def place(self) -> str:
        """LAT,LON."""
        return f"{self.latitude:g},{self.longitude:g}"

    def delay_ms(self, other: "Region") -> float:
        """One way by the backbone: the great circle at MS_PER_KM."""
        here, there = (self.latitude, self.longitude), (other.latitude, other.longitude)
        return great_circle_km(*here, *there) * MS_PER_KM


ALONE = Region("demo", 0)
REGIONS = (
    Region("frankfurt", 1, 50.1, 8.7),
    Region("oregon", 2, 45.6, -121.2),
    Region("singapore", 3, 1.4, 103.8),
    Region("sao-paulo", 4, -23.5, -46.6),
    Region("sydney", 5, -33.9, 151.2),
)


def regions(count: int) -> Sequence[Region]:
    """So many of them."""
    return (ALONE,) if count == 1 else REGIONS[:count]


@dataclass
class Backbone:
    """The lines between all regions of a demo."""

    regions: Sequence[Region]
    _lines: dict[tuple[str, str], DelayLine] = field(default_factory=dict)
    _at: dict[tuple[str, str], HostPort] = field(default_factory=dict)

    async def open(self) -> None:
        """Make them; they lead nowhere yet."""
        for here in self.regions:
            for there in self.regions:
                if here is not there:
                    line = DelayLine(here.delay_ms(there))
                    self._at[here.name, there.name] = await line.open()
                    self._lines[here.name, there.name] = line

    def routes(self, here: Region) -> list[str]:
        """Options of the relay there."""
        return [
            word
            for there in self.regions
            if there is not here
            for word in ("--cluster-route", f"{there.cluster}={self._at[here.name, there.name]}")
        ]

    def lead(self, there: Region, backbone: HostPort) -> None:
        """All lines to a region end at its relay."""
        for (_, name), line in self._lines.items():
            if name == there.name:
                line.lead(backbone)

    def close(self) -> None:
        """All of it."""
        for line in self._lines.values():
            line.close()
