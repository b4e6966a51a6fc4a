"""The supervisor's event loop: descriptors and what to call when they are readable.

1. One thread, level-triggered; a callback may add and remove descriptors, its own included.
2. A descriptor is removed before it is closed.
"""

import selectors
from collections.abc import Callable

Callback = Callable[[], None]


class Events:
    """What is watched."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def watch(self, fd: int, callback: Callback) -> None:
        """Call back in each turn in which `fd` is readable, or hung up."""
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def unwatch(self, fd: int) -> None:
        """Stop watching; a descriptor that is not watched is no error."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def turn(self, wait_s: float) -> None:
        """Wait for something to be readable, at most `wait_s`, and call back."""
        for key, _ in self._selector.select(wait_s):
            if self._selector.get_map().get(key.fd) is key:  # no earlier callback removed it
                callback: Callback = key.data
                callback()
