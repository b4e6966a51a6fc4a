"""Standard streams: both programs start with all three, whoever started them without.

A closed one is a descriptor that the next socket or memory gets, and what a library prints then goes to a client.
"""

import os
import sys


def fill_standard_streams() -> None:
    """Point closed ones of the descriptors 0 to 2 at /dev/null; Python's `sys.stderr` is one to write to."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 (for the life of the process)
