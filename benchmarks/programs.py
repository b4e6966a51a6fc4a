"""The programs of a measurement: compiled, started, stopped, and their CPU time read from outside.

1. A forwarder is measured from outside, by the CPU clock of its process, in nanoseconds. Where the
   kernel accounts interrupts apart (CONFIG_IRQ_TIME_ACCOUNTING) that clock misses softirq time.
2. *Drain*: the forwarder is stopped (SIGSTOP), its socket filled, then it is continued and timed
   until it sleeps again. So every batch is full, and nothing but the forwarder runs meanwhile.
3. The forwarder has the last CPU of this process's affinity, all else the others, if there are any.
"""

from __future__ import annotations

import contextlib
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


def take_priority() -> None:
    """Where that is allowed, ahead of what else runs here: a neighbour costs packets, not only time.

    Nice counts within a session only where the kernel groups tasks by session (CONFIG_SCHED_AUTOGROUP). Not a
    real-time class: the kernel stops one that never sleeps for a twentieth of each second (sched_rt_runtime_us).
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("-15")


CSRC = HERE.parent / "csrc"
_DOES_IO = ("loop.c", "sender.c", "socket.c")


def compiled(name: str, *, with_core: bool = False) -> Path:
    """The program of benchmarks/NAME.c or of the folder benchmarks/NAME, compiled when it is older.

    With the core it gets all of csrc/wire and csrc/relay that does no I/O.
    """
    sources = sorted((HERE / name).glob("*.c")) or [HERE / f"{name}.c"]
    headers = [*(HERE / name).glob("*.h"), *CSRC.glob("wire/*.h"), *CSRC.glob("relay/*.h")]
    libraries = []
    if with_core:
        core = [*CSRC.glob("wire/*.c"), *CSRC.glob("relay/*.c")]
        sources += sorted(path for path in core if path.name not in _DOES_IO)
        libraries = ["-lcrypto"]
    program = BUILD / name
    newest = max(path.stat().st_mtime for path in [*sources, *headers])
    if not program.exists() or program.stat().st_mtime < newest:
        compiler = shutil.which("cc")
        if compiler is None:
            raise RuntimeError("no C compiler: install gcc")
        BUILD.mkdir(parents=True, exist_ok=True)
        command = [compiler, "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-o"]
        subprocess.run([*command, str(program), *map(str, sources), *libraries], check=True)
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
    """A program under measurement, pinned to the last CPU, or to the one counted from the end."""

    def __init__(self, command: Sequence[str | Path], cpu: int = -1) -> None:
        super().__init__(command, [CPUS[cpu % len(CPUS)]])

    def cpu_ns(self) -> int:
        """CPU time that the process has used (the kernel's process clock, clock_getcpuclockid(3))."""
        return time.clock_gettime_ns(~self.pid << 3 | 2)

    def stop(self) -> None:
        """Stops it and waits until it is stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        while self._state() != "T":
            time.sleep(0.0005)

    def resume(self) -> int:
        """Continues it; returns its CPU time before."""
        before_ns = self.cpu_ns()
        os.kill(self.pid, signal.SIGCONT)
        return before_ns

    def await_sleep(self) -> None:
        """Waits until it has nothing to do any more."""
        asleep = 0
        while asleep < 3:
            time.sleep(0.002)
            asleep = asleep + 1 if self._state() == "S" else 0

    def _state(self) -> str:
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0]


def load_generator(transceivers: int) -> Program:
    """benchmarks/loadgen; its greeting is the transceivers' ports."""
    return Program([compiled("loadgen"), str(transceivers)], CPUS[:-1] or CPUS)


def null_forwarder(destination_port: int, batch: int, mode: str = "plain") -> Forwarder:
    """benchmarks/nullforward.c; its greeting is its port."""
    program = compiled("nullforward")
    return Forwarder([program, "127.0.0.1", str(destination_port), str(batch), mode])


def relay_worker(
    listen: str, batch: int, *, port: int = 0, cpu: int = -1, coalesce_us: int = 0
) -> Forwarder:
    """One worker's loop (benchmarks/relay_process.py); greeting: public port, internal port."""
    program = str(HERE / "relay_process.py")
    command = [sys.executable, program, listen, str(port), str(batch), str(coalesce_us)]
    return Forwarder(command, cpu)
