"""The HTTP side: OpenAI's Realtime calls API, WHIP's conventions, the demo page, health, metrics.

1. Every error is JSON in OpenAI's shape, whoever raised it; the connection gives every answer its CORS headers.
2. Sizes are checked before bodies are read; what becomes of an offer is in reception.py.
3. A request for a call goes to the process that its id names; a forwarded one is never forwarded.
4. Health, readiness and metrics speak for the whole pool.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path

from aiohttp import web

from relay.wire.log import get_logger

from . import metrics
from .auth import SESSION_MAX_BYTES, Principal
from .body import media_type_of, read_bounded, read_json_body
from .clusters import HANDED, read_viewpoint
from .errors import RequestError
from .metrics import Meter
from .parts import AppParts
from .reception import CALLS_PATH, Reception
from .replies import error_response, http_error_response
from .session import Call
from .siblings import call_not_found
from .steering import Viewpoint
from .trickle import is_fragment, is_restart

SECRETS_PATH = "/v1/realtime/client_secrets"
MAX_PATCH_BYTES = 16_384

_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST, PATCH, DELETE, OPTIONS",
    "Access-Control-Max-Age": "86400",
    "Accept-Post": "application/sdp",
}
_ALLOWED_HEADERS = "authorization, content-type, if-match, x-openai-agents-sdk"
_HEADER_LIST = re.compile(r"[A-Za-z0-9\-, ]{1,1024}")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_public_app(parts: AppParts) -> web.Application:
    """What clients reach."""
    signaling = _Signaling(parts, internal=False)
    app = web.Application(middlewares=[_errors], client_max_size=0)
    for path in (CALLS_PATH, "/v1/realtime"):
        app.router.add_post(path, signaling.create)
        app.router.add_route("OPTIONS", path, _preflight)
    app.router.add_get(CALLS_PATH, _nothing)
    app.router.add_get("/v1/realtime", _no_websocket)
    app.router.add_post(SECRETS_PATH, signaling.client_secret)
    app.router.add_route("OPTIONS", SECRETS_PATH, _preflight)
    _add_call_routes(app, signaling)
    app.router.add_get("/healthz", signaling.healthz)
    app.router.add_get("/readyz", signaling.readyz)
    app.router.add_get("/metrics", signaling.metrics)
    if parts.demo_dir is not None:
        app.router.add_get("/", signaling.demo_page)
        app.router.add_get("/demo/config.json", signaling.demo_config)
        # By name, so that what a stranger asks for never names a file.
        for file in filter(Path.is_file, parts.demo_dir.iterdir()):
            app.router.add_get(f"/demo/{file.name}", _file(file))
    return app


def make_internal_app(parts: AppParts) -> web.Application:
    """What siblings reach over the unix socket: the calls of this process, and for what another
    cluster handed over all that clients reach of calls.
    """
    app = web.Application(middlewares=[_errors], client_max_size=0)
    signaling = _Signaling(parts, internal=True)
    if parts.clusters is not None:
        for path in (CALLS_PATH, "/v1/realtime"):
            app.router.add_post(path, signaling.create)
    _add_call_routes(app, signaling)
    return app


def _add_call_routes(app: web.Application, signaling: _Signaling) -> None:
    call = CALLS_PATH + "/{call_id}"
    app.router.add_delete(call, signaling.delete)
    app.router.add_patch(call, signaling.patch)
    app.router.add_get(call, signaling.exists)
    app.router.add_post(call + "/hangup", signaling.hangup)
    for action in ("accept", "reject", "refer"):
        app.router.add_post(f"{call}/{action}", _no_sip)
    app.router.add_get(call + "/stats", signaling.stats)
    for path in (call, call + "/hangup", call + "/stats"):
        app.router.add_route("OPTIONS", path, _preflight)


class _Signaling:
    def __init__(self, parts: AppParts, *, internal: bool) -> None:
        self._parts = parts
        self._internal = internal
        self._meter = Meter(parts.board, parts.row)
        self._reception = Reception(parts)

    async def create(self, request: web.Request) -> web.Response:
        """POST …/calls: an offer for an answer."""
        offered_s = time.monotonic()
        try:
            return await self._reception.receive(request, self._handed(request), offered_s)
        except RequestError as error:
            self._meter.refused(error.code)
            raise

    def _handed(self, request: web.Request) -> Viewpoint | None:
        """Where the caller is whose offer another cluster handed over; None for all other offers."""
        if not self._internal:
            return None
        if HANDED not in request.headers:
            raise call_not_found()
        return read_viewpoint(request.headers[HANDED])

    async def client_secret(self, request: web.Request) -> web.Response:
        """POST …/client_secrets: a sealed `ek_` token for a browser."""
        principal = self._principal(request, time.time())
        body = await read_json_body(request, 2 * SESSION_MAX_BYTES)
        made = self._parts.auth.make_client_secret(principal, body, time.time())
        return web.json_response(made, headers={"Cache-Control": "no-store"})

    async def delete(self, request: web.Request) -> web.Response:
        """DELETE …/calls/{id}: WHIP's way to end a call."""
        return await self._end(request, "client_close")

    async def hangup(self, request: web.Request) -> web.Response:
        """POST …/calls/{id}/hangup: OpenAI's way to end a call."""
        return await self._end(request, "hangup")

    async def _end(self, request: web.Request, reason: str) -> web.Response:
        principal, forwarded = await self._locate(request)
        if forwarded is not None:
            return forwarded
        self._find(request, principal).close(reason)
        return web.Response(status=200)

    async def patch(self, request: web.Request) -> web.Response:
        """PATCH …/calls/{id}: trickled candidates, which an ICE-lite side has no use for. ICE restarts
        are refused, and the session goes on as it was (RFC 9725 4.3.1, 4.3.3).
        """
        body = await read_bounded(request, MAX_PATCH_BYTES)
        if media_type_of(request) != "application/trickle-ice-sdpfrag":
            raise RequestError(
                415,
                "unsupported_media_type",
                "PATCH takes application/trickle-ice-sdpfrag.",
            )
        principal, forwarded = await self._locate(request, body)
        if forwarded is not None:
            return forwarded
        call = self._find(request, principal)
        if not is_fragment(body):
            raise RequestError(400, "invalid_fragment", "The body is not an SDP fragment.")
        if is_restart(body, call.offer):
            message = "ICE restarts are not supported; the call goes on as it was."
            raise RequestError(422, "ice_restart_unsupported", message)
        return web.Response(status=204)

    async def exists(self, request: web.Request) -> web.Response:
        """GET …/calls/{id}: nothing to see (RFC 9725 4.2), but the call is there."""
        response = await self.stats(request)
        return web.Response(status=204) if response.status == 200 else response

    async def stats(self, request: web.Request) -> web.Response:
        """GET …/calls/{id}/stats."""
        principal, forwarded = await self._locate(request)
        if forwarded is not None:
            return forwarded
        stats = self._parts.calls.stats(request.match_info["call_id"], principal)
        if stats is None:
            raise call_not_found()
        return web.json_response(stats, headers={"Cache-Control": "no-store"})

    async def _locate(
        self, request: web.Request, body: bytes = b""
    ) -> tuple[Principal, web.Response | None]:
        """Who asks, and the owner's response when the call lives elsewhere."""
        parts = self._parts
        principal = self._principal(request, None)
        owner = parts.call_ids.open(request.match_info["call_id"])
        if owner is None:
            raise call_not_found()
        if owner == parts.owner:
            return principal, None
        handed = self._internal and HANDED in request.headers
        if self._internal and not handed:
            raise call_not_found()
        if owner.cluster_id != parts.owner.cluster_id:
            if handed or parts.clusters is None:
                raise call_not_found()
            return principal, await parts.clusters.forward(owner.cluster_id, request, body)
        if owner.host == parts.owner.host:
            if owner.process >= parts.board.rows:
                raise call_not_found()
            return principal, await parts.siblings.forward(owner.process, request, body)
        if parts.peers is None or owner.host.port == 0:
            raise call_not_found()
        return principal, await parts.peers.forward(owner, request, body)

    def _principal(self, request: web.Request, now_s: float | None) -> Principal:
        return self._parts.auth.authenticate(request.headers.get("Authorization"), now_s)

    def _find(self, request: web.Request, principal: Principal) -> Call:
        call = self._parts.calls.find(request.match_info["call_id"])
        if call is None or not principal.owns(call.principal):
            raise call_not_found()
        return call

    async def healthz(self, _request: web.Request) -> web.Response:
        """Loop progress of every process."""
        ok = metrics.is_healthy(self._parts.board)
        return web.Response(status=200 if ok else 503, text="ok\n" if ok else "stuck\n")

    async def readyz(self, _request: web.Request) -> web.Response:
        """Serving and not draining."""
        ok = metrics.is_ready(self._parts.board)
        return web.Response(status=200 if ok else 503, text="ready\n" if ok else "not ready\n")

    async def metrics(self, _request: web.Request) -> web.Response:
        """Prometheus's text format."""
        self._parts.calls.count()
        return web.Response(
            body=metrics.render(self._parts.board, self._parts.fleet),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def demo_page(self, _request: web.Request) -> web.StreamResponse:
        """GET /."""
        assert self._parts.demo_dir is not None
        return web.FileResponse(self._parts.demo_dir / "index.html")

    async def demo_config(self, _request: web.Request) -> web.Response:
        """GET /demo/config.json."""
        return web.json_response(
            {"calls_url": CALLS_PATH, "version": version("voice-relay"), **self._parts.about},
            headers={"Cache-Control": "no-store"},
        )


async def _preflight(request: web.Request) -> web.Response:
    """OPTIONS: CORS, and what a WHIP client asks (RFC 9725 4.2)."""
    wanted = request.headers.get("Access-Control-Request-Headers", "")
    allowed = wanted if _HEADER_LIST.fullmatch(wanted) else _ALLOWED_HEADERS
    return web.Response(status=204, headers={**_PREFLIGHT, "Access-Control-Allow-Headers": allowed})


def _file(path: Path) -> Handler:
    async def serve(_request: web.Request) -> web.StreamResponse:
        return web.FileResponse(path)

    return serve


async def _nothing(_request: web.Request) -> web.Response:
    return web.Response(status=204)


async def _no_websocket(_request: web.Request) -> web.Response:
    message = f"Calls come over WebRTC, with an offer to POST {CALLS_PATH}; no WebSocket is served."
    raise RequestError(404, "websocket_not_served", message)


async def _no_sip(_request: web.Request) -> web.Response:
    message = "Calls come over WebRTC; accept, reject and refer are for those that come over SIP."
    raise RequestError(400, "not_a_sip_call", message)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        response = await handler(request)
    except RequestError as error:
        response = error_response(error)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        response = http_error_response(error, request)
    except Exception:
        get_logger().exception("request_failed", method=request.method, route=_route(request))
        response = error_response(
            RequestError(500, "internal_error", "The server failed to handle the request.")
        )
    return response


def _route(request: web.Request) -> str:
    """The pattern, not the path: a log line holds no id that was not checked."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "?"
