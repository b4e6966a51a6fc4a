"""Becomes another program on one CPU, ahead of what else runs: `python -m benchmarks.launch CPU PROGRAM...`."""

import os
import sys

from benchmarks.programs import take_priority

if __name__ == "__main__":
    take_priority()
    os.sched_setaffinity(0, {int(sys.argv[1])})
    os.execvp(sys.argv[2], sys.argv[2:])
