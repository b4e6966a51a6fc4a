"""The fixture that starts programs: readiness, logs, and that nothing is left behind."""

from __future__ import annotations

import sys
import time

import pytest

from tests.support.process import ProcessError, Processes, session_members

SPEAKER = """
import json, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
print("not json")
print(json.dumps({"event": "listening", "role": "http", "address": "127.0.0.1:1"}))
time.sleep(600)
"""


def test_addresses_come_from_the_log(processes: Processes) -> None:
    speaker = processes.start(sys.executable, "-c", SPEAKER)
    assert speaker.listening("http") == ["127.0.0.1:1"]
    assert speaker.events("listening", role="media") == []


def test_an_early_end_is_told_with_the_log(processes: Processes) -> None:
    ending = processes.start(sys.executable, "-c", "print('no such option'); raise SystemExit(2)")
    with pytest.raises(ProcessError, match=r"status 2(.|\n)*no such option"):
        ending.wait_event("listening")


def test_children_in_other_process_groups_end_too(processes: Processes) -> None:
    speaker = processes.start(sys.executable, "-c", SPEAKER)
    speaker.listening("http")
    assert len(session_members(speaker.pid)) == 2
    processes.stop_all()
    deadline_s = time.monotonic() + 10
    while session_members(speaker.pid) and time.monotonic() < deadline_s:
        time.sleep(0.01)  # a killed process is not ours to reap: it goes when the kernel gets to it
    assert session_members(speaker.pid) == []
