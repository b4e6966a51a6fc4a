"""What answers where a Redis should be and is none, or is out of its mind."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

ANSWERS = {
    "a status": b"+OK\r\n",
    "a number": b":1\r\n",
    "nothing": b"$-1\r\n",
    "no number": b":abc\r\n",
    "no length": b"$xx\r\n",
    "no count": b"*z\r\n",
    "a list": b"*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n",
    "a nest": b"*1\r\n" * 3000 + b":1\r\n",
    "no text": b"-ERR \xff\xfe\r\n",
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
}
"""To any command, the same."""


@contextlib.contextmanager
def no_redis(answer: bytes) -> Iterator[str]:
    """Its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_accept, args=(listening, answer), daemon=True).start()
        try:
            yield f"redis://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)


def _accept(listening: socket.socket, answer: bytes) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listening.accept()
            threading.Thread(target=_answer, args=(client, answer), daemon=True).start()


def _answer(client: socket.socket, answer: bytes) -> None:
    with client, contextlib.suppress(OSError):
        while asked := client.recv(65_536):
            client.sendall(answer * asked.count(b"*"))
