"""Which ingresses an answer names: steering.py with this server's configuration and the fleet's health.

1. `?ingress=NAME` is obeyed, for tests; a name that is not configured is the client's error.
2. The second-best ingress is named only when enabled and in use (healthy, of some weight), after the best.
3. Without ingresses there is one way in: this process's own address, named `direct`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiohttp import web

from relay.wire.address import Endpoint

from .answer import Candidate
from .errors import RequestError
from .geoip import Finder
from .sites import Ingress, names_of
from .steering import IpAddress, IpNetwork, Place, RequestContext, Viewpoint, locate, rank

EXPLICIT = "explicit"
"""The source of a choice that the client made (rule 1)."""
DIRECT = "direct"
_NOBODY = ipaddress.IPv4Address(0)


@dataclass(frozen=True, slots=True)
class Entry:
    """The ways in that one answer names, best first."""

    ingresses: tuple[Ingress, ...]
    source: str
    """What they were chosen by: one of steering.SOURCES, or EXPLICIT."""

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """In order of priority."""
        return tuple(item for ingress in self.ingresses for item in ingress.candidates)

    def about(self, proxy: Endpoint | None) -> dict[str, object]:
        """For a call's stats: the ingress that its packets come through (`proxy`, None while none
        came), and all that were named.
        """
        used = self.ingresses[0]
        for ingress in self.ingresses:
            if any((item.host, item.port) == proxy for item in ingress.candidates):
                used = ingress
        return {
            "name": used.name,
            "addresses": used.addresses(),
            "advertised": [ingress.name for ingress in self.ingresses],
            "viewpoint": self.source,
        }


@dataclass(frozen=True, slots=True)
class Steering:
    """Chooses for one process."""

    ingresses: Sequence[Ingress]
    """At least one."""
    second: bool
    place: Place | None
    """Of callers of whom nothing is known."""
    trusted_proxies: Sequence[IpNetwork]
    geoip: Finder | None
    unhealthy: Callable[[], frozenset[str]] = frozenset
    """Names of ingresses that are not to be advertised now."""

    def viewpoint(self, request: web.Request) -> Viewpoint:
        """Where the caller is."""
        context = RequestContext(
            _address_of(request.remote),
            {name.lower(): ",".join(request.headers.getall(name)) for name in request.headers},
        )
        return locate(
            context,
            trusted_proxies=self.trusted_proxies,
            geoip=self.geoip,
            default=self.place,
        )

    def enter(self, viewpoint: Viewpoint, wanted: str | None) -> Entry:
        """The ways in for a caller there. RequestError 400 when there is no ingress `wanted`."""
        unhealthy = self.unhealthy()
        ranked = rank(self.ingresses, viewpoint, unhealthy)
        if wanted is None:
            spare = [one for one in ranked[1:] if one.name not in unhealthy and one.weight > 0]
            second = spare[:1] if self.second else []
            return Entry((ranked[0], *second), viewpoint.source)
        named = tuple(ingress for ingress in ranked if ingress.name == wanted)
        if not named:
            message = f"There is no such ingress; there are: {names_of(self.ingresses)}."
            raise RequestError(400, "unknown_ingress", message, param="ingress")
        return Entry(named, EXPLICIT)


def _address_of(remote: str | None) -> IpAddress:
    """The peer of a connection; over a unix socket there is none, and nobody trusts 0.0.0.0."""
    try:
        return Endpoint.of(remote or "", 0).ip
    except ValueError:
        return _NOBODY
