"""Writes a small MaxMind DB (format 2.0) for tests: a search tree over IPv6, and records as Python values."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

_MARKER = b"\xab\xcd\xefMaxMind.com"
_SEPARATOR = bytes(16)
_UINT16, _UINT32, _UINT64 = 5, 6, 9


class Number(NamedTuple):
    """An unsigned number of a certain kind, as the metadata must have it."""

    kind: int
    value: int


def write_mmdb(path: Path, records: Mapping[str, Any]) -> None:
    """A file that answers for these networks, the wider ones first; IPv4 lies under ::/96."""
    data, offsets = b"", []
    for record in records.values():
        offsets.append(len(data))
        data += _encode(record)
    nodes: list[list[tuple[str, int] | None]] = [[None, None]]
    for network, offset in zip(map(ipaddress.ip_network, records), offsets, strict=True):
        length = network.prefixlen + (96 if network.version == 4 else 0)
        bits = f"{int(network.network_address):0128b}"[:length]
        node = 0
        for bit in bits[:-1]:
            child = nodes[node][int(bit)]
            if child is None or child[0] == "data":
                nodes.append([child, child])
                child = nodes[node][int(bit)] = ("node", len(nodes) - 1)
            node = child[1]
        nodes[node][int(bits[-1])] = ("data", offset)
    tree = b"".join(
        struct.pack("!I", _pointer(child, len(nodes))) for node in nodes for child in node
    )
    about = {
        "node_count": Number(_UINT32, len(nodes)),
        "record_size": Number(_UINT16, 32),
        "ip_version": Number(_UINT16, 6),
        "database_type": "Test",
        "languages": [],
        "binary_format_major_version": Number(_UINT16, 2),
        "binary_format_minor_version": Number(_UINT16, 0),
        "build_epoch": Number(_UINT64, 1),
        "description": {},
    }
    path.write_bytes(tree + _SEPARATOR + data + _MARKER + _encode(about))


def _pointer(child: tuple[str, int] | None, node_count: int) -> int:
    if child is None:
        return node_count
    kind, number = child
    return number if kind == "node" else node_count + len(_SEPARATOR) + number


def _encode(value: Any) -> bytes:
    if isinstance(value, str):
        return _head(2, len(value.encode())) + value.encode()
    if isinstance(value, float):
        return _head(3, 8) + struct.pack("!d", value)
    if isinstance(value, int):
        value = Number(_UINT32, value)
    if isinstance(value, Number):
        packed = value.value.to_bytes((value.value.bit_length() + 7) // 8, "big")
        return _head(value.kind, len(packed)) + packed
    if isinstance(value, dict):
        return _head(7, len(value)) + b"".join(
            _encode(key) + _encode(item) for key, item in value.items()
        )
    assert isinstance(value, list)
    return _head(11, len(value)) + b"".join(map(_encode, value))


def _head(kind: int, size: int) -> bytes:
    assert size < 29, "longer fields are not needed here"
    return bytes([kind << 5 | size]) if kind < 8 else bytes([size, kind - 7])
