"""What a handler leaves behind: which task ran, the how-manieth time, and when. One record a call, straight to a file of the process's
own, so that a worker's processes need nothing in common and a killed one loses nothing.

The clock is the machine's monotonic one: the same for every process, and for the one that reads.
"""

import os
import struct
import time

RECORD = struct.Struct("<IId")

_files = {}


def mark(task, attempt):
    pid = os.getpid()
    if pid not in _files:
        # By process: a forked one must not write into its parent's.
        path = os.path.join(os.environ["COMPARE_MARKS"], str(pid))
        _files[pid] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(_files[pid], RECORD.pack(task, attempt, time.monotonic()))
