"""A MaxMind DB file as a source of places: City, Country or any other with their fields.

1. The file is opened once, before anything is bound, and mapped: processes share its pages.
2. Nothing that is in it raises at a request: a record without a usable place is no place.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import maxminddb

from .errors import ConfigError
from .steering import IpAddress, Place, country_place

Finder = Callable[[IpAddress], Place | None]


def open_geoip(option: str, path: Path) -> Finder:
    """Finds an address's place. Raises ConfigError for a file that is none."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"{option}: {path} is no file")
    try:
        reader = maxminddb.open_database(path)
        reader.get("192.0.2.1")
    except OSError as error:
        raise ConfigError(f"{option}: {path}: {error.strerror or error}") from None
    except (maxminddb.InvalidDatabaseError, ValueError) as error:
        raise ConfigError(f"{option}: {path} is no MaxMind DB: {error}") from None

    def find(address: IpAddress) -> Place | None:
        try:
            return place_of(reader.get(address))
        except (maxminddb.InvalidDatabaseError, ValueError):  # IPv6 in a file of IPv4, too
            return None

    return find


def place_of(record: Any) -> Place | None:
    """The record's own coordinates, else those of its country."""
    if not isinstance(record, dict):
        return None
    location = record.get("location")
    if isinstance(location, dict):
        latitude, longitude = location.get("latitude"), location.get("longitude")
        if isinstance(latitude, int | float) and isinstance(longitude, int | float):
            place = Place.of(latitude, longitude)
            if place is not None:
                return place
    for key in ("country", "registered_country"):
        country = record.get(key)
        if isinstance(country, dict) and isinstance(code := country.get("iso_code"), str):
            return country_place(code)
    return None
