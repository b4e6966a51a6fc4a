"""Requests for a call that lives in another process of this pool, over that process's unix socket.

1. Only ids whose MAC held get here, so a forged id causes no connection.
2. The directory of the sockets is the pool's own, mode 0700. The sibling checks the bearer itself.
3. A sibling that is gone has lost its calls: 404. One that does not answer in time: 503.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

from .errors import RequestError

FORWARD_TIMEOUT_S = 2.0
_FORWARDED = ("Authorization", "Content-Type", "If-Match")
RETURNED = ("Content-Type", "ETag", "Location", "Retry-After", "Server-Timing")


@dataclass(frozen=True, slots=True)
class Reply:
    """What the owner of a call answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def response(self) -> web.Response:
        """As the client gets it."""
        return web.Response(status=self.status, body=self.body, headers=self.headers)


def forwarded_headers(request: web.Request) -> dict[str, str]:
    """What of a request's headers the owner needs."""
    return {name: request.headers[name] for name in _FORWARDED if name in request.headers}


def socket_path(run_dir: Path, process: int) -> Path:
    """Where a process listens for its siblings."""
    return run_dir / f"{process}.sock"


def call_not_found() -> RequestError:
    """The answer for ids that are forged, ended, or somebody else's: one answer for all."""
    return RequestError(
        404, "call_id_not_found", "No session found for the provided call_id", param=""
    )


class Siblings:
    """Connections to the other processes; at most a few are kept open to each."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._sessions: dict[int, aiohttp.ClientSession] = {}

    async def forward(self, process: int, request: web.Request, body: bytes) -> web.Response:
        """The sibling's response to `request`. Raises RequestError."""
        path = request.rel_url.raw_path
        reply = await self.send(process, request.method, path, forwarded_headers(request), body)
        return reply.response()

    async def send(
        self, process: int, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Reply:
        """What that process answers. Raises RequestError."""
        try:
            async with self._session(process).request(
                method, f"http://sibling{path}", data=body, headers=headers
            ) as response:
                content = await response.read()
                kept = {k: response.headers[k] for k in RETURNED if k in response.headers}
                return Reply(response.status, kept, content)
        except aiohttp.ClientConnectorError:
            raise call_not_found() from None
        except (TimeoutError, aiohttp.ClientError):
            raise RequestError(
                503, "call_unreachable", "The call's process does not answer.", retry_after_s=1
            ) from None

    async def close(self) -> None:
        """Closes all connections."""
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    def _session(self, process: int) -> aiohttp.ClientSession:
        session = self._sessions.get(process)
        if session is None:
            session = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(socket_path(self._run_dir, process)), limit=8),
                timeout=aiohttp.ClientTimeout(total=FORWARD_TIMEOUT_S),
                auto_decompress=False,
            )
            self._sessions[process] = session
        return session
