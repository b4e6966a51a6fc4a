"""Other clusters: offers handed over to the one that shall own the call, and requests for the calls there.

    request  POST <its URL>/v1/realtime/cluster, body: a sealed request (boxes.py), meant for that cluster
    answer   200, body: the sealed answer to it

1. The bearer travels sealed; the other cluster checks it as if the caller had come there, so that limits
   and what a client secret carries hold there. Where the caller is travels along (HANDED).
2. What came from another cluster stays in this one: it is neither handed on nor forwarded to a third.
3. Whatever goes wrong with an offer, the next cluster or this one takes it. A cluster that failed, or is full,
   is passed over for some seconds by the whole pool. Only a limit of the caller's own (429) is its answer.
4. A box is taken once by a process, from whoever holds the auth secret; everybody else gets 403.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import aiohttp
from aiohttp import web

from relay.wire.log import get_logger

from .body import MAX_BODY_BYTES, read_bounded
from .boxes import BETWEEN_CLUSTERS, Ask, PeerSeal
from .fleetboard import FleetBoard
from .peers import CONNECT_TIMEOUT_S, FORWARD_TIMEOUT_S, read_answer, unreachable
from .sealed_side import SealedSide
from .siblings import Reply, Siblings, call_not_found, forwarded_headers
from .sites import Cluster
from .steering import SOURCES, Place, Viewpoint, rank

CLUSTER_PATH = "/v1/realtime/cluster"
HANDED = "Voice-Relay-Handed"
"""On the unix sockets of a pool only: what came from another cluster, and the caller's viewpoint."""
HANDOVER_TIMEOUT_S = 1.0
HANDOVERS_MAX = 2
"""Clusters that one offer is handed to before this one takes it."""
FAILED_PAUSE_S = 5.0
FULL_PAUSE_S = 1.0
CLUSTER_BOX_MAX_BYTES = 2 * MAX_BODY_BYTES
"""An offer, and beside it a path and headers, whose strange bytes JSON makes six times as long."""


class Clusters:
    """This cluster's view of all of them, in one process."""

    def __init__(
        self, secret: bytes, own: Cluster, others: Sequence[Cluster], board: FleetBoard, row: int
    ) -> None:
        self.own = own
        self._others = {cluster.id: cluster for cluster in others}
        self._board = board
        self._row = row
        self._seal = PeerSeal(secret, BETWEEN_CLUSTERS)
        self._http: aiohttp.ClientSession | None = None

    def ranked(self, viewpoint: Viewpoint) -> list[Cluster]:
        """Which cluster to try first, and then: those elsewhere that are not well come after this one."""
        unhealthy = self._board.unhealthy_clusters(time.monotonic())
        ranked = rank([self.own, *self._others.values()], viewpoint, unhealthy)
        home = ranked.index(self.own)
        before, after = ranked[:home][:HANDOVERS_MAX], ranked[home + 1 :][:HANDOVERS_MAX]
        return [*before, self.own, *after]

    async def hand_over(
        self,
        cluster: Cluster,
        request: web.Request,
        sdp: str,
        session: Mapping[str, Any],
        viewpoint: Viewpoint,
    ) -> web.Response | None:
        """That cluster's answer to an offer, or None when it gives none that the caller should have."""
        headers = {
            **forwarded_headers(request),
            "Content-Type": "application/json",
            HANDED: write_viewpoint(viewpoint),
        }
        body = write_offer(sdp, session)
        if len(body) > MAX_BODY_BYTES:
            # Within the bounds as it came, not as it is written: its caller's doing, not that cluster's.
            self._board.handed(self._row, cluster.id, "refused")
            return None
        ask = Ask(cluster.id, "POST", request.rel_url.raw_path_qs, headers, body)
        reply = await self._ask(cluster, ask, HANDOVER_TIMEOUT_S)
        log = get_logger().bind(cluster=cluster.id)
        if reply is None:
            self._pass_over(cluster, FAILED_PAUSE_S, "failed")
            log.warning("handover_failed", pause_s=FAILED_PAUSE_S)
            return None
        if reply.status == 503:
            self._pass_over(cluster, FULL_PAUSE_S, "full")
            return None
        if reply.status not in (201, 429):
            self._board.handed(self._row, cluster.id, "refused")
            log.warning("handover_refused", status=reply.status)
            return None
        self._board.handed(self._row, cluster.id, "answered" if reply.status == 201 else "limited")
        if reply.status == 201:
            call_id = reply.headers.get("Location", "").rpartition("/")[2]
            log.info("call_handed_over", call_id=call_id, viewpoint=viewpoint.source)
        return reply.response()

    async def forward(self, cluster_id: int, request: web.Request, body: bytes) -> web.Response:
        """The response of the cluster that holds a call. RequestError 404 or 502."""
        cluster = self._others.get(cluster_id)
        if cluster is None:
            raise call_not_found()
        headers = {**forwarded_headers(request), HANDED: "{}"}
        ask = Ask(cluster.id, request.method, request.rel_url.raw_path, headers, body)
        reply = await self._ask(cluster, ask, FORWARD_TIMEOUT_S)
        if reply is None:
            raise unreachable()
        return reply.response()

    async def close(self) -> None:
        """Closes all connections."""
        if self._http is not None:
            await self._http.close()

    async def _ask(self, cluster: Cluster, ask: Ask, limit_s: float) -> Reply | None:
        box, asked = self._seal.seal_ask(ask, time.time())
        timeout = aiohttp.ClientTimeout(total=limit_s, connect=min(limit_s, CONNECT_TIMEOUT_S))
        try:
            async with self._session().post(
                cluster.url + CLUSTER_PATH, data=box, timeout=timeout, allow_redirects=False
            ) as response:
                if response.status != 200:
                    return None
                return self._seal.open_answer(await read_answer(response), asked)
        except (TimeoutError, aiohttp.ClientError, OSError):
            return None

    def _pass_over(self, cluster: Cluster, pause_s: float, outcome: str) -> None:
        self._board.handed(self._row, cluster.id, outcome)
        self._board.pass_over(self._row, cluster.id, time.monotonic() + pause_s)

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit_per_host=64),
                trust_env=False,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._http


def cluster_side(
    secret: bytes, cluster_id: int, process: int, siblings: Siblings
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """The handler of POST CLUSTER_PATH: what other clusters send, answered by this process's internal side."""
    side = SealedSide(PeerSeal(secret, BETWEEN_CLUSTERS), cluster_id, process, siblings)

    async def answer(request: web.Request) -> web.Response:
        return await side.answer(await read_bounded(request, CLUSTER_BOX_MAX_BYTES))

    return answer


def write_offer(sdp: str, session: Mapping[str, Any]) -> bytes:
    """An offer as JSON, text as short as it came. A lone surrogate, which UTF-8 has not, is read
    back by json.loads as it is written here.
    """
    offer = {"sdp": sdp, "session": session}
    text = json.dumps(offer, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def write_viewpoint(viewpoint: Viewpoint) -> str:
    """The value of HANDED."""
    place = viewpoint.place
    at = None if place is None else [place.latitude, place.longitude]
    return json.dumps({"at": at, "by": viewpoint.source})


def read_viewpoint(text: str) -> Viewpoint:
    """Of a value of HANDED, which a holder of the auth secret wrote, maybe one of another version."""
    value = json.loads(text)
    at, source = value.get("at"), value.get("by")
    known = source if source in SOURCES else "unknown"
    return Viewpoint(None if at is None else Place(*at), known)
