"""The Dockerfile keeps the rules of a small, locked image, and its root file system runs both programs.

The rules are those a Dockerfile linter would check and that matter here. The root file system is built
without Docker by contrib/image/rootfs; with ROOTFS=DIRECTORY in the environment it is tried.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.chart.values_doc import CHART

ROOT = CHART.parent
IMAGE = ROOT / "contrib" / "image"
LABELS = ("title", "description", "licenses", "version", "revision")


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions and their arguments, continuation lines joined."""
    text = (ROOT / "Dockerfile").read_text("utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    found = []
    for line in joined.splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            found.append((word, " ".join(rest.split())))
    return found


def final_stage() -> list[tuple[str, str]]:
    everything = instructions()
    last = max(index for index, (word, _) in enumerate(everything) if word == "FROM")
    return everything[last:]


def packages(name: str) -> list[str]:
    return (IMAGE / name).read_text("utf-8").split()


def test_bases_are_one_named_release() -> None:
    (base,) = (rest for word, rest in instructions() if word == "ARG" and rest.startswith("BASE="))
    assert re.fullmatch(r"BASE=debian:[a-z]+-slim", base)
    bases = [rest for word, rest in instructions() if word == "FROM"]
    assert bases == ["${BASE} AS build", "${BASE}"]


def test_nothing_is_fetched_past_the_package_managers() -> None:
    for word, rest in instructions():
        assert word != "ADD"
        assert not re.search(r"\b(curl|wget|git clone)\b", rest)
    script = (IMAGE / "packages").read_text("utf-8")
    assert "--no-install-recommends" in script
    assert "rm -rf /var/lib/apt/lists" in script
    assert "-c constraints.txt" in (IMAGE / "install").read_text("utf-8")


def test_the_final_stage_has_no_compiler_and_no_source() -> None:
    stage = final_stage()
    copies = [rest for word, rest in stage if word == "COPY"]
    assert copies == ["--from=build /opt/voice /opt/voice"]
    forbidden = re.compile(r"gcc|g\+\+|clang|make|-dev$|cython|pip|venv")
    assert not [name for name in packages("runtime-packages") if forbidden.search(name)]
    assert not any("build-packages" in rest for _, rest in stage)


def test_it_runs_as_the_chart_s_user() -> None:
    stage = final_stage()
    users = [rest for word, rest in stage if word == "USER"]
    assert users == ["3478:3478"]
    assert stage.index(("USER", users[0])) > max(
        index for index, (word, _) in enumerate(stage) if word in ("RUN", "COPY")
    )


def test_labels_are_there() -> None:
    (labels,) = (rest for word, rest in final_stage() if word == "LABEL")
    for name in LABELS:
        assert f"org.opencontainers.image.{name}=" in labels


def test_signals_reach_the_program() -> None:
    stage = final_stage()
    assert ("STOPSIGNAL", "SIGTERM") in stage
    for word, rest in stage:
        if word in ("CMD", "ENTRYPOINT"):
            assert rest.startswith("["), "a shell would be process 1"


def test_what_is_copied_exists_and_is_let_through() -> None:
    ignore = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert ignore[0] == "*"
    for word, rest in instructions():
        if word == "COPY" and not rest.startswith("--from"):
            for name in rest.split()[:-1]:
                assert (ROOT / name).exists()
                assert f"!{name}" in ignore


@pytest.fixture
def rootfs() -> Path:
    if "ROOTFS" not in os.environ:
        pytest.skip("ROOTFS names no root file system; contrib/image/rootfs DIRECTORY builds one")
    if os.geteuid() != 0:
        pytest.skip("entering a root file system needs root")
    return Path(os.environ["ROOTFS"])


def enter(rootfs: Path, script: str) -> str:
    """What a shell script prints inside, as the container's user on a read-only root."""
    done = subprocess.run(
        [IMAGE / "enter", rootfs, "sh", "-euc", script],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_root_file_system_is_read_only_and_small(rootfs: Path) -> None:
    printed = enter(
        rootfs,
        "id -u; touch /x /opt/voice/x /etc/x 2>/dev/null || echo refused;"
        "for tool in gcc cc make pip pip3 git; do if command -v $tool; then exit 1; fi; done;"
        "grep CapBnd /proc/self/status",
    )
    assert printed.split() == ["3478", "refused", "CapBnd:", "0" * 16]


@pytest.mark.slow
def test_a_call_within_the_root_file_system(rootfs: Path) -> None:
    """Relay, transceiver and caller, all of the image, on its read-only root."""
    printed = enter(
        rootfs,
        "relay keygen >/tmp/keyring;"
        "relay serve --listen 127.0.0.1:23478 --internal 127.0.0.1:0 --workers 1 --keyring /tmp/keyring"
        " --allow-transceiver 127.0.0.1/32 --admin 127.0.0.1:0 --drain-timeout 0 >/tmp/relay.log 2>&1 & relay=$!;"
        "transceiver serve --http 127.0.0.1:28080 --media 127.0.0.1:0 --workers 1 --keyring /tmp/keyring"
        " --ingress main=127.0.0.1:23478 --backend loopback --drain-timeout 0 >/tmp/log 2>&1 & transceiver=$!;"
        "for i in $(seq 100); do grep -q 'role=http' /tmp/log && break; sleep 0.3; done;"
        "status=0; relay call http://127.0.0.1:28080 --seconds 3 || status=$?;"
        "[ $status = 0 ] || cat /tmp/*log; kill $relay $transceiver; wait $relay $transceiver; exit $status",
    )
    assert printed.rstrip().endswith("| ok")
