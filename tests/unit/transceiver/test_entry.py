"""Which ingresses an answer names, and what a call's stats say of them."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from relay.wire.address import Endpoint
from transceiver.answer import Candidate
from transceiver.entry import Entry, Steering
from transceiver.errors import RequestError
from transceiver.fleetboard import FleetBoard
from transceiver.sites import Ingress
from transceiver.steering import Place, Viewpoint

BERLIN = Viewpoint(Place(52.5, 13.4), "geoip")


def ingress(name: str, number: int, place: Place | None, weight: float = 1.0) -> Ingress:
    candidates = (
        Candidate(ipaddress.ip_address(f"192.0.2.{number}"), 3478),
        Candidate(ipaddress.ip_address(f"2001:db8::{number}"), 3478),
    )
    return Ingress(name, candidates, place, weight)


FRA = ingress("fra", 1, Place(50.1, 8.7))
IAD = ingress("iad", 2, Place(38.9, -77.5))
NRT = ingress("nrt", 3, Place(35.8, 140.4))


def steering(*ingresses: Ingress, second: bool = True, **settings: Any) -> Steering:
    given = ingresses or (NRT, IAD, FRA)
    unhealthy = frozenset(settings.pop("unhealthy", ()))
    proxies = (ipaddress.ip_network("10.0.0.0/8"),)
    return Steering(given, second, None, proxies, None, lambda: unhealthy, **settings)


def names(entry: Entry) -> list[str]:
    return [item.name for item in entry.ingresses]


@pytest.mark.parametrize(
    ("chooser", "expected"),
    [
        (steering(second=False), ["fra"]),
        (steering(), ["fra", "iad"]),
        (steering(FRA), ["fra"]),
        (steering(unhealthy=["fra"]), ["iad", "nrt"]),
        (steering(unhealthy=["iad"]), ["fra", "nrt"]),
        (steering(unhealthy=["iad", "nrt"]), ["fra"]),
        # all are unhealthy: health is what is broken
        (steering(unhealthy=["fra", "iad", "nrt"]), ["fra"]),
        (steering(FRA, ingress("off", 4, FRA.place, 0)), ["fra"]),
    ],
)
def test_the_best_and_the_second_best(chooser: Steering, expected: list[str]) -> None:
    assert names(chooser.enter(BERLIN, None)) == expected


def test_candidates_are_in_order_of_priority() -> None:
    hosts = [str(item.host) for item in steering().enter(BERLIN, None).candidates]
    assert hosts == ["192.0.2.1", "2001:db8::1", "192.0.2.2", "2001:db8::2"]


def test_a_named_ingress_is_obeyed_alone_also_when_it_is_unhealthy() -> None:
    entry = steering(unhealthy=["nrt"]).enter(BERLIN, "nrt")
    assert (names(entry), entry.source) == (["nrt"], "explicit")
    with pytest.raises(RequestError) as caught:
        steering().enter(BERLIN, "lhr")
    assert (caught.value.status, caught.value.code) == (400, "unknown_ingress")
    assert caught.value.param == "ingress"


def test_stats_name_the_ingress_that_is_used() -> None:
    entry = steering().enter(BERLIN, None)
    at = Endpoint.of
    assert entry.about(None) == {
        "name": "fra",
        "addresses": ["192.0.2.1:3478", "[2001:db8::1]:3478"],
        "advertised": ["fra", "iad"],
        "viewpoint": "geoip",
    }
    assert entry.about(at("2001:db8::2", 3478))["name"] == "iad"
    assert entry.about(at("192.0.2.1", 3478))["name"] == "fra"
    assert entry.about(at("192.0.2.9", 1))["name"] == "fra"


@pytest.mark.parametrize(
    ("peer", "source"),
    [("10.1.1.1", "coordinates"), ("::ffff:10.1.1.1", "coordinates"), ("192.0.2.1", "unknown"),
     (None, "unknown"), ("", "unknown")],
)  # fmt: skip
def test_only_trusted_proxies_are_believed(peer: str | None, source: str) -> None:
    headers = {"CF-IPLatitude": "52.5", "CF-IPLongitude": "13.4"}
    request = make_mocked_request("POST", "/", headers=headers).clone(remote=peer or "")
    viewpoint = steering().viewpoint(request)
    assert viewpoint.source == source


def test_twice_the_same_header_is_malformed() -> None:
    headers = [("CF-IPLatitude", "52.5"), ("CF-IPLatitude", "1"), ("CF-IPLongitude", "13.4")]
    request = make_mocked_request("POST", "/", headers=headers).clone(remote="10.0.0.1")
    assert steering().viewpoint(request).source == "unknown"


def test_decisions_are_counted_by_source_and_ingress() -> None:
    board = FleetBoard(2, ["fra", "iad", "nrt"])
    board.chose(0, steering().enter(BERLIN, None))
    board.chose(1, steering().enter(BERLIN, "fra"))
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in board.collect()
        for sample in family.samples
        if sample.value
    }
    assert samples == {
        ("transceiver_steering_decisions_total", "geoip"): 1,
        ("transceiver_steering_decisions_total", "explicit"): 1,
        ("transceiver_ingress_advertised_total", "fra"): 2,
        ("transceiver_ingress_advertised_total", "iad"): 1,
        ("transceiver_ingress_healthy", "fra"): 1,
        ("transceiver_ingress_healthy", "iad"): 1,
        ("transceiver_ingress_healthy", "nrt"): 1,
    }
