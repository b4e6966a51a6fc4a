"""What signals mean to both programs beyond an order to end.

1. A signal that other daemons reopen logs or dump state by, and whose default is to end the process, must not
   end a program and its calls: it is taken and means nothing.
2. Neither depends on what its parent did to signals for itself: with SIGCHLD ignored nobody learns of the end of a
   child, and a blocked SIGTERM never comes. SIGINT and SIGHUP may be ignored: `&` and `nohup` mean it.
3. SIGHUP is an order to end only when it comes because the terminal was closed.
"""

import os
import signal

MEANINGLESS = (signal.SIGUSR1, signal.SIGUSR2)


def forget_inherited() -> None:
    """Give signals back the meaning that a program counts on, before it starts anything."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


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
