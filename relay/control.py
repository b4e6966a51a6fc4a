"""The control process: admin HTTP and metrics, beside the packet path and never on it.

1. Nice 19 and unpinned: a busy Python thread at equal priority would cost the workers milliseconds.
2. It only reads shared memory, so it can die at any time; the supervisor starts another.
3. It ends when the supervisor does: the channel closes.
"""

import os
import socket
import sys
import threading
from typing import Any

from relay import channel
from relay._dataplane import Stats
from relay.admin import AdminServer
from relay.log import configure, get_logger
from relay.metrics import Health
from relay.status import StatusPage

NICE = 19


def main(description_fd: int) -> None:
    """The whole life of a control process, described by a JSON file (the supervisor writes it)."""
    os.nice(NICE)
    about: dict[str, Any] = channel.read_description(description_fd)
    configure(about["log_level"], about["log_format"])
    health = Health(
        Stats(about["stats"], about["slots"]), StatusPage(about["status"]), about["slots"]
    )
    admin = AdminServer(socket.socket(fileno=about["admin"]), health, get_logger())
    threading.Thread(target=admin.serve_forever, name="admin", daemon=True).start()
    while channel.receive(about["control"]) is not None:
        pass
    sys.exit(0)
