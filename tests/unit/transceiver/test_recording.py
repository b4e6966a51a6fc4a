"""Recordings: both sides in one file, a slow or full disk, and calls that are never held up."""

from __future__ import annotations

import array
import asyncio
import contextlib
import math
import os
import subprocess
import sys
import threading
import time
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.media_bench import RATE, Bench, loudness, tone, until
from transceiver.media import RawFrame
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
    # What a late engine leaves out is in no file.
    skipped_s = 0.02 * bench.engine.counts()["skipped_ticks"]
    assert math.isclose(len(left) / 2 / RATE + skipped_s, lasted_s, abs_tol=0.3)
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


async def test_what_a_recorder_slept_through_is_silence_in_the_file(
    bench: Bench, tmp_path: Path
) -> None:
    recorder = Recorder()
    session, _ = await bench.connected(bench.client(), start_ms=0, tap=True)
    recorder.start(session, tmp_path / "call.wav")
    began_s = time.monotonic()
    session.write(1, tone(6 * RATE))
    for slept_s in (0.3, 2.5, 0.3, 1.8, 0.3):
        await asyncio.sleep(slept_s)
        recorder.poll()
    lasted_s = time.monotonic() - began_s
    recorder.stop(session)
    recorder.close()
    lost = session.stats()["tap_blocks_lost"]
    assert lost >= 50
    left, right, _ = sides(tmp_path / "call.wav")
    # ticks may be left out on a busy machine, and the tap began with the keys
    assert len(left) / 2 / RATE > lasted_s - 1
    block = RATE // 50 * 2
    gaps = sum(not any(right[at : at + block]) for at in range(0, len(right), block))
    assert lost - 5 <= gaps <= lost + 25


class Tap:
    """A session whose sound never ends: so many bytes a look."""

    rate_hz = RATE

    def __init__(self, piece_bytes: int = 4 * 80) -> None:
        self._piece = bytes(piece_bytes)

    def read_tap(self) -> bytes:
        return self._piece

    def stats(self) -> dict[str, Any]:
        return {"tap_blocks_lost": 0}


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.001)


def open_files() -> set[str]:
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{fd}"))
    return found


