"""Ogg Opus files, against ffmpeg's reader (PyAV) and opusinfo, and against a slow CRC."""

from __future__ import annotations

import array
import io
import math
import shutil
import struct
import subprocess
import wave
from pathlib import Path

import av
import pytest

from transceiver.legs import EARLY_FRAMES, Leg
from transceiver.ogg import OggOpusWriter, checksum, pause_packet

SILENT = b"\x78\x80"  # 20 ms of SILK, as an encoder with DTX sends it


def opus_packets(seconds: float, channels: int = 1) -> list[bytes]:
    """A tone of 440 Hz, 20 ms each."""
    codec = av.CodecContext.create("libopus", "w")
    codec.sample_rate, codec.format = 48_000, av.AudioFormat("s16")
    codec.layout = "mono" if channels == 1 else "stereo"
    packets: list[bytes] = []
    for i in range(round(seconds * 50)):
        frame = av.AudioFrame("s16", codec.layout.name, 960)
        tone = [math.sin(2 * math.pi * 440 * (960 * i + k) / 48_000) for k in range(960)]
        samples = [int(8_000 * value) for value in tone for _ in range(channels)]
        frame.planes[0].update(array.array("h", samples).tobytes())
        frame.sample_rate, frame.pts = 48_000, 960 * i
        packets += [bytes(packet) for packet in codec.encode(frame)]
    return packets


def decoded(path: Path) -> list[float]:
    """The first channel at 48 kHz."""
    heard = array.array("f")
    with av.open(str(path)) as container:
        [stream] = container.streams.audio
        for frame in container.decode(stream):
            assert frame.format.name == "fltp"
            heard.frombytes(bytes(frame.planes[0])[: 4 * frame.samples])
    return heard.tolist()


