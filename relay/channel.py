"""A child's end of what connects it to the supervisor: its description and one message pipe.

1. Only json and os are imported: workers use this file, and they start in milliseconds.
2. The channel is one end of a SOCK_SEQPACKET pair: one JSON object a message.
"""

import json
import os

_MESSAGE_BYTES = 65536


def read_description(fd: int) -> dict[str, object]:
    """What the supervisor wrote for this process; closes `fd`."""
    with open(fd, "rb") as file:
        return dict(json.load(file))


def send(fd: int, message: dict[str, object]) -> None:
    """Send one message; a supervisor that is gone reads none, and that is no error here."""
    try:
        os.write(fd, json.dumps(message).encode())
    except OSError:
        pass


def receive(fd: int) -> dict[str, object] | None:
    """Wait for the next message; None once the supervisor is gone."""
    try:
        data = os.read(fd, _MESSAGE_BYTES)
    except OSError:
        return None
    return dict(json.loads(data)) if data else None
