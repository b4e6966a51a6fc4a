"""The run directory when its disk is full."""

import os
import socket
from pathlib import Path

from relay.rundir import RunDir


def test_a_full_disk_costs_the_lock_file_its_process_id(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        directory = RunDir(tmp_path, os.open("/dev/full", os.O_RDWR), listener)
        directory.claim()
        directory.close()
