"""The account of what was heard, against a sink that plays in real time and forgets as the media path does."""

from __future__ import annotations

import random
from collections import Counter, deque

import pytest

from transceiver.backends.playout import Playout

CLOCKS = 64
"""Generations that the media path's pacer remembers (csrc/media/pacer.h)."""
BYTES_A_MS = 48


class Path:
    """Plays what is queued, and knows what of each generation went out; of old ones it says nothing."""

    def __init__(self) -> None:
        self.went: Counter[int] = Counter()
        self._queue: deque[tuple[int, int]] = deque()
        self._newest = 0

    def write(self, generation: int, pcm: bytes) -> int:
        self._queue.append((generation, len(pcm)))
        return len(pcm)

    def played_ms(self, generation: int) -> float:
        if generation <= self._newest - CLOCKS:
            return 0
        return self.went[generation] / BYTES_A_MS

    def flush(self) -> None:
        self._queue.clear()

    def pass_ms(self, ms: int) -> None:
        left = ms * BYTES_A_MS
        while left and self._queue:
            generation, waiting = self._queue.popleft()
            some = min(left, waiting)
            left -= some
            self.went[generation] += some
            self._newest = max(self._newest, generation)
            if some < waiting:
                self._queue.appendleft((generation, waiting - some))


def say(playout: Playout, response: str, part: int, ms: int) -> bool:
    return playout.audio(response, f"item_{part}", 0, bytes(ms * BYTES_A_MS), ms)


def test_a_response_of_many_parts_ends_when_all_are_heard() -> None:
    """A server that makes a part of each sentence; the media path forgets the first of them long before the end."""
    path = Path()
    playout = Playout(path)
    for part in range(3 * CLOCKS):
        say(playout, "long", part, 40)
    playout.response_done("long")
    say(playout, "next", 1_000, 40)
    events: list[tuple[str, str]] = []
    for _ in range(3 * CLOCKS * 2):
        assert not events
        path.pass_ms(20)
        events = playout.advance()
    assert events == [("stopped", "long"), ("started", "next")]
    assert playout.played_ms == 3 * CLOCKS * 40


def test_a_cut_late_in_a_response_of_many_parts_is_of_the_part_that_sounds() -> None:
    path = Path()
    playout = Playout(path)
    for part in range(3 * CLOCKS):
        say(playout, "long", part, 40)
        playout.part_done("long", f"item_{part}", 0)
    for _ in range(2 * CLOCKS * 2):
        path.pass_ms(20)
        playout.advance()
    path.pass_ms(10)
    done = playout.interrupt()
    assert [(cut.item_id, cut.audio_end_ms) for cut in done.cuts] == [(f"item_{2 * CLOCKS}", 10)]
    assert done.unheard_item_ids == tuple(f"item_{i}" for i in range(2 * CLOCKS + 1, 3 * CLOCKS))
    assert playout.played_ms == 2 * CLOCKS * 40 + 10


@pytest.mark.parametrize("seed", range(20))
def test_the_account_is_what_went_out(seed: int) -> None:
    """Deltas of any size and pace, several responses at once, interruptions at any moment."""
    chance = random.Random(seed)
    path = Path()
    playout = Playout(path)
    started: list[str] = []
    ended: list[str] = []
    response, part, open_ = 0, 0, False
    for _ in range(3_000):
        if chance.random() < 0.3:
            if not open_:
                response, open_ = response + 1, True
            part += chance.random() < 0.1
            if say(playout, f"r{response}", part, chance.choice([1, 20, 100, 400])):
                started.append(f"r{response}")
        if open_ and chance.random() < 0.05:
            playout.response_done(f"r{response}")
            open_ = False
        path.pass_ms(chance.choice([0, 20, 20, 40]))
        if chance.random() < 0.5:
            for kind, name in playout.advance():
                (started if kind == "started" else ended).append(name)
        if chance.random() < 0.005:
            under_way = [f"r{response}"] if open_ else []
            done = playout.interrupt(under_way)
            ended += done.cleared_response_ids
            open_ = False
            for cut in done.cuts:
                assert 0 < cut.audio_end_ms <= cut.made_ms
            assert not playout.speaking
            assert playout.played_ms == sum(path.went.values()) / BYTES_A_MS
    assert playout.played_ms == sum(path.went.values()) / BYTES_A_MS
    assert len(set(started)) == len(started)
    assert started[: len(ended)] == ended
