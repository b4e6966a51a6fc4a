"""Where calls can come in and where they can live: ingresses and clusters, as an operator writes them.

1. Every fault is one ConfigError whose text names the option and the value.
2. A place is `LAT,LON` in degrees, north and east positive; a weight is 0 or more, 1 unless given (steering.py, rule 3).
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from relay.wire.address import Endpoint, host_ip
from relay.wire.fleet import NAME
from relay.wire.url import names_a_server

from .answer import Candidate
from .errors import ConfigError
from .steering import Place

WEIGHT_MAX = 1e6


@dataclass(frozen=True, slots=True)
class Ingress:
    """A relay address that clients are told: one candidate per address family."""

    name: str
    candidates: tuple[Candidate, ...]
    place: Place | None = None
    weight: float = 1.0

    def addresses(self) -> list[str]:
        """As text, for people."""
        return [str(Endpoint(item.host, item.port)) for item in self.candidates]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Transceivers that share a cluster id, and where other clusters reach their signaling."""

    id: int
    url: str
    """Without a slash at its end; empty for this cluster, when it is not told."""
    place: Place | None
    weight: float = 1.0

    @property
    def name(self) -> str:
        """As in metrics and in Redis."""
        return str(self.id)


def read_host(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An IP address that one host can have, a mapped one undone. Raises ValueError."""
    return host_ip(ipaddress.ip_address(text))


def read_endpoint(option: str, text: str) -> Endpoint:
    """HOST:PORT with an address as HOST, IPv6 in brackets; `localhost` is 127.0.0.1."""
    host, colon, port = text.rpartition(":")
    if host == "localhost":
        host = "127.0.0.1"
    elif host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"{option}: {text!r} must be HOST:PORT, with IPv6 as [ADDRESS]:PORT")
    try:
        address = read_host(host)
    except ValueError:
        raise ConfigError(f"{option}: {text!r} must be HOST:PORT with an IP address") from None
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65_535:
        raise ConfigError(f"{option}: {text!r} has no port of 0..65535")
    return Endpoint(address, int(port))


def read_ingress(text: str) -> Ingress:
    """NAME=HOST:PORT[,HOST:PORT][@LAT,LON[,WEIGHT]]."""
    name, equals, rest = text.partition("=")
    if not equals or not NAME.fullmatch(name):
        raise ConfigError(
            f"--ingress: {text!r} must be NAME=HOST:PORT[,HOST:PORT][@LAT,LON[,WEIGHT]]"
        )
    addresses, at, where = rest.partition("@")
    endpoints = [read_endpoint("--ingress", item) for item in addresses.split(",")]
    if any(endpoint.port == 0 or endpoint.ip.is_unspecified for endpoint in endpoints):
        raise ConfigError(f"--ingress: {text!r} must name an address and a port that clients reach")
    if len({endpoint.ip.version for endpoint in endpoints}) != len(endpoints):
        raise ConfigError(f"--ingress: {text!r} has two addresses of one family")
    candidates = tuple(Candidate(endpoint.ip, endpoint.port) for endpoint in endpoints)
    place, weight = _read_where("--ingress", text, where) if at else (None, 1.0)
    return Ingress(name, candidates, place, weight)


def read_ingresses(texts: Iterable[str]) -> tuple[Ingress, ...]:
    """Several, each name once."""
    read = tuple(read_ingress(text) for text in texts)
    for index, ingress in enumerate(read):
        if any(other.name == ingress.name for other in read[:index]):
            raise ConfigError(f"--ingress: the name {ingress.name!r} is given twice")
    return read


def read_place(option: str, text: str) -> Place:
    """LAT,LON."""
    place, _ = _read_where(option, text, text, weighted=False)
    return place


def _read_where(
    option: str, text: str, where: str, *, weighted: bool = True
) -> tuple[Place, float]:
    try:
        latitude, longitude, *rest = (float(item) for item in where.split(","))
    except ValueError:
        rest = [math.nan, math.nan]
    if len(rest) > (1 if weighted else 0):
        form = "end with @LATITUDE,LONGITUDE[,WEIGHT]" if weighted else "be LATITUDE,LONGITUDE"
        raise ConfigError(f"{option}: {text!r} must {form}")
    place = Place.of(latitude, longitude)
    if place is None:
        raise ConfigError(f"{option}: {text!r} has a place that is not on earth")
    weight = rest[0] if rest else 1.0
    if not 0 <= weight <= WEIGHT_MAX:
        raise ConfigError(f"{option}: {text!r} has a weight that is not of 0..{WEIGHT_MAX:.0f}")
    return place, weight


def read_cluster(text: str) -> Cluster:
    """ID=URL@LAT,LON[,WEIGHT]."""
    option = "--cluster-peer"
    cluster_id, _, rest = text.partition("=")
    url, at, where = rest.rpartition("@")
    if not at or not re.fullmatch(r"[0-9]{1,5}", cluster_id) or int(cluster_id) > 65_535:
        raise ConfigError(f"{option}: {text!r} must be ID=URL@LAT,LON[,WEIGHT], ID 0..65535")
    if not names_a_server(url):
        raise ConfigError(f"{option}: cluster {cluster_id} must have a URL http[s]://HOST[:PORT]")
    parts = urlsplit(url)
    if (
        parts.scheme not in ("http", "https")
        or parts.username is not None
        or parts.query
        or parts.fragment
        or not url.isprintable()
        or " " in url
    ):
        raise ConfigError(f"{option}: cluster {cluster_id} must have a URL http[s]://HOST[:PORT]")
    place, weight = _read_where(option, text, where)
    return Cluster(int(cluster_id), url.rstrip("/"), place, weight)


def read_clusters(
    texts: Iterable[str], own_id: int, place: Place | None
) -> tuple[Cluster, tuple[Cluster, ...]]:
    """This cluster and the others; one list may serve all, and this one's entry tells its place."""
    read: dict[int, Cluster] = {}
    for text in texts:
        cluster = read_cluster(text)
        if cluster.id in read:
            raise ConfigError(f"--cluster-peer: cluster {cluster.id} is given twice")
        read[cluster.id] = cluster
    listed = read.pop(own_id, Cluster(own_id, "", place))
    own = listed if place is None else replace(listed, place=place)
    if read and own.place is None:
        raise ConfigError(
            f"--cluster-peer: the place of this cluster ({own_id}) is missing; tell it with --place "
            f"or with an entry of its own"
        )
    return own, tuple(read.values())


def names_of(ingresses: Sequence[Ingress]) -> str:
    """For a sentence to a client."""
    return ", ".join(ingress.name for ingress in ingresses)
