"""A bridge to a Realtime backend that has greeted, and its sink."""

from __future__ import annotations

import pytest

from tests.support.bridge_events import Sink, greet
from transceiver.backends.bridge import Bridge
from transceiver.backends.dialect import Dialect


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def bridge(sink: Sink) -> Bridge:
    bridge = Bridge(Dialect(), sink)
    greet(bridge)
    return bridge
