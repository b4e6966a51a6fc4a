"""The flow cache between desks and a store, both stand-ins: one lookup a key, no waiting, no storm."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from relay.cache import TTL_S, WRITE_BATCH, FlowCache
from relay.cache_policy import LOOKUPS_PER_S, make_value, redis_key
from relay.redis_store import StoreError

SEALED = bytes(range(21))
TOKEN = base64.b64encode(SEALED)


def flow_key(number: int) -> bytes:
    return number.to_bytes(36, "big")


class Desks:
    """What workers say, and what they were answered."""

    def __init__(self) -> None:
        self.notices: dict[int, list[tuple[bytes, tuple[bytes, ...] | None]]] = {0: [], 1: []}
        self.answers: list[tuple[int, bytes, tuple[bytes, ...]]] = []

    def ask(self, slot: int, *numbers: int) -> None:
        self.notices[slot] += [(flow_key(number), None) for number in numbers]

    def tell(self, slot: int, number: int, *tokens: bytes) -> None:
        self.notices[slot].append((flow_key(number), tokens))

    def take(self, slot: int, limit: int = 256) -> list[tuple[bytes, tuple[bytes, ...] | None]]:
        taken, self.notices[slot] = self.notices[slot][:limit], self.notices[slot][limit:]
        return taken

    def answer(self, slot: int, key: bytes, tokens: Sequence[bytes]) -> bool:
        self.answers.append((slot, key, tuple(tokens)))
        return True

    def lost(self, _slot: int) -> int:
        return 0


class Store:
    """Redis in a dict, which fails while `error` is set."""

    def __init__(self) -> None:
        self.values: dict[bytes, Any] = {}
        self.reads: list[list[bytes]] = []
        self.batches: list[int] = []
        self.checks = 0
        self.error: StoreError | None = None

    def check(self) -> None:
        self.checks += 1
        if self.error:
            raise self.error

    def get(self, keys: Sequence[bytes]) -> list[object]:
        self.reads.append(list(keys))
        if self.error:
            raise self.error
        return [self.values.get(key) for key in keys]

    def set(self, values: Mapping[bytes, bytes], ttl_s: int) -> None:
        assert ttl_s == TTL_S
        self.batches.append(len(values))
        if self.error:
            raise self.error
        self.values.update(values)


class Log:
    """Events that were logged."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def warning(self, event: str, **details: Any) -> None:
        self.events.append((event, details))

    info = warning


class Rig:
    def __init__(self) -> None:
        self.desks, self.store, self.log = Desks(), Store(), Log()
        self.fds = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(3)]
        self.cache = FlowCache(
            self.desks,
            self.fds[0],
            self.fds[1:],
            self.store,
            self.store,
            self.log,  # type: ignore[arg-type]
        )


@pytest.fixture
def rig() -> Iterator[Rig]:
    opened = Rig()
    yield opened
    for fd in opened.fds:
        os.close(fd)


def test_what_is_told_is_written_and_found_by_another(rig: Rig) -> None:
    rig.desks.tell(0, 1, SEALED)
    assert rig.cache.serve(0.0)
    rig.cache.flush(0.1)
    assert rig.store.values == {redis_key(flow_key(1)): make_value([TOKEN])}
    rig.desks.ask(1, 1)
    rig.cache.serve(0.2)
    assert rig.desks.answers == [(1, flow_key(1), (TOKEN,))]
    assert os.eventfd_read(rig.fds[2]) == 1
    assert not rig.cache.serve(0.3)


def test_one_lookup_a_key_whoever_asks(rig: Rig) -> None:
    rig.desks.ask(0, 1, 2, 1)
    rig.desks.ask(1, 1)
    rig.cache.serve(0.0)
    assert [sorted(read) for read in rig.store.reads] == [
        [redis_key(flow_key(1)), redis_key(flow_key(2))]
    ]
    assert sorted(rig.desks.answers) == [
        (0, flow_key(1), ()),
        (0, flow_key(2), ()),
        (1, flow_key(1), ()),
    ]


def test_a_miss_is_remembered_until_the_flow_is_told(rig: Rig) -> None:
    rig.desks.ask(0, 1)
    rig.cache.serve(0.0)
    rig.desks.ask(0, 1)
    rig.cache.serve(0.5)
    assert len(rig.store.reads) == 1
    assert rig.cache.lookups["remembered"] == 1
    rig.desks.tell(0, 1, SEALED)
    rig.cache.serve(0.6)
    rig.cache.flush(0.7)
    rig.desks.ask(1, 1)
    rig.cache.serve(0.8)
    assert rig.desks.answers[-1] == (1, flow_key(1), (TOKEN,))


