"""The log of the transceiver: that of both programs (relay/wire/log.py), and what libraries say.

1. Libraries speak through `logging`; what they say below a warning is not for operators.
"""

from __future__ import annotations

import logging
import sys

from relay.wire import log


def configure(level: str, log_format: str) -> None:
    """Sets up logging for this process and the ones it forks."""
    log.configure(level, log_format)
    least = max(getattr(logging, level.upper()), logging.WARNING)
    logging.basicConfig(level=least, format="%(name)s: %(message)s", stream=sys.stderr)
    # It prints a traceback for each request that is no HTTP; failures of ours are logged by app.py.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
