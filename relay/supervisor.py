"""The process that owns what must survive: sockets, flow tables, counters; it never reads a packet.

1. Single-threaded, one selector: pidfds, channels of children, signals, a tick ten times a second.
2. Everything is opened, or taken over, before the first child starts; a fault there is one line.
3. SIGTERM or SIGINT: the relay stops being ready, forwards until few flows are left or time is up,
   then ends with status 0. A second signal ends it at once.
4. SIGHUP: it starts its own successor, the version that is on disk now, which takes over; when it comes
   because the terminal was closed, it drains instead.
5. It reaps whatever ends, adopted strangers included, since in a container it is process 1.
"""

import os
import resource
import signal
import sys
import time

from relay.attendant import ControlKeeper
from relay.cachelink import open_cache_link
from relay.config import LogConfig, ServeConfig
from relay.errors import HandoverError, StartError
from relay.estate import Estate, adopt_estate, open_estate
from relay.events import Events
from relay.handover import Predecessor, Successor
from relay.notify import barrier, notify
from relay.pool import PoolConfig, WorkerPool
from relay.rundir import connect_takeover
from relay.signals import ANSWERED, SignalPipe
from relay.status import State, StatusPage, create_status
from relay.takeover import Takeover
from relay.tuning import tune
from relay.wire.log import Logger
from relay.wire.signals import MEANINGLESS, Terminal

TICK_S = 0.1
STOP_LIMIT_S = 2.0


