"""Commands whose product is output, when it cannot be written or makes no sense."""

import subprocess
import sys

import pytest

KEY_WITH_A_LINE_END = "a\r\nX-Other: b"


def run(*words: str, stdout: int | None = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words], stdout=stdout, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    "words", [("relay", "keygen"), ("relay", "--help"), ("transceiver", "--help")]
)
def test_a_full_disk_is_one_line(words: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        ended = run(*words, stdout=full.fileno())
    assert ended.returncode == 1
    assert ended.stderr == f"{words[0]}: cannot write the output: No space left on device\n"


@pytest.mark.parametrize(
    "words",
    [
        ("call", "http://"),
        ("call", "http://a..b/"),
        ("call", "http://[::1"),
        ("call", "http://127.0.0.1:99999"),
        ("call", "http://127.0.0.1:1", "--key", KEY_WITH_A_LINE_END),
        ("capacity", "--sessions", "9" * 400),
        ("capacity", "--sessions", "1", "--up-us", "-1", "--down-us", "1"),
        ("capacity", "--sessions", "1", "--up-us", "nan", "--down-us", "1"),
        ("capacity", "--sessions", "1", "--nic-gbit", "0"),
        ("capacity", "--sessions", "1", "--payload-bytes", "0"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(words: tuple[str, ...]) -> None:
    ended = run("relay", *words)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("relay: ")
    assert len(ended.stderr.splitlines()) == 1
