"""Offers: from a request to a call, in this cluster or in the one that is nearer to the caller.

1. Nothing is allocated, and nobody else is asked, before the bearer and the offer are checked.
2. What another cluster handed over is answered here or refused; the other one decides what then.
3. Limits are taken where the call will live.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from aiohttp import web

from .auth import Principal
from .backends.base import Backend, Event
from .backends.policy import restrict
from .backends.session_record import merge
from .board import Serving
from .body import read_offer_body
from .clusters import Clusters
from .entry import Entry
from .errors import RequestError
from .offer import Offer, read_offer
from .parts import AppParts
from .session import Call, CallRequest
from .steering import Viewpoint

CALLS_PATH = "/v1/realtime/calls"
RETRY_AFTER_S = 5


@dataclass(frozen=True, slots=True)
class _Asked:
    """An offer that has been read and may be answered."""

    request: web.Request
    offer: Offer
    principal: Principal
    session: Event
    backend: Backend
    entry: Entry
    offered_s: float


class Reception:
    """Receives the offers of one process."""

    def __init__(self, parts: AppParts) -> None:
        self._parts = parts

    async def receive(
        self, request: web.Request, handed: Viewpoint | None, offered_s: float
    ) -> web.Response:
        """The answer to an offer that came at `offered_s` (monotonic); `handed` is where the caller is
        when another cluster handed it over, else None. Raises RequestError.
        """
        parts = self._parts
        principal = parts.auth.authenticate(request.headers.get("Authorization"), time.time())
        clusters = parts.clusters if handed is None else None
        if clusters is None:
            self._check_serving()
        sdp, session = await read_offer_body(request)
        offer = read_offer(sdp)
        backend = self._backend(request)
        viewpoint = handed or parts.steering.viewpoint(request)
        entry = parts.steering.enter(viewpoint, request.query.get("ingress"))
        asked = _Asked(request, offer, principal, session, backend, entry, offered_s)
        if clusters is None:
            return self._answer(asked)
        return await self._place(asked, clusters, sdp, viewpoint)

    async def _place(
        self, asked: _Asked, clusters: Clusters, sdp: str, viewpoint: Viewpoint
    ) -> web.Response:
        """The answer of the best cluster that gives one; this one's refusal when none does."""
        refused: RequestError | None = None
        for cluster in clusters.ranked(viewpoint):
            if cluster is clusters.own:
                try:
                    return self._answer(asked)
                except RequestError as error:
                    if error.status != 503:
                        raise
                    refused = error
                continue
            response = await clusters.hand_over(
                cluster, asked.request, sdp, asked.session, viewpoint
            )
            if response is not None:
                return response
        assert refused is not None
        raise refused

    def _check_serving(self) -> None:
        if self._parts.board.get(self._parts.row, "serving") in (Serving.DRAINING, Serving.DRAINED):
            raise RequestError(
                503, "draining", "The server is shutting down.", retry_after_s=RETRY_AFTER_S
            )

    def _answer(self, asked: _Asked) -> web.Response:
        """This process's own answer. Raises RequestError."""
        parts = self._parts
        self._check_serving()
        name = asked.principal.name
        parts.key_limits.take(parts.row, name, time.time())
        try:
            call, answer = self._open(asked)
        except BaseException:
            parts.key_limits.release(parts.row, name)
            raise
        parts.fleet.chose(parts.row, asked.entry)
        return web.Response(
            status=201,
            text=answer,
            content_type="application/sdp",
            headers={
                "Location": f"{CALLS_PATH}/{call.call_id}",
                "Server-Timing": f"answer;dur={call.timeline_ms['answer']}",
            },
        )

    def _open(self, asked: _Asked) -> tuple[Call, str]:
        parts, principal = self._parts, asked.principal
        if not parts.board.admit(parts.row, parts.max_sessions):
            raise RequestError(
                503,
                "session_limit",
                f"All {parts.max_sessions} sessions are taken.",
                retry_after_s=RETRY_AFTER_S,
            )
        # What a client secret carries holds; of what comes with the offer, only what it leaves open.
        allowed, _ = restrict(asked.session, principal.updatable)
        if principal.updatable is not None:
            allowed.pop(
                "type", None
            )  # a backend would refuse another one later; here it would still be obeyed
        return parts.calls.open(
            CallRequest(
                offer=asked.offer,
                principal=principal,
                session=merge(dict(principal.session), allowed),
                backend=asked.backend,
                span=parts.span.shortened(principal.max_call_s),
                negotiated_channel=asked.request.query.get("dcid") == "0",
                offered_s=asked.offered_s,
                entry=asked.entry,
            )
        )

    def _backend(self, request: web.Request) -> Backend:
        backends = self._parts.backends
        name = request.query.get("backend") or next(iter(backends))
        backend = backends.get(name)
        if backend is None:
            message = f"There is no such backend; there are: {', '.join(backends)}."
            raise RequestError(400, "unknown_backend", message, param="backend")
        return backend
