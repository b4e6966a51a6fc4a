"""A seeded link between two network namespaces: delay, jitter, loss, duplication and reordering over TUN.

1. The kernel's own emulator may be missing, so packets cross user space: a TUN device at each end, one process between.
2. What happens to the n-th packet of a direction depends on the seed, the profile and n alone, never on the clock.
3. Without `reorder`, order is kept whatever the jitter is: a real queue does not overtake itself.
4. The process ends when its standard input closes, so a dead test leaves no link behind.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import json
import os
import random
import selectors
import struct
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any

TUNSETIFF = 0x400454CA
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000
CLONE_NEWNET = 0x40000000
QUEUE_MAX_PACKETS = 10_000
PACKET_MAX_BYTES = 65_536


@dataclass(frozen=True)
class LinkProfile:
    """What one direction of a link does to packets."""

    delay_ms: float = 0.0
    """One-way delay of every packet."""
    jitter_ms: float = 0.0
    """Up to this much more, uniformly drawn."""
    loss: float = 0.0
    """Share of packets lost, 0..1."""
    duplicate: float = 0.0
    """Share of packets sent twice, 0..1."""
    reorder: float = 0.0
    """Share of packets that may overtake others: they skip the queue's order, 0..1."""


@dataclass(frozen=True)
class LinkEnd:
    """One end: a TUN device made inside a namespace."""

    netns: str
    """Name as in `ip netns`."""
    device: str
    """Interface name, at most 15 characters."""
    address: str
    """Address with prefix length, e.g. 10.1.0.1/30 or fd00::1/64."""
    routes: tuple[str, ...] = ()
    """Destinations reached over this link, e.g. ('10.9.0.0/16',) or ('default',)."""


class LinkError(RuntimeError):
    """The link could not be set up."""


@dataclass
class Direction:
    """Packets on their way from one end to the other. Sans-IO: `push` and `pop` take the time."""

    profile: LinkProfile
    rng: random.Random
    cut: bool = False
    received: int = 0
    delivered: int = 0
    lost: int = 0
    overflow: int = 0
    _last_due_s: float = 0.0
    _serial: int = 0
    _queue: list[tuple[float, int, bytes]] = field(default_factory=list)

    def push(self, packet: bytes, now_s: float) -> None:
        """Takes a packet; it is due later, lost, or due twice."""
        self.received += 1
        profile = self.profile
        # Every packet draws the same number of values: a changed profile never shifts the later draws.
        lost, twice, overtakes, extra = (self.rng.random() for _ in range(4))
        if self.cut or lost < profile.loss:
            self.lost += 1
            return
        if len(self._queue) >= QUEUE_MAX_PACKETS:
            self.overflow += 1
            return
        due_s = now_s + (profile.delay_ms + profile.jitter_ms * extra) / 1000
        if overtakes >= profile.reorder:
            due_s = self._last_due_s = max(due_s, self._last_due_s)
        for _ in range(2 if twice < profile.duplicate else 1):
            self._serial += 1
            heapq.heappush(self._queue, (due_s, self._serial, packet))

    def pop(self, now_s: float) -> bytes | None:
        """The next packet that is due, or None."""
        if not self._queue or self._queue[0][0] > now_s:
            return None
        self.delivered += 1
        return heapq.heappop(self._queue)[2]

    def next_due_s(self) -> float | None:
        """When the next packet is due."""
        return self._queue[0][0] if self._queue else None


