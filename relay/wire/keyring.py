"""The keyring file: which keys seal and open routing tokens.

1. One `id:64-hex-digits` a line; `#` starts a comment; blank lines are nothing.
2. The first line seals new tokens, every line opens old ones. Roll-out order: relays first.
3. No message ever repeats a secret, nor does a repr.
"""

import re
import secrets
from dataclasses import dataclass, field
from os import PathLike
from typing import Self

from .files import read_small_file

KEY_ID_MAX = 6
"""Id 7 says "no hint" in a token and has no key."""

KEY_BYTES = 32
_LINE = re.compile(r"([0-9]{1,3}):([0-9A-Fa-f]+)", re.ASCII)


class KeyringError(ValueError):
    """A keyring that cannot be read, with the place and the reason."""


@dataclass(frozen=True, slots=True)
class RingKey:
    """One line of a keyring."""

    id: int
    """0..6, the first 3 bits of every token that it seals."""
    secret: bytes = field(repr=False)
    """32 bytes: k_enc, then k_mac."""


@dataclass(frozen=True, slots=True)
class Keyring:
    """The keys in the order of the file, at least one; no id occurs twice."""

    keys: tuple[RingKey, ...]

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Reads a keyring file. Raises KeyringError, which names the file."""
        try:
            text = read_small_file(path).decode("utf-8-sig")
        except OSError as error:
            raise KeyringError(f"{path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise KeyringError(f"{path}: not a text file") from error
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, name: str = "keyring") -> Self:
        """Reads the text of a keyring. Raises KeyringError; `name` is where errors say it is."""
        keys: dict[int, RingKey] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            content = line.partition("#")[0].strip()
            if not content:
                continue
            try:
                key = _parse_line(content)
                if key.id in keys:
                    raise KeyringError(f"key id {key.id} occurs twice")
            except KeyringError as error:
                raise KeyringError(f"{name}, line {number}: {error}") from None
            keys[key.id] = key
        if not keys:
            raise KeyringError(f"{name}: no key in it (`relay keygen` prints a line)")
        return cls(tuple(keys.values()))


def generate_line(key_id: int = 0) -> str:
    """A new keyring line with fresh random keys. Raises KeyringError for an id outside 0..6."""
    _check_id(key_id)
    return f"{key_id}:{secrets.token_hex(KEY_BYTES)}"


def _parse_line(content: str) -> RingKey:
    match = _LINE.fullmatch(content)
    if match is None or len(match[2]) != 2 * KEY_BYTES:
        raise KeyringError(f"not `id:{2 * KEY_BYTES}-hex-digits`")
    key_id = int(match[1])
    _check_id(key_id)
    return RingKey(key_id, bytes.fromhex(match[2]))


def _check_id(key_id: int) -> None:
    if not 0 <= key_id <= KEY_ID_MAX:
        raise KeyringError(f"key id {key_id} is not in 0..{KEY_ID_MAX}")
