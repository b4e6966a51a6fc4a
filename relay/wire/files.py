"""Small files that an operator names: keys, secrets, configurations. Read whole and bounded, whatever they are.

1. A device or a pipe that never ends is a file that is too large, like any other (OSError, EFBIG).
2. Who may read a secret besides its owner is a matter of the file's mode; `/dev/fd/N` has none of its own.
"""

import errno
import os
import stat
from os import PathLike

SMALL_FILE_MAX_BYTES = 1_048_576


def read_small_file(path: str | PathLike[str], max_bytes: int = SMALL_FILE_MAX_BYTES) -> bytes:
    """The whole content. Raises OSError, with EFBIG when it has over `max_bytes`."""
    with open(path, "rb", buffering=0) as opened:
        content = bytearray()
        while chunk := opened.read(max_bytes + 1 - len(content)):
            content += chunk
            if len(content) > max_bytes:
                raise OSError(errno.EFBIG, f"has over {max_bytes} bytes", os.fspath(path))
    return bytes(content)


def is_world_readable(path: str | PathLike[str]) -> bool:
    """Whether every user of this machine may read that file; False for what is no file."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & stat.S_IROTH)
