"""Limits of keys and calls, with time as an argument."""

from __future__ import annotations

import os

import pytest

from transceiver.auth import ApiKey
from transceiver.errors import RequestError
from transceiver.limits import CallClock, KeyLimits, Span

NOW_S = 1_800_000_000.0  # the beginning of a minute


def key(calls: int | None = None, per_minute: int | None = None) -> ApiKey:
    return ApiKey("web", bytes(32), calls, per_minute)


def refused(limits: KeyLimits, row: int, now_s: float) -> tuple[str, int]:
    with pytest.raises(RequestError) as caught:
        limits.take(row, "web", now_s)
    assert caught.value.status == 429
    assert caught.value.retry_after_s is not None
    return caught.value.code, caught.value.retry_after_s


def test_calls_at_once_count_over_all_processes() -> None:
    limits = KeyLimits(2, [key(calls=3)])
    for row in (0, 1, 1):
        limits.take(row, "web", NOW_S)
    assert refused(limits, 0, NOW_S)[0] == "too_many_calls"
    limits.release(1, "web")
    limits.take(0, "web", NOW_S)
    assert refused(limits, 1, NOW_S)[0] == "too_many_calls"
    limits.forget(1)
    limits.take(0, "web", NOW_S)


def test_calls_a_minute_slide() -> None:
    limits = KeyLimits(2, [key(per_minute=60)])
    for call in range(60):
        limits.take(call % 2, "web", NOW_S + 30)
        limits.release(call % 2, "web")
    code, retry_s = refused(limits, 0, NOW_S + 59)
    assert (code, retry_s) == ("rate_limit_exceeded", 1)
    assert refused(limits, 0, NOW_S + 60)[0] == "rate_limit_exceeded"  # not a fresh minute
    for _ in range(30):  # half of the window has slid out
        limits.take(0, "web", NOW_S + 90)
    refused(limits, 0, NOW_S + 90)
    for _ in range(60):
        limits.take(1, "web", NOW_S + 300)


def test_names_without_limits_pass() -> None:
    limits = KeyLimits(1, [key()])
    for _ in range(100):
        limits.take(0, "web", NOW_S)
        limits.take(0, "open", NOW_S)
    limits.release(0, "open")


def test_a_forked_process_sees_the_same_places() -> None:
    limits = KeyLimits(2, [key(calls=1)])
    child = os.fork()
    if child == 0:
        limits.take(1, "web", NOW_S)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert refused(limits, 0, NOW_S)[0] == "too_many_calls"


def test_a_call_warns_once_and_expires() -> None:
    clock = CallClock(Span(max_s=600, warn_s=60), 1_000.0)
    assert clock.due(1_539.0) is None
    assert clock.due(1_540.0) == "warn"
    assert clock.left_s(1_541.0) == 59.0
    assert clock.due(1_541.0) is None
    assert clock.due(1_600.0) == "expired"


def test_a_short_call_warns_at_half_time() -> None:
    clock = CallClock(Span(max_s=10, warn_s=60), 0.0)
    assert clock.due(4.9) is None
    assert clock.due(5.0) == "warn"


def test_idle_and_activity() -> None:
    clock = CallClock(Span(idle_s=30), 0.0)
    assert clock.due(29.0) is None
    clock.active(29.0)
    assert clock.due(58.0) is None
    assert clock.due(59.0) == "idle"
    assert CallClock(Span(), 0.0).due(1e9) is None


def test_the_shorter_maximum_counts() -> None:
    assert Span(max_s=100).shortened(60).max_s == 60
    assert Span(max_s=100).shortened(None).max_s == 100
    assert Span().shortened(5).max_s == 5
    assert Span(max_s=30).shortened(60).max_s == 30
