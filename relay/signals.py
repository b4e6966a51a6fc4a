"""Signals as something to select on: Python's wakeup descriptor writes their numbers into a pipe.

1. A signal that other daemons reopen logs or dump state by, and whose default is to end the process, must not
   end a relay and its calls: it is taken and means nothing.
"""

import os
import signal
import socket
from collections.abc import Iterable
from types import FrameType

MEANINGLESS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
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


class Terminal:
    """The controlling terminal, and whether it has been closed since: SIGHUP means that, too.

    Who starts under `nohup`, or without a terminal, has none that matters.
    """

    def __init__(self) -> None:
        self._counts = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _has_terminal()

    def is_closed(self) -> bool:
        """True once there was one and it is gone. The kernel takes it away before it sends SIGHUP."""
        return self._counts and not _has_terminal()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """A handler must exist for the wakeup descriptor to be written."""
