"""`relay keygen`: what it prints is a keyring."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from relay.cli import main
from relay.wire.keyring import Keyring

KEYGEN = main.commands["keygen"]


@pytest.mark.parametrize(("arguments", "key_id"), [([], 0), (["--id", "3"], 3)])
def test_prints_a_keyring_of_one_new_key(arguments: list[str], key_id: int) -> None:
    first, second = (
        CliRunner().invoke(KEYGEN, arguments, catch_exceptions=False) for _ in range(2)
    )
    assert first.exit_code == 0
    assert first.output.endswith("\n")
    assert len(first.output.splitlines()) == 1
    (key,) = Keyring.parse(first.output).keys
    assert key.id == key_id
    assert first.output != second.output


def test_appended_lines_are_a_keyring() -> None:
    """As a key is rotated: `relay keygen --id 1 >> keyring`."""
    lines = [CliRunner().invoke(KEYGEN, arguments).output for arguments in ([], ["--id", "1"])]
    assert [key.id for key in Keyring.parse("".join(lines)).keys] == [0, 1]


@pytest.mark.parametrize("key_id", ["-1", "7", "x"])
def test_refuses_an_id_that_no_token_carries(key_id: str) -> None:
    refused = CliRunner().invoke(KEYGEN, [f"--id={key_id}"])
    assert refused.exit_code == 2
    assert "--id" in refused.output
