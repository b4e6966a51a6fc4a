"""The rules that no compiler checks: who may import whom, which C is pure, what is left out.

Each rule is one test; a failing one names the file and the line that breaks it.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# C files that may do I/O and read clocks; everything else in csrc is bytes in, verdict out.
IO_FILES = {"socket", "sockaddr", "sender", "pathmtu", "loop", "engine"}

# The headers that pure C may include. What is missing here has a syscall, a clock or a thread.
PURE_HEADERS = {
    "assert.h",
    "errno.h",
    "limits.h",
    "math.h",
    "stdalign.h",
    "stdatomic.h",
    "stdbool.h",
    "stddef.h",
    "stdint.h",
    "stdio.h",
    "stdlib.h",
    "string.h",
}
PURE_LIBRARIES = ("openssl/", "opus/", "speex/")

# Calls that need no header of their own to go wrong in pure code: printing, the environment, clocks.
IMPURE_CALLS = re.compile(
    r"\b(printf|fprintf|puts|perror|getenv|time|clock|clock_gettime|gettimeofday|rand|random|"
    r"abort|exit|syscall|mmap|open|read|write|close|socket|sendto|recvfrom)\s*\("
)

# What a relay worker must not carry: each costs start-up time, threads or packets.
HEAVY_MODULES = {
    "aiohttp",
    "aiortc",
    "asyncio",
    "click",
    "cryptography",
    "prometheus_client",
    "redis",
    "structlog",
    "transceiver",
}


def python_files(*directories: str) -> Iterator[Path]:
    """The Python and Cython sources below these directories."""
    for directory in directories:
        for pattern in ("*.py", "*.pyi", "*.pyx", "*.pxd"):
            yield from sorted((ROOT / directory).rglob(pattern))


def c_files(directory: str = "csrc") -> list[Path]:
    """The hand-written C files below a directory."""
    return sorted((ROOT / directory).rglob("*.[ch]"))


def tracked_files() -> list[Path]:
    """What the repository holds; needs git and a work tree."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("git is not installed, or this is no work tree")
    listing = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    paths = (ROOT / name for name in listing.decode().split("\0") if name)
    return [path for path in paths if path.is_file()]


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of every import; Cython files are read line by line."""
    package = path.relative_to(ROOT).parts[:-1]
    if path.suffix in (".py", ".pyi"):
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node.lineno, alias.name
            elif isinstance(node, ast.ImportFrom):
                base = list(package[: len(package) - node.level + 1]) if node.level else []
                module = ".".join([*base, *([node.module] if node.module else [])])
                for alias in node.names:
                    yield node.lineno, f"{module}.{alias.name}"
        return
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := re.match(r"\s*from\s+([\w.]+)\s+c?import\s+\(?\s*(\w+)", line):
            yield number, f"{match[1]}.{match[2]}"
        elif match := re.match(r"\s*c?import\s+([\w.]+)", line):
            yield number, match[1]


def test_transceiver_imports_only_wire_of_relay() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in python_files("transceiver")
        for line, name in imported_modules(path)
        if (name == "relay" or name.startswith("relay."))
        and not (name + ".").startswith("relay.wire.")
    ]
    assert not wrong, "transceiver/ may import relay.wire and nothing else of relay/"


def test_relay_imports_nothing_of_transceiver() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in python_files("relay")
        for line, name in imported_modules(path)
        if (name + ".").startswith("transceiver.")
    ]
    assert not wrong


def test_wire_imports_nothing_of_the_relay_around_it() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in python_files("relay/wire")
        for line, name in imported_modules(path)
        if name.startswith("relay.")
        and not (name + ".").startswith(("relay.wire.", "relay._csrc."))
    ]
    assert not wrong


def strip_comments(text: str) -> str:
    """C text with comments and strings blanked, the line numbers kept."""
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"'

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n") if match[0][0] == "/" else '""'

    return re.sub(pattern, blank, text, flags=re.DOTALL)


@pytest.mark.parametrize("path", c_files(), ids=lambda path: str(path.relative_to(ROOT / "csrc")))
def test_c_outside_the_io_files_is_pure(path: Path) -> None:
    if path.stem in IO_FILES:
        return
    wrong = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = re.match(r"\s*#\s*include\s*<([^>]+)>", line)
        if match and match[1] not in PURE_HEADERS and not match[1].startswith(PURE_LIBRARIES):
            wrong.append(f"line {number}: <{match[1]}>")
    for number, line in enumerate(strip_comments(path.read_text()).splitlines(), 1):
        if match := IMPURE_CALLS.search(line):
            wrong.append(f"line {number}: {match[1]}()")
    assert not wrong, "pure C has no syscall, no clock, no output; only the files of IO_FILES do"


@pytest.mark.parametrize("path", c_files(), ids=lambda path: str(path.relative_to(ROOT / "csrc")))
def test_c_includes_follow_the_layers(path: Path) -> None:
    layer = path.relative_to(ROOT / "csrc").parts[0]
    allowed = {"wire": {"wire"}, "relay": {"wire", "relay"}, "media": {"wire", "media"}}[layer]
    for match in re.finditer(r'#\s*include\s*"([^"]+)"', path.read_text()):
        target = (path.parent / match[1]).resolve()
        assert target.is_file(), match[0]
        assert target.relative_to(ROOT / "csrc").parts[0] in allowed, match[0]


def loaded_with(module: str) -> set[str]:
    """The top-level modules that its import loads."""
    program = f"import sys, {module}; print(*sys.modules, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_worker_stays_light() -> None:
    assert not loaded_with("relay.worker") & HEAVY_MODULES


def test_a_transceiver_loads_redis_only_where_there_is_one() -> None:
    """It costs each pool 5 MB and a tenth of a second."""
    assert "redis" not in loaded_with("transceiver.cli")


def test_tracked_text_names_no_machine() -> None:
    """A path of somebody's home or of a build machine in the text is a machine's, not the project's."""
    machine_path = re.compile(rb"(?<![\w.$}/-])/(home|root|Users|work|builds)/[\w.-]+")
    wrong = []
    for path in tracked_files():
        data = path.read_bytes()
        if b"\0" in data[:4096]:
            continue
        for number, line in enumerate(data.splitlines(), 1):
            if machine_path.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {line.decode(errors='replace')}")
    assert not wrong


def test_tracked_files_hold_nothing_built() -> None:
    built = {".so", ".o", ".a", ".pyc"}
    generated = [
        path
        for path in tracked_files()
        if path.suffix in built
        or (path.suffix == ".c" and path.with_suffix(".pyx").exists())
        or path.name == ".DS_Store"
    ]
    assert not generated


def test_every_python_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in python_files("relay", "transceiver", "benchmarks")
        if path.suffix == ".py"
        and path.name != "__init__.py"
        and not ast.get_docstring(ast.parse(path.read_text(), str(path)))
    ]
    assert not silent


def test_c_is_formatted() -> None:
    clang_format = shutil.which("clang-format", path=str(Path(sys.executable).parent))
    if clang_format is None:
        pytest.skip("the pinned clang-format is not installed (./run lint installs it)")
    files = [*c_files(), *c_files("tests"), *c_files("benchmarks")]
    done = subprocess.run(
        [clang_format, "--dry-run", "-Werror", *map(str, files)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[:4000]
