"""JSON from strangers (transceiver/nesting.py)."""

from __future__ import annotations

import pytest

from transceiver.nesting import NESTING_MAX, read_json


@pytest.mark.parametrize("text", ["NaN", '{"a": Infinity}', "[-Infinity]", "1e999", "[-1e999]"])
def test_numbers_that_no_browser_reads_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no number of JSON"):
        read_json(text)


def test_numbers_of_every_size_are_read() -> None:
    assert read_json("[0, -1, 1.5, 1e308, 1e-999]") == [0, -1, 1.5, 1e308, 0.0]


@pytest.mark.parametrize("text", [b'{"a": "\xc3\xa9"}', b'\xef\xbb\xbf{"a": "\xc3\xa9"}'])
def test_bytes_are_utf_8(text: bytes) -> None:
    assert read_json(text) == {"a": "é"}


@pytest.mark.parametrize("text", [b"\xff", b"{", "", "[" * 100_000])
def test_what_is_no_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        read_json(text)


def test_depth_is_bounded() -> None:
    assert read_json("[" * NESTING_MAX + "]" * NESTING_MAX)
    with pytest.raises(ValueError, match="too deep"):
        read_json("[" * (NESTING_MAX + 1) + "]" * (NESTING_MAX + 1))
