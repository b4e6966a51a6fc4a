"""CPU time per packet of other people's UDP forwarders, and of the relay, against the null forwarder.

Method (README.md): drain. nginx takes no larger receive buffer than net.core.rmem_max allows, so a drain is
as small for all three as what an untouched host's buffer holds. nginx forwards one way what the relay
does: each client has a session, and what it sends goes to one transceiver. It adds no header and
checks nothing.

NGINX in the environment names the program (and NGINX_MODULES the folder of its stream module); without
nginx this is skipped.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.bench_relay import CLOCK
from benchmarks.programs import CPUS, Forwarder
from benchmarks.rig import Fill, Load, Rig, rig

PACKETS = 384
"""212,992 bytes, doubled, hold 512 of 172 bytes."""

ROUNDS = 101

CONFIG = """
load_module {modules}/ngx_stream_module.so;
worker_processes 1;
master_process off;
daemon off;
pid {directory}/nginx.pid;
error_log {directory}/error.log crit;
events {{ worker_connections 4096; use epoll; }}
stream {{
    server {{
        listen 127.0.0.1:{port} udp rcvbuf=1m;
        proxy_pass 127.0.0.1:{to};
        proxy_timeout 10m;
    }}
}}
"""


class Nginx(Forwarder):
    """A started nginx, which says nothing when it is ready."""

    def __init__(self, program: str, config: Path) -> None:
        self._process = subprocess.Popen(
            [program, "-c", str(config), "-p", str(config.parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        os.sched_setaffinity(self._process.pid, [CPUS[-1]])


@contextmanager
def nginx(directory: Path, to: int) -> Iterator[tuple[Forwarder, int]]:
    """The program and its port; skips where there is none."""
    program = os.environ.get("NGINX") or shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    modules = os.environ.get("NGINX_MODULES", "/usr/lib/nginx/modules")
    if program is None or not Path(modules, "ngx_stream_module.so").exists():
        pytest.skip("nginx and its stream module are not installed")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    config = directory / "nginx.conf"
    config.write_text(CONFIG.format(modules=modules, directory=directory, port=port, to=to))
    with Nginx(program, config) as started:
        started.await_sleep()
        time.sleep(0.2)
        yield started, port


@pytest.mark.benchmark(timer=CLOCK, group="peers, up: CPU time of a small drain")
@pytest.mark.parametrize("sizes", [172, "mix"])
def test_nginx(benchmark: BenchmarkFixture, tmp_path: Path, sizes: object) -> None:
    """To 1 transceiver, 256 flows."""
    with (
        rig(Load()) as started,
        nginx(tmp_path, int(started.generator.greeting[0])) as (peer, port),
    ):
        fills = {
            "nginx": [Fill("up", [peer], port, PACKETS, "up", 0)],
            "relay": started.relay_fills("up", PACKETS),
            "null": started.null_fills("up", PACKETS),
        }
        costs_ns = compare(benchmark, started, fills, sizes)
    ratios = {
        who: median(ours / null for ours, null in zip(costs_ns[who], costs_ns["null"], strict=True))
        for who in ("nginx", "relay")
    }
    benchmark.extra_info.update(
        {f"{who}_us": round(median(costs) / 1e3, 3) for who, costs in costs_ns.items()},
        lost=0,
        nginx_ratio=round(ratios["nginx"], 3),
        ratio=round(ratios["relay"], 3),
    )


def compare(
    benchmark: BenchmarkFixture, started: Rig, fills: dict[str, list[Fill]], sizes: object
) -> dict[str, list[float]]:
    """They take turns; what each packet cost of every round, after one that makes the sessions."""
    costs_ns: dict[str, list[float]] = {who: [] for who in fills}

    def round_of_all() -> None:
        for who, fill in fills.items():
            costs_ns[who].append(started.drain(fill, sizes))

    benchmark.pedantic(round_of_all, rounds=ROUNDS, warmup_rounds=1)
    return {who: costs[1:] for who, costs in costs_ns.items()}
