"""The cache's rules: what a value may be, when Redis is left alone, what is remembered for how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.cache_policy import (
    Breaker,
    NegativeCache,
    RateCap,
    make_value,
    parse_value,
    redis_key,
)

TOKEN = b"Abcdefghijklmnopqrstuvwxyz+/"
OTHER = b"0123456789012345678901234567"


def test_key_and_value_are_those_of_the_contract() -> None:
    assert redis_key(bytes(range(36))) == b"flow:1:" + bytes(range(36)).hex().encode()
    assert make_value([TOKEN]) == b"1 " + TOKEN
    assert parse_value(make_value([TOKEN])) == (TOKEN,)
    assert parse_value(make_value([TOKEN, OTHER])) == (TOKEN, OTHER)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"1",
        b"1 ",
        b"2 " + TOKEN,
        b"1 " + TOKEN[:-1],
        b"1 " + TOKEN + b" ",
        b"1 " + TOKEN + b"\n",
        b"1  " + TOKEN,
        b"1 " + TOKEN + b" " + OTHER + b" " + TOKEN,
        b"1 " + TOKEN.replace(b"+", b"-"),
        ("1 " + TOKEN.decode()),
        17,
        [b"1 " + TOKEN],
    ],
)
def test_anything_else_is_no_value(value: object) -> None:
    assert parse_value(value) is None


@given(st.binary(max_size=80))
def test_no_bytes_raise(value: bytes) -> None:
    tokens = parse_value(value)
    assert tokens is None or make_value(tokens) == value


def test_breaker_waits_longer_and_longer_and_closes_at_once() -> None:
    breaker = Breaker(max_pause_s=2.0, first_pause_s=0.1, draw=lambda: 0.0)
    assert breaker.allows(0.0)
    now_s = 0.0
    pauses = []
    for _ in range(8):
        breaker.failed(now_s)
        pause_s = 0.0
        while not breaker.allows(now_s + pause_s):
            pause_s += 0.01
        pauses.append(round(pause_s, 1))
        now_s += pause_s
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]
    breaker.failed(now_s)
    breaker.succeeded()
    assert breaker.allows(now_s)


@given(st.floats(0.0, 1.0, exclude_max=True))
def test_breaker_is_never_early_by_more_than_half(draw: float) -> None:
    breaker = Breaker(max_pause_s=2.0, first_pause_s=0.1, draw=lambda: draw)
    breaker.failed(10.0)
    assert not breaker.allows(10.0499)
    assert breaker.allows(10.1001)


def test_rate_cap_is_a_seconds_worth_at_once_then_the_rate() -> None:
    cap = RateCap(10)
    assert sum(cap.take(5.0) for _ in range(50)) == 10
    assert not cap.take(5.09)
    assert cap.take(5.2)
    assert sum(cap.take(100.0) for _ in range(50)) == 10


def test_misses_are_remembered_for_a_while_and_bounded() -> None:
    misses = NegativeCache(ttl_s=1.0, max_keys=3)
    misses.add(b"a", 0.0)
    assert misses.holds(b"a", 0.9)
    assert not misses.holds(b"a", 1.0)
    for key in (b"a", b"b", b"c", b"d"):
        misses.add(key, 2.0)
    assert [misses.holds(key, 2.5) for key in (b"a", b"b", b"c", b"d")] == [False, True, True, True]
    misses.discard(b"d")
    assert not misses.holds(b"d", 2.5)
