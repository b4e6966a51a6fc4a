"""What a pool counts, and how Prometheus reads it.

1. Every process adds to its row of the board; whichever process is asked answers for the pool.
2. No label holds a client address, a ufrag or a call id; label values come from fixed lists.
3. A reason that is not in its list is counted as `other`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from . import call_metrics
from .board import Board, Serving
from .fleetboard import FleetBoard
from .media import ClockCounts
from .session import CLOSE_REASONS, STAGES, CallState

SETUP_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0)
LATE_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""Whole steps of ClockCounts.late_100us."""
DROP_REASONS = (
    "malformed",
    "no_check",
    "unknown_ufrag",
    "wrong_username",
    "wrong_integrity",
    "replayed_check",
    "flow_key_limit",
    "foreign_relay",
    "not_wrapped",
    "empty",
    "unknown_protocol",
    "no_member",
    "not_authentic",
    "replayed",
    "events_full",
    "too_big",
    "paused",
    "send_failed",
    "receive_failed",
    "handler_failed",
    "other",
)
REFUSALS = (
    "invalid_offer",
    "offer_too_large",
    "unsupported_media_type",
    "no_audio",
    "no_codec",
    "no_fingerprint",
    "weak_fingerprint",
    "ice_lite",
    "setup_holdconn",
    "bundle_required",
    "rtcp_mux_required",
    "unknown_backend",
    "unknown_ingress",
    "missing_api_key",
    "invalid_api_key",
    "too_many_calls",
    "rate_limit_exceeded",
    "session_limit",
    "draining",
    "other",
)
HTTP_CUTS = ("overdue", "displaced", "refused")
"""Something was too late (connection.py); it gave way to a newcomer; there was no room for it (listener.py, rule 3)."""
OPEN_STATES = (CallState.NEW, CallState.CONNECTING, CallState.CONNECTED)
LOST_WITH_ITS_PROCESS = "process_ended"
END_REASONS = (*CLOSE_REASONS, LOST_WITH_ITS_PROCESS, "other")
LABELLED = (
    ("transceiver_calls_ended", "Calls ended, by reason.", "reason", "ended", END_REASONS),
    ("transceiver_offers_refused", "Offers refused, by code.", "code", "refused", REFUSALS),
    (
        "transceiver_http_connections_cut",
        "HTTP connections ended early: late in any respect (overdue), to admit another (displaced), or for want of room (refused).",
        "reason",
        "http_cut",
        HTTP_CUTS,
    ),
    (
        "transceiver_dropped_datagrams",
        "Datagrams that reached nobody, by reason.",
        "reason",
        "drop",
        DROP_REASONS,
    ),
)
"""Counters with a label: name, help, label, first part of the board's words, and the label's values, the second part."""
HEARTBEAT_LIMIT_S = 5.0


def board_names() -> list[str]:
    """The words of a row."""
    return [
        "heartbeat_ns",
        "serving",
        "pid",
        "restarts",
        "admitted",
        "calls",
        "rtp_in",
        "rtp_out",
        *(f"state.{state.value}" for state in OPEN_STATES),
        *(f"{group}.{value}" for *_, group, values in LABELLED for value in values),
        *(
            f"setup.{stage}.{index}"
            for stage in STAGES
            for index in range(len(SETUP_BUCKETS_S) + 1)
        ),
        *(f"setup_us.{stage}" for stage in STAGES),
        *(f"late.{index}" for index in range(len(LATE_BUCKETS_S) + 1)),
        "late_ns",
        "skipped_ticks",
        *call_metrics.board_names(),
    ]


class Meter:
    """One process's pen on the board."""

    def __init__(self, board: Board, row: int) -> None:
        self._board = board
        self._row = row

    def moved(self, before: CallState | None, after: CallState, reason: str | None) -> None:
        """A call changed its state; None before it was made."""
        if before is None:
            self._board.add(self._row, "calls")
        else:
            self._board.add(self._row, f"state.{before.value}", -1)
        if after is CallState.CLOSED:
            self._count("ended", reason or "other")
        else:
            self._board.add(self._row, f"state.{after.value}")

    def reached(self, stage: str, elapsed_s: float) -> None:
        """A call reached a stage of its set-up, so long after its offer."""
        index = sum(1 for bound_s in SETUP_BUCKETS_S if elapsed_s > bound_s)
        self._board.add(self._row, f"setup.{stage}.{index}")
        self._board.add(self._row, f"setup_us.{stage}", int(elapsed_s * 1e6))

    def ended(self, stats: Mapping[str, Any]) -> None:
        """A call has ended, with these numbers."""
        call_metrics.record(self._board, self._row, stats)

    def refused(self, code: str) -> None:
        """An offer was refused."""
        self._count("refused", code)

    def carried(self, packets_in: int, packets_out: int) -> None:
        """RTP packets since the last time."""
        self._board.add(self._row, "rtp_in", packets_in)
        self._board.add(self._row, "rtp_out", packets_out)

    def ticked(self, clock: ClockCounts) -> None:
        """What the media engine's clock did since the last time."""
        edges = [0, *(round(bound_s * 1e4) for bound_s in LATE_BUCKETS_S), len(clock.late_100us)]
        for index, (first, end) in enumerate(pairwise(edges)):
            self._board.add(self._row, f"late.{index}", sum(clock.late_100us[first:end]))
        self._board.add(self._row, "late_ns", clock.late_ns)
        self._board.add(self._row, "skipped_ticks", clock.skipped)

    def dropped(self, drops: Counter[str]) -> None:
        """Datagrams and checks that came to nothing since the last time."""
        for reason, count in drops.items():
            self._count("drop", reason, count)

    def _count(self, group: str, label: str, count: int = 1) -> None:
        name = f"{group}.{label}"
        self._board.add(self._row, name if self._board.has(name) else f"{group}.other", count)


