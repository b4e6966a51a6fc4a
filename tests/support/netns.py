"""A network namespace as one small host: loopback, an interface with an address, a default route.

1. Both ends of its veth pair lie inside it, so nothing of the machine's own network is touched;
   `connect` lays a cable to another namespace.
2. Its addresses are of 198.18.0.0/15 (RFC 2544: tests of network devices), so no name or route
   of the machine can mean the same.
3. `remove` ends what still runs inside, by pid, and is safe to call twice.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import threading
from types import TracebackType

CLONE_NEWNET = 0x40000000
ADDRESS = "198.18.0.1"
"""The interface's address inside every namespace."""

_RUN = secrets.token_hex(2)
"""A run that was killed leaves its namespaces, and another one may get its process id."""
_serial = itertools.count()
_cables = itertools.count(1)


class NamespaceError(RuntimeError):
    """The namespace could not be made; the text is ip's."""


def missing_for_namespaces() -> str | None:
    """Why this machine cannot make a namespace, or None when it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need `ip` (Debian's iproute2)"
    try:
        with Namespace():
            return None
    except NamespaceError as error:
        return f"network namespaces do not work here: {error}"


class Namespace:
    """A context manager; programs start inside with `prefix`, sockets are made with `socket`."""

    def __init__(self) -> None:
        self.name = f"vr{os.getpid()}-{_RUN}-{next(_serial)}"
        self.address = ADDRESS
        try:
            _ip("netns", "add", self.name)
            inside = ("-n", self.name)
            _ip(*inside, "link", "set", "lo", "up")
            _ip(*inside, "link", "add", "host", "type", "veth", "peer", "name", "wire")
            _ip(*inside, "address", "add", f"{ADDRESS}/24", "dev", "host")
            for device in ("host", "wire"):
                _up(self.name, device)
            _ip(*inside, "route", "add", "default", "dev", "host", "src", ADDRESS)
        except NamespaceError:
            self.remove()
            raise

    @property
    def prefix(self) -> tuple[str, ...]:
        """What stands before a command line to run it inside."""
        return ("ip", "netns", "exec", self.name)

    def connect(self, other: Namespace) -> tuple[str, str]:
        """Lay a cable to another namespace; the addresses of this end and of the other."""
        number = next(_cables)
        here, there = f"198.18.{number}.1", f"198.18.{number}.2"
        device = f"cable{number}"
        _ip(
            *("link", "add", device, "netns", self.name, "type", "veth"),
            *("peer", "name", device, "netns", other.name),
        )
        for namespace, address in ((self, here), (other, there)):
            _ip("-n", namespace.name, "address", "add", f"{address}/24", "dev", device)
            _up(namespace.name, device)
        return here, there

    def socket(
        self, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM, protocol: int = 0
    ) -> socket.socket:
        """A socket that belongs to the namespace for life, whichever thread uses it."""
        made: list[socket.socket | OSError] = []

        def enter_and_make() -> None:
            try:
                # setns moves this thread only; it ends right after, so nobody else is moved.
                _enter(self.name)
                made.append(socket.socket(family, kind, protocol))
            except OSError as error:
                made.append(error)

        thread = threading.Thread(target=enter_and_make)
        thread.start()
        thread.join()
        if isinstance(made[0], OSError):
            raise made[0]
        return made[0]

    def remove(self) -> None:
        """End what still runs inside and give the namespace back."""
        for _ in range(5):
            pids = _run("netns", "pids", self.name).stdout.split()
            if not pids:
                break
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        _run("netns", "delete", self.name)

    def __enter__(self) -> Namespace:
        """It is usable as soon as it is made."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove it."""
        self.remove()


def _enter(name: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(f"/run/netns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(handle, CLONE_NEWNET) != 0:
            errno = ctypes.get_errno()
            raise OSError(errno, os.strerror(errno), name)
    finally:
        os.close(handle)


def _up(namespace: str, device: str) -> None:
    # Without a link-local address, which appears a second later: browsers then drop what they load.
    _ip("-n", namespace, "link", "set", device, "addrgenmode", "none", "up")


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)


def _ip(*arguments: str) -> None:
    done = _run(*arguments)
    if done.returncode != 0:
        raise NamespaceError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