def check_opusinfo(path: Path) -> None:
    if shutil.which("opusinfo"):
        done = subprocess.run(["opusinfo", path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        assert "WARNING" not in done.stdout + done.stderr


def slow_checksum(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ (0x04C11DB7 if crc & 0x80000000 else 0)) & 0xFFFFFFFF
    return crc


@pytest.mark.parametrize("data", [b"", b"\0", b"OggS", bytes(range(256)) * 3])
def test_the_checksum_is_the_one_of_rfc_3533(data: bytes) -> None:
    assert checksum(data) == slow_checksum(data)


@pytest.mark.parametrize("channels", [1, 2])
def test_a_file_is_what_was_put_in(tmp_path: Path, channels: int) -> None:
    packets = opus_packets(3.5, channels)
    path = tmp_path / "call.opus"
    with path.open("wb") as file:
        writer = OggOpusWriter(file, channels=channels)
        for packet in packets:
            writer.add(packet, 960)
        writer.close()
    with av.open(str(path)) as container:
        found = [bytes(packet) for packet in container.demux() if packet.size]
        assert container.streams.audio[0].codec_context.layout.nb_channels == channels
    assert found == packets
    heard = decoded(path)
    assert abs(len(heard) - 960 * len(packets) + 312) <= 960
    check_opusinfo(path)


def test_a_packet_of_any_size_is_laced(tmp_path: Path) -> None:
    made = io.BytesIO()
    writer = OggOpusWriter(made, channels=1)
    sizes = [1, 254, 255, 256, 510, 1_275, 3_000] * 40
    for size in sizes:
        writer.add(b"\x78" + bytes(size - 1), 960)
    writer.close()
    data, at, bodies, flags = made.getvalue(), 0, b"", []
    laced: list[int] = []
    while at < len(data):
        magic, _, flag = struct.unpack_from("<4sBB", data, at)
        assert magic == b"OggS"
        segments = data[at + 27 : at + 27 + data[at + 26]]
        end = at + 27 + len(segments) + sum(segments)
        page = data[at:end]
        assert struct.unpack_from("<I", page, 22)[0] == slow_checksum(
            page[:22] + bytes(4) + page[26:]
        )
        flags.append(flag)
        bodies += page[27 + len(segments) :]
        laced += segments
        at = end
    assert flags == [2] + [0] * (len(flags) - 2) + [4]
    lengths, size = [], 0
    for segment in laced:
        size += segment
        if segment < 255:
            lengths.append(size)
            size = 0
    assert lengths[2:] == sizes


@pytest.mark.parametrize("config", range(32))
def test_a_pause_of_20_ms_can_be_made_in_every_mode(config: int) -> None:
    packet = pause_packet(bytes([config << 3 | 0b111]))
    assert len(packet) == 1
    made = packet[0] >> 3
    frame_ms = (
        (10, 20, 40, 60)[made % 4]
        if made < 12
        else (10, 20)[made % 2]
        if made < 16
        else (2.5, 5, 10, 20)[made % 4]
    )
    assert frame_ms == 20
    assert (made < 12, made < 16) == (config < 12, config < 16)
    assert packet[0] & 0b111 == 0b100


def raw(
    at_ms: int, sequence: int, payload: bytes, timestamp: int | None = None
) -> tuple[int, int, int, int, int, bool, bytes]:
    stamp = 960 * sequence if timestamp is None else timestamp
    return 0, at_ms * 1_000_000, sequence & 0xFFFF, stamp & 0xFFFFFFFF, 960, False, payload


def test_a_leg_keeps_time_over_loss_reordering_and_silence(tmp_path: Path) -> None:
    packets = opus_packets(2)
    leg = Leg(tmp_path / "call.client", "opus", 100.0)
    order = [*range(10), 11, 10, 12, 12, *range(20, 100)]  # 13 to 19 are lost
    for place, i in enumerate(order):
        leg.add([raw(100_500 + 20 * max(place, i), 65_530 + i, packets[i])])
    leg.add([raw(104_500, 65_630, packets[0], 960 * (65_630 + 100))])  # after 2 s of silence
    leg.close()
    path = tmp_path / "call.client.opus"
    assert path.stat().st_mode & 0o077 == 0
    check_opusinfo(path)
    heard = decoded(path)
    # half a second until the first packet, 2 s of tone, 2 s of silence, 20 ms
    assert abs(len(heard) / 48_000 - 4.52) < 0.05
    loud = [max(map(abs, heard[i : i + 4_800])) > 0.05 for i in range(0, len(heard), 4_800)]
    assert loud[:5] == [False] * 5
    assert loud[6:7] + loud[10:24] == [True] * 15
    assert loud[28:44] == [False] * 16


def test_a_leap_of_the_timestamps_is_no_longer_than_time_was(tmp_path: Path) -> None:
    leg = Leg(tmp_path / "call", "opus", 100.0)
    for i in range(50):
        leg.add([raw(100_000 + 20 * i, i, SILENT, 960 * i + (2**30 if i >= 25 else 0))])
    leg.close()
    assert (tmp_path / "call.opus").stat().st_size < 3_000


def test_a_timestamp_that_stands_still_keeps_no_more_than_it_must(tmp_path: Path) -> None:
    leg = Leg(tmp_path / "call", "opus", 100.0)
    for i in range(10_000):
        leg.add([raw(100_000 + 20 * i, i, SILENT, 4_242)])
        assert len(leg._early) <= EARLY_FRAMES
    leg.add([raw(300_000, 10_000, SILENT, 4_242 + 960)])
    leg.close()
    assert (tmp_path / "call.opus").stat().st_size < 30_000  # pauses of 200 s
    check_opusinfo(tmp_path / "call.opus")


def test_g711_becomes_a_wav(tmp_path: Path) -> None:
    for codec, zero in (("pcmu", b"\xff"), ("pcma", b"\xd5")):
        leg = Leg(tmp_path / codec, codec, 100.0)
        for i in range(50):
            loud = b"\x00" if codec == "pcmu" else b"\x2a"
            leg.add(
                [
                    (
                        0,
                        int(100e9 + 20e6 * i),
                        i,
                        160 * i,
                        160,
                        False,
                        (loud if i % 2 else zero) * 160,
                    )
                ]
            )
        leg.close()
        with wave.open(str(tmp_path / f"{codec}.wav")) as file:
            assert (file.getnchannels(), file.getframerate(), file.getnframes()) == (
                1,
                8_000,
                8_000,
            )
            pcm = array.array("h", file.readframes(8_000))
        assert max(map(abs, pcm[:160])) <= 8
        assert max(pcm[160:320]) < -30_000
