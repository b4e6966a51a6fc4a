"""When a process counts as stuck (transceiver/watchdog.py)."""

from __future__ import annotations

import pytest

from transceiver.board import Board, Serving
from transceiver.watchdog import HUNG_AFTER_S, START_LIMIT_S, Watchdog


@pytest.fixture
def board() -> Board:
    board = Board(2, ["heartbeat_ns", "serving"])
    for row in range(2):
        board.set(row, "serving", Serving.SERVING)
        board.set(row, "heartbeat_ns", 1)
    return board


def look(dog: Watchdog, board: Board, *, seconds: float, start_s: float = 0.0) -> set[int]:
    """Every half second, with row 0 beating; which rows were called stuck."""
    stuck: set[int] = set()
    for step in range(int(seconds * 2) + 1):
        board.set(0, "heartbeat_ns", board.get(0, "heartbeat_ns") + 1)
        stuck |= set(dog.hung(start_s + step / 2))
    return stuck


def test_a_heart_that_stands_still_is_noticed_and_one_that_beats_is_not(board: Board) -> None:
    dog = Watchdog(board)
    assert look(dog, board, seconds=HUNG_AFTER_S - 1) == set()
    assert look(dog, board, seconds=2, start_s=HUNG_AFTER_S) == {1}


def test_a_replacement_starts_anew(board: Board) -> None:
    dog = Watchdog(board)
    look(dog, board, seconds=HUNG_AFTER_S - 1)
    dog.forget(1)
    assert look(dog, board, seconds=HUNG_AFTER_S - 2, start_s=HUNG_AFTER_S) == set()


def test_a_start_has_longer(board: Board) -> None:
    board.set(1, "serving", Serving.STARTING)
    dog = Watchdog(board)
    assert look(dog, board, seconds=START_LIMIT_S - 1) == set()
    assert look(dog, board, seconds=2, start_s=START_LIMIT_S) == {1}


def test_a_machine_that_was_frozen_blames_nobody(board: Board) -> None:
    dog = Watchdog(board)
    look(dog, board, seconds=HUNG_AFTER_S - 1)
    assert dog.hung(1_000.0) == {}, "an hour passes at once"