def reset_gauges(board: Board, row: int) -> None:
    """Forgets what a dead process held."""
    for name in ("admitted", "heartbeat_ns", *(f"state.{state.value}" for state in OPEN_STATES)):
        board.set(row, name, 0)


def lose_calls(board: Board, row: int) -> int:
    """Counts the calls that a dead process held as ended, forgets its gauges, and says how many those were."""
    calls = sum(board.get(row, f"state.{state.value}") for state in OPEN_STATES)
    board.add(row, f"ended.{LOST_WITH_ITS_PROCESS}", calls)
    reset_gauges(board, row)
    return calls


def is_healthy(board: Board) -> bool:
    """Whether no serving process's loop has been stuck for 5 s."""
    limit_ns = time.monotonic_ns() - int(HEARTBEAT_LIMIT_S * 1e9)
    return all(
        board.get(row, "heartbeat_ns") > limit_ns
        for row in range(board.rows)
        if board.get(row, "serving") in (Serving.SERVING, Serving.DRAINING, Serving.DRAINED)
    )


def is_ready(board: Board) -> bool:
    """Whether the pool takes calls: started once, not draining, somebody serving."""
    states = {board.get(row, "serving") for row in range(board.rows)}
    return Serving.SERVING in states and states <= {Serving.SERVING, Serving.RESTARTING}


def render(board: Board, fleet: FleetBoard) -> bytes:
    """The pool's metrics in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(_PoolCollector(board))
    registry.register(fleet)
    return generate_latest(registry)


class _PoolCollector:
    def __init__(self, board: Board) -> None:
        self._board = board

    def collect(self) -> Iterator[Metric]:
        total = self._board.total
        yield _labelled(
            GaugeMetricFamily("transceiver_sessions", "Calls by state.", labels=["state"]),
            ((state.value, total(f"state.{state.value}")) for state in OPEN_STATES),
        )
        yield self._setup()
        yield from call_metrics.families(self._board)
        yield CounterMetricFamily("transceiver_calls", "Calls answered.", value=total("calls"))
        for name, text, label, group, values in LABELLED:
            family = CounterMetricFamily(name, text, labels=[label])
            yield _labelled(family, ((value, total(f"{group}.{value}")) for value in values))
        yield _labelled(
            CounterMetricFamily("transceiver_rtp_packets", "RTP packets.", labels=["direction"]),
            (("in", total("rtp_in")), ("out", total("rtp_out"))),
        )
        yield HistogramMetricFamily(
            "transceiver_media_clock_late_seconds",
            "By how much the 20 ms of each call were served later than due.",
            buckets=self._board.buckets("late", LATE_BUCKETS_S),
            sum_value=total("late_ns") / 1e9,
        )
        yield CounterMetricFamily(
            "transceiver_media_ticks_skipped",
            "20 ms of a call that were left out because the media engine was over 100 ms late.",
            value=total("skipped_ticks"),
        )
        yield CounterMetricFamily(
            "transceiver_worker_restarts", "Processes replaced.", value=total("restarts")
        )
        yield GaugeMetricFamily(
            "transceiver_processes", "Processes that serve.", value=self._serving()
        )

    def _serving(self) -> int:
        board = self._board
        return sum(board.get(row, "serving") == Serving.SERVING for row in range(board.rows))

    def _setup(self) -> HistogramMetricFamily:
        family = HistogramMetricFamily(
            "transceiver_setup_seconds",
            "From the offer until a stage of the set-up.",
            labels=["stage"],
        )
        for stage in STAGES:
            buckets = self._board.buckets(f"setup.{stage}", SETUP_BUCKETS_S)
            family.add_metric([stage], buckets, self._board.total(f"setup_us.{stage}") / 1e6)
        return family


def _labelled(
    family: GaugeMetricFamily | CounterMetricFamily, values: Iterable[tuple[str, int]]
) -> Metric:
    for label, value in values:
        family.add_metric([label], value)
    return family
