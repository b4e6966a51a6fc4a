"""The documents against the code: links lead somewhere, commands and options exist."""

from __future__ import annotations

import importlib
import re
import subprocess
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "csrc/README.md",
    "benchmarks/README.md",
    "helm/README.md",
]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    document = ROOT / name
    targets = re.findall(r"\]\(([^)#\s]+)", document.read_text())
    missing = [
        target
        for target in targets
        if "://" not in target and not (document.parent / target).exists()
    ]
    assert not missing


@pytest.mark.parametrize("name", DOCUMENTS)
def test_named_files_exist(name: str) -> None:
    """`path/with/slash.ext` in backquotes is a file from the root or from the document's folder."""
    document = ROOT / name
    named = re.findall(r"`([\w.-]+(?:/[\w.-]+)+\.[a-z]+)`", document.read_text())
    missing = [
        path
        for path in named
        if not (ROOT / path).exists() and not (document.parent / path).exists()
    ]
    assert not missing


def program_options(program: str) -> dict[str, set[str]]:
    """Subcommand name -> its option names, of a click program."""
    group = importlib.import_module(f"{program}.cli").main
    assert isinstance(group, click.Group)
    return {
        name: {option for parameter in command.params for option in parameter.opts}
        for name, command in group.commands.items()
    }


@pytest.mark.parametrize("program", ["relay", "transceiver"])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_and_their_options_exist(name: str, program: str) -> None:
    known = program_options(program)
    text = (ROOT / name).read_text().replace("\\\n", " ")
    wrong = []
    for line in re.findall(rf"^ {{4}}{program} .*$", text, flags=re.MULTILINE):
        words = line.split()
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        unknown = options - known.get(words[1], set())
        if words[1] not in known or unknown:
            wrong.append((line.strip(), unknown))
    assert not wrong


def test_readme_option_table_names_real_options() -> None:
    options = {
        option
        for program in ("relay", "transceiver")
        for names in program_options(program).values()
        for option in names
    }
    rows = re.findall(r"^\| `(--[\w-]+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert rows
    assert not set(rows) - options


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_run_commands_exist(name: str) -> None:
    usage = subprocess.run([ROOT / "run"], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"^ {2}(\w+) ", usage, flags=re.MULTILINE))
    named = set(re.findall(r"\./run ([a-z]+)", (ROOT / name).read_text()))
    assert named <= known
