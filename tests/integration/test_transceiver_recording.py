"""`transceiver serve --record-dir`: both sides of a call in one file, of a pass-through in two."""

from __future__ import annotations

import array
import wave
from pathlib import Path

import aiohttp
import av

from tests.integration.test_transceiver_calls import stats_of
from tests.support.calls import StockCall, stock_call, until
from tests.support.process import Processes


async def talked(base: str, call: StockCall, packets: int) -> None:
    """So many of 20 ms have come, and where they are passed through have gone back."""
    async with aiohttp.ClientSession(base) as http:

        async def enough() -> bool:
            stats = await stats_of(http, call.location)
            passed = stats["packets_out"] if stats["playout_delay_ms"] is None else packets
            return bool(min(stats["packets_in"], passed) >= packets)

        await until(enough)


async def test_a_call_is_recorded(processes: Processes, tmp_path: Path) -> None:
    kept = tmp_path / "calls"
    kept.mkdir()
    server = processes.transceiver(
        "serve", "--backend=echo", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=1", "--direct",
        "--log-format=json", "--drain-timeout=0", f"--record-dir={kept}",
    )  # fmt: skip
    base = f"http://{server.listening('http')[0]}"
    async with stock_call(base) as call:
        await call.wait(audio=False)
        await talked(base, call, packets=100)
    assert server.stop() == 0
    [path] = kept.iterdir()
    assert path.name.startswith("rtc_")
    assert path.suffix == ".wav"
    assert path.stat().st_mode & 0o077 == 0, "others may read what was said"
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getframerate()) == (2, 24_000)
        assert 1.5 < file.getnframes() / 24_000 < 15
        heard = array.array("h", file.readframes(file.getnframes()))[::2]
    assert max(heard) > 5_000, "the client's tone is not in it"


async def test_a_pass_through_is_recorded_as_it_was_encoded(
    processes: Processes, tmp_path: Path
) -> None:
    kept = tmp_path / "calls"
    kept.mkdir()
    server = processes.transceiver(
        "serve", "--backend=loopback", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=1", "--direct",
        "--log-format=json", "--drain-timeout=0", f"--record-dir={kept}",
    )  # fmt: skip
    base = f"http://{server.listening('http')[0]}"
    async with stock_call(base) as call:
        await call.wait(audio=True)
        await talked(base, call, packets=60)
    assert server.stop() == 0
    for side, path in zip(("client", "server"), in_order(kept), strict=True):
        assert path.name.startswith("rtc_")
        assert path.name.endswith(f".{side}.opus")
        assert path.stat().st_mode & 0o077 == 0, "others may read what was said"
        with av.open(str(path)) as container:
            frames = list(container.decode(audio=0))
        assert 0.8 < sum(frame.samples for frame in frames) / 48_000 < 15
        heard = array.array("f", b"".join(bytes(frame.planes[0]) for frame in frames))
        assert max(heard) > 5_000 / 32_768, "the client's tone is not in it"


def in_order(directory: Path) -> list[Path]:
    """The files in it, by name."""
    return sorted(directory.iterdir())


def test_a_directory_that_is_none_is_refused(processes: Processes, tmp_path: Path) -> None:
    started = processes.transceiver(
        "serve", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--direct", f"--record-dir={tmp_path / 'no'}",
    )  # fmt: skip
    assert started.wait() == 2
