"""Redis as the cache sees it: read many, write many, and a named reason when it cannot.

1. No call takes longer than twice its timeouts; whether to try again is the caller's to decide.
2. After an error the connection is dropped: the next call connects anew, so a failover heals.
3. An error's text never holds the URL or the password.
4. Whatever answers at the URL may be no Redis at all: of an answer that cannot be read, the client library
   raises anything, from ValueError to RecursionError. All of it is StoreError, so that no thread ends of it.
5. One Redis holds all keys: a node of a Redis Cluster, which sends on to others, is trouble with a name of its own.
"""

from collections.abc import Mapping, Sequence

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

CONNECT_LIMIT_S = 0.5

_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (AuthenticationError, "auth"),
    (NoPermissionError, "permission"),
    (OutOfMemoryError, "full"),
    (ReadOnlyError, "readonly"),
    (BusyLoadingError, "loading"),
    (MasterDownError, "readonly"),
    (AskError, "cluster"),
    (ClusterCrossSlotError, "cluster"),
    (ClusterDownError, "cluster"),
    (RedisTimeoutError, "timeout"),
    (TimeoutError, "timeout"),
    (RedisConnectionError, "connection"),
    (OSError, "connection"),
)
REASONS = (*dict.fromkeys(label for _, label in _REASONS), "other")


class StoreError(Exception):
    """Redis did not do what it was asked; `reason` is one of REASONS."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class RedisStore:
    """One connection. Used by one thread."""

    def __init__(self, url: str, limit_s: float) -> None:
        """`limit_s` bounds the wait for an answer. Nothing is connected yet."""
        self._redis = redis.Redis.from_url(
            url,
            socket_timeout=limit_s,
            socket_connect_timeout=min(limit_s, CONNECT_LIMIT_S),
            # Once, at once, and only when an idle connection turns out to be closed.
            retry=Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
            retry_on_timeout=False,
            protocol=2,
            single_connection_client=False,
        )

    def check(self) -> None:
        """Connect if need be, and hear that Redis is well. Raises StoreError."""
        try:
            self._redis.ping()
        except NoPermissionError:
            pass  # not for PING, but it answers
        except Exception as error:
            raise self._failed(error) from None

    def get(self, keys: Sequence[bytes]) -> list[object]:
        """The values, None for those that are missing. Raises StoreError."""
        try:
            found = self._redis.mget(keys)
        except Exception as error:
            raise self._failed(error) from None
        return list(found[: len(keys)]) if isinstance(found, list) else []

    def set(self, values: Mapping[bytes, bytes], ttl_s: int) -> None:
        """Write all, in one round trip. Raises StoreError when one is refused."""
        try:
            with self._redis.pipeline(transaction=False) as pipeline:
                for key, value in values.items():
                    pipeline.set(key, value, ex=ttl_s)
                results = pipeline.execute(raise_on_error=False)
        except Exception as error:
            raise self._failed(error) from None
        for result in results:
            if isinstance(result, Exception):
                raise self._failed(result) from None

    def announce(self, key: bytes, field: bytes, value: bytes) -> None:
        """Write a field of a hash. Raises StoreError."""
        try:
            self._redis.hset(key, field, value)
        except Exception as error:
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> StoreError:
        self._redis.connection_pool.disconnect()
        detail = " ".join(str(error).split())
        for kind, label in _REASONS:
            if isinstance(error, kind):
                return StoreError(label, detail)
        return StoreError("other", detail)
