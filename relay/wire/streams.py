"""Standard streams, whatever they were started with.

1. Both programs have all three: a closed one is a descriptor that the next socket gets, and what a library
   prints then goes to a client.
2. Output that cannot be written (a full disk) is one line and an exit status, not a traceback.
"""

import errno
import os
import sys


def fill_standard_streams() -> None:
    """Point closed ones of the descriptors 0 to 2 at /dev/null; Python's `sys.stderr` is one to write to."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 (for the life of the process)


def lost_output(error: OSError) -> str:
    """The line for the operator when `error` says that output could not be written; raises any other error again.

    What Python still holds of it is then dropped, so that its exit does not try once more.
    """
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return f"cannot write the output: {error.strerror}"
