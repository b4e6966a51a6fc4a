"""The rules of the flow cache, without Redis and without a clock: keys, values, limits, the breaker.

1. What is read is data of a stranger: a value that is not `1 TOKEN[ TOKEN]` is a miss. Whether its
   tokens hold only a worker can say, which opens them like tokens from the wire.
2. Time is an argument, in seconds.
"""

import random
import re
from collections.abc import Callable, Sequence

KEY_PREFIX = b"flow:1:"
KEY_BYTES = 36
_VALUE = re.compile(rb"1 ([A-Za-z0-9+/]{28})(?: ([A-Za-z0-9+/]{28}))?")


def redis_key(flow_key: bytes) -> bytes:
    """`flow:1:` and the hex of the 36-byte flow key."""
    return KEY_PREFIX + flow_key.hex().encode()


def make_value(tokens: Sequence[bytes]) -> bytes:
    """The value for one or two owners' tokens."""
    return b"1 " + b" ".join(tokens)


def parse_value(value: object) -> tuple[bytes, ...] | None:
    """The tokens of a value that was read, or None when it is no such value."""
    match = _VALUE.fullmatch(value) if isinstance(value, bytes) else None
    return None if match is None else tuple(token for token in match.groups() if token)


class Breaker:
    """Whether Redis is asked at all: after a failure not before a pause has passed.

    The pause doubles up to `max_pause_s`, and is shortened at random by up to half, so that many
    relays do not come back in step.
    """

    def __init__(
        self,
        max_pause_s: float = 2.0,
        first_pause_s: float = 0.1,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._max_pause_s = max_pause_s
        self._first_pause_s = first_pause_s
        self._draw = draw
        self._failures = 0
        self._retry_at_s = 0.0

    def allows(self, now_s: float) -> bool:
        """Whether to try now."""
        return self._failures == 0 or now_s >= self._retry_at_s

    def succeeded(self) -> None:
        """An attempt went well."""
        self._failures = 0

    def failed(self, now_s: float) -> None:
        """An attempt failed."""
        pause_s = min(self._max_pause_s, self._first_pause_s * 2.0 ** min(self._failures, 20))
        self._failures += 1
        self._retry_at_s = now_s + pause_s * (1.0 - self._draw() / 2.0)


LOOKUPS_PER_S = 2_000
"""What a host asks Redis at most, unless --limit says otherwise."""


class RateCap:
    """At most `per_s` a second, a second's worth at once."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._left = per_s
        self._last_s: float | None = None

    def take(self, now_s: float) -> bool:
        """Whether one more is within the cap."""
        if self._last_s is not None:
            self._left = min(self._per_s, self._left + (now_s - self._last_s) * self._per_s)
        self._last_s = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class NegativeCache:
    """Flow keys that were not found a moment ago; bounded, the oldest gives way."""

    def __init__(self, ttl_s: float, max_keys: int) -> None:
        self._ttl_s = ttl_s
        self._max_keys = max_keys
        self._until_s: dict[bytes, float] = {}

    def add(self, key: bytes, now_s: float) -> None:
        """`key` was not found."""
        self._until_s.pop(key, None)
        while len(self._until_s) >= self._max_keys:
            del self._until_s[next(iter(self._until_s))]
        self._until_s[key] = now_s + self._ttl_s

    def holds(self, key: bytes, now_s: float) -> bool:
        """Whether `key` need not be asked for again yet."""
        until_s = self._until_s.get(key)
        if until_s is not None and until_s <= now_s:
            del self._until_s[key]
            return False
        return until_s is not None

    def discard(self, key: bytes) -> None:
        """`key` has just been written."""
        self._until_s.pop(key, None)
