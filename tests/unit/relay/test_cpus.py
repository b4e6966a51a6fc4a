"""How many workers `auto` means, and where they are pinned (cases E16 and E17)."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from relay import cpus
from relay.cpus import read_activity


@pytest.mark.parametrize(
    ("affinity", "quota", "workers"),
    [(8, None, 8), (8, 0.5, 1), (8, 2.1, 3), (2, 16.0, 2), (1, None, 1), (8, 0.001, 1)],
)
def test_auto_workers(affinity: int, quota: float | None, workers: int) -> None:
    assert cpus.auto_workers(affinity, quota) == workers


def make_cgroups(root: Path, own: str, limits: dict[str, str]) -> tuple[Path, Path]:
    mount = root / "mount"
    (mount / own).mkdir(parents=True)
    for folder, text in limits.items():
        (mount / folder / "cpu.max").write_text(text + "\n")
    cgroup_file = root / "cgroup"
    cgroup_file.write_text(f"1:name=other:/x\n0::/{own}\n")
    return cgroup_file, mount


@pytest.mark.parametrize(
    ("limits", "quota"),
    [
        ({}, None),
        ({"a/b": "max 100000"}, None),
        ({"a/b": "50000 100000"}, 0.5),
        ({"a": "150000 100000", "a/b": "max 100000"}, 1.5),
        ({"a": "100000 100000", "a/b": "300000 100000"}, 1.0),
        ({"": "200000 100000"}, 2.0),
        ({"a/b": "nonsense"}, None),
    ],
)
def test_quota_is_the_tightest_on_the_way_up(
    tmp_path: Path, limits: dict[str, str], quota: float | None
) -> None:
    assert cpus.cpu_quota(*make_cgroups(tmp_path, "a/b", limits)) == quota


def test_no_cgroup_is_no_quota(tmp_path: Path) -> None:
    assert cpus.cpu_quota(tmp_path / "missing", tmp_path) is None
    (tmp_path / "v1").write_text("3:cpu:/x\n")
    assert cpus.cpu_quota(tmp_path / "v1", tmp_path) is None


@pytest.mark.parametrize(
    ("mode", "quota", "online", "plan"),
    [
        ("auto", None, 2, (2, 4, 2)),
        ("auto", 1.5, 8, (2, 4, 2)),
        ("auto", 1.5, 2, None),
        ("always", 1.5, 2, (2, 4, 2)),
        ("never", None, 8, None),
    ],
)
def test_pins_round_robin_within_the_allowed_cpus(
    mode: cpus.PinMode, quota: float | None, online: int, plan: tuple[int, ...] | None
) -> None:
    assert cpus.pin_plan(mode, 3, (2, 4), quota, online) == plan


def test_activity_tells_a_busy_process_from_a_stopped_and_a_gone_one() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        deadline_s = time.monotonic() + 30
        while read_activity(busy.pid).cpu_s < 0.2 and time.monotonic() < deadline_s:
            time.sleep(0.02)
        seen = read_activity(busy.pid)
        assert seen.runnable
        assert seen.cpu_s >= 0.2
        busy.send_signal(signal.SIGSTOP)
        while read_activity(busy.pid).runnable and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert not read_activity(busy.pid).runnable
    finally:
        busy.kill()
        busy.wait()
    assert read_activity(busy.pid) == (False, 0.0)
