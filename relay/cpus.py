"""How many CPUs this process may use, and which worker belongs on which.

1. The host's CPU count is never used: affinity says which CPUs, the cgroup's cpu.max how much.
2. cgroup v2 only; elsewhere the quota is unknown and affinity alone counts.
"""

import math
import os
from pathlib import Path
from typing import Literal, NamedTuple

PinMode = Literal["auto", "always", "never"]
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Activity(NamedTuple):
    """What the scheduler says of a process."""

    runnable: bool
    """It runs or waits for a CPU (state R)."""
    cpu_s: float
    """CPU time used so far."""


def read_activity(pid: int) -> Activity:
    """Of a process of one thread; not runnable, with no CPU time, when it is gone (proc(5))."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return Activity(False, 0.0)
    return Activity(fields[0] == "R", (int(fields[11]) + int(fields[12])) / _TICKS_PER_S)


def allowed_cpus() -> tuple[int, ...]:
    """The CPUs of this process's affinity mask, ascending."""
    return tuple(sorted(os.sched_getaffinity(0)))


def cpu_quota(
    cgroup_file: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")
) -> float | None:
    """CPUs that the cgroups above this process grant, such as 0.5; None without a limit.

    The tightest `cpu.max` on the way up to the mount counts (cgroup v2, "QUOTA|max PERIOD").
    """
    try:
        lines = cgroup_file.read_text().splitlines()
    except OSError:
        return None
    own = next((line[3:] for line in lines if line.startswith("0::")), None)
    if own is None:
        return None
    folder = mount / own.lstrip("/")
    quotas = []
    for place in (folder, *folder.parents):
        quota = _read_cpu_max(place / "cpu.max")
        if quota is not None:
            quotas.append(quota)
        if place == mount:
            break
    return min(quotas, default=None)


def _read_cpu_max(path: Path) -> float | None:
    try:
        quota, period = path.read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def auto_workers(affinity: int, quota: float | None) -> int:
    """Workers for `affinity` usable CPUs under a quota of `quota` CPUs; at least one."""
    return max(1, min(affinity, affinity if quota is None else math.ceil(quota)))


def pin_plan(
    mode: PinMode, workers: int, cpus: tuple[int, ...], quota: float | None, online: int
) -> tuple[int, ...] | None:
    """The CPU of each worker, round-robin within `cpus`; None to leave them to the scheduler.

    Under a quota a pinned worker would be throttled on a CPU it shares with strangers, so `auto`
    then pins only where a cpuset (fewer CPUs allowed than `online`) sets CPUs aside.
    """
    if mode == "never" or not cpus:
        return None
    if mode == "auto" and quota is not None and len(cpus) >= online:
        return None
    return tuple(cpus[slot % len(cpus)] for slot in range(workers))
