"""The watch of a pool, at a Redis that is none."""

from __future__ import annotations

import pytest
import structlog

from tests.support.no_redis import ANSWERS, no_redis
from transceiver.board import Board, Serving
from transceiver.fleet import Source, WatchParts
from transceiver.fleetboard import FleetBoard
from transceiver.picture import unhealthy


@pytest.mark.parametrize("answer", ANSWERS)
def test_any_answer_is_trouble_and_decides_nothing(answer: str) -> None:
    board = Board(1, ["serving", "admitted"])
    board.set(0, "serving", Serving.SERVING)
    with no_redis(ANSWERS[answer]) as url:
        parts = WatchParts((url,), 1, 10, board, FleetBoard(1, ["fra"], has_watch=True))
        source = Source(url, "0" * 16, parts)
        assert source.look(1.0), "it was due, and the thread goes on"
        assert source.look(2.0)
    assert not source.is_up
    assert unhealthy([source.ingresses, source.clusters]) == frozenset()


def test_trouble_of_changing_kinds_is_one_line() -> None:
    board = Board(1, ["serving", "admitted"])
    with no_redis(ANSWERS["a status"]) as url, structlog.testing.capture_logs() as lines:
        parts = WatchParts((url,), 1, 10, board, FleetBoard(1, ["fra"], has_watch=True))
        source = Source(url, "0" * 16, parts)
        for reason in ("TimeoutError", "ConnectionError", "TimeoutError"):
            source._became(up=False, reason=reason)
        source._became(up=True, reason="")
        source._became(up=False, reason="ConnectionError")
    assert [line["event"] for line in lines] == [
        "fleet_redis_lost",
        "fleet_redis_restored",
        "fleet_redis_lost",
    ]
    assert {line["redis"] for line in lines} == {url.removeprefix("redis://")}
