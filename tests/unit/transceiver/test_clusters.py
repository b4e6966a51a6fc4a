"""Offers as one cluster writes them for another."""

from __future__ import annotations

import json

import pytest

from tests.support.offers import CHROMIUM
from transceiver.clusters import write_offer
from transceiver.nesting import read_json


@pytest.mark.parametrize("text", ["a", "é", "好", "\U0001f600", "\ud800", '"\\\n'])
def test_text_is_read_as_it_was_and_is_no_longer_than_it_came(text: str) -> None:
    session = {"type": "realtime", "instructions": text * 50_000}
    written = write_offer(CHROMIUM, session)
    assert read_json(written) == {"sdp": CHROMIUM, "session": session}
    came = json.dumps(session, ensure_ascii=False).encode("utf-8", "surrogatepass")
    assert len(written) - len(came) < 2 * len(CHROMIUM)
