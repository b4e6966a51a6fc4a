"""setup.py: each program's extensions build without the other's libraries, and what is missing is named in one line.

In a copy of the tree; a header is hidden by one of its name that does not compile, first on the compiler's path.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RELAY = "relay.wire._codec relay._dataplane"
TRANSCEIVER = "relay.wire._codec transceiver._engine"
SOUND = ("opus/opus.h", "speex/speex_resampler.h")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def tree(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources, without any library; with what Cython wrote, which it writes anew where it is older than they are."""
    tree = tmp_path_factory.mktemp("tree") / "source"
    tree.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, tree / name)
    built = shutil.ignore_patterns("*.so", "__pycache__")
    for name in ("csrc", "relay", "transceiver"):
        shutil.copytree(root / name, tree / name, ignore=built)
    if (root / "build/cython").exists():
        shutil.copytree(root / "build/cython", tree / "build/cython")
    return tree


def compiler_without(headers: tuple[str, ...], directory: Path) -> str:
    """A compiler that does not have these, and is in a hurry."""
    for header in headers:
        (directory / "hidden" / header).parent.mkdir(parents=True, exist_ok=True)
        (directory / "hidden" / header).write_text("#error hidden\n")
    program = directory / "compiler"
    program.write_text(f'#!/bin/sh\nexec cc -I{directory}/hidden "$@" -O0 -g0\n')
    program.chmod(0o755)
    return str(program)


def build(
    tree: Path, directory: Path, extensions: str, compiler: str
) -> subprocess.CompletedProcess[str]:
    """`setup.py build_ext` of these, quickly, into a folder of its own."""
    command = ["setup.py", "-q", "build_ext", "--parallel", "2", "--build-lib", str(directory)]
    return subprocess.run(
        [sys.executable, *command, "--build-temp", str(directory / "objects")],
        cwd=tree,
        env=os.environ | {"VOICE_RELAY_EXTENSIONS": extensions, "CC": compiler},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("extensions", "hidden"), [(RELAY, SOUND), (TRANSCEIVER, ())], ids=["relay", "transceiver"]
)
def test_each_builds_alone(
    tree: Path, tmp_path: Path, extensions: str, hidden: tuple[str, ...]
) -> None:
    done = build(tree, tmp_path / "built", extensions, compiler_without(hidden, tmp_path))
    assert done.returncode == 0, done.stderr
    made = {path.name.partition(".")[0] for path in (tmp_path / "built").rglob("*.so")}
    assert made == {name.rpartition(".")[2] for name in extensions.split()}


@pytest.mark.parametrize(
    ("header", "package"),
    [
        ("stdio.h", "libc6-dev"),
        ("openssl/evp.h", "libssl-dev"),
        ("opus/opus.h", "libopus-dev"),
        ("speex/speex_resampler.h", "libspeexdsp-dev"),
    ],
)
def test_a_missing_header_is_one_line(
    tree: Path, tmp_path: Path, header: str, package: str
) -> None:
    compiler = compiler_without((header,), tmp_path)
    done = build(tree, tmp_path / "built", "transceiver._engine", compiler)
    assert done.returncode == 1
    expected = f"error: transceiver._engine needs the header {header}: install {package}"
    assert done.stderr.splitlines() == [expected]


def test_a_missing_compiler_is_one_line(tree: Path, tmp_path: Path) -> None:
    done = build(tree, tmp_path / "built", "relay.wire._codec", str(tmp_path / "no-such"))
    assert done.returncode == 1
    expected = "error: relay.wire._codec needs a C compiler: install gcc"
    assert done.stderr.splitlines() == [expected]
