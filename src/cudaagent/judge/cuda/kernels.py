"""The judge's own kernels: built by nvcc from ``kernels.cu``, launched through the driver.

Not covered: a cache of builds; the caller names a directory, and what lies there is taken to be
the judge's own, so no candidate may write to it.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

from cudaagent.errors import InfrastructureError
from cudaagent.judge.cuda.driver import Device, call

_SOURCE = Path(__file__).with_name("kernels.cu")
_BUILD_S = 120.0
_FLOOD = 8
"""Blocks to a multiprocessor in kernels that move much memory."""
_THREADS = 256


def build_kernels(nvcc: str, capability: tuple[int, int], directory: Path) -> Path:
    """Compile the kernels for ``capability``; the image lies in ``directory``.

    Raises:
        InfrastructureError: nvcc is absent, failed or took too long.
    """
    image = directory / "kernels.cubin"
    arch = f"-arch=sm_{capability[0]}{capability[1]}"
    command = [nvcc, "-cubin", "-O3", "-std=c++17", arch, "-o", str(image), str(_SOURCE)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfrastructureError(f"the judge's kernels did not build: {error}") from None
    if done.returncode:
        raise InfrastructureError(f"the judge's kernels did not build: {done.stderr.strip()}")
    return image


class Kernels:
    """The loaded kernels of one device; launches go to the default stream and do not wait."""

    def __init__(self, device: Device, image: bytes) -> None:
        self._blocks = _FLOOD * device.units
        self._module = ctypes.c_void_p()
        call("cuModuleLoadData", ctypes.byref(self._module), image)
        self._functions: dict[str, ctypes.c_void_p] = {}

    def spread(self, name: str, blocks: int, *arguments: Any) -> None:
        """Launch at most ``blocks`` blocks, fewer where that many would not fit the device."""
        self._launch(name, max(1, min(self._blocks, blocks)), _THREADS, arguments)

    def single(self, name: str, *arguments: Any) -> None:
        """Launch one thread."""
        self._launch(name, 1, 1, arguments)

    def _launch(self, name: str, blocks: int, threads: int, arguments: tuple[Any, ...]) -> None:
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        one = ctypes.c_uint(1)
        call(
            "cuLaunchKernel",
            self._function(name),
            ctypes.c_uint(blocks),
            one,
            one,
            ctypes.c_uint(threads),
            one,
            one,
            ctypes.c_uint(0),
            None,
            pointers,
            None,
        )

    def _function(self, name: str) -> ctypes.c_void_p:
        found = self._functions.get(name)
        if found is None:
            found = ctypes.c_void_p()
            call("cuModuleGetFunction", ctypes.byref(found), self._module, name.encode())
            self._functions[name] = found
        return found
