"""Requests and responses between hosts, sealed under the auth secret that all of them hold.

    request  seal("ask", {"t": Unix time, "p": target, "m": method, "u": path, "h": headers}, body)
    answer   seal("answer" of that nonce, {"s": status, "h": headers}, body)
    seal     nonce 12 | AES-256-GCM of (length of head 4 | head in JSON | body), under a key from the
             auth secret and a purpose, its direction and the request's nonce as associated data

1. Both sides prove that they hold the auth secret, and nobody else reads a bearer or a body.
2. A request is good within CLOCK_SKEW_S of its making, and once where `Taken` remembers it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import struct
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from .siblings import RETURNED, Reply

CLOCK_SKEW_S = 30.0
BETWEEN_HOSTS = b"voice-relay peer"
BETWEEN_CLUSTERS = b"voice-relay cluster"

_NONCE_BYTES = 12
_LENGTH = struct.Struct("!I")
_ANSWER_HEADERS = frozenset(RETURNED)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for another process, as it travels."""

    target: int
    """The process, or between clusters the cluster, that it is meant for."""
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class PeerSeal:
    """Seals and opens what travels for one purpose; a box of another purpose does not open."""

    def __init__(self, secret: bytes, purpose: bytes = BETWEEN_HOSTS) -> None:
        self._box = AESGCM(hmac.digest(secret, purpose, hashlib.sha256))

    def seal_ask(self, ask: Ask, now_s: float) -> tuple[bytes, bytes]:
        """The box, and the nonce that its answer is bound to."""
        nonce = os.urandom(_NONCE_BYTES)
        head = {
            "t": now_s,
            "p": ask.target,
            "m": ask.method,
            "u": ask.path,
            "h": dict(ask.headers),
        }
        return self._seal(b"ask", head, ask.body, nonce), nonce

    def open_ask(self, box: bytes, now_s: float) -> tuple[Ask, bytes] | None:
        """The request and its nonce; None for what was not sealed by a peer just now."""
        opened = self._open(b"ask", box)
        if opened is None:
            return None
        head, body = opened
        if abs(now_s - head["t"]) > CLOCK_SKEW_S:
            return None
        return Ask(head["p"], head["m"], head["u"], head["h"], body), box[:_NONCE_BYTES]

    def seal_answer(self, reply: Reply, asked: bytes) -> bytes:
        """The box that answers the request of that nonce."""
        head = {"s": reply.status, "h": dict(reply.headers)}
        return self._seal(b"answer" + asked, head, reply.body, os.urandom(_NONCE_BYTES))

    def open_answer(self, box: bytes, asked: bytes) -> Reply | None:
        """The answer to the request of that nonce; None for anything else."""
        opened = self._open(b"answer" + asked, box)
        if opened is None:
            return None
        head, body = opened
        return Reply(head["s"], {k: v for k, v in head["h"].items() if k in _ANSWER_HEADERS}, body)

    def _seal(self, direction: bytes, head: Mapping[str, Any], body: bytes, nonce: bytes) -> bytes:
        text = json.dumps(head, separators=(",", ":")).encode()
        plain = _LENGTH.pack(len(text)) + text + body
        return nonce + self._box.encrypt(nonce, plain, direction)

    def _open(self, direction: bytes, box: bytes) -> tuple[dict[str, Any], bytes] | None:
        if len(box) < _NONCE_BYTES:
            return None
        try:
            plain = self._box.decrypt(box[:_NONCE_BYTES], box[_NONCE_BYTES:], direction)
        except InvalidTag:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(plain)[0]
        return json.loads(plain[_LENGTH.size : end]), plain[end:]


class Taken:
    """The nonces of requests that were taken lately."""

    def __init__(self) -> None:
        self._nonces: set[bytes] = set()
        self._at: deque[tuple[float, bytes]] = deque()

    def take(self, asked: bytes) -> bool:
        """Whether this nonce is new. It is remembered for as long as its time would hold."""
        now_s = time.monotonic()
        while self._at and self._at[0][0] < now_s - 2 * CLOCK_SKEW_S:
            self._nonces.discard(self._at.popleft()[1])
        if asked in self._nonces:
            return False
        self._nonces.add(asked)
        self._at.append((now_s, asked))
        return True
