"""The relay does not get slower unnoticed: instructions per packet, and CPU time in the gross.

1. Instructions of the core without I/O are counted by callgrind: they are the same on every run, so
   the bounds are tight. They hold for gcc at -O2 on x86-64; what OpenSSL does is in them where a
   token is opened, and gets more room.
2. CPU time is a ratio to the null forwarder of the same run (benchmarks/README.md), with twice the
   target for a bound: what a busy machine does to it is far less.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from statistics import median

import pytest

from benchmarks.programs import compiled
from benchmarks.rig import Direction, Load, Verb, rig, why_not

COUNT = 2560
ROUNDS = 5

INSTRUCTIONS = [
    ("media_up", 770),
    ("media_down", 765),
    ("media_of_strangers", 690),
    ("stun_read", 135),
    ("arrange_equal", 54),
    ("arrange_mix", 200),
    ("forged_checks", 1_700),
    ("check_and_success", 6_500),
]
"""Of one packet: case of benchmarks/instructions.c, at most so many."""

LEAST = {"forged_checks": 0.75, "check_and_success": 0.75}
"""The share of its bound that is counted at least: where a cipher is in it, of whatever OpenSSL there is."""


def why_not_counted() -> str | None:
    """What is missing for counting, or None."""
    if platform.machine() != "x86_64":
        return "the bounds are for x86-64"
    if shutil.which("valgrind") is None:
        return "valgrind is not installed"
    version = subprocess.run(["cc", "--version"], capture_output=True, text=True).stdout
    return None if "Free Software Foundation" in version else "the bounds are for gcc"


def instructions(case: str, count: int) -> int:
    """Instructions of the program for so many packets, its start included."""
    program = compiled("instructions", with_core=True)
    done = subprocess.run(
        [
            *("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"),
            *(program, case, str(count)),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found is not None, done.stderr
    return int(found[1])


@pytest.mark.parametrize(("case", "most"), INSTRUCTIONS, ids=[case for case, _ in INSTRUCTIONS])
def test_instructions_per_packet(case: str, most: int) -> None:
    if reason := why_not_counted():
        pytest.skip(reason)
    counted = (instructions(case, 2 * COUNT) - instructions(case, COUNT)) / COUNT
    assert counted <= most
    least = LEAST.get(case, 0.85) * most
    assert counted >= least, "the bound is too wide: make it tight again"


@pytest.mark.parametrize(
    ("load", "direction", "sizes", "most"),
    [
        (Load(transceivers=1), "up", 172, 1.1),
        (Load(transceivers=16), "up", "mix", 1.9),
        (Load(transceivers=16, null="fanout"), "down", 172, 2.3),
        (Load(transceivers=1, null="fanout"), "down-runs", 172, 2.0),
    ],
    ids=["up, equal sizes", "up, a mix of sizes", "down", "down, sent in runs"],
)
def test_cpu_time_in_the_gross(load: Load, direction: Verb, sizes: object, most: float) -> None:
    if reason := why_not():
        pytest.skip(reason)
    arrives: Direction = "up" if direction == "up" else "down"
    added = 0 if direction == "up" else -38
    with rig(load) as started:
        ratios = []
        for _ in range(ROUNDS):
            null_ns = started.drain_null(direction, sizes, arrives=arrives, added=added)
            ratios.append(started.drain_relay(direction, sizes) / null_ns)
    assert median(ratios) <= most, ratios