def open_tun(netns: str, device: str) -> int:
    """Makes a TUN device in a namespace and returns its descriptor, which stays bound to that namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    result: list[int | OSError] = []

    def enter_and_open() -> None:
        try:
            handle = os.open(f"/run/netns/{netns}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                # setns moves this thread only; it ends right after, so nobody else is moved.
                if libc.setns(handle, CLONE_NEWNET) != 0:
                    errno = ctypes.get_errno()
                    raise OSError(errno, os.strerror(errno), netns)
            finally:
                os.close(handle)
            tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.ioctl(
                tun, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI)
            )
            result.append(tun)
        except OSError as error:
            result.append(error)

    thread = threading.Thread(target=enter_and_open)
    thread.start()
    thread.join()
    if isinstance(result[0], OSError):
        raise result[0]
    return result[0]


def _configure(end: LinkEnd) -> None:
    ip = ["ip", "-n", end.netns]
    nodad = ["nodad"] if ":" in end.address else []
    subprocess.run([*ip, "addr", "add", end.address, "dev", end.device, *nodad], check=True)
    subprocess.run([*ip, "link", "set", end.device, "up"], check=True)
    for route in end.routes:
        subprocess.run([*ip, "route", "replace", route, "dev", end.device], check=True)


def _serve(setup: dict[str, Any]) -> None:
    ends = [LinkEnd(**{**end, "routes": tuple(end["routes"])}) for end in setup["ends"]]
    tuns = [open_tun(end.netns, end.device) for end in ends]
    for end in ends:
        _configure(end)
    directions = [
        Direction(LinkProfile(**profile), random.Random(f"{setup['seed']}/{side}"))
        for side, profile in enumerate(setup["profiles"])
    ]
    selector = selectors.DefaultSelector()
    for side, tun in enumerate(tuns):
        selector.register(tun, selectors.EVENT_READ, side)
    selector.register(sys.stdin.fileno(), selectors.EVENT_READ, None)
    print("ready", flush=True)
    while True:
        due = [d for d in (direction.next_due_s() for direction in directions) if d is not None]
        # epoll counts in milliseconds and rounds up; packets due sooner are polled for.
        timeout = None if not due else max(0.0, min(due) - time.monotonic() - 0.001)
        for key, _ in selector.select(timeout):
            if key.data is None:
                line = sys.stdin.readline()
                if not line:
                    return
                print(json.dumps(_command(json.loads(line), directions)), flush=True)
                continue
            try:
                while True:
                    directions[key.data].push(
                        os.read(tuns[key.data], PACKET_MAX_BYTES), time.monotonic()
                    )
            except BlockingIOError:
                pass
        for side, direction in enumerate(directions):
            while (packet := direction.pop(time.monotonic())) is not None:
                try:
                    os.write(tuns[1 - side], packet)
                except OSError:
                    direction.overflow += 1


def _command(command: dict[str, Any], directions: list[Direction]) -> Any:
    for side, direction in enumerate(directions):
        if "profiles" in command and command["profiles"][side] is not None:
            direction.profile = LinkProfile(**command["profiles"][side])
        if "cut" in command:
            direction.cut = command["cut"][side]
    return [
        {name: getattr(direction, name) for name in ("received", "delivered", "lost", "overflow")}
        for direction in directions
    ]


class Link:
    """A running link; a context manager. Needs root, `ip` and /dev/net/tun."""

    def __init__(
        self,
        first: LinkEnd,
        second: LinkEnd,
        *,
        forward: LinkProfile,
        backward: LinkProfile | None = None,
        seed: int = 1,
    ) -> None:
        """`forward` rules packets from `first` to `second`; `backward` (default: the same) the others."""
        self._setup = {
            "ends": [asdict(first), asdict(second)],
            "profiles": [asdict(forward), asdict(backward or forward)],
            "seed": seed,
        }
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Link:
        self._process = subprocess.Popen(
            # -P: the modules beside this file must not stand in for the standard library's.
            [sys.executable, "-P", __file__, json.dumps(self._setup)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            _, errors = self._process.communicate()
            raise LinkError(errors)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.communicate(timeout=10)

    def change(
        self, forward: LinkProfile | None = None, backward: LinkProfile | None = None
    ) -> None:
        """Packets that come in from now on follow the new profile."""
        profiles = [asdict(profile) if profile else None for profile in (forward, backward)]
        self._ask({"profiles": profiles})

    def cut(self, forward: bool = True, backward: bool = True) -> None:
        """Loses everything in the given directions until `cut(False, False)`."""
        self._ask({"cut": [forward, backward]})

    def counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """(forward, backward): packets received, delivered, lost, overflow."""
        forward, backward = self._ask({})
        return forward, backward

    def _ask(self, command: dict[str, Any]) -> Any:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
