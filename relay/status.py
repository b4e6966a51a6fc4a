"""One shared page on which the supervisor says how the relay is; control only reads it.

1. One writer, 64-bit words, no locks: a reader may see words of different moments.
2. It outlives the control process, so a restarted one knows at once what the last one knew.
"""

import mmap
import os
from enum import IntEnum

PAGE_BYTES = 4096
_STATE, _RESTARTS, _CONTROL_RESTARTS, _HUNG, _STANDBY = range(5)


class State(IntEnum):
    """What the relay is doing."""

    STARTING = 0
    SERVING = 1
    DRAINING = 2


class StatusPage:
    """A view of the page; `fd` is a memfd of `create_status`."""

    def __init__(self, fd: int, *, writable: bool = False) -> None:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._words = memoryview(mmap.mmap(fd, PAGE_BYTES, access=access)).cast("Q")

    @property
    def state(self) -> State:
        """Starting, serving or draining."""
        return State(self._words[_STATE])

    @state.setter
    def state(self, value: State) -> None:
        self._words[_STATE] = value

    @property
    def worker_restarts(self) -> int:
        """Workers that had to be replaced, ever."""
        return self._words[_RESTARTS]

    @property
    def hung_workers(self) -> int:
        """Of those, the ones that were killed because they hung."""
        return self._words[_HUNG]

    @property
    def control_restarts(self) -> int:
        """Control processes that had to be replaced, ever."""
        return self._words[_CONTROL_RESTARTS]

    @property
    def standby_ready(self) -> bool:
        """Whether a warm worker waits."""
        return bool(self._words[_STANDBY])

    @standby_ready.setter
    def standby_ready(self, value: bool) -> None:
        self._words[_STANDBY] = value

    def count_worker_restart(self) -> None:
        """One more worker died or was killed."""
        self._words[_RESTARTS] += 1

    def count_hung_worker(self) -> None:
        """One more worker is about to be killed because it hung."""
        self._words[_HUNG] += 1

    def count_control_restart(self) -> None:
        """One more control process died."""
        self._words[_CONTROL_RESTARTS] += 1


def create_status() -> int:
    """A zeroed page: the descriptor of a memfd."""
    fd = os.memfd_create("relay-status", os.MFD_CLOEXEC)
    os.ftruncate(fd, PAGE_BYTES)
    return fd
