"""G.711 against libavcodec, an independent implementation, over every code and every sample."""

from __future__ import annotations

from array import array
from typing import Any

import av
import pytest

from transceiver.backends import g711

ALL_SAMPLES = array("h", range(-32_768, 32_768)).tobytes()


def reference_decode(name: str, data: bytes) -> bytes:
    context: Any = av.CodecContext.create(name, "r")
    context.sample_rate, context.layout = 8_000, "mono"
    frames = context.decode(av.Packet(data))
    return b"".join(bytes(frame.planes[0])[: frame.samples * 2] for frame in frames)


@pytest.mark.parametrize(
    ("name", "decode"), [("pcm_mulaw", g711.from_ulaw), ("pcm_alaw", g711.from_alaw)]
)
def test_every_code_decodes_as_libavcodec_does(name: str, decode: object) -> None:
    codes = bytes(range(256))
    assert decode(codes) == reference_decode(name, codes)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("encode", "decode"), [(g711.to_ulaw, g711.from_ulaw), (g711.to_alaw, g711.from_alaw)]
)
def test_every_sample_comes_back_within_its_step(encode: object, decode: object) -> None:
    back = array("h", decode(encode(ALL_SAMPLES)))  # type: ignore[operator]
    for sample, returned in zip(range(-32_768, 32_768), back, strict=True):
        assert abs(sample - returned) <= max(16, abs(sample) // 16)


def test_codes_are_fixed_points_and_odd_bytes_are_left_out() -> None:
    codes = bytes(code for code in range(256) if code != 0x7F)  # µ-law has two zeros
    assert g711.to_ulaw(g711.from_ulaw(codes)) == codes
    assert g711.to_alaw(g711.from_alaw(bytes(range(256)))) == bytes(range(256))
    assert g711.to_ulaw(b"\0\0\0") == g711.to_ulaw(b"\0\0")
