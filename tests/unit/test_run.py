"""`./run` on machines that lack something: what is missing is named, what was skipped is said at the end.

A copy of the script in a tree of its own, with a PATH of symbolic links to what this machine has, less what is hidden.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HIDDEN = {"apt-get", "sudo", "cc", "gcc", "make"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH that leads to every program of this machine's but the hidden ones."""
    directory = tmp_path_factory.mktemp("bin")
    for folder in os.environ["PATH"].split(":"):
        for program in Path(folder).glob("*"):
            link = directory / program.name
            if program.name not in HIDDEN and not link.is_symlink():
                link.symlink_to(program)
    return str(directory)


@pytest.fixture
def tree(root: Path, tmp_path: Path) -> Path:
    """A work tree with what `run` reads."""
    tree = tmp_path / "tree"
    (tree / "tests/support").mkdir(parents=True)
    names = "run setup.py pyproject.toml constraints.txt tests/support/skipped.py"
    for name in names.split():
        shutil.copy(root / name, tree / name)
    return tree


def run(tree: Path, path: str, *arguments: str, **more: str) -> tuple[int, str]:
    """Exit status and stderr of the copy, which /usr/sbin is always on the path of."""
    environment = {"PATH": path, "HOME": str(tree), "LANG": "C.UTF-8", **more}
    done = subprocess.run(
        ["./run", *arguments], cwd=tree, env=environment, capture_output=True, text=True
    )
    return done.returncode, done.stderr


def test_names_what_is_missing_and_stops(tree: Path, path: str) -> None:
    status, said = run(tree, path, "build")
    assert status == 3
    first, *_, last = said.splitlines()
    libraries = "libssl-dev libopus-dev libspeexdsp-dev"
    assert first.startswith("run: missing: ")
    assert first.endswith(f"gcc libc6-dev {libraries}"), "without tests nothing of theirs"
    assert last.startswith("run:     sudo apt-get install --no-install-recommends ")
    assert last.endswith(f"gcc libc6-dev {libraries}")
    assert not (tree / ".venv").exists()


@pytest.mark.parametrize(("command", "also"), [("test", "make"), ("bench", "libnginx-mod-stream")])
def test_names_at_once_what_will_be_asked_for_next(
    tree: Path, path: str, command: str, also: str
) -> None:
    status, said = run(tree, path, command, NGINX_MODULES=str(tree))
    assert status == 3
    assert "gcc" in said.splitlines()[0].partition("(and for the tests: ")[0]
    assert also in said.splitlines()[0].partition("(and for the tests: ")[2].rstrip(")").split()
    assert also in said.splitlines()[-1].split()


def test_says_at_the_end_what_was_skipped_and_why(tree: Path, path: str, tmp_path: Path) -> None:
    """Both parts of pytest, and what the script itself left out."""
    python = tree / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    # This interpreter, which has the packages already.
    python.write_text(
        f'#!/bin/sh\n[ "$2" = pip ] || [ "$1" = setup.py ] || exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    (tree / "build/stamps").mkdir(parents=True)
    (tree / "build/stamps/venv").write_text(f"{tree}\n")
    installed = subprocess.check_output("cat pyproject.toml setup.py | cksum", shell=True, cwd=tree)
    (tree / "build/stamps/install").write_bytes(installed)
    (tree / "pytest.ini").write_text("[pytest]\nmarkers =\n  alone: by itself\n  soak: long\n")
    folder = tree / "tests/netns"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "test_some.py").write_text(
        textwrap.dedent(
            """
            import pytest

            @pytest.mark.parametrize("host", range(2))
            def test_skipped(host):
                pytest.skip("no network namespaces: needs root\\nand a log of it")

            @pytest.mark.alone
            def test_skipped_alone():
                pytest.skip("this machine is too busy")

            @pytest.mark.alone
            def test_passes():
                pass

            @pytest.mark.xfail
            def test_is_known_to_fail():
                assert False
            """
        )
    )
    listed = tmp_path / "listed"
    quick = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist"}
    status, said = run(tree, path, "test", NO_INSTALL="1", SKIPPED_TO=str(listed), **quick)
    assert status == 0, said
    assert said[said.rindex("\n\n") :].split("\n")[2:-1] == [
        "run: C tests and fuzz corpus: skipped, there is no make",
        "run: pytest: passed",
        "run: 2 tests of netns: skipped, no network namespaces: needs root",
        "run: 1 test of netns: skipped, this machine is too busy",
    ]
    assert listed.read_text().splitlines() == [
        "C tests and fuzz corpus: there is no make",
        "2 tests of netns: no network namespaces: needs root",
        "1 test of netns: this machine is too busy",
    ]


PARTS = """#!/bin/sh
mkdir -p build
if [ "$1" = test ]; then
    echo "3 tests of netns: network namespaces need root" >>"$SKIPPED_TO"
    for part in pytest pytest-alone; do
        echo '<testsuites><testsuite tests="9" failures="0" errors="0" skipped="3"/></testsuites>' >build/$part.xml
    done
fi
"""


def test_the_proof_ends_with_what_was_not_proven_here(root: Path, tmp_path: Path) -> None:
    """It stands right above the count, and is no failure."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(root / ".ci/run", tmp_path / ".ci/run")
    (tmp_path / "run").write_text(PARTS)
    (tmp_path / "run").chmod(0o755)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    for _ in range(2):  # nothing is left of an earlier run
        done = subprocess.run([".ci/run"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            "",
            "NOT PROVEN on this machine:",
            "  3 tests of netns: network namespaces need root",
            "15 passed, 0 failed, 6 skipped",
        ]
