"""G.711 as a backend may want it (ITU-T G.711): companded bytes from and to 16-bit little-endian PCM, by table."""

from __future__ import annotations

import sys
from array import array
from typing import Final

_ULAW_BIAS: Final = 0x84
_CLIP: Final = 32_635


def _ulaw_to_linear(code: int) -> int:
    code = ~code & 0xFF
    magnitude = (((code & 0x0F) << 3) + _ULAW_BIAS << (code >> 4 & 7)) - _ULAW_BIAS
    return -magnitude if code & 0x80 else magnitude


def _alaw_to_linear(code: int) -> int:
    code ^= 0x55
    segment = code >> 4 & 7
    magnitude = ((code & 0x0F) << 4) + 8
    if segment:
        magnitude = magnitude + 0x100 << segment - 1
    return magnitude if code & 0x80 else -magnitude


def _linear_to_ulaw(sample: int) -> int:
    sign = 0x80 if sample < 0 else 0
    magnitude = min(abs(sample), _CLIP) + _ULAW_BIAS
    segment = max(0, magnitude.bit_length() - 8)
    return ~(sign | segment << 4 | magnitude >> segment + 3 & 0x0F) & 0xFF


def _linear_to_alaw(sample: int) -> int:
    sign = 0x80 if sample >= 0 else 0
    magnitude = min(sample if sample >= 0 else ~sample, 0x7FFF)
    segment = max(0, magnitude.bit_length() - 8)
    mantissa = magnitude >> (segment + 3 if segment else 4) & 0x0F
    return (sign | segment << 4 | mantissa) ^ 0x55


_FROM_ULAW: Final = [_ulaw_to_linear(code) for code in range(256)]
_FROM_ALAW: Final = [_alaw_to_linear(code) for code in range(256)]
_TO_ULAW: Final = bytes(_linear_to_ulaw(s - 65_536 if s > 32_767 else s) for s in range(65_536))
_TO_ALAW: Final = bytes(_linear_to_alaw(s - 65_536 if s > 32_767 else s) for s in range(65_536))


def from_ulaw(data: bytes) -> bytes:
    """PCM of µ-law bytes."""
    return _native(array("h", map(_FROM_ULAW.__getitem__, data))).tobytes()


def from_alaw(data: bytes) -> bytes:
    """PCM of A-law bytes."""
    return _native(array("h", map(_FROM_ALAW.__getitem__, data))).tobytes()


def to_ulaw(pcm: bytes) -> bytes:
    """µ-law bytes of PCM; an odd last byte is left out."""
    return bytes(map(_TO_ULAW.__getitem__, _native(array("H", pcm[: len(pcm) // 2 * 2]))))


def to_alaw(pcm: bytes) -> bytes:
    """A-law bytes of PCM; an odd last byte is left out."""
    return bytes(map(_TO_ALAW.__getitem__, _native(array("H", pcm[: len(pcm) // 2 * 2]))))


def _native(samples: array[int]) -> array[int]:
    if sys.byteorder == "big":
        samples.byteswap()
    return samples
