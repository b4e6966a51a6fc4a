"""The workers of a relay host: one for each slot, and one warm standby.

1. All workers are the same program (relay/worker.py) with every slot's descriptors; which slot one
   serves is decided when it takes it.
2. A slot never has two writers: it is given away only after its last worker has been reaped.
3. A worker that served well is replaced at once. One that dies again and again waits, at most a
   second, since the kernel goes on choosing its socket.
4. A slot that passes to or from another supervisor (relay/handover.py) is not held meanwhile.
5. A worker whose loop has stood still for a second is killed, reaped, then replaced. When this
   process itself was late, everybody was, and nobody is judged.
"""

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from relay._dataplane import Stats
from relay.cachelink import CacheLink
from relay.child import Child
from relay.cpus import read_activity
from relay.events import Events
from relay.status import StatusPage
from relay.wire.log import Logger

HUNG_AFTER_S = 1.0
TAKING_LIMIT_S = 2.0
"""From a slot given to a warm worker until it serves; a large table is counted first."""
STARVED_LIMIT_S = 10.0
"""A worker that gets no CPU for so long is replaced all the same."""
STARTING_LIMIT_S = 15.0
RELEASE_LIMIT_S = 1.0
SERVED_WELL_S = 0.5
BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 1.0
HOPELESS_AFTER = 5


@dataclass(frozen=True)
class SlotDescriptors:
    """What one slot's worker reads and writes."""

    public: Sequence[tuple[int, int, tuple[str, int] | None]]
    """(descriptor, index of the public group, advertised address) of each public socket."""
    internal: int
    backbone: int
    """-1: none."""
    table: int


@dataclass(frozen=True)
class PoolConfig:
    """What every worker is told."""

    slots: Sequence[SlotDescriptors]
    stats_fd: int
    pins: Sequence[int] | None
    coalesce_us: int
    busy_poll_us: int
    forward: Mapping[str, object]
    """The arguments of ForwardConfig in JSON, keys in hex."""
    cache: CacheLink | None


@dataclass
class _Member:
    """A worker process and what it has said so far."""

    child: Child
    stop_fd: int
    since_s: float
    """When it was started, then when it took its slot."""
    ready: bool = False
    taking: bool = False
    """It was given a slot, whether it serves it yet or not."""
    serving: bool = False
    killed: bool = False
    stopped_at_s: float | None = None
    """When it was told to give up its slot."""
    progress_s: float = 0.0
    """The last progress that was seen."""
    cpu_at_progress_s: float = 0.0
    """CPU time that it had used by then."""

    def note_progress(self, progress_s: float) -> None:
        """Remember how much CPU time the last progress had cost."""
        if progress_s != self.progress_s:
            self.progress_s = progress_s
            self.cpu_at_progress_s = read_activity(self.child.pid).cpu_s

    def is_starved(self) -> bool:
        """Whether it wants to run and hardly got a CPU since its last progress."""
        activity = read_activity(self.child.pid)
        used_s = activity.cpu_s - self.cpu_at_progress_s
        return activity.runnable and used_s < HUNG_AFTER_S / 2


@dataclass
class _Slot:
    held: bool
    """Whether this pool is the one to serve it."""
    member: _Member | None = None
    on_released: Callable[[], None] | None = None
    quick_deaths: int = 0
    retry_at_s: float = 0.0


