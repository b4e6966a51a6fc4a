"""Options out of a TOML file, and what is said of wrong ones (relay.wire.sources)."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from relay.wire.sources import SourcedCommand, take_file


@click.command(cls=SourcedCommand)
@click.option("--listen", multiple=True)
@click.option("--workers", type=int)
@click.option("--idle-timeout", type=float)
@click.option("--limit", multiple=True)
@click.option("--takeover", is_flag=True)
@click.option(
    "--config", envvar="PROGRAM_CONFIG", is_eager=True, expose_value=False, callback=take_file
)
def program(**options: object) -> None:
    """Says what it was told."""
    click.echo(json.dumps(options))


def test_values_of_every_kind_become_defaults(tmp_path: Path) -> None:
    path = tmp_path / "program.toml"
    path.write_bytes(
        b"\xef\xbb\xbfworkers = 2\r\nidle_timeout = 1.5\ntakeover = true\n"
        b'listen = ["0.0.0.0:1", "[::]:1"]\n[limit]\nsource_unanswered = 9\n'
    )
    told = CliRunner().invoke(program, [f"--config={path}", "--workers=3"])
    assert json.loads(told.output) == {
        "listen": ["0.0.0.0:1", "[::]:1"],
        "workers": 3,
        "idle_timeout": 1.5,
        "limit": ["source_unanswered=9"],
        "takeover": True,
    }


def test_one_value_stands_for_a_list_of_one(tmp_path: Path) -> None:
    path = tmp_path / "program.toml"
    path.write_text('listen = "0.0.0.0:1"')
    told = CliRunner().invoke(program, env={"PROGRAM_CONFIG": str(path)})
    assert json.loads(told.output)["listen"] == ["0.0.0.0:1"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("wrokers = 2", "there is no option `wrokers`"),
        ('config = "x"', "there is no option `config`"),
        ("workers = [2]", "`workers` takes one value, not a list"),
        ("workers =", "not TOML: "),
        ("workers = true", "`workers` is neither a text nor a number"),
        ("listen = true", "`listen` is neither a text nor a number"),
        ("listen = [true]", "`listen` is neither a text nor a number"),
        ("workers = 1970-01-01", "`workers` is neither a text nor a number"),
        ('workers = "a\\u0000b"', "`workers` has a NUL in it"),
        (f"workers = {'9' * 5000}", "not TOML: "),
        (f"listen = {'[' * 5000}", "not TOML: nested too deep"),
    ],
)
def test_what_is_no_option_is_refused_in_a_line_that_names_the_file(
    tmp_path: Path, content: str, reason: str
) -> None:
    path = tmp_path / "program.toml"
    path.write_text(content)
    refused = CliRunner().invoke(program, [f"--config={path}"])
    assert refused.exit_code == 2
    assert f"--config {path}: {reason}" in refused.output


def test_a_file_that_is_not_there_is_named_with_where_it_was_named(tmp_path: Path) -> None:
    path = tmp_path / "program.toml"
    refused = CliRunner().invoke(program, env={"PROGRAM_CONFIG": str(path)})
    assert refused.exit_code == 2
    assert f"--config {path}: No such file or directory (from PROGRAM_CONFIG)" in refused.output
