"""A process beside the judge's, on the same device: what a runner does with shared memory.

Started as a program: WHAT FD SIZE IMAGE. Prints one line of JSON.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
from pathlib import Path

from cudaagent.judge.cuda.driver import DriverError, open_device, synchronize, to_device, to_host
from cudaagent.judge.cuda.kernels import Kernels
from cudaagent.judge.cuda.memory import SharedMemory

ANSWER = b"written by the neighbour"
BUSY_NS = 300_000_000


def main() -> None:
    what, fd, size, image = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    device = open_device(0)
    kernels = Kernels(device, image.read_bytes())
    if what == "share":
        memory = SharedMemory.import_fd(fd, size, device.index)
        seen = hashlib.sha256(to_host(memory.address, size)).hexdigest()
        to_device(memory.address, ANSWER)
        print(json.dumps({"seen": seen}))
    elif what == "illegal":
        kernels.single("work", ctypes.c_uint64(1), ctypes.c_uint64(64))
        try:
            synchronize()
        except DriverError as error:
            print(json.dumps({"code": error.code}))
    elif what == "busy":
        kernels.single("spin", ctypes.c_uint64(BUSY_NS))
        print(json.dumps({"started": True}), flush=True)
        synchronize()


if __name__ == "__main__":
    main()
