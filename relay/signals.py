"""Signals as something to select on: Python's wakeup descriptor writes their numbers into a pipe."""

import signal
import socket
from collections.abc import Iterable
from types import FrameType

from relay.wire.signals import MEANINGLESS

ANSWERED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *MEANINGLESS)
"""What the supervisor takes, for its children, too."""


def signal_name(number: int) -> str:
    """`SIGKILL`, or `signal 35` for one that has no name of its own (real-time signals)."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class SignalPipe:
    """`fileno` is readable when one of the signals has come; `read` says which."""

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, _nothing)

    def fileno(self) -> int:
        """To be watched."""
        return self._read.fileno()

    def read(self) -> list[signal.Signals]:
        """The signals that have come since the last call."""
        try:
            return [signal.Signals(number) for number in self._read.recv(4096)]
        except BlockingIOError:
            return []


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """A handler must exist for the wakeup descriptor to be written."""
