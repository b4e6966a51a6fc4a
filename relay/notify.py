"""What systemd wants to be told (sd_notify(3)); without $NOTIFY_SOCKET nothing is said.

1. A service manager that does not listen is no trouble of the relay's: errors are swallowed.
"""

import os
import select
import socket

BARRIER_LIMIT_S = 2.0


def notify(*lines: str) -> None:
    """Send lines such as READY=1 or MAINPID=123."""
    _send("\n".join(lines).encode(), [])


def barrier() -> None:
    """Wait until the manager has read what was sent, so that a process may end after MAINPID=."""
    if "NOTIFY_SOCKET" not in os.environ:
        return
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    try:
        _send(b"BARRIER=1", [write_fd])
    finally:
        os.close(write_fd)
    poller = select.poll()
    poller.register(read_fd, 0)
    poller.poll(BARRIER_LIMIT_S * 1000)
    os.close(read_fd)


def _send(data: bytes, fds: list[int]) -> None:
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.connect(address)
            socket.send_fds(sock, [data], fds)
    except OSError:
        pass
