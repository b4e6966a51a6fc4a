"""Log lines of both programs: structlog, set up once per process, `console` for people, `json` for machines, to stderr.

1. No packet ever causes a log line, nor does a request that is malformed.
2. No log line holds a key, a bearer, a password, a ufrag or an SDP.
3. A reader of the log that is gone or hangs ends no program and no call: what cannot be written is lost.
"""

import logging
import os
import select
import sys
from typing import Literal, TextIO

import structlog

LogFormat = Literal["console", "json"]
LOG_FORMATS: tuple[LogFormat, ...] = ("console", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")

Logger = structlog.typing.FilteringBoundLogger


class _LossyPrinter:
    """Prints a line, or loses it: a log must not stop the process that writes it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, message: str) -> None:
        try:
            self._write(f"{message}\n".encode(errors="replace"))
        except (OSError, ValueError):
            pass

    def _write(self, line: bytes) -> None:
        """As much as fits now. What poll calls writable takes PIPE_BUF bytes at once (pipe(7))."""
        descriptor = self._stream.fileno()
        while line and select.select([], [descriptor], [], 0)[1]:
            line = line[os.write(descriptor, line[: select.PIPE_BUF]) :]

    log = debug = info = warning = error = critical = exception = failure = fatal = msg


def configure(level: str, log_format: str) -> None:
    """Set up structlog for this process and those that it forks; `level` is one of LOG_LEVELS, the other of LOG_FORMATS."""
    renderer: structlog.typing.Processor
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_: _LossyPrinter(sys.stderr),
        cache_logger_on_first_use=True,
    )


def get_logger(**bound: object) -> Logger:
    """A logger that adds `bound` to each line."""
    logger: Logger = structlog.get_logger(**bound)
    return logger
