"""The transceiver's systemd unit and its configuration against the program."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from relay.wire.keyring import generate_line
from transceiver import cli, log
from transceiver.config import TransceiverConfig

FOLDER = Path(__file__).resolve().parents[3] / "contrib" / "systemd"
UNIT = FOLDER / "transceiver.service"


def directives() -> dict[str, str]:
    """The unit's directives."""
    lines = [line.partition("=") for line in UNIT.read_text().splitlines()]
    return {name: value for name, equals, value in lines if equals and not name.startswith("#")}


def test_the_example_file_is_one_that_serve_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[TransceiverConfig] = []

    class Pool:
        def __init__(self, config: TransceiverConfig) -> None:
            seen.append(config)

        def run(self) -> int:
            return 0

    monkeypatch.setattr(cli, "Pool", Pool)
    monkeypatch.setattr(log, "configure", lambda *_: None)
    text = (FOLDER / "transceiver.toml").read_text().replace("/etc/transceiver", str(tmp_path))
    (tmp_path / "keyring").write_text(generate_line())
    (tmp_path / "api-keys").write_text("web " + "k" * 48)
    (tmp_path / "auth-secret").write_text("s" * 64)
    (tmp_path / "transceiver.toml").write_text(text)
    words = shlex.split(directives()["ExecStart"].replace("/etc/transceiver", str(tmp_path)))
    result = CliRunner().invoke(cli.main, words[1:])
    assert result.exit_code == 0, result.output
    (config,) = seen
    assert not config.is_open
    assert config.drain_timeout_s + 10 < float(directives()["TimeoutStopSec"])
    assert directives()["KillMode"] == "mixed"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    program = tmp_path / "transceiver"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "transceiver.service"
    unit.write_text(UNIT.read_text().replace("/usr/local/bin/transceiver", str(program)))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60
    )  # fmt: skip
    assert "transceiver.service" not in checked.stderr, checked.stderr
