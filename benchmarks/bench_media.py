"""Talking sessions per core of the media engine, against stock aiortc and against the codecs alone.

Method (README.md): the server has one CPU, the clients (mediaload.c: ICE, DTLS-SRTP, Opus of 32 kbit/s
with FEC) the others. All clients talk for some seconds; the server's CPU clock is read around it. The
figure is its CPU time per session and second, whose inverse is sessions per core. All servers are measured in
the same run, and the codecs alone by turns with the server that uses them, since a machine's speed may change
within seconds; a packet that did not come back fails it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.media_load import AiortcServer, Load, MediaServer, Talked, resident_kib
from benchmarks.programs import CPUS

pytestmark = pytest.mark.benchmark(group="talking sessions per core")

SERVER_CPUS = CPUS[-1:]
LOAD_CPUS = CPUS[:-1] or CPUS
SECONDS = 10.0
TURNS = 9
TURN_S = 2.0
"""Server and codecs take turns: the figure is the median of the turns' ratios."""

WARM_UP_S = 3.0
CALL_S = 60.0
"""How old calls are when the age of their sound is read, so that their beginnings have the weight that they have in life."""

BUSY = 0.8
"""Share of the server's CPU that decoding and encoding sessions are to take, as the targets say."""

FIRST_SESSIONS = 20
"""Whose memory is not counted: buffers that all share are touched, modules loaded."""

baseline: dict[str, float] = {}


def stock_aiortc() -> Talked:
    """Measured once a run; 6 sessions, well below its saturation."""
    with AiortcServer(SERVER_CPUS) as server, Load(server.port, server.pid, LOAD_CPUS) as load:
        load.place(6, at_once=2)
        load.talk(WARM_UP_S)
        return load.talk(SECONDS)


def with_first_sessions_kib(load: Load, server: MediaServer) -> int:
    """The server's memory once the first sessions have talked for 6 s."""
    load.place(FIRST_SESSIONS)
    load.talk(6)
    return resident_kib(server.pid)


def place_until_busy(share: float, load: Load) -> None:
    """As many sessions as take that share of the server's CPU: some that talk say how many, then those do."""
    load.place(2 * FIRST_SESSIONS)
    for part in (0.5, 0.8, 1.0):
        wanted = int(part * share * load.talk(WARM_UP_S).sessions_per_core)
        load.place(max(0, wanted - load.sessions))


def stock_ms() -> float:
    """CPU ms per session and second of stock aiortc."""
    if "aiortc" not in baseline:
        baseline["aiortc"] = stock_aiortc().cpu_ms_per_session_s
    return baseline["aiortc"]


