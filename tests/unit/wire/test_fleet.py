"""Announcements: what is written is read, and what a stranger writes is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.wire.fleet import (
    Announcement,
    FleetState,
    draw_announcer,
    read_announcement,
)

FIELD, VALUE = b"frankfurt 5f0c2a8e91d3b764", b"1 serving 1764480000123"


@given(
    st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True),
    st.sampled_from(FleetState),
    st.integers(0, 10**15 - 1),
)
def test_what_is_written_is_read(name: str, state: FleetState, written_ms: int) -> None:
    told = Announcement(name, draw_announcer(), state, written_ms)
    assert read_announcement(told.field(), told.value()) == told


def test_the_bytes_stay_what_they_are() -> None:
    told = Announcement("frankfurt", "5f0c2a8e91d3b764", FleetState.SERVING, 1764480000123)
    assert (told.field(), told.value()) == (FIELD, VALUE)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (None, VALUE),
        (FIELD, None),
        (FIELD.decode(), VALUE),
        (b"", VALUE),
        (b"frankfurt", VALUE),
        (b"frankfurt 5F0C2A8E91D3B764", VALUE),
        (b"frank furt 5f0c2a8e91d3b764", VALUE),
        (b"fra\nkfurt 5f0c2a8e91d3b764", VALUE),
        ("fränkfurt 5f0c2a8e91d3b764".encode(), VALUE),
        (b"f" * 65 + b" 5f0c2a8e91d3b764", VALUE),
        (FIELD + b"\n", VALUE),
        (FIELD, b""),
        (FIELD, b"1 serving"),
        (FIELD, b"2 serving 1"),
        (FIELD, b"1 healthy 1"),
        (FIELD, b"1 serving -1"),
        (FIELD, b"1 serving 1.5"),
        (FIELD, b"1 serving " + b"9" * 16),
        (FIELD, "1 serving ١".encode()),
        (FIELD, VALUE + b"\n"),
        (FIELD, VALUE + b" 192.0.2.1"),
    ],
)
def test_what_is_no_announcement(field: object, value: object) -> None:
    assert read_announcement(field, value) is None


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_garbage_raises_nothing(field: bytes, value: bytes) -> None:
    assert read_announcement(field, value) is None
