"""What a client secret leaves open of a session: against a plain reading of the rule."""

from __future__ import annotations

import time
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from transceiver.backends.policy import restrict

NAMES = st.sampled_from(["a", "b", "type", "a.b", ""])
SESSIONS = st.dictionaries(
    NAMES, st.recursive(st.just(1), lambda inner: st.dictionaries(NAMES, inner, max_size=4))
)
PATHS = st.lists(st.lists(NAMES, min_size=1, max_size=4).map(".".join), max_size=4)


def plainly(value: dict[str, Any], prefix: str, paths: list[str], refused: list[str]) -> Any:
    kept = {}
    for name, field in value.items():
        path = prefix + name
        if path == "type" or any(path == own or path.startswith(own + ".") for own in paths):
            kept[name] = field
        elif isinstance(field, dict) and any(own.startswith(path + ".") for own in paths):
            kept[name] = plainly(field, path + ".", paths, refused)
        else:
            refused.append(path)
    return kept


@given(SESSIONS, PATHS)
def test_what_may_change_is_what_the_paths_name(session: dict[str, Any], paths: list[str]) -> None:
    refused: list[str] = []
    assert restrict(session, paths) == (plainly(session, "", paths, refused), refused)


def test_many_paths_cost_no_more_than_few() -> None:
    session = {f"k{number}": 1 for number in range(25_000)}
    started_s = time.thread_time()
    assert restrict(session, [f"audio.x{number}" for number in range(500)])[0] == {}
    assert time.thread_time() - started_s < 0.5


def test_a_name_of_many_dots_costs_no_more_than_one_of_few() -> None:
    started_s = time.thread_time()
    assert restrict({"." * 250_000: 1}, ["audio.output.voice"]) == ({}, ["." * 250_000])
    assert time.thread_time() - started_s < 0.5
