"""Requests for a call that lives on another host, forwarded to the process that its id names.

    request  POST /peer, body: seal("ask", {"t": Unix time, "n": nonce, "p": process, "m": method,
             "u": path, "h": headers}, body)
    answer   200, body: seal("answer" of that nonce, {"s": status, "h": headers}, body)
    seal     nonce 12 | AES-256-GCM of (length of head 4 | head in JSON | body), under a key from the
             auth secret, its direction and the request's nonce as associated data

1. Both sides prove that they hold the auth secret, and nobody else reads a bearer or a body.
2. A request is taken once, within CLOCK_SKEW_S of its making; a box that does not open gets 403.
3. Only ids whose MAC held get here, so a forged id causes no connection. The owner checks the
   bearer itself, and a forwarded request is never forwarded to a third host.
4. An owner that is gone has lost its calls: 410. One that does not answer, or cannot prove who it is: 502.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from relay.wire.address import Endpoint

from .callid import Owner
from .errors import RequestError
from .siblings import RETURNED, Reply, Siblings, forwarded_headers

PEER_PATH = "/peer"
BOX_MAX_BYTES = 65_536
CLOCK_SKEW_S = 30.0
CONNECT_TIMEOUT_S = 1.0
FORWARD_TIMEOUT_S = 4.0
BACKLOG = 128

_PURPOSE = b"voice-relay peer"
_NONCE_BYTES = 12
_LENGTH = struct.Struct("!I")
_ANSWER_HEADERS = frozenset(RETURNED)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for another process, as it travels."""

    process: int
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class PeerSeal:
    """Seals and opens what travels between hosts, under the auth secret."""

    def __init__(self, secret: bytes) -> None:
        self._box = AESGCM(hmac.digest(secret, _PURPOSE, hashlib.sha256))

    def seal_ask(self, ask: Ask, now_s: float) -> tuple[bytes, bytes]:
        """The box, and the nonce that its answer is bound to."""
        nonce = os.urandom(_NONCE_BYTES)
        head = {
            "t": now_s,
            "n": nonce.hex(),
            "p": ask.process,
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


class Peers:
    """Connections to other hosts' processes."""

    def __init__(self, secret: bytes) -> None:
        self._seal = PeerSeal(secret)
        self._http: aiohttp.ClientSession | None = None

    async def forward(self, owner: Owner, request: web.Request, body: bytes) -> web.Response:
        """The owner's response to `request`. Raises RequestError with 410 or 502."""
        at = Endpoint(owner.host.ip, owner.host.port + owner.process)
        ask = Ask(
            owner.process,
            request.method,
            request.rel_url.raw_path,
            forwarded_headers(request),
            body,
        )
        box, asked = self._seal.seal_ask(ask, time.time())
        try:
            async with self._session().post(f"http://{at}{PEER_PATH}", data=box) as response:
                answer = await response.content.read(BOX_MAX_BYTES + 1)
                while len(answer) <= BOX_MAX_BYTES and not response.content.at_eof():
                    answer += await response.content.read(BOX_MAX_BYTES + 1)
        except aiohttp.ClientConnectorError as error:
            if error.errno == errno.ECONNREFUSED:
                raise _gone() from None
            raise _unreachable() from None
        except (TimeoutError, aiohttp.ClientError):
            raise _unreachable() from None
        reply = self._seal.open_answer(answer, asked) if response.status == 200 else None
        if reply is None:
            raise _unreachable()
        return reply.response()

    async def close(self) -> None:
        """Closes all connections."""
        if self._http is not None:
            await self._http.close()

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit_per_host=8),
                timeout=aiohttp.ClientTimeout(total=FORWARD_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
                trust_env=False,
                auto_decompress=False,
            )
        return self._http


def make_peer_app(secret: bytes, process: int, siblings: Siblings) -> web.Application:
    """What other hosts reach of one process: sealed requests for its calls, and nothing else."""
    app = web.Application(client_max_size=BOX_MAX_BYTES)
    app.router.add_post(PEER_PATH, _PeerSide(PeerSeal(secret), process, siblings).answer)
    return app


class _PeerSide:
    def __init__(self, seal: PeerSeal, process: int, siblings: Siblings) -> None:
        self._seal = seal
        self._process = process
        self._siblings = siblings
        self._taken: set[bytes] = set()
        self._taken_at: deque[tuple[float, bytes]] = deque()

    async def answer(self, request: web.Request) -> web.Response:
        """POST /peer."""
        opened = self._seal.open_ask(await request.read(), time.time())
        if opened is None:
            raise web.HTTPForbidden
        ask, asked = opened
        if ask.process != self._process or not self._take(asked):
            raise web.HTTPForbidden
        try:
            reply = await self._siblings.send(
                ask.process, ask.method, ask.path, ask.headers, ask.body
            )
        except RequestError as error:
            body = json.dumps(error.body()).encode()
            reply = Reply(error.status, {"Content-Type": "application/json"}, body)
        return web.Response(body=self._seal.seal_answer(reply, asked))

    def _take(self, asked: bytes) -> bool:
        """Whether this nonce is new. It is remembered for as long as its time would hold."""
        now_s = time.monotonic()
        while self._taken_at and self._taken_at[0][0] < now_s - 2 * CLOCK_SKEW_S:
            self._taken.discard(self._taken_at.popleft()[1])
        if asked in self._taken:
            return False
        self._taken.add(asked)
        self._taken_at.append((now_s, asked))
        return True


def open_peers(at: Endpoint, processes: int) -> list[socket.socket]:
    """TCP sockets, listening at consecutive ports; port 0: somewhere. Raises OSError."""
    for _ in range(64):
        opened: list[socket.socket] = []
        try:
            port = at.port
            for process in range(processes):
                opened.append(_bind(str(at.ip), port + process if port else 0))
                port = port or opened[0].getsockname()[1]
            return opened
        except (OSError, OverflowError):
            for one in opened:
                one.close()
            if at.port:
                raise
    raise OSError(errno.EADDRINUSE, "no consecutive ports are free")


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setblocking(False)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        # From now on nobody else can have the port.
        opened.listen(BACKLOG)
    except (OSError, OverflowError):
        opened.close()
        raise
    return opened


def _gone() -> RequestError:
    return RequestError(410, "call_gone", "The call ended with the server that held it.", param="")


def _unreachable() -> RequestError:
    return RequestError(
        502, "call_unreachable", "The call's server does not answer.", retry_after_s=1
    )