class Supervisor:
    """One relay host; `run` is its whole life."""

    def __init__(self, config: ServeConfig, log_config: LogConfig, log: Logger) -> None:
        """Bind and allocate everything, or receive it. Raises RelayError."""
        self._config = config
        self._log = log
        self._terminal = Terminal()  # before SIGHUP has a handler
        self._signals = SignalPipe(ANSWERED)  # before there is anything to be ended in good order
        _raise_descriptor_limit()
        predecessor: Predecessor | None = None
        if config.takeover:
            predecessor = Predecessor(connect_takeover(config.run_dir))
            self._estate = _adopt(predecessor, config, log)
        else:
            self._estate = open_estate(config, log)
            self._tune()
        status_fd = create_status()
        self._status = StatusPage(status_fd, writable=True)
        self._events = Events()
        cache = (
            open_cache_link(config.redis, config.cache_lookups_per_s, config.workers)
            if config.redis
            else None
        )
        pool_config = PoolConfig(
            slots=self._estate.slot_descriptors(),
            stats_fd=self._estate.stats_fd,
            pins=config.pins,
            coalesce_us=config.coalesce_us,
            busy_poll_us=config.busy_poll_us,
            forward=config.forward_description(),
            cache=cache,
        )
        self._pool = WorkerPool(
            pool_config, self._status, log, self._events, held=predecessor is None
        )
        self._control = ControlKeeper(
            self._estate,
            status_fd,
            self._status,
            log_config,
            log,
            cache,
            config.ingress_name,
            self._events,
            config.cluster_routes,
        )
        self._takeover: Takeover | None = None
        if predecessor is not None:
            self._takeover = Takeover(predecessor, self._pool, config.workers, log, self._events)
        self._successor: Successor | None = None
        self._successor_pid: int | None = None
        self._handed_over = False
        self._stop_signals = 0
        self._drain_until_s = 0.0

    def run(self) -> int:
        """Serve until a signal or a successor ends it; the exit status."""
        self._events.watch(self._signals.fileno(), self._on_signals)
        self._events.watch(self._estate.run_dir.listener.fileno(), self._on_successor)
        self._estate.log_listening(self._log)
        self._pool.fill()
        reason = "the successor failed"
        try:
            while not self._done():
                self._turn()
        except HandoverError as error:
            reason = str(error)
            raise
        finally:
            self._end(reason)
        return 0

    # --- one turn of the loop -----------------------------------------------------------------

    def _turn(self) -> None:
        self._events.turn(TICK_S)
        self._pool.tick()
        if self._takeover is not None:
            self._takeover.tick()
            if not self._takeover.finished:
                return
            self._takeover = None
            self._estate.run_dir.claim()
            self._tune()
            self._log.info("taken_over")
        if self._successor is not None:
            self._successor.tick()
        self._control.tick()
        self._reap_strangers()
        if self._status.state is State.STARTING:
            self._check_started()

    def _tune(self) -> None:
        """Not before the sockets are this process's own: a takeover may still fail."""
        tune(
            self._estate.sockets,
            steer_to=self._config.pins if self._config.steer == "cpu" else None,
            busy_poll_us=self._config.busy_poll_us,
            warn=self._log.warning,
        )

    def _check_started(self) -> None:
        if self._pool.serving:
            self._status.state = State.SERVING
            self._log.info("serving", workers=self._config.workers)
            notify("READY=1", f"MAINPID={os.getpid()}")
        elif self._pool.hopeless:
            raise StartError("the workers end before they serve (see the log above)")

    def _done(self) -> bool:
        if self._handed_over:
            return True
        if self._stop_signals == 0:
            return False
        if self._takeover is not None:
            raise HandoverError("a signal came during the takeover")
        few = self._pool.established_flows() < self._config.drain_min_flows
        if self._stop_signals == 1 and not few and time.monotonic() < self._drain_until_s:
            return False
        self._log.info("stopping", established_flows=self._pool.established_flows())
        return True

    # --- signals ------------------------------------------------------------------------------

    def _on_signals(self) -> None:
        for number in self._signals.read():
            if number in (signal.SIGTERM, signal.SIGINT):
                self._on_stop(number)
            elif number in MEANINGLESS:
                self._log.warning("signal_without_meaning", signal=number.name)
            elif number == signal.SIGHUP and not self._terminal.is_closed():
                self._start_successor()
            elif self._stop_signals == 0:
                self._on_stop(number)  # once: the kernel repeats it as the shell ends

    def _on_stop(self, number: signal.Signals) -> None:
        self._stop_signals += 1
        if self._stop_signals > 1:
            self._log.info("second_signal", signal=number.name)
            return
        if self._successor is not None:
            self._successor.abort("the running relay is told to end")
        self._status.state = State.DRAINING
        notify("STOPPING=1")
        self._drain_until_s = time.monotonic() + self._config.drain_timeout_s
        self._log.info(
            "draining",
            signal=number.name,
            established_flows=self._pool.established_flows(),
            timeout_s=self._config.drain_timeout_s,
        )

    def _reap_strangers(self) -> None:
        """Reap children that are not ours: orphans that a container hands to process 1."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None or self._pool.has(ended.si_pid) or self._control.has(ended.si_pid):
                return  # ours are reaped by their pidfds; strangers behind one come next time
            os.waitpid(ended.si_pid, os.WNOHANG)
            if ended.si_pid == self._successor_pid:
                self._successor_pid = None
                self._log.error("successor_failed", pid=ended.si_pid, status=ended.si_status)

    # --- a successor --------------------------------------------------------------------------

    def _start_successor(self) -> None:
        """What is on disk now, with this process's options, as a child that takes over."""
        if os.getpid() == 1:
            self._log.warning("no_successor", reason="process 1 of a container cannot be replaced")
            return
        if self._successor_pid is not None or self._takeover is not None or self._stop_signals:
            self._log.warning("no_successor", reason="a takeover or a drain is under way")
            return
        arguments = [sys.executable, *sys.orig_argv[1:]]
        if "--takeover" not in arguments:
            arguments.append("--takeover")
        try:
            self._successor_pid = os.posix_spawn(sys.executable, arguments, os.environ)
        except OSError as error:
            self._log.error("successor_failed", reason=error.strerror)
            return
        self._log.info("successor_started", pid=self._successor_pid)

    def _on_successor(self) -> None:
        try:
            conn, _ = self._estate.run_dir.listener.accept()
        except OSError:
            return
        refusal = None
        if self._takeover is not None or self._successor is not None:
            refusal = "a takeover is under way"
        elif self._status.state is not State.SERVING:
            refusal = f"it is {self._status.state.name.lower()}"
        successor = Successor(
            conn,
            self._estate,
            self._pool,
            self._log,
            self._events,
            refusal=refusal,
            ended=self._on_handover_ended if refusal is None else lambda _: None,
        )
        if refusal is None:
            self._successor = successor

    def _on_handover_ended(self, handed_over: bool) -> None:
        self._handed_over = handed_over
        if handed_over and self._successor is not None:
            self._log.info("handed_over", successor=self._successor.pid)
            notify(f"MAINPID={self._successor.pid}")
            barrier()
        else:
            self._successor = None

    # --- the end ------------------------------------------------------------------------------

    def _end(self, reason: str) -> None:
        """End all children and give everything back; never much later than STOP_LIMIT_S."""
        self._events.unwatch(self._signals.fileno())
        self._pool.stop()
        if self._stop_signals > 1:
            self._pool.kill()
        self._control.end()
        limit_s = time.monotonic() + STOP_LIMIT_S
        while self._pool.running:
            self._events.turn(TICK_S)
            if time.monotonic() > limit_s:
                self._pool.kill()
        if self._takeover is not None:
            self._takeover.abort(reason)
        self._estate.close()
        self._log.info("stopped")


def _adopt(predecessor: Predecessor, config: ServeConfig, log: Logger) -> Estate:
    try:
        return adopt_estate(predecessor.manifest, predecessor.fds, config, log)
    except Exception as error:
        predecessor.abort(str(error))
        raise


def _raise_descriptor_limit() -> None:
    """Every worker holds every slot's sockets: use as many descriptors as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            pass
