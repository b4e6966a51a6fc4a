"""`python -m tests.support.deny CALL[=FIRST_ARGUMENT]:ERRNO -- COMMAND…`: run a command for which a
system call fails, as under a container's seccomp profile.

It needs no privilege (no_new_privs). x86_64 and aarch64.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

CALLS = {
    "x86_64": {"socket": 41, "sched_setaffinity": 203},
    "aarch64": {"socket": 198, "sched_setaffinity": 122},
}

_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_LOAD_WORD = 0x20
_JUMP_EQUAL = 0x15
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_NUMBER_OFFSET = 0
_ARGUMENT_OFFSET = 16


def why_not() -> str | None:
    """Why calls cannot be denied on this machine; None when they can."""
    if platform.machine() not in CALLS:
        return f"no seccomp filter is written for {platform.machine()}"
    return None


def deny(call: str, error: int, first_argument: int | None = None) -> None:
    """From now on `call` fails with `error` in this process and its children."""
    number = CALLS[platform.machine()][call]
    program = [(_LOAD_WORD, 0, 0, _NUMBER_OFFSET)]
    if first_argument is None:
        program += [(_JUMP_EQUAL, 0, 1, number)]
    else:
        program += [
            (_JUMP_EQUAL, 0, 3, number),
            (_LOAD_WORD, 0, 0, _ARGUMENT_OFFSET),
            (_JUMP_EQUAL, 0, 1, first_argument),
        ]
    program += [(_RETURN, 0, 0, _ERRNO | error), (_RETURN, 0, 0, _ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in program))
    header = ctypes.create_string_buffer(
        struct.pack("@HP", len(program), ctypes.addressof(code)), struct.calcsize("@HP")
    )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or (
        libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(header), 0, 0) != 0
    ):
        raise OSError(ctypes.get_errno(), "seccomp")


def main() -> None:
    """Deny, then become the command."""
    separator = sys.argv.index("--")
    for rule in sys.argv[1:separator]:
        name, _, error = rule.partition(":")
        call, equals, argument = name.partition("=")
        deny(call, getattr(errno, error), int(argument) if equals else None)
    command = sys.argv[separator + 1 :]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
