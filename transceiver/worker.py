"""One process of the pool: an event loop with its media socket, its HTTP listener and its calls.

1. Made by fork, never exec: imports, certificate and board are the pool's.
2. SIGTERM drains: no new calls, the others go on until they end or the time is up. SIGINT is the
   supervisor's business and ignored here.
3. When the supervisor is gone (its pipe closes) the calls end and so does the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

from relay.wire.address import Endpoint
from relay.wire.token import TokenCodec, TransceiverAddress

from .answer import Candidate
from .app import make_internal_app, make_public_app
from .auth import Authenticator
from .backends.base import Backend
from .backends.echo import EchoBackend
from .backends.link import LinkConfig, refuse_redirects
from .backends.loopback import LoopbackBackend
from .backends.realtime import RealtimeBackend, RealtimeConfig
from .board import Board, Serving
from .callid import NOWHERE, CallIds, Owner
from .calls import Calls, Home
from .clusters import CLUSTER_PATH, Clusters, cluster_side
from .config import TransceiverConfig
from .dtls import Identity
from .entry import DIRECT, Steering
from .fleetboard import FleetBoard
from .limits import KeyLimits
from .listener import Listener
from .media import MediaEngine
from .parts import AppParts
from .peers import BACKLOG, Peers, make_peer_app
from .recording import Recorder
from .siblings import Siblings, socket_path
from .sites import Ingress
from .warmup import warm_up

MEDIA_SESSIONS_MAX = 8_192
MEDIA_PLACES_SPARE = 64
"""An ended call's place is free a moment later than its session."""
SHUTDOWN_TIMEOUT_S = 2.0
DRAIN_POLL_S = 0.05
DRAIN_SLACK_S = 1.0
"""Between the end of the drain time and the end of this process, for processes that are late."""
WEB_DIR = Path(__file__).parent / "web"


@dataclass(frozen=True, slots=True)
class PoolParts:
    """What the supervisor made for all its processes."""

    config: TransceiverConfig
    http: Sequence[socket.socket]
    """Bound, one a process; each listens from its process's start on."""
    identity: Identity
    call_id_key: bytes
    board: Board
    key_limits: KeyLimits
    fleet: FleetBoard
    run_dir: Path
    peer: Endpoint = NOWHERE
    """Where other hosts reach process 0; process i has port + i."""


