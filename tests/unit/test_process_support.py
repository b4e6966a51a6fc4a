"""The fixture that starts programs: readiness, logs, and that nothing is left behind."""

from __future__ import annotations

import socket
import sys

import pytest

from relay.wire.address import Endpoint
from tests.support.process import ProcessError, Processes, session_members
from transceiver.sockets import open_http

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
    assert session_members(speaker.pid) == []


def test_a_reserved_port_is_for_who_names_it_again_and_again(processes: Processes) -> None:
    port = processes.reserve_port()
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        pool = open_http(Endpoint.of("127.0.0.1", port), 2)
        try:
            for one in pool:
                one.listen()
            socket.create_connection(("127.0.0.1", port)).close()
        finally:
            for one in pool:
                one.close()
    with pytest.raises(OSError, match="in use"), socket.socket() as other:
        other.bind(("127.0.0.1", port))
