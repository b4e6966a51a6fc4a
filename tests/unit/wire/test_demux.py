"""Case A25: every first byte, as RFC 7983 7 sorts it."""

from __future__ import annotations

import pytest

from relay.wire._codec import Protocol, demux


def test_a25_every_first_byte() -> None:
    ranges = {
        Protocol.STUN: range(4),
        Protocol.DTLS: range(20, 64),
        Protocol.MEDIA: range(128, 192),
    }
    for first_byte in range(256):
        expected = [protocol for protocol, numbers in ranges.items() if first_byte in numbers]
        assert demux(first_byte) == (expected[0] if expected else Protocol.OTHER)


@pytest.mark.parametrize("number", [-1, 256])
def test_a_byte_is_a_byte(number: int) -> None:
    with pytest.raises(OverflowError):
        demux(number)
