"""Which backends a server offers, from its options: `echo`, `loopback`, or Realtime servers by URL.

1. Every fault is one ConfigError that names the option; a key is never part of it.
2. The first backend is the default; a call may name another one (`?backend=NAME`).
3. The key comes from a file or from TRANSCEIVER_BACKEND_KEY, never from the command line.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from yarl import URL

from relay.wire.files import read_small_file
from relay.wire.url import names_a_server

from .backends.dialect import FORMATS, Dialect
from .errors import ConfigError

KEY_VARIABLE: Final = "TRANSCEIVER_BACKEND_KEY"
BUILT_IN: Final = ("echo", "loopback")
DEFAULT_NAME: Final = "realtime"

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """One backend that calls may be answered by."""

    name: str
    url: URL | None = None
    """Of a Realtime server; None for a built-in one."""


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """What all Realtime servers of this process have in common."""

    specs: tuple[BackendSpec, ...]
    dialect: Dialect = field(default_factory=Dialect)
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    session: dict[str, Any] = field(default_factory=dict)
    """What every call's session starts with."""


def read_backends(texts: Sequence[str], model: str | None) -> tuple[BackendSpec, ...]:
    """`echo`, `loopback`, URL or NAME=URL, each name once; `model` is added to URLs that name none."""
    specs: dict[str, BackendSpec] = {}
    for text in texts or ("echo",):
        spec = _read_backend(text, model)
        if spec.name in specs:
            raise ConfigError(f"--backend: the name {spec.name!r} is given twice; use NAME=URL")
        specs[spec.name] = spec
    return tuple(specs.values())


def _read_backend(text: str, model: str | None) -> BackendSpec:
    if text in BUILT_IN:
        return BackendSpec(text)
    name, address = DEFAULT_NAME, text
    if not re.match(r"wss?://", text):
        name, _, address = text.partition("=")
    try:
        url = URL(address)
    except ValueError:
        url = URL()
    known = url.scheme in ("ws", "wss") and names_a_server(address)
    if not known or not _NAME.fullmatch(name):
        raise ConfigError(
            f"--backend: {_without_secrets(text)!r} is none of echo, loopback, ws://…, wss://… "
            "and NAME=wss://…"
        )
    if name in BUILT_IN:
        raise ConfigError(f"--backend: the name {name!r} is taken")
    if model is not None and "model" not in url.query:
        url = url.update_query(model=model)
    return BackendSpec(name, url)


def _without_secrets(text: str) -> str:
    return re.sub(r"//[^/@]*@", "//", text.partition("?")[0])


def read_dialect(names: str, audio: str) -> Dialect:
    """`ga` or `beta`, and one of FORMATS."""
    return Dialect(beta=names == "beta", format=FORMATS[audio])


def read_headers(key_file: str | None, texts: Sequence[str]) -> dict[str, str]:
    """The Authorization header from the key, and `NAME: VALUE` lines, which win."""
    headers: dict[str, str] = {}
    key = _read_key(key_file)
    if key:
        headers["Authorization"] = f"Bearer {key}"
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not _HEADER_NAME.fullmatch(name) or not value.strip().isprintable():
            raise ConfigError(f"--backend-header: {name!r} must be NAME: VALUE, printable")
        headers[name] = value.strip()
    return headers


def _read_key(key_file: str | None) -> str:
    if key_file is None:
        key = os.environ.get(KEY_VARIABLE, "").strip()
        where = f"${KEY_VARIABLE}"
    else:
        where = f"--backend-key-file: {key_file}"
        try:
            key = read_small_file(key_file).decode("utf-8").strip()
        except OSError as error:
            raise ConfigError(f"{where}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{where}: not a text file") from None
        if not key:
            raise ConfigError(f"{where}: is empty")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"{where}: is no key: it has spaces or unprintable characters")
    return key


def read_session(path: str | None) -> dict[str, Any]:
    """A JSON object of session fields, in GA names."""
    if path is None:
        return {}
    try:
        value = json.loads(read_small_file(path))
    except OSError as error:
        raise ConfigError(f"--backend-session: {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--backend-session: {path}: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"--backend-session: {path}: is no JSON object")
    return value