def test_a_full_disk_ends_the_recording_and_not_the_call(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full")
    recorder, tap = Recorder(), Tap()
    recorder.start(tap, tmp_path / "call.wav")  # type: ignore[arg-type]
    recording = recorder._recordings[tap]  # type: ignore[index]
    assert isinstance(recording.sink, _Sound)
    with full.open("wb", buffering=0) as file:
        recording.sink.file = wave.open(file, "wb")  # noqa: SIM115
        recording.sink.file.setparams((2, 2, RATE, 0, "NONE", ""))
        for _ in range(10):
            recorder.poll()
        recorder.stop(tap)  # type: ignore[arg-type]
        recorder.close()
    assert recording.failed
    assert recorder.lost_pieces >= 9


def test_a_recording_that_cannot_go_on_leaves_the_others(tmp_path: Path) -> None:
    """In a process that may write no file over 256 KiB."""
    script = f"""
import resource
from pathlib import Path
from tests.unit.transceiver.test_recording import RATE, Tap, open_files
from transceiver.recording import Recorder
recorder, loud, calm = Recorder(), Tap(4 * RATE), Tap(4)
resource.setrlimit(resource.RLIMIT_FSIZE, (262_144, resource.RLIM_INFINITY))
recorder.start(loud, Path({str(tmp_path / "loud.wav")!r}))
recorder.start(calm, Path({str(tmp_path / "calm.wav")!r}))
for _ in range(50):
    recorder.poll()
recorder.stop(loud)
recorder.stop(calm)
recorder.close()
assert not recorder._thread.is_alive()
assert not [name for name in open_files() if name.endswith(".wav")], open_files()
print(recorder.lost_pieces)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "recording_failed" in done.stdout + done.stderr
    assert done.stdout.split()[-1] == "43"  # 51 pieces, of which 8 are in the file
    assert len(sides(tmp_path / "loud.wav")[0]) == 8 * 2 * RATE
    assert len(sides(tmp_path / "calm.wav")[0]) == 51 * 2


def test_a_wav_file_that_is_full_ends_its_recording_alone(tmp_path: Path) -> None:
    """A header counts 32 bits of bytes."""
    recorder, long, short = Recorder(), Tap(), Tap()
    recorder.start(long, tmp_path / "long.wav")  # type: ignore[arg-type]
    recorder.start(short, tmp_path / "short.wav")  # type: ignore[arg-type]
    recording = recorder._recordings[long]  # type: ignore[index]
    assert isinstance(recording.sink, _Sound)
    recorder.poll()
    file: Any = recording.sink.file
    wait_for(lambda: file._datalength == 4 * 80)  # in its header, too
    file._datawritten = 2**32 - 1_000
    for _ in range(9):
        recorder.poll()
    recorder.stop(long)  # type: ignore[arg-type]
    recorder.stop(short)  # type: ignore[arg-type]
    recorder.close()
    assert recording.failed
    assert not [name for name in open_files() if name.endswith("long.wav")]
    assert len(sides(tmp_path / "short.wav")[0]) == 11 * 2 * 80
    with pytest.raises(FileExistsError):
        recorder.start(short, tmp_path / "short.wav")  # type: ignore[arg-type]


class FrameTap:
    """A pass-through whose client never stops: a frame a look, none of ours."""

    rate_hz = RATE

    def __init__(self) -> None:
        self.taken = 0
        self._began_ns = 0

    def read_frame_tap(self) -> list[RawFrame]:
        i, self.taken = self.taken, self.taken + 1
        self._began_ns = self._began_ns or time.monotonic_ns()  # once it is recorded
        at_ns = self._began_ns + i * 20_000_000
        return [(0, at_ns, i & 0xFFFF, 960 * i, 960, False, b"\x78" + bytes(999))]


def test_a_slow_disk_loses_pieces_and_never_blocks_nor_loses_the_end(tmp_path: Path) -> None:
    """The disk is a full pipe that nobody reads at first."""
    recorder, tap = Recorder(), FrameTap()
    recorder.start(tap, tmp_path / "call", frames_of="opus")  # type: ignore[arg-type]
    sink = recorder._recordings[tap].sink._legs[0]._sink  # type: ignore[index, union-attr]
    out, into = os.pipe()
    os.set_blocking(into, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(into, bytes(4_096))
    os.set_blocking(into, True)
    sink._file.close()
    sink._file = os.fdopen(into, "wb", buffering=0)
    in_hand = (
        11  # REORDER_S and one: with the last of these the first is written, and that has no end
    )
    for _ in range(in_hand):
        recorder.poll()
    wait_for(lambda: recorder._pieces.empty())
    took_s = []
    for _ in range(QUEUE_PIECES + 100):
        began_s = time.monotonic()
        recorder.poll()
        took_s.append(time.monotonic() - began_s)
    assert recorder.lost_pieces == 100
    began_s = time.monotonic()
    recorder.stop(tap)  # type: ignore[arg-type]
    assert max(*took_s, time.monotonic() - began_s) < 5, "some us each; nobody reads the pipe yet"
    written = bytearray()

    def drain() -> None:
        with open(out, "rb", buffering=0) as disk:
            while some := disk.read(65_536):
                written.extend(some)

    disk = threading.Thread(target=drain)
    disk.start()
    recorder.close(timeout_s=60)  # a thousand turns of two threads
    disk.join(60)
    assert not disk.is_alive()
    last_page = written[written.rindex(b"OggS") :]
    assert last_page[5] & 4, "the stream has no end"
    assert written.count(b"\x78" + bytes(999)) == in_hand + QUEUE_PIECES


def test_what_a_slow_disk_loses_is_silence_in_the_file(tmp_path: Path) -> None:
    recorder, tap = Recorder(), Tap(4 * 80)
    tap._piece = b"\x01\x00" * 160
    recorder.start(tap, tmp_path / "call.wav")  # type: ignore[arg-type]
    sink = recorder._recordings[tap].sink  # type: ignore[index]
    assert isinstance(sink, _Sound)
    is_slow, write = threading.Event(), sink.file.writeframes

    def slowly(data: bytes) -> None:
        assert is_slow.wait(10)
        write(data)

    sink.file.writeframes = slowly  # type: ignore[method-assign, assignment]
    recorder.poll()
    wait_for(lambda: recorder._pieces.empty())
    for _ in range(QUEUE_PIECES + 100):
        recorder.poll()
    is_slow.set()
    wait_for(lambda: recorder._pieces.empty())
    recorder.stop(tap)  # type: ignore[arg-type]
    recorder.close()
    assert recorder.lost_pieces == 100
    left, right, _ = sides(tmp_path / "call.wav")
    pieces = [b"\x01\x00" * 80] * (1 + QUEUE_PIECES) + [bytes(160)] * 100 + [b"\x01\x00" * 80]
    assert left == right == b"".join(pieces)


async def test_a_pass_through_is_kept_as_it_was_encoded(bench: Bench, tmp_path: Path) -> None:
    recorder = Recorder()
    client = bench.client()
    session, _ = await bench.connected(client, echo=True, tap=True)
    recorder.start(session, tmp_path / "call", frames_of="pcmu")
    began_s = time.monotonic()
    for i in range(30):
        client.rtp(bytes([0x20 if i % 2 else 0xFF]) * 160)
        await asyncio.sleep(0.02)
        recorder.poll()
    await until(lambda: session.stats()["packets_out"] == 30)
    lasted_s = time.monotonic() - began_s
    recorder.stop(session)
    recorder.close()
    for side in ("client", "server"):
        with wave.open(str(tmp_path / f"call.{side}.wav")) as file:
            assert (file.getnchannels(), file.getframerate()) == (1, 8_000)
            assert 0.5 < file.getnframes() / 8_000 < lasted_s + 1
            assert loudness(file.readframes(file.getnframes())) > 1_000
    assert recorder.lost_pieces == 0
    assert session.stats()["tap_frames_lost"] == 0
