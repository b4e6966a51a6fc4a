"""Opus packets into an Ogg file (RFC 3533, RFC 7845): one stream, a page a second.

1. Packets go in as they are; nothing is decoded. The file is whole at every page: a program that dies
   costs the last second.
2. A pause is packets without sound, which a decoder conceals or fades out (RFC 7845 4.1).
"""

from __future__ import annotations

import secrets
import struct
import zlib
from typing import BinaryIO

CLOCK_HZ = 48_000
PRE_SKIP = 312
"""Samples that an Opus encoder's look-ahead puts before the sound (libopus at 48 kHz: 6.5 ms)."""
PAUSE_SAMPLES = 960
"""What one packet of a pause stands for: 20 ms."""

_PAGE_SAMPLES = CLOCK_HZ
_SEGMENTS_MAX = 255
_FIRST, _LAST = 2, 4
_VENDOR = b"voice-relay"

_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def checksum(data: bytes) -> int:
    """The CRC of RFC 3533 6: polynomial 0x04c11db7, most significant bit first, begun with 0.

    zlib's is the same polynomial from the other end: with all bytes reversed, and its two
    inversions undone, it gives the reversed result.
    """
    mirrored = zlib.crc32(data.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int.from_bytes(mirrored.to_bytes(4, "little").translate(_REVERSED), "big")


def pause_packet(packet: bytes) -> bytes:
    """20 ms without sound in the mode of `packet`: one frame of no bytes (RFC 6716 3.1, 3.2.1)."""
    config, rest = packet[0] >> 3, packet[0] & 0b100
    if config < 12:  # SILK: 10, 20, 40, 60 ms
        config = config & ~3 | 1
    elif config < 16:  # hybrid: 10, 20 ms
        config |= 1
    else:  # CELT: 2.5, 5, 10, 20 ms
        config |= 3
    return bytes([config << 3 | rest])


class OggOpusWriter:
    """Writes one stream; the file is the caller's. Raises what `file.write` raises."""

    def __init__(self, file: BinaryIO, *, channels: int) -> None:
        self._file = file
        self._serial = secrets.randbelow(2**32)
        self._pages = 0
        self._granule = 0
        self._packets: list[bytes] = []
        self._segments = 0
        self._waiting = 0
        # RFC 7845 5.1: version 1, channels, pre-skip, input rate, gain 0, mapping family 0
        self._page(
            [b"OpusHead" + struct.pack("<BBHIhB", 1, channels, PRE_SKIP, CLOCK_HZ, 0, 0)], _FIRST
        )
        self._page([b"OpusTags" + struct.pack("<I", len(_VENDOR)) + _VENDOR + bytes(4)], 0)

    def add(self, packet: bytes, samples: int) -> None:
        """The next packet, of so many samples at 48 kHz."""
        segments = len(packet) // 255 + 1
        full = self._waiting >= _PAGE_SAMPLES or self._segments + segments > _SEGMENTS_MAX
        if full and self._packets:
            self._flush(0)
        self._packets.append(packet)
        self._segments += segments
        self._waiting += samples

    def close(self) -> None:
        """Writes what waits, as the stream's last page."""
        self._flush(_LAST)

    def _flush(self, flags: int) -> None:
        self._granule += self._waiting
        self._page(self._packets, flags)
        self._packets, self._segments, self._waiting = [], 0, 0

    def _page(self, packets: list[bytes], flags: int) -> None:
        lacing = b"".join(b"\xff" * (len(p) // 255) + bytes([len(p) % 255]) for p in packets)
        head = struct.pack("<4sBBQII", b"OggS", 0, flags, self._granule, self._serial, self._pages)
        tail = bytes([len(lacing)]) + lacing + b"".join(packets)
        page = head + struct.pack("<I", checksum(head + bytes(4) + tail)) + tail
        self._pages += 1
        self._file.write(page)
