"""relay.wire.keyring: which files are keyrings, and what is said of those that are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.wire.keyring import Keyring, KeyringError, RingKey, generate_line

SECRET = "0123456789abcdef" * 4


def test_lines_comments_and_blanks() -> None:
    ring = Keyring.parse(f"# ring\n\n 3:{SECRET}  # new\r\n0:{SECRET.upper()}\n")
    assert ring.keys == (RingKey(3, bytes.fromhex(SECRET)), RingKey(0, bytes.fromhex(SECRET)))


def test_a_generated_line_is_a_keyring() -> None:
    for key_id in range(7):
        ring = Keyring.parse(generate_line(key_id))
        assert [key.id for key in ring.keys] == [key_id]
    assert generate_line() != generate_line()
    with pytest.raises(KeyringError):
        generate_line(7)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no key"),
        ("# nothing\n", "no key"),
        ("hello", "line 1: not `id:64-hex-digits`"),
        (f"0:{SECRET}\n{SECRET}", "line 2: not"),
        (f"0:{SECRET}0", "line 1: not"),
        (f"0:{SECRET[:-1]}", "line 1: not"),
        (f"0:{SECRET[:-1]}g", "line 1: not"),
        (f"0: {SECRET}", "line 1: not"),
        (f"-1:{SECRET}", "line 1: not"),
        (f"1_0:{SECRET}", "line 1: not"),
        (f"٣:{SECRET}", "line 1: not"),
        (f"7:{SECRET}", "line 1: key id 7 is not in 0..6"),
        (f"999:{SECRET}", "key id 999 is not in 0..6"),
        (f"{'9' * 5000}:{SECRET}", "line 1: not"),
        (f"1:{SECRET}\n2:{SECRET}\n1:{SECRET}", "line 3: key id 1 occurs twice"),
    ],
)
def test_what_is_no_keyring_names_the_line_and_never_the_secret(text: str, reason: str) -> None:
    with pytest.raises(KeyringError) as caught:
        Keyring.parse(text, "ring.txt")
    assert reason in str(caught.value)
    assert str(caught.value).startswith("ring.txt")
    assert SECRET[:16] not in str(caught.value)


def test_a_repr_keeps_the_secret() -> None:
    ring = Keyring.parse(f"0:{SECRET}")
    assert "RingKey(id=0)" in repr(ring)


def test_load(tmp_path: Path) -> None:
    path = tmp_path / "keyring"
    path.write_text(generate_line(1) + "\n")
    assert Keyring.load(path).keys[0].id == 1
    assert Keyring.load(str(path)) == Keyring.load(path)
    path.write_text("\ufeff" + generate_line(2), "utf-8")
    assert Keyring.load(path).keys[0].id == 2


def test_load_names_the_file_and_the_reason(tmp_path: Path) -> None:
    with pytest.raises(KeyringError, match=r"missing: No such file"):
        Keyring.load(tmp_path / "missing")
    with pytest.raises(KeyringError, match="Is a directory"):
        Keyring.load(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(KeyringError, match="binary: not a text file"):
        Keyring.load(tmp_path / "binary")
