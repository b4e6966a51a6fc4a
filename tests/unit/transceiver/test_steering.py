"""Which place a request is taken to come from, and which site is nearest, as tables."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any

import pytest

from transceiver.steering import Place, RequestContext, Viewpoint, client_of, locate, rank

PROXIES = (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8"))
BERLIN, OSLO, SYDNEY = Place(52.5, 13.4), Place(59.9, 10.8), Place(-33.9, 151.2)


@dataclass(frozen=True)
class Spot:
    name: str
    place: Place | None
    weight: float = 1.0


FRANKFURT = Spot("fra", Place(50.1, 8.7))
VIRGINIA = Spot("iad", Place(38.9, -77.5))
TOKYO = Spot("nrt", Place(35.8, 140.4))


def context(peer: str = "10.1.1.1", **headers: str) -> RequestContext:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return RequestContext(ipaddress.ip_address(peer), named)


def geoip(address: Any) -> Place | None:
    return {"203.0.113.7": BERLIN, "198.51.100.1": OSLO}.get(str(address))


@pytest.mark.parametrize(
    ("request_context", "source", "near"),
    [
        (
            context(cf_iplatitude="59.9", cf_iplongitude="10.8", cf_ray="8f-SYD"),
            "coordinates",
            OSLO,
        ),
        (context(cf_ray="8f2a-SYD", cf_ipcountry="DE"), "colo", SYDNEY),
        (context(cf_ipcountry="no"), "country", OSLO),
        (context(x_forwarded_for="203.0.113.7"), "geoip", BERLIN),
        (context(x_forwarded_for="198.51.100.1, 203.0.113.7, 10.2.2.2"), "geoip", BERLIN),
        (context(), "default", SYDNEY),
        # malformed headers are absent ones
        (context(cf_iplatitude="nan", cf_iplongitude="3"), "default", SYDNEY),
        (context(cf_iplatitude="91", cf_iplongitude="3"), "default", SYDNEY),
        (context(cf_iplatitude="59.9"), "default", SYDNEY),
        (context(cf_ray="SYD"), "default", SYDNEY),
        (context(cf_ray="8f-QQQQ"), "default", SYDNEY),
        (context(cf_ipcountry="XX"), "default", SYDNEY),
        (context(cf_ipcountry="T1"), "default", SYDNEY),
        (context(x_forwarded_for="garbage"), "default", SYDNEY),
        # nobody but a trusted proxy is believed
        (context("203.0.113.7", cf_iplatitude="59.9", cf_iplongitude="10.8"), "geoip", BERLIN),
        (context("192.0.2.1", cf_ray="8f-NRT", cf_ipcountry="JP"), "default", SYDNEY),
        (context("203.0.113.7", x_forwarded_for="198.51.100.1"), "geoip", BERLIN),
    ],
)
def test_sources_of_a_place(request_context: RequestContext, source: str, near: Place) -> None:
    found = locate(request_context, trusted_proxies=PROXIES, geoip=geoip, default=SYDNEY)
    assert found.source == source
    assert found.place is not None
    assert found.place.distance_km(near) < 300


def test_nothing_known() -> None:
    assert locate(context()) == Viewpoint(None, "unknown")


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "192.0.2.9", "192.0.2.9"),
        ("10.0.0.1", "1.1.1.1, 192.0.2.9", "192.0.2.9"),
        ("10.0.0.1", "192.0.2.9, 10.0.0.2", "192.0.2.9"),
        ("10.0.0.1", "192.0.2.9:5000", "192.0.2.9"),
        ("fd00::1", "[2001:db8::5]:443", "2001:db8::5"),
        ("10.0.0.1", "::ffff:192.0.2.9", "192.0.2.9"),
        ("10.0.0.1", "192.0.2.9, nonsense", "10.0.0.1"),
        ("192.0.2.1", "192.0.2.9", "192.0.2.1"),
        ("10.0.0.1", ",".join(["10.0.0.3"] * 10_000), "10.0.0.3"),
    ],
)
def test_the_callers_address(peer: str, forwarded: str, client: str) -> None:
    assert str(client_of(context(peer, x_forwarded_for=forwarded), PROXIES)) == client


def names(sites: list[Spot]) -> list[str]:
    return [site.name for site in sites]


ALL = [VIRGINIA, TOKYO, FRANKFURT]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (BERLIN, ["fra", "iad", "nrt"]),
        (SYDNEY, ["nrt", "iad", "fra"]),
        (Place(45.5, -73.6), ["iad", "fra", "nrt"]),
        (Place(64.8, -147.7), ["iad", "nrt", "fra"]),
        (Place(78.2, 15.6), ["fra", "iad", "nrt"]),  # Svalbard: over the pole, not around it
        (None, ["fra", "iad", "nrt"]),  # by name, the same everywhere
    ],
)
def test_nearest_first(place: Place | None, expected: list[str]) -> None:
    assert names(rank(ALL, Viewpoint(place, "x"))) == expected


def test_weights_and_health() -> None:
    berlin = Viewpoint(BERLIN, "x")
    heavy = Spot("iad", VIRGINIA.place, 30)
    assert names(rank([FRANKFURT, heavy], berlin)) == ["iad", "fra"]
    assert names(rank([Spot("fra", FRANKFURT.place, 0), VIRGINIA], berlin)) == ["iad", "fra"]
    assert names(rank(ALL, berlin, frozenset({"fra"}))) == ["iad", "nrt", "fra"]
    assert names(rank(ALL, berlin, frozenset({"fra", "iad", "nrt"}))) == ["fra", "iad", "nrt"]
    assert names(rank([Spot("nowhere", None), TOKYO], berlin)) == ["nrt", "nowhere"]


def test_distance_is_the_great_circle() -> None:
    assert BERLIN.distance_km(BERLIN) == 0
    assert Place(0, 0).distance_km(Place(0, 180)) == pytest.approx(20_015, abs=1)
    assert Place(0, 179).distance_km(Place(0, -179)) == pytest.approx(222.4, abs=0.5)
    assert BERLIN.distance_km(SYDNEY) == pytest.approx(16_090, abs=30)
