"""Speech through loss and jitter: what the listening half of a call makes of it, against the direct codec path.

Both paths decode the very same packets (speech.c), so with a calm network they are the same samples;
the differences are the network's. All randomness is seeded. The figures are in benchmarks/README.md.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import wave
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (
    "When the sunlight strikes raindrops in the air, they act as a prism and form a rainbow. "
    "The rainbow is a division of white light into many beautiful colors. These take the shape of a "
    "long round arch, with its path high above, and its two ends apparently beyond the horizon. "
    "There is, according to legend, a boiling pot of gold at one end."
)
SEED = 42


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: install gcc")
    made = tmp_path_factory.mktemp("speech") / "speech"
    csrc = ROOT / "csrc"
    sources = map(str, [*csrc.glob("media/*.c"), *csrc.glob("wire/*.c")])
    command = [compiler, "-std=gnu11", "-O2", f"-I{csrc}", "-o", str(made)]
    libraries = ["-lopus", "-lspeexdsp", "-lcrypto", "-lm", "-lpthread"]
    subprocess.run(
        [*command, str(Path(__file__).with_name("speech.c")), *sources, *libraries], check=True
    )
    return made


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, int]:
    """Some twenty seconds, and their rate."""
    speaker = shutil.which("espeak-ng")
    if speaker is None:
        pytest.skip("no speech: install espeak-ng")
    path = tmp_path_factory.mktemp("speech") / "speech.wav"
    subprocess.run([speaker, "-s", "150", "-w", str(path), TEXT], check=True)
    with wave.open(str(path)) as file:
        return file.readframes(file.getnframes()), file.getframerate()


# loss %, jitter ms: bounds of concealed share, median delay in ms, median SNR and the worst half second's in dB
# (0 dB is what silence would have)
CASES = [
    (0, 0, 0.01, 30, 60, 60),
    (2, 0, 0.02, 30, 25, 6),
    (5, 0, 0.03, 35, 10, 6),
    (10, 0, 0.05, 45, 8, 5),
    (0, 50, 0.02, 80, 40, 40),
    (2, 50, 0.02, 80, 20, 8),
    (5, 50, 0.03, 80, 10, 4),
    (10, 50, 0.05, 85, 8, 0),
]
DELAY_SPREAD_MS = 10
"""No half second is heard so much later than the median may be."""


@pytest.mark.parametrize(
    ("loss", "jitter_ms", "concealed", "delay_ms", "snr_db", "worst_snr_db"), CASES
)
def test_speech_through_loss_and_jitter(
    program: Path,
    speech: tuple[bytes, int],
    loss: int,
    jitter_ms: int,
    concealed: float,
    delay_ms: float,
    snr_db: float,
    worst_snr_db: float,
) -> None:
    pcm, rate_hz = speech
    done = subprocess.run(
        [program, str(loss), str(jitter_ms), str(SEED), str(rate_hz)],
        input=pcm,
        capture_output=True,
        check=True,
    )
    heard: dict[str, Any] = json.loads(done.stdout)
    print(f"{loss} % loss, {jitter_ms} ms jitter: {heard}")
    assert heard["parts"] >= 20
    assert heard["concealed"] <= concealed
    assert heard["recovered"] >= 0.6 * heard["lost"] / heard["packets"]
    assert heard["delay_ms_median"] <= delay_ms
    assert heard["delay_ms_last"] <= delay_ms + 20, "the delay has grown"
    assert heard["delay_ms_max"] <= delay_ms + DELAY_SPREAD_MS
    assert heard["snr_db_median"] >= snr_db
    assert heard["snr_db_worst"] >= worst_snr_db
