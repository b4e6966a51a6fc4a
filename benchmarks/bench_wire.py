"""The parts of a packet's way by themselves: STUN, token, flow lookup, SPP header, in nanoseconds.

`micro.c` runs them in C, as the relay does, with no call from Python in the figure: 65,536 times a
repeat. Recorded are the median of 15 repeats and the fastest, which is what the machine can do when
nobody disturbs it.
"""

from __future__ import annotations

import subprocess

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.programs import compiled

CASES = [
    ("stun_read", "a check is read"),
    ("token_open", "its token is opened"),
    ("token_refuse", "a forged token is refused"),
    ("spp_write", "an SPP header is written"),
    ("flow_hash", "a flow key is hashed"),
    ("lookup_hot", "a flow is found, of 256"),
    ("lookup_cold", "of a million, one by one"),
    ("lookup_cold_batch", "of a million, in batches with prefetch"),
    ("lookup_miss", "none is found among a million, one by one"),
    ("lookup_miss_batch", "none is found, in batches with prefetch"),
]


@pytest.mark.benchmark(group="parts: nanoseconds each")
@pytest.mark.parametrize("case", [case for case, _ in CASES])
def test_part(benchmark: BenchmarkFixture, case: str) -> None:
    program = compiled("micro", with_core=True)
    found: list[str] = []

    def run() -> None:
        done = subprocess.run([program, case], capture_output=True, text=True, check=True)
        found[:] = done.stdout.split()

    benchmark.pedantic(run, rounds=1)
    median_ps, fastest_ps = map(int, found)
    benchmark.extra_info.update(
        what=dict(CASES)[case],
        ns=round(median_ps / 1e3, 1),
        fastest_ns=round(fastest_ps / 1e3, 1),
    )
