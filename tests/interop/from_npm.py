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
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "npm"
TIMEOUT_S = 300
_QUIET = ("--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error")
_BUNDLE = ("esbuild", "main.js", "--bundle", "--format=esm", "--outfile=bundle.js")


@functools.cache
def folder() -> Path:
    """The folder with page.html, bundle.js and node_modules, made on first use."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    sources = sorted(SOURCE.iterdir())
    state = hashlib.sha256(b"".join(file.read_bytes() for file in sources)).hexdigest()[:16]
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    made = base / "voice-relay-tests" / state
    if made.exists():
        return made
    making = made.with_name(f"{state}.{os.getpid()}")
    making.mkdir(parents=True)
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
                pytest.skip(f"npm {command[0]} failed: {done.stderr.strip()[-300:]}")
        making.rename(made)
    except OSError:  # somebody else was quicker
        if not made.exists():
            raise
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return made
