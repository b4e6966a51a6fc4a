"""The directory of a running relay: its lock, and later its unix sockets.

1. One relay per directory. The lock is a flock, so it ends with the process, however that ends.
2. Nothing in it outlives its use: a stale socket is replaced by the holder of the lock.
"""

import fcntl
import os
from pathlib import Path

from relay.errors import RunDirError


class RunDir:
    """A locked run directory."""

    def __init__(self, path: Path) -> None:
        """Make the directory if need be and lock it. Raises RunDirError."""
        self.path = path
        try:
            path.mkdir(mode=0o755, parents=True, exist_ok=True)
            self.lock_fd = os.open(
                path / "relay.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise RunDirError(
                f"cannot use the run directory {path}: {error.strerror} (--run-dir names another)"
            ) from None
        try:
            fcntl.flock(self.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self.lock_fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self.lock_fd)
            raise RunDirError(
                f"another relay (pid {holder}) uses the run directory {path}; "
                "give this one its own --run-dir"
            ) from None
        os.ftruncate(self.lock_fd, 0)
        os.pwrite(self.lock_fd, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Give the directory up; its lock file stays, since others may already wait for it."""
        os.close(self.lock_fd)
