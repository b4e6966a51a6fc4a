"""Where a caller is, which cluster should own the call and which ingress is nearest. Pure: its only
I/O is reading two tables once.

1. A header counts only when the peer that sent it is a trusted proxy; anybody can write one.
2. Sources of a place, best first: coordinates from the edge, the edge's own location, the country, the GeoIP file, the default.
3. Nearer wins. A site of weight 2 counts as half as far; weight 0 is chosen only when nothing else is left.
4. Unhealthy sites come last, in the same order: when all are unhealthy, health is what is broken, not the sites.
"""

from __future__ import annotations

import csv
import functools
import ipaddress
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Final, Protocol, TypeVar

import airportsdata

from relay.wire.earth import great_circle_km

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

SAME_METRO_KM: Final = 100.0
"""Added to every distance, so that weights also decide between sites of one city."""
SOURCES: Final = ("coordinates", "colo", "country", "geoip", "default", "unknown")
"""What a place can be known from, best first."""
FORWARDED_MAX: Final = 32
"""Entries of X-Forwarded-For that are looked at, from the nearest proxy on."""


@dataclass(frozen=True, slots=True)
class Place:
    """A point on earth, in degrees; north and east are positive."""

    latitude: float
    longitude: float

    @classmethod
    def of(cls, latitude: float, longitude: float) -> Place | None:
        """That place; None for what is not on earth, not-a-number included."""
        if -90 <= latitude <= 90 and -180 <= longitude <= 180:
            return cls(float(latitude), float(longitude))
        return None

    def distance_km(self, other: Place) -> float:
        """Great-circle distance."""
        return great_circle_km(self.latitude, self.longitude, other.latitude, other.longitude)


@dataclass(frozen=True, slots=True)
class Viewpoint:
    """Where a request comes from, as far as anybody can tell."""

    place: Place | None
    source: str
    """One of SOURCES; for logs and metrics."""


class Site(Protocol):
    """An ingress or a cluster, as far as ranking it goes."""

    @property
    def name(self) -> str:
        """Breaks ties, so that every process ranks alike."""

    @property
    def place(self) -> Place | None:
        """Where it is, if configured."""

    @property
    def weight(self) -> float:
        """1 is usual; see rule 3."""


T = TypeVar("T", bound=Site)


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What is known of a request."""

    peer: IpAddress
    """The address that the TCP connection comes from."""
    headers: Mapping[str, str]
    """By lower-case name."""


def locate(
    request: RequestContext,
    *,
    trusted_proxies: Sequence[IpNetwork] = (),
    geoip: Callable[[IpAddress], Place | None] | None = None,
    default: Place | None = None,
) -> Viewpoint:
    """The best guess at where the caller is (rules 1 and 2). Malformed headers count as absent."""
    if _is_trusted(request.peer, trusted_proxies):
        for source, find in (
            ("coordinates", _from_coordinates),
            ("colo", _from_colo),
            ("country", _from_country),
        ):
            if (place := find(request.headers)) is not None:
                return Viewpoint(place, source)
    if geoip is not None and (place := geoip(client_of(request, trusted_proxies))) is not None:
        return Viewpoint(place, "geoip")
    return Viewpoint(default, "default" if default is not None else "unknown")


def client_of(request: RequestContext, trusted_proxies: Sequence[IpNetwork]) -> IpAddress:
    """The caller's address: the last in X-Forwarded-For that no trusted proxy of ours has."""
    client = request.peer
    entries = request.headers.get("x-forwarded-for", "").split(",")
    for entry in reversed(entries[-FORWARDED_MAX:]):
        if not _is_trusted(client, trusted_proxies):
            break
        address = _read_address(entry)
        if address is None:
            break
        client = address
    return client


def rank(
    sites: Iterable[T], viewpoint: Viewpoint, unhealthy: frozenset[str] = frozenset()
) -> list[T]:
    """The sites, best first (rules 3 and 4). `unhealthy` holds names."""

    def order(site: T) -> tuple[bool, bool, float, str]:
        far = _effective_km(site, viewpoint.place)
        return (site.name in unhealthy, site.weight <= 0, far, site.name)

    return sorted(sites, key=order)


def _effective_km(site: Site, viewpoint: Place | None) -> float:
    weight = site.weight if site.weight > 0 else 1.0
    if viewpoint is None:
        return 1 / weight
    if site.place is None:
        return math.inf
    return (viewpoint.distance_km(site.place) + SAME_METRO_KM) / weight


def _is_trusted(address: IpAddress, trusted_proxies: Sequence[IpNetwork]) -> bool:
    return any(address in network for network in trusted_proxies)


def _read_address(text: str) -> IpAddress | None:
    text = text.strip()
    if text.startswith("["):  # [2001:db8::1]:443, as some proxies write it
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address


def _from_coordinates(headers: Mapping[str, str]) -> Place | None:
    try:
        latitude = float(headers["cf-iplatitude"])
        longitude = float(headers["cf-iplongitude"])
    except (KeyError, ValueError):
        return None
    return Place.of(latitude, longitude)


def _from_colo(headers: Mapping[str, str]) -> Place | None:
    """CF-Ray ends with the airport code of the edge that took the request."""
    _, dash, code = headers.get("cf-ray", "").rpartition("-")
    airport = _airports().get(code.upper()) if dash else None
    return None if airport is None else Place(airport["lat"], airport["lon"])


def _from_country(headers: Mapping[str, str]) -> Place | None:
    return country_place(headers.get("cf-ipcountry", ""))


def country_place(code: str) -> Place | None:
    """The middle of a country, by its ISO 3166-1 alpha-2 code."""
    return _countries().get(code.upper())


def read_tables() -> None:
    """Reads both tables now, so that no request waits for them."""
    _airports()
    _countries()


@functools.cache
def _airports() -> Mapping[str, airportsdata.Airport]:
    return airportsdata.load("IATA")


@functools.cache
def _countries() -> Mapping[str, Place]:
    text = resources.files(__package__).joinpath("data/countries.csv").read_text("utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {row["country"]: Place(float(row["latitude"]), float(row["longitude"])) for row in rows}