def median_turn(turns: list[Talked]) -> Talked:
    """The turn whose CPU time is in the middle, with what was sent and received in all of them."""
    middle = sorted(turns, key=lambda turn: turn.cpu_ms_per_session_s)[len(turns) // 2]
    return replace(
        middle,
        sent=sum(turn.sent for turn in turns),
        received=sum(turn.received for turn in turns),
    )


def record(benchmark: BenchmarkFixture, talked: Talked, **more: object) -> None:
    benchmark.extra_info.update(
        sessions=talked.sessions,
        cpu_ms_per_session_s=round(talked.cpu_ms_per_session_s, 3),
        sessions_per_core=round(talked.sessions_per_core, 1),
        times_stock_aiortc=round(stock_ms() / talked.cpu_ms_per_session_s, 1),
        arrival_jitter_ms=[
            round(talked.jitter_p50_ms, 2),
            round(talked.jitter_p99_ms, 2),
            round(talked.jitter_max_ms, 2),
        ],
        lost=talked.sent - talked.received,
        **more,
    )


def percentile(histogram: list[int], share: float) -> int:
    """The index below which this share of the counts lies."""
    wanted, seen = share * sum(histogram), 0
    for index, count in enumerate(histogram):
        seen += count
        if seen >= wanted:
            return index
    return len(histogram)


def shares(histogram: Counter[int]) -> list[int]:
    """Median, 99 % and 99.9 % of the values that are counted here."""
    values = sorted(histogram)
    found = [percentile([histogram[value] for value in values], p) for p in (0.5, 0.99, 0.999)]
    return [values[min(index, len(values) - 1)] for index in found]


def sound_ages(calls: list[dict[str, Any]]) -> dict[str, object]:
    """How long packets waited for their tick, of calls of a minute with their beginnings, when the jitter
    buffer starts at 40 ms; and from the moment on when they were 3 s old.
    """
    settled, all_ms, beyond, all_beyond = (
        Counter[int](),
        Counter[int](),
        Counter[int](),
        Counter[int](),
    )
    for call in calls:
        early = call["unsettled"]
        for step, (count, before) in enumerate(
            zip(call["ages_5ms"], early["ages_5ms"], strict=True)
        ):
            settled[5 * (step + 1)] += count - before
            all_ms[5 * (step + 1)] += count
        for ms, count in call["beyond_target_ms"].items():
            all_beyond[int(ms)] += count
            beyond[int(ms)] += count - early["beyond_target_ms"].get(ms, 0)
    return {
        "age_below_ms_p50_p99_p999": shares(settled),
        "age_less_target_ms_p50_p99_p999": shares(beyond),
        "age_with_starts_below_ms_p50_p99_p999": shares(all_ms),
        "age_less_target_with_starts_ms_p50_p99_p999": shares(all_beyond),
    }


def read_numbers(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("complexity", [0, 5])
def test_decode_encode_and_pcm_to_python(
    benchmark: BenchmarkFixture, tmp_path: Path, complexity: int
) -> None:
    with (
        MediaServer(tmp_path, SERVER_CPUS, mirror="pcm", complexity=complexity) as server,
        Load(server.port, server.pid, LOAD_CPUS) as load,
    ):
        before_kib = with_first_sessions_kib(load, server)
        place_until_busy(BUSY, load)
        load.talk(WARM_UP_S)
        turns: list[Talked] = []
        codecs_ms = [load.codecs_ms_per_session_s(complexity)]

        def turn() -> None:
            turns.append(load.talk(TURN_S))
            codecs_ms.append(load.codecs_ms_per_session_s(complexity))

        benchmark.pedantic(turn, rounds=TURNS)
        memory_kib = (resident_kib(server.pid) - before_kib) / (load.sessions - FIRST_SESSIONS)
    talked = median_turn(turns)
    allowed = [
        fmean(around) / turn.cpu_ms_per_session_s
        for around, turn in zip(pairwise(codecs_ms), turns, strict=True)
    ]
    record(
        benchmark,
        talked,
        busy=round(talked.sessions / talked.sessions_per_core, 2),
        of_what_the_codecs_allow=round(median(allowed), 3),
        of_what_the_codecs_allow_each=[round(one, 2) for one in allowed],
        codecs_ms=round(median(codecs_ms), 3),
        memory_kib_per_session=round(memory_kib),
    )
    assert talked.received >= 0.99 * talked.sent


def test_age_of_sound(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """And the lateness of the 20 ms clock, in calls of a minute."""
    with (
        MediaServer(tmp_path, SERVER_CPUS, mirror="pcm") as server,
        Load(server.port, server.pid, LOAD_CPUS) as load,
    ):
        place_until_busy(BUSY, load)
        talked = benchmark.pedantic(load.talk, (CALL_S,), rounds=1)
        server.end()
    calls = [call for call in read_numbers(server.numbers) if "unsettled" in call]
    record(
        benchmark,
        talked,
        busy=round(talked.sessions / talked.sessions_per_core, 2),
        **sound_ages(calls),
        jitter_target_ms=round(sum(call["target_ms"] for call in calls) / len(calls), 1),
        send_clock_late_ms_p99=percentile(
            json.loads(server.engine_numbers.read_text())["lateness_100us"], 0.99
        )
        / 10,
        concealed=round(
            sum(call["concealed_samples"] for call in calls)
            / sum(call["samples"] for call in calls),
            5,
        ),
    )
    assert talked.received >= 0.99 * talked.sent


@pytest.mark.parametrize("mirror", ["echo", "frames"])
def test_pass_through(benchmark: BenchmarkFixture, tmp_path: Path, mirror: str) -> None:
    """Inside the engine, and through Python."""
    sessions = int(os.environ.get("SESSIONS", "300"))
    with (
        MediaServer(tmp_path, SERVER_CPUS, mirror=mirror) as server,
        Load(server.port, server.pid, LOAD_CPUS) as load,
    ):
        before_kib = with_first_sessions_kib(load, server)
        load.place(sessions - FIRST_SESSIONS, at_once=20)
        load.talk(WARM_UP_S)
        talked = benchmark.pedantic(load.talk, (SECONDS,), rounds=1)
        memory_kib = (resident_kib(server.pid) - before_kib) / (sessions - FIRST_SESSIONS)
    record(benchmark, talked, memory_kib_per_session=round(memory_kib))
    assert talked.received >= 0.99 * talked.sent


def test_a_thousand_sessions_pass_through(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """On all CPUs, clients included."""
    with (
        MediaServer(tmp_path, CPUS, mirror="echo") as server,
        Load(server.port, server.pid, CPUS) as load,
    ):
        load.place(1_000, at_once=20)
        load.talk(WARM_UP_S)
        talked = benchmark.pedantic(load.talk, (SECONDS,), rounds=1)
    record(benchmark, talked)
    assert talked.received >= 0.99 * talked.sent
