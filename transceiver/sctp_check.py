"""Which SCTP packets may be given to aiortc's reader: those it reads in bounded time.

1. The packet is authentic, so this is about a client that would stop the process of its neighbours.
2. aiortc loops for ever on a parameter of length 0, and walks every number of a SACK's gap blocks.
3. What is not well-formed by RFC 9260 is dropped whole; what means nothing is left to aiortc.
"""

from __future__ import annotations

MAX_GAP_SPAN = 8_192
"""TSNs that the gap blocks of one SACK may cover: above what is ever in flight."""

_COMMON_HEADER_BYTES = 12
_INIT, _INIT_ACK, _SACK = 1, 2, 3
# Where parameters (or causes) start in the body of a chunk: RFC 9260 3.3, RFC 6525 3.1
_PARAMETERS_AT = {_INIT: 16, _INIT_ACK: 16, 4: 0, 5: 0, 6: 0, 9: 0, 130: 0}


def is_readable(packet: bytes) -> bool:
    """Whether every chunk, parameter and gap block of the packet lies within its bounds."""
    position = _COMMON_HEADER_BYTES
    while position + 4 <= len(packet):
        kind = packet[position]
        length = int.from_bytes(packet[position + 2 : position + 4])
        if length < 4 or position + length > len(packet):
            return False
        body = packet[position + 4 : position + length]
        if kind in _PARAMETERS_AT and not _has_parameters(body, _PARAMETERS_AT[kind]):
            return False
        if kind == _SACK and not _has_gaps(body):
            return False
        position += length + -length % 4
    return position >= len(packet) > _COMMON_HEADER_BYTES


def _has_parameters(body: bytes, position: int) -> bool:
    while position + 4 <= len(body):
        length = int.from_bytes(body[position + 2 : position + 4])
        if length < 4 or position + length > len(body):
            return False
        position += length + -length % 4
    return position >= len(body)


def _has_gaps(body: bytes) -> bool:
    if len(body) < 12:
        return False
    gaps, duplicates = int.from_bytes(body[8:10]), int.from_bytes(body[10:12])
    if len(body) < 12 + 4 * (gaps + duplicates):
        return False
    span = 0
    for position in range(12, 12 + 4 * gaps, 4):
        start = int.from_bytes(body[position : position + 2])
        end = int.from_bytes(body[position + 2 : position + 4])
        span += end - start + 1
        if start > end or span > MAX_GAP_SPAN:
            return False
    return True
