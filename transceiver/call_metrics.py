"""What each call adds to the pool's histograms and counters when it ends.

1. The figures are those of the call's own stats (Call.stats), at its end; what it never knew is not counted.
2. No label holds anything of a call: a direction is the only one.
3. Words of the board hold whole numbers: sums and counters are in millionths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from .board import Board

_LENGTHS_S = (1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0)
_MICRO = 1_000_000


@dataclass(frozen=True, slots=True)
class _Figure:
    """One value of a call's stats: where it is, and what makes it the metric's base unit."""

    path: tuple[str, ...]
    unit: float = 1.0
    direction: str | None = None


@dataclass(frozen=True, slots=True)
class _Histogram:
    name: str
    help: str
    figures: tuple[_Figure, ...]
    """One, or one for each direction."""
    bounds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Counter:
    name: str
    help: str
    figures: tuple[_Figure, ...]


HISTOGRAMS: Final = (
    _Histogram(
        "transceiver_call_seconds",
        "Length of a call, from its offer.",
        (_Figure(("seconds",)),),
        _LENGTHS_S,
    ),
    _Histogram(
        "transceiver_call_talk_seconds",
        "Sound of the model that went out in a call.",
        (_Figure(("talk_ms",), 1e-3),),
        _LENGTHS_S,
    ),
    _Histogram(
        "transceiver_call_listen_seconds",
        "The user's turns in a call.",
        (_Figure(("listen_ms",), 1e-3),),
        _LENGTHS_S,
    ),
    _Histogram(
        "transceiver_call_rtt_seconds",
        "Round-trip time of a call's media, the newest at its end.",
        (_Figure(("rtt_ms",), 1e-3),),
        (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0),
    ),
    _Histogram(
        "transceiver_call_jitter_seconds",
        "Jitter of what a client sent, at the call's end.",
        (_Figure(("jitter_ms",), 1e-3),),
        (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1),
    ),
    _Histogram(
        "transceiver_call_playout_delay_seconds",
        "What the jitter buffer holds a client's sound back, at the call's end.",
        (_Figure(("playout_delay_ms",), 1e-3),),
        (0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5),
    ),
    _Histogram(
        "transceiver_call_loss_ratio",
        "Share of a call's packets that were lost: of the client's, and of ours by its newest report.",
        (_Figure(("loss",), direction="in"), _Figure(("loss_out",), direction="out")),
        (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    ),
)
COUNTERS: Final = (
    _Counter(
        "transceiver_interruptions",
        "Times that the model's sound was cut, of ended calls.",
        (_Figure(("interruptions",)),),
    ),
    _Counter(
        "transceiver_backend_reconnects",
        "Connections to a backend after a call's first, of ended calls.",
        (_Figure(("reconnects",)),),
    ),
    _Counter(
        "transceiver_backend_garbage",
        "Messages of a backend that were no events, of ended calls.",
        (_Figure(("backend_garbage",)),),
    ),
    _Counter(
        "transceiver_forgotten_events",
        "Events beyond what is kept to tell a backend again, or to wait for a channel, of ended calls.",
        (_Figure(("forgotten_events",)),),
    ),
    _Counter(
        "transceiver_dropped_sound_seconds",
        "Sound that a backend was too slow for (in), or that found no room (out), of ended calls.",
        (
            _Figure(("dropped_ms", "in"), 1e-3, "in"),
            _Figure(("dropped_ms", "out"), 1e-3, "out"),
        ),
    ),
)


def board_names() -> list[str]:
    """The words of a row."""
    names = []
    for histogram in HISTOGRAMS:
        for figure in histogram.figures:
            word = _word(histogram.name, figure)
            names += [f"{word}.sum", *(f"{word}.{i}" for i in range(len(histogram.bounds) + 1))]
    return names + [_word(one.name, figure) for one in COUNTERS for figure in one.figures]


def record(board: Board, row: int, stats: Mapping[str, Any]) -> None:
    """An ended call's stats."""
    for histogram in HISTOGRAMS:
        for figure in histogram.figures:
            value = _value(figure, stats)
            if value is not None:
                word = _word(histogram.name, figure)
                board.add(row, f"{word}.{sum(value > bound for bound in histogram.bounds)}")
                board.add(row, f"{word}.sum", round(value * _MICRO))
    for counter in COUNTERS:
        for figure in counter.figures:
            if value := _value(figure, stats):
                board.add(row, _word(counter.name, figure), round(value * _MICRO))


def families(board: Board) -> Iterator[Metric]:
    """The metrics, over all processes."""
    for histogram in HISTOGRAMS:
        family = HistogramMetricFamily(
            histogram.name, histogram.help, labels=_labels(histogram.figures)
        )
        for figure in histogram.figures:
            word = _word(histogram.name, figure)
            buckets = board.buckets(word, histogram.bounds)
            family.add_metric(_label(figure), buckets, board.total(f"{word}.sum") / _MICRO)
        yield family
    for one in COUNTERS:
        counter = CounterMetricFamily(one.name, one.help, labels=_labels(one.figures))
        for figure in one.figures:
            counter.add_metric(_label(figure), board.total(_word(one.name, figure)) / _MICRO)
        yield counter


def _value(figure: _Figure, stats: Mapping[str, Any]) -> float | None:
    value: Any = stats
    for name in figure.path:
        value = value[name]
    return None if value is None else float(value) * figure.unit


def _word(name: str, figure: _Figure) -> str:
    return name if figure.direction is None else f"{name}.{figure.direction}"


def _labels(figures: tuple[_Figure, ...]) -> list[str]:
    return [] if figures[0].direction is None else ["direction"]


def _label(figure: _Figure) -> list[str]:
    return [] if figure.direction is None else [figure.direction]
