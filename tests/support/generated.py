"""What Cython makes of a module, for tests of what runs without the GIL."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


def calls_without_gil(root: Path, source: str, entry: str, folder: Path) -> list[str]:
    """The C functions that are called between giving up the GIL and taking it again, in the one place of `source` (a
    .pyx below `root`) where `entry` is among them. Skips the test where there is no Cython.
    """
    generated = folder / "generated.c"
    command = [sys.executable, "-m", "cython", "-3", source, "-o", str(generated)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if "No module named" in done.stderr:
        pytest.skip("Cython is not installed")
    assert done.returncode == 0, done.stderr
    code = re.sub(r"/\*.*?\*/", "", generated.read_text(), flags=re.DOTALL)
    regions = re.findall(
        r"(?:Py_UNBLOCK_THREADS|PyEval_SaveThread\(\));(.*?)(?:Py_BLOCK_THREADS|PyEval_RestoreThread)",
        code,
        flags=re.DOTALL,
    )
    (region,) = (region for region in regions if entry in region)
    calls = re.findall(r"\b(\w+)\s*\(", region)
    return [call for call in calls if not call.startswith("__Pyx_FastGIL_")]
