"""Distances on earth: what entries and calls are placed by, and how long a demo's backbones are."""

import math

RADIUS_KM = 6_371.0


def great_circle_km(
    latitude1: float, longitude1: float, latitude2: float, longitude2: float
) -> float:
    """Between two points in degrees, north and east positive (haversine)."""
    lat1, lat2 = math.radians(latitude1), math.radians(latitude2)
    half_lat = (lat2 - lat1) / 2
    half_lon = math.radians(longitude2 - longitude1) / 2
    chord = math.sin(half_lat) ** 2 + math.cos(lat1) * math.cos(lat2) * math.sin(half_lon) ** 2
    return 2 * RADIUS_KM * math.asin(math.sqrt(min(1.0, chord)))
