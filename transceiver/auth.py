"""Who is calling: server keys, sealed client secrets, or anybody on an open server.

1. A secret is compared in constant time, against every key, and is never logged: a principal's name is.
2. A client secret (`ek_…`) is sealed (AES-256-GCM), not only signed: it carries the session's instructions.
3. A client secret starts calls until it expires, serves those that it started beyond that, and cannot make another.
4. A call belongs to the principal that made it: its key, or the very client secret.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import secrets
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from relay.wire.files import read_small_file

from .errors import ConfigError, RequestError

CLIENT_SECRET_PREFIX: Final = "ek_"
CLIENT_SECRET_MAX_CHARS: Final = 7_900
"""aiohttp reads header fields of up to 8,190 bytes; `Bearer ` and a margin come off."""
EXPIRY_DEFAULT_S: Final = 600
EXPIRY_MIN_S: Final = 10
EXPIRY_MAX_S: Final = 7_200
API_KEY_MIN_CHARS: Final = 16
AUTH_SECRET_MIN_BYTES: Final = 16
SESSION_MAX_BYTES: Final = 64 * 1024
_SEAL_PURPOSE: Final = b"voice-relay client secret 1"


class AuthFileError(ConfigError):
    """A key file or an auth secret that cannot be used.

    The message names the file and the line, never a secret.
    """


class AuthError(RequestError):
    """A request that may not go on.

    401: nobody, or unknown; 403: known but not allowed; 400: a bad request for a client secret.
    """


@dataclass(frozen=True)
class ApiKey:
    """One server key."""

    name: str
    """What logs, metrics and limits call it."""
    digest: bytes
    """SHA-256 of the key."""
    calls: int | None = None
    """Calls at once, or None for no limit."""
    calls_per_minute: int | None = None
    """New calls a minute, or None for no limit."""


@dataclass(frozen=True)
class Principal:
    """Who made a request."""

    name: str
    """The key's name; `open` on a server without keys."""
    secret_id: str | None = None
    """Set when the request came with a client secret."""
    session: Mapping[str, Any] = field(default_factory=dict)
    """The session configuration sealed into the client secret."""
    max_call_s: float | None = None
    """The longest call this principal may make."""
    updatable: tuple[str, ...] | None = None
    """Paths that a client's `session.update` may change; None: all."""

    def owns(self, other: Principal) -> bool:
        """Whether this principal may act on a call that `other` made (rule 4)."""
        return self.name == other.name and self.secret_id in (None, other.secret_id)


OPEN: Final = Principal("open")


