"""What tests of a running relay share: a client on one side, a sink for a transceiver on the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.relayed import Client, Transceiver


@pytest.fixture
def client() -> Iterator[Client]:
    """A browser's UDP socket."""
    with Client() as opened:
        yield opened


@pytest.fixture
def transceiver() -> Iterator[Transceiver]:
    """A sink that seals tokens for itself."""
    with Transceiver() as opened:
        yield opened
