"""The supervisor: opens what must survive a process, forks the processes, replaces and ends them.

1. It parses nothing and runs no event loop; it waits for signals.
2. A process that ends is replaced after a pause that doubles up to 5 s, and is 50 ms again after
   a good minute. Its media socket, and what is queued in it, goes to the replacement.
3. The HTTP sockets are the pool's, too: one a process, and all of them in every process
   (listener.py says why).
4. A pool whose processes fail at their start, time and again, ends with status 1.
5. A process whose loop has stood still for 10 s is killed, and so replaced; its calls are lost.
   Who comes meanwhile is served by the others.
6. SIGTERM or SIGINT drains and ends with status 0; a second one ends at once, also with 0.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from relay.wire.address import Endpoint
from relay.wire.log import get_logger
from relay.wire.signals import MEANINGLESS, Terminal

from .board import Board, Serving
from .callid import KEY_BYTES, NOWHERE, derive_key
from .config import TransceiverConfig
from .dtls import Identity
from .errors import BindError, ConfigError
from .fleetboard import FleetBoard
from .limits import KeyLimits
from .metrics import board_names, lose_calls, reset_gauges
from .peers import open_peers
from .sockets import open_http, open_media
from .steering import read_tables
from .watchdog import Watchdog
from .worker import PoolParts, run_worker

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0
GOOD_LIFE_S = 60.0
POLL_S = 0.02
WAKE_S = 0.5
WATCH_PAUSE_S = 1.0
END_GRACE_S = 8.0
FAILED_STARTS_MAX = 5
DESCRIPTORS_MIN = 40
DESCRIPTORS_PER_WORKER = 4
MAX_RUN_DIR_BYTES = 90  # sun_path has 108 (unix(7))

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGALRM)
_MUTE = (signal.SIGHUP, *MEANINGLESS)
"""Stay blocked in children, which shall not end of them."""


@dataclass(slots=True)
class _Slot:
    """One process's place in the pool."""

    media: socket.socket
    peer: socket.socket | None
    pid: int = 0
    started_s: float = 0.0
    pause_s: float = FIRST_PAUSE_S
    due_s: float = field(default=0.0)


