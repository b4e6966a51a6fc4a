"""Log lines: structlog, to standard error, for people (console) or programs (json).

1. No secret is ever a field: no bearer, key, ICE password or SDP.
2. Nothing that arrives by UDP causes a line of its own, nor does a request that is malformed.
3. A reader of the log that is gone or hangs fails no call: what cannot be written is lost.
"""

from __future__ import annotations

import logging
import os
import select
import sys
from typing import TextIO

import structlog

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("console", "json")


class _LossyLogger:
    """Writes lines where somebody reads them, and never waits for him."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, message: str) -> None:
        rest = f"{message}\n".encode(errors="replace")
        try:
            descriptor = self._stream.fileno()
            # What poll calls writable takes PIPE_BUF bytes at once (pipe(7)).
            while rest and select.select([], [descriptor], [], 0)[1]:
                rest = rest[os.write(descriptor, rest[: select.PIPE_BUF]) :]
        except (OSError, ValueError):
            pass

    log = debug = info = warning = error = critical = exception = failure = fatal = msg


def configure(level: str, log_format: str) -> None:
    """Sets up logging for this process and the ones it forks."""
    threshold = getattr(logging, level.upper())
    renderer: structlog.typing.Processor
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=lambda *_: _LossyLogger(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Libraries speak through logging; what they say below a warning is not for operators.
    logging.basicConfig(
        level=max(threshold, logging.WARNING), format="%(name)s: %(message)s", stream=sys.stderr
    )
    # It prints a traceback for each request that is no HTTP; failures of ours are logged by app.py.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)


def get_logger() -> structlog.typing.FilteringBoundLogger:
    """A logger; bind fields with `.bind`."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return logger
