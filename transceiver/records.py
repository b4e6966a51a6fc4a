"""DTLS records as they leave: OpenSSL writes a flight back to back, datagrams have a limit (RFC 6347 4.1)."""

from __future__ import annotations

MAX_DATAGRAM_BYTES = 1_200
RECORD_HEADER_BYTES = 13
PROTECTED_RECORD_BYTES = RECORD_HEADER_BYTES + 8 + 16
"""What a record adds to its payload: header, explicit nonce and tag of AES-GCM."""


def split_records(data: bytes) -> list[bytes]:
    """Cuts records into datagrams, each of as many whole records as MAX_DATAGRAM_BYTES allows."""
    datagrams: list[bytes] = []
    start = position = 0
    while position + RECORD_HEADER_BYTES <= len(data):
        end = position + RECORD_HEADER_BYTES + int.from_bytes(data[position + 11 : position + 13])
        if end - start > MAX_DATAGRAM_BYTES and position > start:
            datagrams.append(data[start:position])
            start = position
        position = end
    if start < len(data):
        datagrams.append(data[start:])
    return datagrams