class Pool:
    """A pool of processes; `run` is its whole life."""

    def __init__(self, config: TransceiverConfig) -> None:
        self._config = config
        self._log = get_logger()
        self._slots: list[_Slot] = []
        self._board = Board(config.workers, board_names())
        self._watchdog = Watchdog(self._board)
        self._key_limits = KeyLimits(config.workers, config.api_keys)
        self._fleet = FleetBoard(
            config.workers,
            [item.name for item in config.ingresses],
            [cluster.id for cluster in config.other_clusters],
            has_watch=bool(config.redis),
        )
        self._http: list[socket.socket] = []
        self._watch_pid = 0
        self._watch_due_s = 0.0
        self._announced = False
        self._failed_starts = 0

    def run(self) -> int:
        """Serves until a signal; returns the exit status. Raises BindError when an address
        cannot be bound.
        """
        _raise_descriptor_limit(self._config.workers)
        with contextlib.ExitStack() as owned:
            self._http = [owned.enter_context(one) for one in self._open_http()]
            peers = [owned.enter_context(peer) for peer in self._open_peers()]
            for process in range(self._config.workers):
                media = owned.enter_context(self._open_media(process))
                self._slots.append(_Slot(media, peers[process] if peers else None))
            run_dir = _make_run_dir()
            owned.callback(shutil.rmtree, run_dir, ignore_errors=True)
            return self._start(run_dir)

    def _start(self, run_dir: Path) -> int:
        if self._config.trusted_proxies or self._config.geoip is not None:
            read_tables()
        if self._config.redis:
            # redis, only where there is one; now, so that a watch in a place of another needs no disk.
            import_module(".fleet", __package__)
        self._terminal = Terminal()
        signal.pthread_sigmask(signal.SIG_BLOCK, {*_SIGNALS, *_MUTE})
        self._life = os.pipe()
        self._parts = PoolParts(
            config=self._config,
            http=self._http,
            identity=Identity.generate(),
            call_id_key=(
                derive_key(self._config.auth_secret)
                if self._config.auth_secret is not None
                else secrets.token_bytes(KEY_BYTES)
            ),
            board=self._board,
            key_limits=self._key_limits,
            fleet=self._fleet,
            run_dir=run_dir,
            peer=self._peer_place(),
        )
        return self._supervise(Endpoint.of(*self._http[0].getsockname()[:2]))

    def _open_http(self) -> list[socket.socket]:
        at = self._config.http
        try:
            return open_http(at, self._config.workers)
        except OSError as error:
            raise BindError(f"--http: {at}: {error.strerror}") from None

    def _open_media(self, process: int) -> socket.socket:
        at = self._config.media
        port = at.port + process if at.port else 0
        try:
            return open_media(str(at.ip), port)
        except OSError as error:
            raise BindError(f"--media: {Endpoint(at.ip, port)}: {error.strerror}") from None

    def _open_peers(self) -> list[socket.socket]:
        at = self._config.peer
        if at is None:
            return []
        try:
            return open_peers(at, self._config.workers)
        except OverflowError:
            raise ConfigError(f"--peer: {at}: leaves no ports for every process") from None
        except OSError as error:
            raise BindError(f"--peer: {at}: {error.strerror}") from None

    def _peer_place(self) -> Endpoint:
        """What call ids carry."""
        first, address = self._slots[0].peer, self._config.peer_advertise
        if first is None or address is None:
            return NOWHERE
        return Endpoint(address, first.getsockname()[1])

    def _supervise(self, http: Endpoint) -> int:
        for process, slot in enumerate(self._slots):
            address = Endpoint.of(*slot.media.getsockname()[:2])
            self._log.info("listening", role="media", address=str(address), process=process)
            if slot.peer is not None:
                address = Endpoint.of(*slot.peer.getsockname()[:2])
                self._log.info("listening", role="peer", address=str(address), process=process)
            self._fork(process)
        while True:
            self._restart_due()
            self._keep_watch()
            self._kill_hung()
            if not self._announced and self._all_serving():
                self._announced = True
                self._log.info(
                    "listening",
                    role="http",
                    address=str(http),
                    processes=len(self._slots),
                    tls=self._config.tls_cert is not None,
                )
            if not self._announced and self._failed_starts >= FAILED_STARTS_MAX:
                return self._give_up()
            signum = _wait_for_signal(self._pause_s())
            if signum is None:
                continue
            if signum == signal.SIGCHLD:
                self._reap(replace=True)
            elif signum in _MUTE and not (signum == signal.SIGHUP and self._terminal.is_closed()):
                self._log.warning("signal_without_meaning", signal=signal.Signals(signum).name)
            else:
                return self._drain(signum)

    def _pause_s(self) -> float:
        """How long nothing is due."""
        if not self._announced:
            return POLL_S
        due_s = min((slot.due_s for slot in self._slots if slot.pid == 0), default=math.inf)
        return min(WAKE_S, max(0.0, due_s - time.monotonic()))

    def _give_up(self) -> int:
        """What has never served will not do so the next time; better an end than a silent loop."""
        self._log.error("start_failed", attempts=self._failed_starts)
        self._signal_all(signal.SIGKILL)
        return 1

    def _fork(self, process: int) -> None:
        slot = self._slots[process]
        reset_gauges(self._board, process)
        self._watchdog.forget(process)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(self._life[1])
                self._close_peers_of_others(slot)
                signal.set_wakeup_fd(-1)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
                status = run_worker(self._parts, process, slot.media, slot.peer, self._life[0])
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        slot.pid, slot.started_s = pid, time.monotonic()

    def _close_peers_of_others(self, slot: _Slot | None) -> None:
        """A port nobody accepts on must refuse, so that its calls are known to be gone."""
        for other in self._slots:
            if other is not slot and other.peer is not None:
                other.peer.close()

    def _close_sockets(self) -> None:
        """A process that serves nobody holds no port: the next pool can have it when this one ends."""
        self._close_peers_of_others(None)
        for one in (*self._http, *(slot.media for slot in self._slots)):
            one.close()

    def _all_serving(self) -> bool:
        return all(
            self._board.get(row, "serving") == Serving.SERVING for row in range(len(self._slots))
        )

    def _reap(self, *, replace: bool) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._watch_pid:
                self._watch_pid = 0
                self._watch_due_s = time.monotonic() + WATCH_PAUSE_S
                self._log.error("watch_ended", restart_in_s=WATCH_PAUSE_S)
            for process, slot in enumerate(self._slots):
                if slot.pid == pid:
                    self._bury(process, slot, status, replace=replace)

    def _bury(self, process: int, slot: _Slot, status: int, *, replace: bool) -> None:
        slot.pid = 0
        calls = lose_calls(self._board, process)
        self._key_limits.forget(process)
        if not replace:
            self._board.set(process, "serving", Serving.ENDED)
            if slot.peer is not None:
                slot.peer.close()
            return
        lived_s = time.monotonic() - slot.started_s
        if lived_s >= GOOD_LIFE_S:
            slot.pause_s = FIRST_PAUSE_S
        slot.due_s = time.monotonic() + slot.pause_s
        self._log.error(
            "process_ended",
            process=process,
            status=os.waitstatus_to_exitcode(status),
            calls_lost=calls,
            restart_in_s=slot.pause_s,
        )
        slot.pause_s = min(2 * slot.pause_s, LONGEST_PAUSE_S)
        if self._board.get(process, "serving") == Serving.STARTING:
            self._failed_starts += 1
        else:
            self._board.set(process, "serving", Serving.RESTARTING)

    def _restart_due(self) -> None:
        now_s = time.monotonic()
        for process, slot in enumerate(self._slots):
            if slot.pid == 0 and now_s >= slot.due_s:
                self._board.add(process, "restarts")
                self._fork(process)

    def _keep_watch(self) -> None:
        """A watch (fleet.py), where there is a Redis to watch."""
        config = self._config
        if not config.redis or self._watch_pid or time.monotonic() < self._watch_due_s:
            return
        pid = os.fork()
        if pid == 0:
            try:
                os.close(self._life[1])
                self._close_sockets()
                signal.set_wakeup_fd(-1)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
                from .fleet import WatchParts, run_watch

                parts = WatchParts(
                    config.redis, config.cluster_id, config.max_sessions, self._board, self._fleet
                )
                run_watch(parts, self._life[0])
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(1)
        self._watch_pid = pid

    def _kill_hung(self) -> None:
        for process, still_s in self._watchdog.hung(time.monotonic()).items():
            slot = self._slots[process]
            if slot.pid:
                self._log.error("process_hung", process=process, still_s=round(still_s, 1))
                self._watchdog.forget(process)
                os.kill(slot.pid, signal.SIGKILL)

    def _drain(self, signum: int) -> int:
        self._log.info("draining", calls=self._board.total("admitted"))
        self._signal_all(signal.SIGTERM)
        deadline_s = time.monotonic() + self._config.drain_timeout_s + END_GRACE_S
        while any(slot.pid for slot in self._slots):
            left_s = deadline_s - time.monotonic()
            again = _wait_for_signal(min(left_s, WAKE_S))
            if again in (signal.SIGTERM, signal.SIGINT):
                self._signal_all(signal.SIGKILL)
                self._log.warning("stopped_at_once")
                return 0
            self._kill_hung()
            self._reap(replace=False)
            if left_s <= 0:
                self._signal_all(signal.SIGKILL)
        self._log.info("stopped")
        return 0

    def _signal_all(self, signum: int) -> None:
        for slot in self._slots:
            if slot.pid:
                try:
                    os.kill(slot.pid, signum)
                except ProcessLookupError:
                    pass


