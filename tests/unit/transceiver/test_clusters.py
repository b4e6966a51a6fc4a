"""Offers as one cluster writes them for another."""

from __future__ import annotations

import json

import pytest

from tests.support.offers import CHROMIUM
from transceiver.clusters import read_viewpoint, write_offer, write_viewpoint
from transceiver.nesting import read_json
from transceiver.steering import SOURCES, Place, Viewpoint


@pytest.mark.parametrize("text", ["a", "é", "好", "\U0001f600", "\ud800", '"\\\n'])
def test_text_is_read_as_it_was_and_is_no_longer_than_it_came(text: str) -> None:
    session = {"type": "realtime", "instructions": text * 50_000}
    written = write_offer(CHROMIUM, session)
    assert read_json(written) == {"sdp": CHROMIUM, "session": session}
    came = json.dumps(session, ensure_ascii=False).encode("utf-8", "surrogatepass")
    assert len(written) - len(came) < 2 * len(CHROMIUM)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("place", [None, Place(1.5, -2.0)])
def test_a_viewpoint_travels(source: str, place: Place | None) -> None:
    viewpoint = Viewpoint(place, source)
    assert read_viewpoint(write_viewpoint(viewpoint)) == viewpoint


@pytest.mark.parametrize("source", ["satellite", ["geoip"], None, 7])
def test_what_only_a_newer_version_knows_a_place_from_is_unknown(source: object) -> None:
    text = json.dumps({"at": [1.5, -2.0], "by": source})
    assert read_viewpoint(text) == Viewpoint(Place(1.5, -2.0), "unknown")
