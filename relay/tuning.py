"""What the kernel is asked for beyond moving packets: steering by CPU, busy polling. Both are off by default.

1. They are options of the sockets, which outlive workers and pass to a successor: `tune` brings them to
   what the configuration says, also back to off, and is called by the supervisor that holds the sockets.
2. A kernel that refuses costs one warning that says what is missing; the relay serves without.
3. What a worker's own epoll has to be told (csrc/relay/loop.h) is tried here once, so that the refusal
   is said by a process that logs.
"""

import errno
import fcntl
import os
import select
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from relay.errors import ConfigError
from relay.sockets import SocketSet, Warn

SteerMode = Literal["off", "cpu"]

SO_INCOMING_CPU = 49
SO_PREFER_BUSY_POLL = 69
SO_BUSY_POLL = 46
EPIOCSPARAMS = 0x40088A01
NO_CPU = -1


def check_steering(option: str, mode: SteerMode, pins: Sequence[int] | None) -> None:
    """Raise ConfigError unless each worker has a CPU of its own to be steered to."""
    if mode == "off":
        return
    if pins is None:
        raise ConfigError(option, mode, "workers are not pinned; add --pin always")
    if len(set(pins)) < len(pins):
        reason = f"{len(pins)} workers share {len(set(pins))} CPUs; each needs one of its own"
        raise ConfigError(option, mode, reason)


def tune(
    sockets: SocketSet,
    *,
    steer_to: Sequence[int] | None,
    busy_poll_us: int,
    warn: Warn,
) -> None:
    """Bring all sockets to these settings.

    `steer_to` has the CPU of each slot: the kernel hands what a CPU received to the socket of that
    slot (SO_INCOMING_CPU in a SO_REUSEPORT group); None leaves the choice to its hash. Only a group is
    steered: an internal socket is alone on its port.
    """
    groups = [group.sockets for group in sockets.public]
    groups += [sockets.backbone] if sockets.backbone else []
    _try(warn, "steering_refused", lambda: _steer(groups, steer_to), "it needs Linux 6.2 or newer")
    everything = [sock for group in groups for sock in group] + sockets.internal
    _try(
        warn,
        "busy_poll_refused",
        lambda: _busy_poll(everything, busy_poll_us),
        "grant CAP_NET_ADMIN, or set sysctl net.core.busy_read",
    )
    if busy_poll_us:
        _try(
            warn,
            "busy_poll_refused",
            lambda: _try_epoll(busy_poll_us),
            "it needs Linux 6.9 or newer; before that, set sysctl net.core.busy_poll",
        )


def _steer(groups: Iterable[Sequence[socket.socket]], cpus: Sequence[int] | None) -> None:
    for group in groups:
        for slot, sock in enumerate(group):
            _set(sock, SO_INCOMING_CPU, NO_CPU if cpus is None else cpus[slot])


def _busy_poll(sockets: Iterable[socket.socket], microseconds: int) -> None:
    for sock in sockets:
        _set(sock, SO_BUSY_POLL, microseconds)
        _set(sock, SO_PREFER_BUSY_POLL, int(microseconds > 0))


def _set(sock: socket.socket, option: int, value: int) -> None:
    """Only what differs: off is what every socket starts with, on every kernel."""
    try:
        now = sock.getsockopt(socket.SOL_SOCKET, option)
    except OSError:
        now = NO_CPU if option == SO_INCOMING_CPU else 0
    if now != value:
        sock.setsockopt(socket.SOL_SOCKET, option, value)


def _try_epoll(microseconds: int) -> None:
    with select.epoll() as poll:
        fcntl.ioctl(poll.fileno(), EPIOCSPARAMS, struct.pack("=IHBx", microseconds, 0, 1))


def _try(warn: Warn, event: str, attempt: Callable[[], None], remedy: str) -> None:
    try:
        attempt()
    except OSError as error:
        lacks = error.errno in (errno.ENOTTY, errno.ENOPROTOOPT, errno.EINVAL)
        reason = "this kernel has no such option" if lacks else os.strerror(error.errno or 0)
        warn(event, reason=reason, remedy=remedy)
