"""The process that owns what must survive: sockets, flow tables, counters; it never reads a packet.

1. Single-threaded, one selector: pidfds, channels of children, signals, a tick ten times a second.
2. Everything is opened before the first child starts; a fault there ends with one line.
3. SIGTERM or SIGINT: the relay stops being ready, forwards until few flows are left or time is up,
   then ends with status 0. A second signal ends it at once.
4. It reaps whatever ends, adopted strangers included, since in a container it is process 1.
"""

import os
import resource
import selectors
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType

from relay._dataplane import create_stats, create_table
from relay.child import Child
from relay.config import LogConfig, ServeConfig
from relay.errors import RelayError, StartError
from relay.log import Logger
from relay.pool import PoolConfig, SlotDescriptors, WorkerPool
from relay.rundir import RunDir
from relay.sockets import bound_address, open_sockets
from relay.status import State, StatusPage, create_status

TICK_S = 0.1
STOP_LIMIT_S = 2.0
CONTROL_BACKOFF_S = 2.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Supervisor:
    """One relay host; `run` is its whole life."""

    def __init__(self, config: ServeConfig, log_config: LogConfig, log: Logger) -> None:
        """Bind and allocate everything. Raises RelayError and leaves nothing behind."""
        self._config = config
        self._log_config = log_config
        self._log = log
        _raise_descriptor_limit()
        self._sockets = open_sockets(
            config.listen,
            config.internal,
            config.admin,
            slots=config.workers,
            receive_buffer_bytes=config.receive_buffer_bytes,
            warn=log.warning,
        )
        try:
            self._run_dir = RunDir(config.run_dir)
        except RelayError:
            self._sockets.close()
            raise
        try:
            self._tables = [create_table(config.max_flows_per_worker) for _ in self._slots()]
            self._stats_fd = create_stats(config.workers)
        except (OSError, ValueError) as error:
            raise StartError(f"no memory for the flow tables: {error}") from None
        self._status_fd = create_status()
        self._status = StatusPage(self._status_fd, writable=True)
        self._selector = selectors.DefaultSelector()
        self._pool = WorkerPool(self._pool_config(), self._status, log, self._watch, self._unwatch)
        self._control: Child | None = None
        self._control_retry_at_s = 0.0
        self._control_started_s = 0.0
        self._stop_signals = 0
        self._drain_until_s = 0.0

    def run(self) -> int:
        """Serve until a signal; the exit status."""
        wakeup = self._take_signals()
        self._log_listening()
        self._pool.fill()
        self._start_control()
        try:
            while not self._done():
                for key, _ in self._selector.select(TICK_S):
                    callback: Callable[[], None] = key.data
                    callback()
                self._pool.tick()
                self._tick()
        finally:
            self._end()
            wakeup.close()
        return 0

    def _slots(self) -> range:
        return range(self._config.workers)

    # --- watching -----------------------------------------------------------------------------

    def _watch(self, fd: int, callback: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def _unwatch(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def _tick(self) -> None:
        if self._status.state is State.STARTING:
            if self._pool.serving:
                self._status.state = State.SERVING
                self._log.info("serving", workers=self._config.workers)
            elif self._pool.hopeless:
                raise StartError("the workers end before they serve (see the log above)")
        self._reap_strangers()
        if self._control is None and time.monotonic() >= self._control_retry_at_s:
            self._start_control()

    def _done(self) -> bool:
        if self._stop_signals == 0:
            return False
        few = self._pool.established_flows() < self._config.drain_min_flows
        if self._stop_signals == 1 and not few and time.monotonic() < self._drain_until_s:
            return False
        self._log.info("stopping", established_flows=self._pool.established_flows())
        return True

    # --- signals ------------------------------------------------------------------------------

    def _take_signals(self) -> socket.socket:
        """Turn signals into bytes on a watched pair; the returned end must stay open."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, _nothing)
        self._watch(ours.fileno(), lambda: self._on_signals(ours))
        return theirs

    def _on_signals(self, pipe: socket.socket) -> None:
        for number in pipe.recv(4096):
            if number in (signal.SIGTERM, signal.SIGINT):
                self._on_stop(signal.Signals(number))

    def _on_stop(self, number: signal.Signals) -> None:
        self._stop_signals += 1
        if self._stop_signals > 1:
            self._log.info("second_signal", signal=number.name)
            return
        self._status.state = State.DRAINING
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
            if ended is None or self._is_ours(ended.si_pid):
                return  # ours are reaped by their pidfds; strangers behind one come next time
            os.waitpid(ended.si_pid, os.WNOHANG)

    def _is_ours(self, pid: int) -> bool:
        return self._pool.has(pid) or (self._control is not None and self._control.pid == pid)

    # --- children -----------------------------------------------------------------------------

    def _pool_config(self) -> PoolConfig:
        return PoolConfig(
            slots=[
                SlotDescriptors(
                    public=[
                        (
                            group.sockets[slot].fileno(),
                            index,
                            (str(group.public.ip), group.public.port) if group.public else None,
                        )
                        for index, group in enumerate(self._sockets.public)
                    ],
                    internal=self._sockets.internal[slot].fileno(),
                    table=self._tables[slot],
                )
                for slot in self._slots()
            ],
            stats_fd=self._stats_fd,
            pins=self._config.pins,
            forward=self._config.forward_description(),
        )

    def _start_control(self) -> None:
        admin = self._sockets.admin
        assert admin is not None
        description = {
            "slots": self._config.workers,
            "stats": self._stats_fd,
            "status": self._status_fd,
            "tables": self._tables,
            "admin": admin.fileno(),
            "log_level": self._log_config.level,
            "log_format": self._log_config.format,
        }
        fds = [self._stats_fd, self._status_fd, *self._tables, admin.fileno()]
        self._control_started_s = time.monotonic()
        try:
            control = Child("relay.control", fds, description)
        except OSError as error:
            self._log.error("control_spawn_failed", reason=error.strerror)
            self._control_retry_at_s = time.monotonic() + CONTROL_BACKOFF_S
            return
        self._control = control
        self._log.debug("control_started", pid=control.pid)
        self._watch(control.pidfd, lambda: self._on_control_exit(control))

    def _on_control_exit(self, control: Child) -> None:
        how = control.reap()
        if how is None:
            return
        self._unwatch(control.pidfd)
        control.close()
        self._control = None
        lived_s = time.monotonic() - self._control_started_s
        self._control_retry_at_s = time.monotonic() + max(0.0, CONTROL_BACKOFF_S - lived_s)
        self._status.count_control_restart()
        self._log.error("control_died", pid=control.pid, how=how)

    def _end(self) -> None:
        """End all children and give everything back; never later than STOP_LIMIT_S."""
        self._pool.stop()
        if self._stop_signals > 1:
            self._pool.kill()
        if self._control is not None:
            self._unwatch(self._control.pidfd)
            self._control.kill()
            os.waitpid(self._control.pid, 0)
        limit_s = time.monotonic() + STOP_LIMIT_S
        while self._pool.running:
            for key, _ in self._selector.select(TICK_S):
                callback: Callable[[], None] = key.data
                callback()
            if time.monotonic() > limit_s:
                self._pool.kill()
        self._sockets.close()
        self._run_dir.close()
        self._log.info("stopped")

    def _log_listening(self) -> None:
        for group in self._sockets.public:
            details = {"public": str(group.public)} if group.public else {}
            self._log.info("listening", role="public", address=str(group.bound), **details)
        for slot, sock in enumerate(self._sockets.internal):
            self._log.info(
                "listening", role="internal", address=str(bound_address(sock)), slot=slot
            )
        if self._sockets.admin is not None:
            admin = bound_address(self._sockets.admin)
            self._log.info("listening", role="admin", address=str(admin))


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """A handler must exist for the wakeup descriptor to be written."""


def _raise_descriptor_limit() -> None:
    """Every worker holds every slot's sockets: use as many descriptors as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            pass
