"""Requests for a call that lives on another host, forwarded to the process that its id names.

    request  POST /peer, body: a sealed request (boxes.py)
    answer   200, body: the sealed answer to it

1. Both sides prove that they hold the auth secret, and nobody else reads a bearer or a body.
2. A request is taken once; a box that does not open, is old or is for another process gets 403.
3. Only ids whose MAC held get here, so a forged id causes no connection. The owner checks the
   bearer itself, and a forwarded request is never forwarded to a third host.
4. An owner that is gone has lost its calls: 410. One that does not answer, or cannot prove who it is: 502.
"""

from __future__ import annotations

import errno
import socket
import time

import aiohttp
from aiohttp import web

from relay.wire.address import Endpoint

from .boxes import Ask, PeerSeal
from .callid import Owner
from .errors import RequestError
from .sealed_side import SealedSide
from .siblings import Siblings, forwarded_headers
from .sockets import bind_tcp

PEER_PATH = "/peer"
BOX_MAX_BYTES = 65_536
CONNECT_TIMEOUT_S = 1.0
FORWARD_TIMEOUT_S = 4.0
BACKLOG = 128


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
                answer = await read_answer(response)
        except aiohttp.ClientConnectorError as error:
            if error.errno == errno.ECONNREFUSED:
                raise _gone() from None
            raise unreachable() from None
        except (TimeoutError, aiohttp.ClientError):
            raise unreachable() from None
        reply = self._seal.open_answer(answer, asked) if response.status == 200 else None
        if reply is None:
            raise unreachable()
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


async def read_answer(response: aiohttp.ClientResponse) -> bytes:
    """The body, or a little more than BOX_MAX_BYTES of it."""
    answer = await response.content.read(BOX_MAX_BYTES + 1)
    while len(answer) <= BOX_MAX_BYTES and not response.content.at_eof():
        answer += await response.content.read(BOX_MAX_BYTES + 1)
    return answer


def make_peer_app(secret: bytes, process: int, siblings: Siblings) -> web.Application:
    """What other hosts reach of one process: sealed requests for its calls, and nothing else."""
    app = web.Application(client_max_size=BOX_MAX_BYTES)
    side = SealedSide(PeerSeal(secret), process, process, siblings)

    async def answer(request: web.Request) -> web.Response:
        return await side.answer(await request.read())

    app.router.add_post(PEER_PATH, answer)
    return app


def open_peers(at: Endpoint, processes: int) -> list[socket.socket]:
    """TCP sockets, listening at consecutive ports; port 0: somewhere. Raises OSError."""
    for _ in range(64):
        opened: list[socket.socket] = []
        try:
            port = at.port
            for process in range(processes):
                opened.append(bind_tcp(Endpoint(at.ip, port + process if port else 0)))
                # From now on nobody else can have the port.
                opened[-1].listen(BACKLOG)
                port = port or opened[0].getsockname()[1]
            return opened
        except (OSError, OverflowError):
            for one in opened:
                one.close()
            if at.port:
                raise
    raise OSError(errno.EADDRINUSE, "no consecutive ports are free")


def _gone() -> RequestError:
    return RequestError(410, "call_gone", "The call ended with the server that held it.", param="")


def unreachable() -> RequestError:
    """502: whether the call is still there is not known."""
    return RequestError(
        502, "call_unreachable", "The call's server does not answer.", retry_after_s=1
    )
