"""What a Redis that is none can do to the threads that use one: nothing but a StoreError."""

from __future__ import annotations

import contextlib

import pytest

from relay.redis_store import RedisStore, StoreError
from tests.support.no_redis import ANSWERS, no_redis


@pytest.mark.parametrize("answer", ANSWERS)
def test_any_answer_is_an_answer_or_a_store_error(answer: str) -> None:
    with no_redis(ANSWERS[answer]) as url:
        store = RedisStore(url, 5.0)
        with contextlib.suppress(StoreError):
            store.check()
        with contextlib.suppress(StoreError):
            assert len(store.get([b"k"])) <= 1, "of one key, so that keys and values can be paired"
        with contextlib.suppress(StoreError):
            store.set({b"k": b"v"}, 9)
        with contextlib.suppress(StoreError):
            store.announce(b"k", b"f", b"v")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("MOVED 3999 127.0.0.1:7001", "cluster"),
        ("ASK 3999 127.0.0.1:7001", "cluster"),
        ("CROSSSLOT Keys in request don't hash to the same slot", "cluster"),
        ("CLUSTERDOWN Hash slot not served", "cluster"),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", "readonly"),
        ("READONLY You can't write against a read only replica.", "readonly"),
        ("NOAUTH Authentication required.", "auth"),
        ("NOPERM this user has no permissions to run the 'mget' command", "permission"),
        ("OOM command not allowed when used memory > 'maxmemory'.", "full"),
        ("LOADING Redis is loading the dataset in memory", "loading"),
        ("ERR max number of clients reached", "connection"),
        ("MISCONF Redis is configured to save RDB snapshots, but it's unable to persist", "other"),
    ],
)  # fmt: skip
def test_a_refusal_has_a_reason(answer: str, reason: str) -> None:
    with no_redis(f"-{answer}\r\n".encode()) as url:
        store = RedisStore(url, 5.0)
        for ask in (lambda: store.get([b"k"]), lambda: store.set({b"k": b"v"}, 9)):
            with pytest.raises(StoreError) as raised:
                ask()
            assert raised.value.reason == reason
