"""A child that cannot be made leaves no process and no descriptor behind."""

import errno
import os
from typing import Any

import pytest

from relay import child


def descriptors() -> list[str]:
    return os.listdir("/proc/self/fd")


@pytest.mark.parametrize("call", ["memfd_create", "posix_spawn", "pidfd_open"])
def test_nothing_is_left_of_a_child_that_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    spawned: list[int] = []
    spawn = os.posix_spawn

    def note(*arguments: Any, **settings: Any) -> int:
        spawned.append(spawn(*arguments, **settings))
        return spawned[-1]

    monkeypatch.setattr(os, "posix_spawn", note)
    monkeypatch.setattr(os, call, refuse)
    before = descriptors()
    with pytest.raises(OSError, match="Too many open files"):
        child.Child("relay.control", [], {})
    assert len(descriptors()) == len(before)
    assert len(spawned) == (call == "pidfd_open")
    for pid in spawned:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
