"""A MaxMind DB as a source of places: what is in it, what is not, and files that are none."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

import pytest

from tests.support.mmdb import write_mmdb
from transceiver.errors import ConfigError
from transceiver.geoip import open_geoip, place_of
from transceiver.steering import Place, country_place

BERLIN = {"location": {"latitude": 52.5, "longitude": 13.4}}


def test_addresses_of_both_families(tmp_path: Path) -> None:
    file = tmp_path / "city.mmdb"
    write_mmdb(
        file,
        {
            "198.51.100.0/24": BERLIN,
            "198.51.100.128/25": {"country": {"iso_code": "AU"}},
            "2001:db8::/32": {"location": {"latitude": -33.9, "longitude": 151.2}},
        },
    )
    find = open_geoip("--geoip", file)
    assert find(ipaddress.ip_address("198.51.100.1")) == Place(52.5, 13.4)
    assert find(ipaddress.ip_address("198.51.100.200")) == country_place("AU")
    assert find(ipaddress.ip_address("2001:db8:1::1")) == Place(-33.9, 151.2)
    assert find(ipaddress.ip_address("192.0.2.1")) is None
    assert find(ipaddress.ip_address("2001:db9::1")) is None


@pytest.mark.parametrize(
    ("record", "place"),
    [
        (BERLIN, Place(52.5, 13.4)),
        ({**BERLIN, "country": {"iso_code": "AU"}}, Place(52.5, 13.4)),
        ({"registered_country": {"iso_code": "no"}}, country_place("NO")),
        ({"location": {"latitude": 91.0, "longitude": 0.0}}, None),
        ({"location": {"latitude": float("nan"), "longitude": 0.0}}, None),
        ({"location": {"latitude": "52", "longitude": 13.4}}, None),
        ({"location": {"latitude": 52}, "country": {"iso_code": "DE"}}, country_place("DE")),
        ({"location": [], "country": "DE"}, None),
        ({"country": {"iso_code": 7}}, None),
        ({"country": {"iso_code": "XX"}}, None),
        ([], None),
        ("Berlin", None),
        (None, None),
    ],
)
def test_records(record: Any, place: Place | None) -> None:
    assert place_of(record) == place


def test_files_that_are_none(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("nothing of the kind")
    for path, why in ((text, "is no MaxMind DB"), (tmp_path / "missing", "No such file")):
        with pytest.raises(ConfigError, match=why):
            open_geoip("--geoip", path)


def test_a_damaged_file_finds_nothing_and_raises_nothing(tmp_path: Path) -> None:
    whole, damaged = tmp_path / "whole", tmp_path / "damaged"
    write_mmdb(whole, {"198.51.100.0/24": BERLIN})
    data = whole.read_bytes()
    for offset in range(0, data.index(b"MaxMind.com") - 3, 7):
        damaged.write_bytes(data[:offset] + b"\xff" * 9 + data[offset + 9 :])
        try:
            find = open_geoip("--geoip", damaged)
        except ConfigError:
            continue
        find(ipaddress.ip_address("198.51.100.1"))
