"""The figures of ended calls as Prometheus gets them: which bucket, which unit, and what is not counted."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.core import Metric

from transceiver.board import Board
from transceiver.call_metrics import board_names, families, record

ENDED: dict[str, Any] = {
    "seconds": 42.5,
    "talk_ms": 12_500,
    "listen_ms": 4_000,
    "rtt_ms": 35.5,
    "jitter_ms": 4.0,
    "playout_delay_ms": 60,
    "loss": 0.004,
    "loss_out": 0.03,
    "interruptions": 2,
    "reconnects": 1,
    "backend_garbage": 3,
    "forgotten_events": 4,
    "dropped_ms": {"in": 1_500, "out": 250},
}
UNKNOWN = ("rtt_ms", "jitter_ms", "playout_delay_ms", "loss", "loss_out")
"""What a call that was never connected does not know."""


@pytest.fixture
def board() -> Board:
    return Board(2, board_names())


def read(board: Board) -> dict[str, float]:
    """Samples by name and labels, as in the text format."""

    def shown(labels: dict[str, str]) -> str:
        inside = ",".join(f'{name}="{value}"' for name, value in labels.items())
        return f"{{{inside}}}" if inside else ""

    made: list[Metric] = list(families(board))
    return {one.name + shown(one.labels): one.value for metric in made for one in metric.samples}


@pytest.mark.parametrize(
    ("name", "labels", "below", "bucket", "total"),
    [
        ("transceiver_call_seconds", "", "30.0", "60.0", 42.5),
        ("transceiver_call_talk_seconds", "", "10.0", "30.0", 12.5),
        ("transceiver_call_listen_seconds", "", "1.0", "5.0", 4.0),
        ("transceiver_call_rtt_seconds", "", "0.02", "0.05", 0.0355),
        ("transceiver_call_jitter_seconds", "", "0.002", "0.005", 0.004),
        ("transceiver_call_playout_delay_seconds", "", "0.04", "0.06", 0.06),
        ("transceiver_call_loss_ratio", 'direction="in",', "0.001", "0.005", 0.004),
        ("transceiver_call_loss_ratio", 'direction="out",', "0.02", "0.05", 0.03),
    ],
)
def test_a_figure_is_in_its_bucket_in_its_base_unit(
    board: Board, name: str, labels: str, below: str, bucket: str, total: float
) -> None:
    record(board, 0, ENDED)
    record(board, 1, ENDED)
    read_ = read(board)
    only = f"{{{labels[:-1]}}}" if labels else ""
    assert read_[f'{name}_bucket{{{labels}le="{below}"}}'] == 0
    assert read_[f'{name}_bucket{{{labels}le="{bucket}"}}'] == 2
    assert read_[f'{name}_bucket{{{labels}le="+Inf"}}'] == 2
    assert read_[f"{name}_count{only}"] == 2
    assert read_[f"{name}_sum{only}"] == pytest.approx(2 * total)


def test_what_a_call_never_knew_is_not_counted(board: Board) -> None:
    record(board, 0, {**ENDED, **dict.fromkeys(UNKNOWN)})
    counts = {name: value for name, value in read(board).items() if "_count" in name}
    assert {name for name, value in counts.items() if value} == {
        "transceiver_call_seconds_count",
        "transceiver_call_talk_seconds_count",
        "transceiver_call_listen_seconds_count",
    }
    assert len(counts) == 8


def test_counters_add_up_over_calls_and_processes(board: Board) -> None:
    record(board, 0, ENDED)
    record(board, 1, ENDED)
    record(board, 1, {**ENDED, "interruptions": 0})
    counted = {name: value for name, value in read(board).items() if "_total" in name}
    assert counted == {
        "transceiver_interruptions_total": 4,
        "transceiver_backend_reconnects_total": 3,
        "transceiver_backend_garbage_total": 9,
        "transceiver_forgotten_events_total": 12,
        'transceiver_dropped_sound_seconds_total{direction="in"}': 4.5,
        'transceiver_dropped_sound_seconds_total{direction="out"}': 0.75,
    }
