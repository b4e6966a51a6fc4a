"""What a client's `session.update`, or its `response.create` for one response, may change when its client secret says so.

1. A path names a field and all below it: `audio.output` covers `audio.output.voice`.
2. What may not change is left out, the rest goes on: a stock client sends whole sessions and waits for the answer.
3. `type` always passes: it selects the shape, not the behaviour; so do the fields of a response that no session has.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final

from .dialect import Event

_FREE: Final = frozenset(("type", "conversation", "input", "metadata"))

_Paths = tuple[frozenset[str], frozenset[str]]
"""Those that may change, and those above them."""


def restrict(session: Event, updatable: Iterable[str] | None) -> tuple[Event, list[str]]:
    """The part of `session` that may change, and the paths that were left out; None allows everything."""
    if updatable is None:
        return session, []
    refused: list[str] = []
    paths = frozenset(updatable)
    above = frozenset(above for path in paths for above in _with_all_above(path)) - paths
    return _restrict(session, "", (paths, above), refused), refused


def _restrict(value: Event, prefix: str, updatable: _Paths, refused: list[str]) -> Event:
    paths, above = updatable
    kept: Event = {}
    for name, field in value.items():
        path = prefix + name
        if path in _FREE or not paths.isdisjoint(_with_all_above(path)):
            kept[name] = field
        elif isinstance(field, dict) and path in above:
            kept[name] = _restrict(field, path + ".", updatable, refused)
        else:
            refused.append(path)
    return kept


def _with_all_above(path: str) -> Iterable[str]:
    """`a.b.c`: `a`, `a.b` and itself."""
    return itertools.accumulate(path.split("."), "{}.{}".format)
