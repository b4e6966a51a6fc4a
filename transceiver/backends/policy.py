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

_Paths = tuple[frozenset[str], frozenset[str], int]
"""Those that may change, those above them, and the names in the longest: a client's may have a hundred thousand."""


def restrict(session: Event, updatable: Iterable[str] | None) -> tuple[Event, list[str]]:
    """The part of `session` that may change, and the paths that were left out; None allows everything."""
    if updatable is None:
        return session, []
    refused: list[str] = []
    paths = frozenset(updatable)
    depth = max((path.count(".") + 1 for path in paths), default=1)
    above = frozenset(above for path in paths for above in _with_all_above(path, depth)) - paths
    return _restrict(session, "", (paths, above, depth), refused), refused


def _restrict(value: Event, prefix: str, updatable: _Paths, refused: list[str]) -> Event:
    paths, above, depth = updatable
    kept: Event = {}
    for name, field in value.items():
        path = prefix + name
        if path in _FREE or not paths.isdisjoint(_with_all_above(path, depth)):
            kept[name] = field
        elif isinstance(field, dict) and path in above:
            kept[name] = _restrict(field, path + ".", updatable, refused)
        else:
            refused.append(path)
    return kept


def _with_all_above(path: str, depth: int) -> Iterable[str]:
    """`a.b.c`: `a`, `a.b` and itself, as far as they have so many names."""
    return itertools.accumulate(path.split(".", depth)[:depth], "{}.{}".format)
