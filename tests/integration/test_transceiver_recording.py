"""`transceiver serve --record-dir`: a call with a backend leaves both its sides in one file."""

from __future__ import annotations

import array
import asyncio
import wave
from pathlib import Path

from tests.support.calls import stock_call
from tests.support.process import Processes


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
        await asyncio.sleep(2)
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


def test_a_directory_that_is_none_is_refused(processes: Processes, tmp_path: Path) -> None:
    started = processes.transceiver(
        "serve", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--direct", f"--record-dir={tmp_path / 'no'}",
    )  # fmt: skip
    assert started.wait() == 2