@pytest.mark.parametrize("value", [b"garbage", b"1 short", 7, b""])
def test_garbage_is_a_miss_with_a_name(rig: Rig, value: object) -> None:
    rig.store.values[redis_key(flow_key(1))] = value
    rig.desks.ask(0, 1)
    rig.cache.serve(0.0)
    assert rig.desks.answers == [(0, flow_key(1), ())]
    assert rig.cache.lookups["garbage"] == 1


def test_trouble_answers_at_once_and_is_one_log_line(rig: Rig) -> None:
    rig.store.error = StoreError("timeout", "Timeout reading from socket")
    for number in range(1000):
        rig.desks.ask(0, number)
    while rig.cache.serve(0.0):
        pass
    assert len(rig.desks.answers) == 1000
    assert len(rig.store.reads) == 1, "the breaker leaves Redis alone"
    assert rig.log.events == [
        (
            "cache_degraded",
            {"operation": "lookup", "reason": "timeout", "detail": "Timeout reading from socket"},
        )
    ]
    assert rig.cache.lookup.trouble == "timeout"


def test_it_comes_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: clock_s)
    rig.store.error = StoreError("connection", "refused")
    rig.desks.ask(0, 1)
    rig.cache.serve(clock_s)
    rig.store.error = None
    clock_s += 3.0
    rig.desks.ask(0, 2)
    rig.cache.serve(clock_s)
    assert rig.cache.lookup.trouble is None
    assert [event for event, _ in rig.log.events] == ["cache_degraded", "cache_restored"]


def test_silence_is_checked_now_and_then(rig: Rig) -> None:
    for now_s in range(20):
        rig.cache.check(float(now_s))
    assert 5 <= rig.store.checks <= 11
    rig.store.error = StoreError("timeout", "Timeout reading from socket")
    rig.cache.check(30.0)
    rig.cache.check(30.01)
    assert rig.cache.lookup.errors["timeout"] == 1
    rig.store.error = None
    rig.cache.check(40.0)
    assert [event for event, _ in rig.log.events] == ["cache_degraded", "cache_restored"]


def test_a_flood_of_unknown_clients_is_capped(rig: Rig) -> None:
    for number in range(3 * LOOKUPS_PER_S):
        rig.desks.ask(number % 2, number)
    while rig.cache.serve(0.0):
        pass
    assert len(rig.desks.answers) == 3 * LOOKUPS_PER_S
    assert sum(map(len, rig.store.reads)) == LOOKUPS_PER_S
    assert rig.cache.lookups["shed"] == 2 * LOOKUPS_PER_S


def test_writes_are_batched_and_the_newest_value_of_a_key_wins(rig: Rig) -> None:
    for number in range(WRITE_BATCH + 1):
        rig.desks.tell(0, number, SEALED)
    rig.desks.tell(0, 0, SEALED, SEALED)
    while rig.cache.serve(0.0):
        pass
    rig.cache.flush(0.1)
    assert rig.store.batches == [WRITE_BATCH, 1]
    assert rig.store.values[redis_key(flow_key(0))] == make_value([TOKEN, TOKEN])


def test_refused_writes_wait_but_not_longer_than_they_would_live(rig: Rig) -> None:
    rig.store.error = StoreError("full", "OOM command not allowed")
    rig.desks.tell(0, 1, SEALED)
    rig.cache.serve(0.0)
    rig.cache.flush(0.0)
    rig.desks.tell(0, 1, SEALED, SEALED)
    rig.desks.tell(0, 2, SEALED)
    rig.cache.serve(30.0)
    rig.store.error = None
    rig.cache.flush(30.0)
    assert rig.store.values[redis_key(flow_key(1))] == make_value([TOKEN, TOKEN])
    rig.store.error = StoreError("full", "OOM command not allowed")
    rig.desks.tell(0, 3, SEALED)
    rig.cache.serve(40.0)
    rig.cache.flush(40.0)
    rig.store.error = None
    rig.cache.flush(40.0 + TTL_S)
    assert redis_key(flow_key(3)) not in rig.store.values
