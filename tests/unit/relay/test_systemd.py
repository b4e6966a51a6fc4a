"""The systemd unit and its configuration against the program."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from relay.cli import main
from relay.wire.sources import take_file

FOLDER = Path(__file__).resolve().parents[3] / "contrib" / "systemd"


def directives() -> dict[str, str]:
    """The unit's directives; each is given once."""
    found: dict[str, str] = {}
    for line in (FOLDER / "relay.service").read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            assert name not in found
            found[name] = value
    return found


def serve_options() -> dict[str, click.Option]:
    """Underscored name to option of `relay serve`."""
    return {
        str(parameter.name): parameter
        for parameter in main.commands["serve"].params
        if isinstance(parameter, click.Option)
    }


def test_the_command_line_is_one_that_serve_takes() -> None:
    words = shlex.split(directives()["ExecStart"])
    assert words[1] == "serve"
    known = {name for option in serve_options().values() for name in option.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_the_example_file_is_one_that_serve_takes() -> None:
    options = serve_options()
    context = click.Context(main.commands["serve"])
    take_file(context, options["config"], str(FOLDER / "relay.toml"))
    values = context.default_map or {}
    required = {name for name, option in options.items() if option.required}
    assert required <= values.keys()
    assert float(str(values["drain_timeout"])) < float(directives()["TimeoutStopSec"])


def test_signals_go_where_the_supervisor_expects_them() -> None:
    unit = directives()
    assert unit["KillMode"] == "mixed"
    assert unit["ExecReload"].split()[1:] == ["-HUP", "$MAINPID"]
    assert (unit["Type"], unit["NotifyAccess"]) == ("notify", "main")


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "relay.service"
    text = (FOLDER / "relay.service").read_text()
    unit.write_text(
        text.replace("/usr/local/bin/relay", "/bin/true").replace("User=relay", "User=root")
    )
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True)
    about_us = [line for line in done.stderr.splitlines() if "relay.service" in line]
    assert not about_us