def run_worker(
    pool: PoolParts,
    process: int,
    media: socket.socket,
    peer: socket.socket | None,
    life_fd: int,
) -> int:
    """Serves until told to stop; returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    asyncio.run(_Worker(pool, process, media, peer, life_fd).run())
    return 0


class _Worker:
    def __init__(
        self,
        pool: PoolParts,
        process: int,
        media: socket.socket,
        peer: socket.socket | None,
        life_fd: int,
    ) -> None:
        self._pool = pool
        self._process = process
        self._media = media
        self._peer = peer
        self._life_fd = life_fd
        self._stop = asyncio.Event()
        self._orphaned = False

    async def run(self) -> None:
        """From the first listener to the last call."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        loop.add_reader(self._life_fd, self._on_orphaned)
        pool, config = self._pool, self._pool.config
        engine = MediaEngine(
            self._media,
            max_sessions=min(config.max_sessions, MEDIA_SESSIONS_MAX) + MEDIA_PLACES_SPARE,
            allowed_relays=config.allowed_relays,
            direct=config.direct,
        )
        recorder = None if config.record_dir is None else Recorder(config.record_dir)
        http = aiohttp.ClientSession(auto_decompress=False, trace_configs=[refuse_redirects()])
        calls, parts = self._make_parts(engine, http, recorder)
        listener, runners = await self._listen(parts)
        engine.start(loop)
        await warm_up(pool.identity, socket_path(pool.run_dir, self._process))
        ticker = asyncio.create_task(calls.run())
        pool.board.beat(self._process)
        pool.board.set(self._process, "pid", os.getpid())
        pool.board.set(self._process, "serving", Serving.SERVING)
        await self._stop.wait()
        await self._drain(calls, listener)
        calls.count()
        ticker.cancel()
        engine.stop()
        if recorder is not None:
            await loop.run_in_executor(None, recorder.close)
        await http.close()
        await parts.siblings.close()
        if parts.peers is not None:
            await parts.peers.close()
        if parts.clusters is not None:
            await parts.clusters.close()
        for runner in runners:
            await runner.cleanup()

    async def _drain(self, calls: Calls, listener: Listener) -> None:
        """Ends the calls, and then the HTTP of all processes together: as long as one has calls, each
        answers who comes that it takes no more.
        """
        board, drain_s = self._pool.board, self._pool.config.drain_timeout_s
        give_up_s = time.monotonic() + drain_s + DRAIN_SLACK_S
        board.set(self._process, "serving", Serving.DRAINING)
        listener.draining = True
        if not self._orphaned:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(calls.drained(), drain_s)
        calls.close_all("shutdown")
        board.set(self._process, "serving", Serving.DRAINED)
        over = {Serving.DRAINED, Serving.ENDED}
        while not {board.get(row, "serving") for row in range(board.rows)} <= over:
            if self._orphaned or time.monotonic() >= give_up_s:
                break
            await asyncio.sleep(DRAIN_POLL_S)
        await listener.close()

    def _on_orphaned(self) -> None:
        asyncio.get_running_loop().remove_reader(self._life_fd)
        self._orphaned = True
        self._stop.set()

    def _make_parts(
        self, engine: MediaEngine, http: aiohttp.ClientSession, recorder: Recorder | None
    ) -> tuple[Calls, AppParts]:
        pool, config = self._pool, self._pool.config
        host, port = self._media.getsockname()[:2]
        address = TransceiverAddress(config.cluster_id, config.media_advertise, port)
        owner = Owner(config.cluster_id, self._process, pool.peer)
        direct = Ingress(DIRECT, (Candidate(config.media_advertise, port),))
        ingresses = config.ingresses or (direct,)
        backends = _make_backends(config, http)
        about: dict[str, object] = {
            "transceiver": {
                "host": socket.gethostname(),
                "process": self._process,
                "pid": os.getpid(),
                "media": str(Endpoint.of(host, port)),
            },
            "cluster": config.cluster_id,
        }
        calls = Calls(
            home=Home(owner, address, about),
            codec=TokenCodec(config.keyring, config.ipv6_prefixes),
            call_ids=CallIds(pool.call_id_key),
            identity=pool.identity,
            engine=engine,
            board=pool.board,
            row=self._process,
            recorder=recorder,
            on_ended=lambda call: pool.key_limits.release(self._process, call.principal.name),
        )
        parts = AppParts(
            calls=calls,
            call_ids=CallIds(pool.call_id_key),
            owner=owner,
            board=pool.board,
            row=self._process,
            siblings=Siblings(pool.run_dir),
            peers=Peers(config.auth_secret) if self._peer and config.auth_secret else None,
            clusters=self._make_clusters(),
            auth=Authenticator(
                config.auth_secret or pool.call_id_key, config.api_keys, is_open=config.is_open
            ),
            steering=Steering(
                ingresses,
                config.second_ingress,
                config.cluster.place,
                config.trusted_proxies,
                config.geoip,
                pool.fleet.unhealthy_ingresses,
            ),
            fleet=pool.fleet,
            key_limits=pool.key_limits,
            backends=backends,
            span=config.span,
            max_sessions=config.max_sessions,
            demo_dir=WEB_DIR if config.demo_page else None,
            about={
                "needs_key": not config.is_open,
                "backends": list(backends),
                "cluster": config.cluster_id,
                "ingresses": {item.name: item.addresses() for item in ingresses},
            },
        )
        return calls, parts

    def _make_clusters(self) -> Clusters | None:
        pool, config = self._pool, self._pool.config
        if not config.other_clusters or config.auth_secret is None:
            return None
        return Clusters(
            config.auth_secret, config.cluster, config.other_clusters, pool.fleet, self._process
        )

    async def _listen(self, parts: AppParts) -> tuple[Listener, list[web.AppRunner]]:
        config = self._pool.config
        tls: ssl.SSLContext | None = None
        if config.tls_cert is not None:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(config.tls_cert, config.tls_key)
        internal = await _runner(make_internal_app(parts))
        path = socket_path(self._pool.run_dir, self._process)
        path.unlink(missing_ok=True)
        await web.UnixSite(internal, str(path)).start()
        runners = [internal]
        if self._peer is not None and config.auth_secret is not None:
            peer = await _runner(make_peer_app(config.auth_secret, self._process, parts.siblings))
            await web.SockSite(peer, self._peer, backlog=BACKLOG).start()
            runners.append(peer)
        app = make_public_app(parts)
        if parts.clusters is not None and config.auth_secret is not None:
            app.router.add_post(
                CLUSTER_PATH,
                cluster_side(config.auth_secret, config.cluster_id, self._process, parts.siblings),
            )
        public = await _runner(app)
        assert public.server is not None
        listener = Listener(self._pool.http, public.server, self._pool.board, self._process, tls)
        listener.start()
        return listener, [public, *runners]


def _make_backends(config: TransceiverConfig, http: aiohttp.ClientSession) -> dict[str, Backend]:
    """By name, the default first."""
    options = config.backends
    made: dict[str, Backend] = {}
    for spec in options.specs:
        if spec.url is not None:
            link = LinkConfig(spec.url, options.headers)
            made[spec.name] = RealtimeBackend(
                RealtimeConfig(link, options.dialect, options.session), http
            )
        else:
            made[spec.name] = EchoBackend() if spec.name == "echo" else LoopbackBackend()
    return made


async def _runner(app: web.Application) -> web.AppRunner:
    # The parser must not inflate a body that nobody has asked for yet.
    runner = web.AppRunner(
        app,
        access_log=None,
        auto_decompress=False,
        handle_signals=False,
        shutdown_timeout=SHUTDOWN_TIMEOUT_S,
    )
    await runner.setup()
    return runner
