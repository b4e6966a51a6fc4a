"""What tests take from npm: the stock SDK as a bundle for a page, and an accessibility checker.

1. It lies in a cache outside the repository ($XDG_CACHE_HOME), one folder per state of `npm/`.
2. Without npm, or without a registry, tests skip and say why.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "npm"
TIMEOUT_S = 300
_QUIET = ("--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error")
_BUNDLE = ("esbuild", "main.js", "--bundle", "--format=esm", "--outfile=bundle.js")


def folder() -> Path:
    """The folder with page.html, bundle.js and node_modules, made on first use."""
    made = _make()
    if isinstance(made, str):
        pytest.skip(made)
    return made


@functools.cache
def _make() -> Path | str:
    """The folder, or why there is none: a registry that does not answer is waited for once."""
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not installed"
    sources = sorted(SOURCE.iterdir())
    state = hashlib.sha256(b"".join(file.read_bytes() for file in sources)).hexdigest()[:16]
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    made = base / "voice-relay-tests" / state
    if made.exists():
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f"{state}.", dir=made.parent))
    for file in sources:
        shutil.copy(file, making)
    try:
        for command in (["install", *_QUIET], ["exec", "--offline", "--", *_BUNDLE]):
            done = subprocess.run(
                [npm, *command],
                cwd=making,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            if done.returncode != 0:
                return f"npm {command[0]} failed: {done.stderr.strip()[-300:]}"
        making.rename(made)
    except subprocess.TimeoutExpired as late:
        return f"npm takes longer than {late.timeout} s"
    except OSError:  # somebody else was quicker
        if not made.exists():
            raise
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return made
