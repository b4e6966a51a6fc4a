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
