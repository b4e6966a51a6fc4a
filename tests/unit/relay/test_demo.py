"""A demo whose programs misbehave (relay/demo.py, relay/demo_programs.py)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from relay import demo
from relay.demo import run_demo
from relay.demo_programs import Programs
from relay.errors import StartError
from relay.wire.log import configure, get_logger

PROGRAM = """#!/bin/sh
# Stands in for the interpreter that would run `-m relay serve`.
{body}
exec sleep 60
"""


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A demo configures the logging of its process."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Makes all programs of the demo run that shell script."""

    def make(body: str) -> None:
        script = tmp_path / "program"
        script.write_text(PROGRAM.format(body=body))
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))

    return make


def test_a_program_that_never_listens_is_an_error_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, program: Callable[[str], None]
) -> None:
    program("")
    monkeypatch.setattr(demo, "START_LIMIT_S", 0.2)
    with pytest.raises(StartError, match="not ready within"):
        run_demo(
            regions_count=1,
            workers=1,
            transceivers=1,
            http="127.0.0.1:0",
            listen="127.0.0.1:0",
            admin="127.0.0.1:0",
            public_address=None,
            backend=None,
            log_level="error",
            log_format="json",
        )


@pytest.mark.parametrize(
    "line", ["head -c 300000 /dev/zero | tr '\\0' x; echo", "echo 7", "echo null"]
)
async def test_whatever_a_program_says_it_is_heard_on(
    program: Callable[[str], None], tmp_path: Path, line: str
) -> None:
    said = '{"event": "listening", "level": "info", "role": "http", "address": "127.0.0.1:7"}'
    program(f"exec >&2\n{line}\necho '{said}'")
    configure("error", "json")
    programs = Programs(tmp_path, "error", get_logger())
    async with asyncio.timeout(10):
        started = await programs.start("relay", "", [])
        assert (await programs.heard(started, "http")).port == 7
        await programs.end()