def _wait_for_signal(timeout_s: float) -> int | None:
    """The next of _SIGNALS and _MUTE, or None when none comes in time.

    CPython's sigtimedwait returns a signal that nobody sent when the process was stopped (SIGSTOP, a
    frozen container) for longer than its time; sigwaitinfo does not.
    """
    signal.setitimer(signal.ITIMER_REAL, max(timeout_s, 0.001))
    signum = signal.sigwaitinfo({*_SIGNALS, *_MUTE}).si_signo
    return None if signum == signal.SIGALRM else signum


def _make_run_dir() -> Path:
    """A directory for the processes' unix sockets, for this user only."""
    made = tempfile.mkdtemp(prefix="transceiver-")
    if len(os.fsencode(made)) > MAX_RUN_DIR_BYTES:
        os.rmdir(made)
        made = tempfile.mkdtemp(prefix="transceiver-", dir="/tmp")
    return Path(made)


def _raise_descriptor_limit(workers: int) -> None:
    """Each client of HTTP and each backend is a descriptor: use as many as allowed. Raises BindError for too few."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = DESCRIPTORS_MIN + DESCRIPTORS_PER_WORKER * workers
    if 0 <= hard < least:  # -1: no limit
        raise BindError(
            f"only {hard} descriptors are allowed (ulimit -n); {workers} processes need {least}"
        )
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
