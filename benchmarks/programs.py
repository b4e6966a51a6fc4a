"""The programs of a measurement: compiled, started, stopped, and their CPU time read from outside.

1. A forwarder is measured from outside, by the CPU clock of its process, in nanoseconds. Where the
   kernel accounts interrupts apart (CONFIG_IRQ_TIME_ACCOUNTING) that clock misses softirq time.
2. *Drain*: the forwarder is stopped (SIGSTOP), its socket filled, then it is continued and timed
   until it sleeps again. So every batch is full, and nothing but the forwarder runs meanwhile.
3. The forwarder has the last CPU of this process's affinity, all else the others, if there are any.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "benchmarks"
CPUS = sorted(os.sched_getaffinity(0))


def compiled(name: str) -> Path:
    """The program benchmarks/NAME.c, compiled when it is older than its source."""
    source, program = HERE / f"{name}.c", BUILD / name
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        compiler = shutil.which("cc")
        if compiler is None:
            raise RuntimeError("no C compiler: install gcc")
        BUILD.mkdir(parents=True, exist_ok=True)
        command = [compiler, "-std=gnu11", "-O2", "-o", str(program), str(source)]
        subprocess.run(command, check=True)
    return program


class Program:
    """A started program that says one line when it is ready and ends with its input."""

    def __init__(self, command: Sequence[str | Path], cpus: Sequence[int]) -> None:
        self._process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        os.sched_setaffinity(self._process.pid, cpus)
        self.greeting = self.read_line().split()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def read_line(self) -> str:
        """The next line that it prints; RuntimeError when it ended instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()}")
        return line

    def ask(self, *words: object) -> list[int]:
        """Sends a command and reads the numbers of its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return [int(word) for word in self.read_line().split()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()


class Forwarder(Program):
    """A program under measurement, pinned to the last CPU."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        super().__init__(command, CPUS[-1:])

    def cpu_ns(self) -> int:
        """CPU time that the process has used (the kernel's process clock, clock_getcpuclockid(3))."""
        return time.clock_gettime_ns(~self.pid << 3 | 2)

    def stop(self) -> None:
        """Stops it and waits until it is stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        while self._state() != "T":
            time.sleep(0.0005)

    def drain(self) -> int:
        """Continues it; returns the CPU nanoseconds it takes until it sleeps again."""
        before_ns = self.cpu_ns()
        os.kill(self.pid, signal.SIGCONT)
        asleep = 0
        while asleep < 3:
            time.sleep(0.002)
            asleep = asleep + 1 if self._state() == "S" else 0
        return self.cpu_ns() - before_ns

    def _state(self) -> str:
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0]


def load_generator(transceivers: int) -> Program:
    """benchmarks/loadgen.c; its greeting is the transceivers' ports."""
    return Program([compiled("loadgen"), str(transceivers)], CPUS[:-1] or CPUS)


def null_forwarder(destination_port: int, batch: int) -> Forwarder:
    """benchmarks/nullforward.c; its greeting is its port."""
    return Forwarder(
        [compiled("nullforward"), "127.0.0.1", "127.0.0.1", str(destination_port), str(batch)]
    )


def relay_worker(listen: str, batch: int) -> Forwarder:
    """One worker's loop (benchmarks/relay_process.py); greeting: public port, internal port."""
    return Forwarder([sys.executable, HERE / "relay_process.py", listen, str(batch)])
