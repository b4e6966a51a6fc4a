"""Recordings: both sides in one file, a slow or full disk, and calls that are never held up."""

from __future__ import annotations

import array
import asyncio
import math
import time
import wave
from pathlib import Path

import pytest

from tests.support.media_bench import RATE, Bench, loudness, tone, until
from transceiver.recording import QUEUE_PIECES, Recorder, _Sound


def sides(path: Path) -> tuple[bytes, bytes, int]:
    with wave.open(str(path)) as file:
        assert file.getnchannels() == 2
        samples = array.array("h", file.readframes(file.getnframes()))
        return samples[::2].tobytes(), samples[1::2].tobytes(), file.getframerate()


async def test_both_sides_are_in_the_file(bench: Bench, tmp_path: Path) -> None:
    recorder = Recorder()
    client = bench.client()
    session, _ = await bench.connected(client, start_ms=0, tap=True)
    recorder.start(session, tmp_path / "call.wav")
    session.write(1, tone(2 * RATE))
    began_s = time.monotonic()
    for _ in range(50):
        client.rtp(bytes([0x20]) * 160)
        await asyncio.sleep(0.02)
        recorder.poll()
    lasted_s = time.monotonic() - began_s
    recorder.stop(session)
    recorder.close()
    left, right, rate_hz = sides(tmp_path / "call.wav")
    assert rate_hz == RATE
    assert len(left) == len(right)
    assert math.isclose(len(left) / 2 / RATE, lasted_s, abs_tol=0.3)
    assert loudness(left) > 1_000
    assert loudness(right) > 4_000
    assert recorder.lost_pieces == 0
    assert session.stats()["tap_blocks_lost"] == 0


async def test_without_a_tap_nothing_is_kept(bench: Bench, tmp_path: Path) -> None:
    recorder = Recorder()
    client = bench.client()
    session, _ = await bench.connected(client)
    recorder.start(session, tmp_path / "call.wav")
    session.write(1, tone(RATE))
    await asyncio.sleep(0.2)
    recorder.poll()
    assert session.read_tap() == b""
    recorder.close()
    assert sides(tmp_path / "call.wav")[0] == b""


async def test_a_recorder_that_sleeps_loses_the_oldest_and_says_so(bench: Bench) -> None:
    client = bench.client()
    session, _ = await bench.connected(client, tap=True)
    await asyncio.sleep(1.5)
    assert len(session.read_tap()) <= 2 * 2 * RATE
    await until(lambda: session.stats()["tap_blocks_lost"] >= 10)


class Tap:
    """A session whose sound never ends."""

    rate_hz = RATE

    def read_tap(self) -> bytes:
        return bytes(4 * 80)


def test_a_full_disk_ends_the_recording_and_not_the_call(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full")
    recorder, tap = Recorder(), Tap()
    recorder.start(tap, tmp_path / "call.wav")  # type: ignore[arg-type]
    recording = recorder._recordings[tap]  # type: ignore[index]
    assert isinstance(recording.sink, _Sound)
    recording.sink.file = wave.open(full.open("wb", buffering=0), "wb")  # noqa: SIM115
    recording.sink.file.setparams((2, 2, RATE, 0, "NONE", ""))
    for _ in range(10):
        recorder.poll()
    recorder.stop(tap)  # type: ignore[arg-type]
    recorder.close()
    assert recording.failed
    assert recorder.lost_pieces >= 9


def test_a_slow_disk_loses_pieces_and_never_blocks(tmp_path: Path) -> None:
    recorder, tap = Recorder(), Tap()
    recorder._thread = type("Stuck", (), {"ident": 1, "join": lambda self, timeout: None})()
    recorder.start(tap, tmp_path / "call.wav")  # type: ignore[arg-type]
    began_s = time.monotonic()
    for _ in range(QUEUE_PIECES + 100):
        recorder.poll()
    assert time.monotonic() - began_s < 10
    assert recorder.lost_pieces == 100
    recorder._recordings[tap].sink.close()  # type: ignore[index]
    with pytest.raises(FileExistsError):
        recorder.start(tap, tmp_path / "call.wav")  # type: ignore[arg-type]


async def test_a_pass_through_is_kept_as_it_was_encoded(bench: Bench, tmp_path: Path) -> None:
    recorder = Recorder()
    client = bench.client()
    session, _ = await bench.connected(client, echo=True, tap=True)
    recorder.start(session, tmp_path / "call", frames_of="pcmu")
    for i in range(30):
        client.rtp(bytes([0x20 if i % 2 else 0xFF]) * 160)
        await asyncio.sleep(0.02)
        recorder.poll()
    await until(lambda: session.stats()["packets_out"] == 30)
    recorder.stop(session)
    recorder.close()
    for side in ("client", "server"):
        with wave.open(str(tmp_path / f"call.{side}.wav")) as file:
            assert (file.getnchannels(), file.getframerate()) == (1, 8_000)
            assert 0.5 < file.getnframes() / 8_000 < 2
            assert loudness(file.readframes(file.getnframes())) > 1_000
    assert recorder.lost_pieces == 0
    assert session.stats()["tap_frames_lost"] == 0
