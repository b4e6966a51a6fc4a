"""What tests of a running relay share: a client on one side, a sink for a transceiver on the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import Processes
from tests.support.redis_hosts import Hosts
from tests.support.redis_server import RedisServer
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


@pytest.fixture
def redis_server(processes: Processes, tmp_path: Path) -> RedisServer:
    """A Redis of the test's own."""
    return RedisServer(processes, tmp_path)


@pytest.fixture
def hosts(processes: Processes, tmp_path: Path, redis_server: RedisServer) -> Hosts:
    """Two relay hosts that share routes in it."""
    return Hosts(processes, tmp_path, redis_server.url)
