"""JSON from strangers: read once, and never deeper than what reads, merges and writes it can go."""

from __future__ import annotations

import json
import math
from typing import Any, Final, NoReturn

NESTING_MAX: Final = 100


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text (RFC 8259). Raises ValueError when it is none, as with numbers that are NaN or
    infinite, which a browser could not read again, or nests over NESTING_MAX deep.
    """
    try:
        value = _DECODER.decode(
            text if isinstance(text, str) else text.decode("utf-8-sig", "surrogatepass")
        )
    except RecursionError:
        raise ValueError("nested too deep") from None
    if isinstance(text, str):
        brackets = text.count("[") + text.count("{")
    else:
        brackets = text.count(b"[") + text.count(b"{")
    if brackets > NESTING_MAX and _is_too_deep(value):
        raise ValueError("nested too deep")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        _no_number(text)
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:40]} is no number of JSON")


_DECODER: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number)


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
