"""One process of the relay, exec'd fresh with the descriptors it needs and a JSON description.

1. A child inherits exactly the descriptors it is given, under the numbers they have here, and reads
   what they mean from a memfd: no key ever stands on a command line or in the environment.
2. The supervisor and a child talk over a SOCK_SEQPACKET pair, one JSON object a message.
3. The supervisor is single-threaded, so nothing else can inherit what is made inheritable here.
4. A child starts with the supervisor's signals blocked: a Ctrl-C or a signal to the process group
   is the supervisor's to answer.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Iterable, Mapping

from relay.signals import ANSWERED, signal_name

_MESSAGE_BYTES = 65536


class Child:
    """A running child; `pidfd` is readable once it has ended."""

    def __init__(self, module: str, fds: Iterable[int], description: Mapping[str, object]) -> None:
        """Start `module`.main(description); the description gets `control`, its end of the pair.

        Raises OSError when the process cannot be made, and leaves nothing behind then.
        """
        self.module = module
        self.channel, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.setblocking(False)
        try:
            with remote:
                self.pid = _start(module, fds, description, remote.fileno())
            self.pidfd = _open_pidfd(self.pid)
        except BaseException:
            self.channel.close()
            raise

    def send(self, message: Mapping[str, object]) -> bool:
        """Whether the message was handed over; a child that has ended takes none."""
        try:
            self.channel.send(json.dumps(message).encode())
        except OSError:
            return False
        return True

    def receive(self) -> dict[str, object] | None:
        """The next message, or None when there is none or the child has closed its end."""
        try:
            data = self.channel.recv(_MESSAGE_BYTES)
        except OSError:
            return None
        return dict(json.loads(data)) if data else None

    def kill(self) -> None:
        """SIGKILL; the process is gone only once `reap` says so."""
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def reap(self) -> str | None:
        """How the process ended, such as `exit status 1` or `SIGKILL`; None while it runs."""
        try:
            result = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return "reaped elsewhere"
        if result is None:
            return None
        if result.si_code == os.CLD_EXITED:
            return f"exit status {result.si_status}"
        return signal_name(result.si_status)

    def wait(self) -> None:
        """Wait for the process's end and reap it; it has been killed."""
        os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)

    def close(self) -> None:
        """Close the supervisor's descriptors of a child that has ended."""
        self.channel.close()
        os.close(self.pidfd)


def _start(
    module: str, fds: Iterable[int], description: Mapping[str, object], remote_fd: int
) -> int:
    config_fd = os.memfd_create("relay-child", os.MFD_CLOEXEC)
    try:
        _write_all(config_fd, {**description, "control": remote_fd, "parent": os.getpid()})
        return _spawn(module, config_fd, [*fds, remote_fd, config_fd])
    finally:
        os.close(config_fd)


def _open_pidfd(pid: int) -> int:
    """Of a child, which is ended when there is no descriptor left to know it by."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _spawn(module: str, config_fd: int, fds: list[int]) -> int:
    program = f"from {module} import main; main({config_fd})"
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-P", "-c", program],
        {**os.environ, "PYTHONPATH": path},
        # dup2 of a descriptor to itself clears FD_CLOEXEC in the child.
        file_actions=[(os.POSIX_SPAWN_DUP2, fd, fd) for fd in fds],
        setsigmask=ANSWERED,
    )


def _write_all(fd: int, description: Mapping[str, object]) -> None:
    data = json.dumps(description).encode()
    while data:
        data = data[os.write(fd, data) :]
    os.lseek(fd, 0, os.SEEK_SET)