def load_api_keys(path: Path) -> tuple[ApiKey, ...]:
    """Reads lines of `NAME KEY [calls=N] [per_minute=N]`; `#` starts a comment. Raises AuthFileError."""
    try:
        lines = read_small_file(path).decode("utf-8").splitlines()
    except OSError as error:
        raise AuthFileError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise AuthFileError(f"{path}: not a text file") from error
    keys: dict[str, ApiKey] = {}
    for number, line in enumerate(lines, 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        try:
            key = _parse_key(words)
        except ValueError as error:
            raise AuthFileError(f"{path}, line {number}: {error}") from None
        if key.name in keys or any(
            hmac.compare_digest(key.digest, known.digest) for known in keys.values()
        ):
            raise AuthFileError(
                f"{path}, line {number}: the name {key.name!r} or its key stands there twice"
            )
        keys[key.name] = key
    if not keys:
        raise AuthFileError(f"{path}: no key in it")
    return tuple(keys.values())


def load_auth_secret(path: Path) -> bytes:
    """Reads the secret that seals client secrets; surrounding white space does not count. Raises AuthFileError."""
    try:
        secret = read_small_file(path).strip()
    except OSError as error:
        raise AuthFileError(f"{path}: {error.strerror}") from error
    if len(secret) < AUTH_SECRET_MIN_BYTES:
        raise AuthFileError(f"{path}: under {AUTH_SECRET_MIN_BYTES} bytes")
    return secret


class Authenticator:
    """Checks bearers and makes client secrets. On an open server every bearer, or none, passes."""

    def __init__(
        self, seal_secret: bytes, keys: Sequence[ApiKey] = (), *, is_open: bool = False
    ) -> None:
        """`seal_secret` is the auth secret, or random bytes that all processes of the pool share."""
        self._keys = tuple(keys)
        self._seal = AESGCM(hmac.digest(seal_secret, _SEAL_PURPOSE, hashlib.sha256))
        self.is_open = is_open

    def authenticate(self, authorization: str | None, now_s: float | None) -> Principal:
        """Takes the `Authorization` header and Unix time, or None where an expired client secret is as good as any: for
        a call that it may have started. Raises AuthError with 401.
        """
        scheme, _, bearer = (authorization or "").partition(" ")
        bearer = bearer.strip()
        if scheme.lower() == "bearer" and bearer.startswith(CLIENT_SECRET_PREFIX):
            principal = self._open_client_secret(bearer, now_s)
            if principal is not None:
                return principal
        elif bearer:
            key = self._find_key(bearer)
            if key is not None and scheme.lower() == "bearer":
                return Principal(key.name)
        if self.is_open:
            return OPEN
        if not bearer:
            message = "Send `Authorization: Bearer …` with an API key or a client secret."
            raise AuthError(401, "missing_api_key", message)
        raise AuthError(401, "invalid_api_key", "The API key or client secret is wrong or expired.")

    def limits_of(self, name: str) -> ApiKey | None:
        """The key of that name, for its limits."""
        return next((key for key in self._keys if key.name == name), None)

    def make_client_secret(
        self, principal: Principal, request: Any, now_s: float
    ) -> dict[str, Any]:
        """Answers `POST /v1/realtime/client_secrets`: `{value, expires_at, session}`.

        `request` is the parsed body: `expires_after {anchor, seconds}`, `session`, and as an extension
        `limits {max_call_seconds, updatable: [path, …]}`. Raises AuthError with 400 or 403.
        """
        if principal.secret_id is not None:
            raise AuthError(
                403,
                "secret_cannot_make_secrets",
                "A client secret cannot make another; use an API key.",
            )
        request = _object(request, None)
        session = _object(request.get("session"), "session")
        limits = _object(request.get("limits"), "limits")
        expires_at = int(now_s) + _expiry_s(_object(request.get("expires_after"), "expires_after"))
        sealed = {
            "n": principal.name,
            "i": secrets.token_hex(8),
            "e": expires_at,
            "s": session,
            "d": _max_call_s(limits),
            "u": _updatable(limits),
        }
        plain = json.dumps(sealed, separators=(",", ":")).encode()
        if len(plain) > SESSION_MAX_BYTES:
            message = f"`session` is over {SESSION_MAX_BYTES} bytes."
            raise AuthError(400, "session_too_large", message, param="session")
        nonce = os.urandom(12)
        box = nonce + self._seal.encrypt(nonce, zlib.compress(plain, 9), _SEAL_PURPOSE)
        value = CLIENT_SECRET_PREFIX + base64.urlsafe_b64encode(box).decode("ascii").rstrip("=")
        if len(value) > CLIENT_SECRET_MAX_CHARS:
            message = "`session` does not fit into a client secret; send long parts with `session.update`."
            raise AuthError(400, "session_too_large", message, param="session")
        shown = {
            "type": "realtime",
            **session,
            "id": f"sess_{sealed['i']}",
            "object": "realtime.session",
        }
        return {"value": value, "expires_at": expires_at, "session": shown}

    def _find_key(self, bearer: str) -> ApiKey | None:
        digest = hashlib.sha256(bearer.encode("utf-8", "surrogateescape")).digest()
        found = None
        for key in self._keys:  # no early end: the time tells nothing about which key is near
            if hmac.compare_digest(digest, key.digest):
                found = key
        return found

    def _open_client_secret(self, bearer: str, now_s: float | None) -> Principal | None:
        text = bearer.removeprefix(CLIENT_SECRET_PREFIX)
        if len(bearer) > CLIENT_SECRET_MAX_CHARS:
            return None
        try:
            box = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            packed = self._seal.decrypt(box[:12], box[12:], _SEAL_PURPOSE)
        except (binascii.Error, InvalidTag, ValueError):
            return None
        sealed = json.loads(zlib.decompress(packed))
        is_expired = now_s is not None and now_s >= sealed["e"]
        if is_expired or not self._knows(sealed["n"]):
            return None
        updatable = None if sealed["u"] is None else tuple(sealed["u"])
        return Principal(sealed["n"], sealed["i"], sealed["s"], sealed["d"], updatable)

    def _knows(self, name: str) -> bool:
        """A secret ends with the key that made it, where this server knows keys at all."""
        return not self._keys or self.limits_of(name) is not None


def _parse_key(words: list[str]) -> ApiKey:
    if len(words) < 2:
        raise ValueError("a line is `NAME KEY [calls=N] [per_minute=N]`")
    name, key, *options = words
    if name == OPEN.name:
        raise ValueError(f"the name {name!r} is taken")
    if len(key) < API_KEY_MIN_CHARS:
        raise ValueError(f"the key of {name!r} has under {API_KEY_MIN_CHARS} characters")
    if key.startswith(CLIENT_SECRET_PREFIX):
        raise ValueError(
            f"the key of {name!r} begins with {CLIENT_SECRET_PREFIX}, as client secrets do"
        )
    limits: dict[str, int] = {}
    for option in options:
        limit, equals, value = option.partition("=")
        if not equals or limit not in ("calls", "per_minute") or not value.isdecimal():
            raise ValueError(f"{option!r} is neither calls=N nor per_minute=N")
        limits[limit] = int(value)
    return ApiKey(
        name, hashlib.sha256(key.encode()).digest(), limits.get("calls"), limits.get("per_minute")
    )


def _object(value: Any, name: str | None) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        what = "The body" if name is None else f"`{name}`"
        raise AuthError(400, "invalid_value", f"{what} must be an object.", param=name)
    return value


def _expiry_s(expires_after: Mapping[str, Any]) -> int:
    seconds = expires_after.get("seconds", EXPIRY_DEFAULT_S)
    if expires_after.get("anchor", "created_at") != "created_at":
        message = "`expires_after.anchor` must be `created_at`."
        raise AuthError(400, "invalid_value", message, param="expires_after.anchor")
    if type(seconds) is not int or not EXPIRY_MIN_S <= seconds <= EXPIRY_MAX_S:
        message = (
            f"`expires_after.seconds` must be a whole number from {EXPIRY_MIN_S} to {EXPIRY_MAX_S}."
        )
        raise AuthError(400, "invalid_value", message, param="expires_after.seconds")
    return seconds


def _max_call_s(limits: Mapping[str, Any]) -> float | None:
    value = limits.get("max_call_seconds")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        message = "`limits.max_call_seconds` must be a positive number."
        raise AuthError(400, "invalid_value", message, param="limits.max_call_seconds")
    return float(value)


def _updatable(limits: Mapping[str, Any]) -> list[str] | None:
    value = limits.get("updatable")
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(path, str) and path for path in value):
        message = "`limits.updatable` must be a list of paths like `audio.output.voice`."
        raise AuthError(400, "invalid_value", message, param="limits.updatable")
    return value
