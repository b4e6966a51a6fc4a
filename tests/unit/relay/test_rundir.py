"""The run directory when its disk is full, and when somebody else has laid it out."""

import os
import socket
from pathlib import Path

import pytest

from relay.errors import RunDirError
from relay.rundir import LOCK, RunDir, open_run_dir


def test_a_full_disk_costs_the_lock_file_its_process_id(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        directory = RunDir(tmp_path, os.open("/dev/full", os.O_RDWR), listener)
        directory.claim()
        directory.close()


def test_a_lock_that_leads_elsewhere_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("much")
    (tmp_path / LOCK).symlink_to("precious")
    with pytest.raises(RunDirError, match=str(tmp_path)):
        open_run_dir(tmp_path)
    assert (tmp_path / "precious").read_text() == "much"
