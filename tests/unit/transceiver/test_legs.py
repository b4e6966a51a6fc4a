"""Ten minutes of one side of a call through what networks and clients do: where its frames stand in the file."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from transceiver.legs import Leg
from transceiver.media import RawFrame

BEGAN_S = 1_000.0
LASTS_S = 600.0
UPSET_S = 100.0
WITHIN_S = 0.02
SETTLED_S = 10.0
"""So long after the beginning, and after what upset it, everything is in its place again."""


@dataclass(frozen=True)
class Side:
    """What one side sends, and how it comes."""

    rate_hz: int = 8_000
    frame_s: float = 0.02
    ppm: float = 0.0
    """By how much its clock is slow."""
    loss: float = 0.0
    jitter_s: float = 0.0
    dtx: bool = False
    """Silent every other two seconds, but for a frame every 0.4 s."""
    leap_s: float = 0.0
    """Of its timestamps, at UPSET_S."""
    sleep_s: float = 0.0
    """From UPSET_S on, in which its timestamps stand still."""
    stall_s: float = 0.0
    """From UPSET_S on, in which nothing comes; then everything does."""

    def sent(self) -> Iterator[tuple[float, float, int, int]]:
        """Sent, came, sequence and timestamp of what came, in the order in which it was sent."""
        chance = random.Random(1)
        duration = round(self.frame_s * self.rate_hz)
        timestamp, sequence = chance.randrange(2**32), chance.randrange(2**16)
        now_s, upset = 0.05, False
        for i in range(round(LASTS_S / self.frame_s)):
            if now_s >= UPSET_S and not upset:
                upset = True
                timestamp += round(self.leap_s * self.rate_hz)
                now_s += self.sleep_s
            in_stall = UPSET_S <= now_s < UPSET_S + self.stall_s
            came_s = now_s + chance.random() * self.jitter_s
            if in_stall:
                came_s = UPSET_S + self.stall_s + (now_s - UPSET_S) / 1_000
            speaks = not self.dtx or now_s % 4 < 2 or i % 20 == 0
            if speaks and chance.random() >= self.loss:
                yield now_s, came_s, sequence, timestamp
            sequence += speaks
            timestamp += duration
            now_s += self.frame_s * (1 + self.ppm * 1e-6)


class Paper:
    """A file that remembers at which second each frame was written, and of how many that came."""

    def __init__(self, rate_hz: int, whole: int) -> None:
        self.rate_hz, self._whole = rate_hz, whole
        self.came = 0
        self.written: list[tuple[float, float]] = []
        self.samples = 0

    def write(self, payload: bytes, duration: int) -> None:
        self.written.append((float(payload), self.samples / self.rate_hz))
        self.samples += duration

    def pause(self, samples: int, payload: bytes) -> int:
        samples = (samples + self._whole // 2) // self._whole * self._whole
        self.samples += samples
        return samples

    def close(self) -> None:
        pass


def kept(side: Side, path: Path) -> Paper:
    """What a file of this side has."""
    leg = Leg(path / "call", "pcmu", BEGAN_S)
    leg._sink.close()
    paper = Paper(side.rate_hz, 960 if side.rate_hz == 48_000 else 1)
    leg._sink = paper  # type: ignore[assignment]
    duration = round(side.frame_s * side.rate_hz)
    came: list[tuple[float, RawFrame]] = []
    for sent_s, came_s, sequence, timestamp in side.sent():
        at_ns = round((BEGAN_S + came_s) * 1e9)
        numbers = (sequence % 2**16, timestamp % 2**32, duration)
        came.append((came_s, (0, at_ns, *numbers, False, b"%f" % sent_s)))
    came.sort(key=lambda one: one[0])
    leg.add(raw for _, raw in came)
    leg.close()
    paper.came = len(came)
    return paper


@pytest.mark.parametrize(
    "side",
    [
        Side(),
        Side(loss=0.3),
        Side(dtx=True, loss=0.1, jitter_s=0.05),
        Side(jitter_s=0.1),
        Side(ppm=300),
        Side(ppm=-300),
        Side(ppm=300, dtx=True, loss=0.05),
        Side(ppm=-300, dtx=True, jitter_s=0.05),
        Side(rate_hz=48_000, frame_s=0.01, ppm=-100, loss=0.05),
        Side(rate_hz=48_000, frame_s=0.06, ppm=100, dtx=True, loss=0.05),
        Side(rate_hz=48_000, ppm=50, dtx=True),
        Side(stall_s=2.0),
        Side(leap_s=3_600.0),
        Side(leap_s=-3_600.0),
        Side(leap_s=5.0, dtx=True),
        Side(leap_s=-5.0, dtx=True),
        Side(sleep_s=60.0),
        Side(sleep_s=60.0, dtx=True, jitter_s=0.03),
    ],
    ids=str,
)
def test_a_side_stands_where_it_was_said(side: Side, tmp_path: Path) -> None:
    paper = kept(side, tmp_path)
    settled_s = UPSET_S + side.sleep_s + side.stall_s + SETTLED_S
    calm = [
        at_s - sent_s
        for sent_s, at_s in paper.written
        if SETTLED_S < sent_s < UPSET_S or sent_s > settled_s
    ]
    # what is sent is there at the least of what the network takes
    assert max(map(abs, calm)) <= WITHIN_S + side.jitter_s / 4
    assert len(paper.written) >= 0.995 * paper.came
    assert abs(paper.samples / side.rate_hz - LASTS_S - side.sleep_s) < 4.1


def test_leaps_upon_leaps_make_no_more_than_the_time_that_passed(tmp_path: Path) -> None:
    """A client whose timestamps go an hour forward with each frame."""
    leg = Leg(tmp_path / "call", "pcmu", BEGAN_S)
    for i in range(500):
        at_ns = round((BEGAN_S + i / 50) * 1e9)
        leg.add([(0, at_ns, i, 8_000 * 3_600 * i % 2**32, 160, False, bytes(160))])
    leg.close()
    assert (tmp_path / "call.wav").stat().st_size <= 2 * 8_000 * 11
