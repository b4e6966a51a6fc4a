"""A killed program dies as a whole, as in a crash of its machine: no part has last words."""

from __future__ import annotations

import os
import sys
import time

import pytest

from tests.support.process import Processes

# The child notices its parent's end, as the processes of our programs do.
FAMILY = """
import os
end, life = os.pipe()
if os.fork():
    os.close(end)
    os.waitpid(-1, 0)
else:
    os.close(life)
    print('{"event": "ready"}', flush=True)
    os.read(end, 1)
    print('{"event": "alone"}', flush=True)
"""


def test_no_process_sees_another_one_die(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = processes.start(sys.executable, "-c", FAMILY)
    program.wait_event("ready")
    kill = os.kill

    def interrupted(pid: int, signum: int) -> None:
        kill(pid, signum)
        time.sleep(0.2)  # whoever kills loses the CPU

    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", interrupted)
        program.kill()
    assert not program.events("alone")
