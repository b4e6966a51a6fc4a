"""JSON from strangers: read once, and never deeper than what reads, merges and writes it can go."""

from __future__ import annotations

import json
from typing import Any, Final

NESTING_MAX: Final = 100


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError when it is none, or nests over NESTING_MAX deep."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if isinstance(text, str):
        brackets = text.count("[") + text.count("{")
    else:
        brackets = text.count(b"[") + text.count(b"{")
    if brackets > NESTING_MAX and _is_too_deep(value):
        raise ValueError("nested too deep")
    return value


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(NESTING_MAX):
        level = [
            item
            for holder in level
            if isinstance(holder, dict | list)
            for item in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True
