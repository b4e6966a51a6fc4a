"""The directory of a running relay: its lock and the unix socket through which a successor takes over.

1. One relay per directory. The lock is a flock of an open file, so it ends with the last process
   that holds the descriptor, however that ends, and passes to a successor together with it.
2. Nothing in it outlives its use: a stale socket is replaced by the holder of the lock.
3. The sockets are of mode 0600: whoever may connect may have the relay's sockets.
"""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from relay.errors import RunDirError

LOCK = "relay.lock"
TAKEOVER = "takeover.sock"
_UNIX_PATH_BYTES = 100
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
"""Below /tmp somebody else may have made the directory, and a link in it would lead to what is then overwritten."""


@dataclass
class RunDir:
    """A locked run directory and its listening socket."""

    path: Path
    lock_fd: int
    listener: socket.socket
    """SOCK_SEQPACKET; see relay/handover.py."""

    def claim(self) -> None:
        """Write this process's id into the lock file, for the message that another relay gets.

        A full disk costs that message its id, and nothing else.
        """
        with contextlib.suppress(OSError):
            os.ftruncate(self.lock_fd, 0)
            os.pwrite(self.lock_fd, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Give the directory up; the files stay, since a successor may use them already."""
        self.listener.close()
        os.close(self.lock_fd)


def open_run_dir(path: Path) -> RunDir:
    """Make the directory if need be, lock it, listen in it. Raises RunDirError."""
    try:
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
        lock_fd = os.open(path / LOCK, _LOCK_FLAGS, 0o600)
    except OSError as error:
        raise RunDirError(
            f"cannot use the run directory {path}: {error.strerror} (--run-dir names another)"
        ) from None
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        opened = RunDir(path, lock_fd, _listen(path))
    except BlockingIOError:
        holder = os.pread(lock_fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock_fd)
        raise RunDirError(
            f"another relay (pid {holder}) uses the run directory {path}; "
            "give this one its own --run-dir, or let it take over with --takeover"
        ) from None
    except OSError as error:
        os.close(lock_fd)
        raise RunDirError(f"cannot listen in the run directory {path}: {error}") from None
    opened.claim()
    return opened


def connect_takeover(path: Path) -> socket.socket:
    """A connection to the relay that runs in the directory. Raises RunDirError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with _short(path) as folder:
            sock.connect(f"{folder}/{TAKEOVER}")
    except OSError as error:
        sock.close()
        if _is_locked(path):
            raise RunDirError(
                f"the relay in {path} cannot be reached ({TAKEOVER}: {error.strerror}); restart it"
            ) from None
        raise RunDirError(f"no relay to take over in {path}: {error.strerror}") from None
    return sock


def _is_locked(path: Path) -> bool:
    """Whether a relay runs in the directory, whatever became of its socket."""
    try:
        with open(path / LOCK, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _listen(path: Path) -> socket.socket:
    (path / TAKEOVER).unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mask = os.umask(0o177)
    try:
        with _short(path) as folder:
            sock.bind(f"{folder}/{TAKEOVER}")
        sock.listen(4)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    finally:
        os.umask(mask)
    return sock


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """The directory under a name that fits a unix socket's 108 bytes."""
    if len(os.fsencode(path)) + len(TAKEOVER) < _UNIX_PATH_BYTES:
        yield str(path)
        return
    folder_fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder_fd}"
    finally:
        os.close(folder_fd)
