"""A pool that is stopped for a while, as by a debugger, a frozen container or a suspended machine."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.support.process import Processes, session_members

STALL_S = 1.5
"""Longer than the supervisor ever waits for a signal."""


@pytest.mark.parametrize("all_processes", [True, False])
def test_a_stop_is_no_order_to_drain(processes: Processes, all_processes: bool) -> None:
    server = processes.transceiver(
        "serve", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=2", "--direct",
        "--drain-timeout=0", "--log-format=json",
    )  # fmt: skip
    server.listening("http")
    pids = session_members(server.pid) if all_processes else [server.pid]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(STALL_S)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    time.sleep(1.0)
    assert server.returncode is None
    assert not server.events("draining")
    assert not server.events("process_ended")
    assert server.stop() == 0