class WorkerPool:
    """Keeps every slot served. `tick` is called a few times a second."""

    def __init__(
        self,
        config: PoolConfig,
        status: StatusPage,
        log: Logger,
        events: Events,
        *,
        held: bool = True,
    ) -> None:
        """With `held` false no slot is served before `hold`, but a warm worker waits for each."""
        self._config = config
        self._status = status
        self._log = log
        self._events = events
        self._stats = Stats(config.stats_fd, len(config.slots))
        self._slots = [_Slot(held) for _ in config.slots]
        self._warm: list[_Member] = []
        self._reserve = 1 if held else len(config.slots) + 1
        self._deaths = 0
        self._spawn_failures = 0
        self._spawn_at_s = 0.0
        self._last_tick_s = time.monotonic()
        self._pin_warned = False
        self._stopping = False
        self._life_read, self._life_write = os.pipe2(os.O_CLOEXEC)

    @property
    def serving(self) -> bool:
        """Whether every slot has a worker that forwards."""
        return all(slot.member is not None and slot.member.serving for slot in self._slots)

    @property
    def hopeless(self) -> bool:
        """Whether workers die one after the other without ever serving."""
        deaths = max(slot.quick_deaths for slot in self._slots)
        return max(deaths, self._spawn_failures) >= HOPELESS_AFTER

    @property
    def deaths(self) -> int:
        """Workers that ended without being told to, ever."""
        return self._deaths

    @property
    def running(self) -> bool:
        """Whether any worker process exists."""
        return bool(self._warm) or any(slot.member for slot in self._slots)

    def has(self, pid: int) -> bool:
        """Whether `pid` is a worker of this pool that has not been reaped."""
        return any(member.child.pid == pid for member in self._members())

    def established_flows(self) -> int:
        """Established flows of all slots, as the workers count them."""
        return sum(self._stats.read(slot)["flows_established"] for slot in range(len(self._slots)))

    def serves(self, slot: int) -> bool:
        """Whether a worker of this pool forwards for the slot."""
        member = self._slots[slot].member
        return member is not None and member.serving

    def warm_pidfds(self) -> list[int]:
        """The pidfds of the warm workers that are ready for a slot."""
        return [member.child.pidfd for member in self._warm if member.ready]

    def hold(self, slot: int) -> None:
        """Serve the slot from now on."""
        self._slots[slot].held = True
        self._reserve = max(1, self._reserve - 1)
        self.fill()

    def release(self, slot: int, then: Callable[[], None]) -> None:
        """Stop serving the slot; `then` is called once its worker has been reaped."""
        of = self._slots[slot]
        of.held = False
        if of.member is None:
            then()
            return
        of.on_released = then
        of.member.stopped_at_s = time.monotonic()
        os.eventfd_write(of.member.stop_fd, 1)

    def fill(self) -> None:
        """Give empty slots to warm workers, and warm up as many as are missing."""
        if self._stopping:
            return
        now_s = time.monotonic()
        for index, slot in enumerate(self._slots):
            if slot.held and slot.member is None and slot.retry_at_s <= now_s:
                self._assign(index, slot, now_s)
        empty = sum(slot.held and slot.member is None for slot in self._slots)
        missing = empty + self._reserve - len(self._warm)
        if self._spawn_at_s <= now_s:
            for _ in range(missing):
                if not self._spawn():
                    break
        self._status.standby_ready = any(member.ready for member in self._warm)

    def tick(self) -> None:
        """Look for hung workers and retry what was put off."""
        now_s = time.monotonic()
        late = now_s - self._last_tick_s > HUNG_AFTER_S / 2
        self._last_tick_s = now_s
        if not late:
            for member in self._warm:
                if not member.ready:
                    self._check_hung(member, 0.0, now_s)
            for index, slot in enumerate(self._slots):
                if slot.member is not None:
                    progress_s = self._stats.read(index)["progress_ns"] / 1e9
                    slot.member.note_progress(progress_s)
                    self._check_hung(slot.member, progress_s, now_s)
        self.fill()

    def stop(self) -> None:
        """Tell every worker to end; what they were handed is forwarded first."""
        self._stopping = True
        for member in self._members():
            os.eventfd_write(member.stop_fd, 1)
            if member in self._warm:
                member.child.channel.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """End every worker that is left, at once."""
        self._stopping = True
        for member in self._members():
            member.child.kill()

    def _members(self) -> list[_Member]:
        return self._warm + [slot.member for slot in self._slots if slot.member is not None]

    def _assign(self, index: int, slot: _Slot, now_s: float) -> None:
        for member in self._warm:
            if member.ready and member.child.send({"take": index}):
                self._warm.remove(member)
                slot.member = member
                member.taking = True
                member.since_s = now_s
                member.cpu_at_progress_s = read_activity(member.child.pid).cpu_s
                return

    def _spawn(self) -> bool:
        stop_fd = -1
        try:
            stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            child = Child("relay.worker", self._descriptors(stop_fd), self._description(stop_fd))
        except OSError as error:
            if stop_fd >= 0:
                os.close(stop_fd)
            self._put_off_spawning()
            self._log.error("worker_spawn_failed", reason=str(error))
            return False
        member = _Member(child, stop_fd, time.monotonic())
        self._warm.append(member)
        self._events.watch(child.channel.fileno(), lambda: self._on_message(member))
        self._events.watch(child.pidfd, lambda: self._on_exit(member))
        return True

    def _descriptors(self, stop_fd: int) -> list[int]:
        fds = [self._config.stats_fd, stop_fd, self._life_read]
        for slot in self._config.slots:
            fds += [slot.internal, slot.table, *(fd for fd, _, _ in slot.public)]
            fds += [slot.backbone] if slot.backbone >= 0 else []
        return fds + (self._config.cache.fds if self._config.cache else [])

    def _description(self, stop_fd: int) -> dict[str, object]:
        cache = self._config.cache
        return {
            "slots": [
                {
                    "public": list(slot.public),
                    "internal": slot.internal,
                    "backbone": slot.backbone,
                    "table": slot.table,
                }
                for slot in self._config.slots
            ],
            "stats": self._config.stats_fd,
            "stop": stop_fd,
            "life": self._life_read,
            "pins": self._config.pins,
            "coalesce_us": self._config.coalesce_us,
            "busy_poll_us": self._config.busy_poll_us,
            "forward": self._config.forward,
            "desks": cache.desks_fd if cache else -1,
            "bell": cache.bell_fd if cache else -1,
            "answers": cache.answer_fds if cache else [-1] * len(self._slots),
        }

    def _on_message(self, member: _Member) -> None:
        message = member.child.receive()
        if message is None:  # it has closed its end, or died: its pidfd tells
            self._events.unwatch(member.child.channel.fileno())
            return
        if "failed" in message:
            self._log.error("worker_failed", pid=member.child.pid, reason=message["failed"])
        elif "ready" in message:
            member.ready = True
            self._spawn_failures = 0
            self._log.debug("worker_ready", pid=member.child.pid)
            self.fill()
        elif "serving" in message:
            member.serving = True
            self._log.info(
                "worker_serving",
                slot=message["serving"],
                pid=member.child.pid,
                cpu=message["cpu"],
            )
            if message["pin_error"] and not self._pin_warned:
                self._pin_warned = True
                self._log.warning("worker_not_pinned", reason=message["pin_error"])
        elif "ended" in message and str(message["ended"]).startswith("failed"):
            self._log.error("worker_failed", pid=member.child.pid, reason=message["ended"])

    def _on_exit(self, member: _Member) -> None:
        how = member.child.reap()
        if how is None:
            return
        self._on_message(member)  # its last word, if there is one
        self._events.unwatch(member.child.channel.fileno())
        self._events.unwatch(member.child.pidfd)
        member.child.close()
        os.close(member.stop_fd)
        if member in self._warm:
            self._warm.remove(member)
            if not self._stopping:
                self._deaths += 1
                self._put_off_spawning()
                self._log.error("standby_died", pid=member.child.pid, how=how)
        for index, slot in enumerate(self._slots):
            if slot.member is member:
                slot.member = None
                if slot.on_released is not None:
                    then, slot.on_released = slot.on_released, None
                    then()
                elif not self._stopping:
                    self._on_worker_death(index, slot, member, how)
        self.fill()

    def _on_worker_death(self, index: int, slot: _Slot, member: _Member, how: str) -> None:
        now_s = time.monotonic()
        served_well = member.serving and now_s - member.since_s >= SERVED_WELL_S
        slot.quick_deaths = 0 if served_well else slot.quick_deaths + 1
        slot.retry_at_s = now_s + _backoff_s(slot.quick_deaths - 1)
        self._deaths += 1
        self._status.count_worker_restart()
        self._log.error("worker_died", slot=index, pid=member.child.pid, how=how)

    def _put_off_spawning(self) -> None:
        self._spawn_failures += 1
        self._spawn_at_s = time.monotonic() + _backoff_s(self._spawn_failures)

    def _check_hung(self, member: _Member, progress_s: float, now_s: float) -> None:
        limit_s = STARTING_LIMIT_S
        if member.taking:
            limit_s = HUNG_AFTER_S if member.serving else TAKING_LIMIT_S
        late = now_s - max(member.since_s, progress_s) > limit_s
        if member.stopped_at_s is not None:
            late = now_s - member.stopped_at_s > RELEASE_LIMIT_S
        if member.killed or not late:
            return
        # Killing a worker that waits for a CPU on an overloaded host only adds to the load.
        stale_s = now_s - max(member.since_s, progress_s)
        if member.taking and stale_s < STARVED_LIMIT_S and member.is_starved():
            return
        member.killed = True
        self._log.error("worker_hung", pid=member.child.pid)
        self._status.count_hung_worker()
        member.child.kill()


def _backoff_s(failures: int) -> float:
    """0 before the first failure, then 50 ms, doubled up to a second."""
    return min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** (failures - 1)) if failures > 0 else 0.0
