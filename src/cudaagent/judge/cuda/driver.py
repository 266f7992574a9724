"""The CUDA driver, called through ctypes: the judge imports no torch.

One context a process, the device's primary one, so that torch in a runner and this module in the
same runner share it. Every call here is synchronous to its caller except launches and event
records, which go to the default stream.

Not covered: several devices in one process; threads other than the one that opened the device
must call ``Device.use`` first.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

from cudaagent.errors import InfrastructureError

_LIBRARY = "libcuda.so.1"
_NAME_BYTES = 256
_MAJOR, _MINOR, _UNITS = 75, 76, 16
"""Attributes of a device: compute capability and multiprocessors."""


class DriverError(InfrastructureError):
    """A call of the driver failed; ``code`` is its ``CUresult``."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call} failed: {name} ({code})")
        self.code = code


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise InfrastructureError(f"no CUDA driver on this machine: {error}") from None


def call(name: str, *arguments: Any) -> None:
    """Call a function of the driver.

    Raises:
        DriverError: it did not return success.
    """
    code = int(getattr(_library(), name)(*arguments))
    if code:
        text = ctypes.c_char_p()
        _library().cuGetErrorName(code, ctypes.byref(text))
        raise DriverError(name, code, (text.value or b"unknown error").decode())


@dataclass(frozen=True, slots=True)
class Device:
    """An opened device; its context is current in the thread that opened it."""

    index: int
    name: str
    capability: tuple[int, int]
    units: int
    """Multiprocessors."""
    driver: int
    """Highest CUDA version the driver serves, as 1000 * major + 10 * minor."""
    context: int

    def use(self) -> None:
        """Make the context current in the calling thread."""
        call("cuCtxSetCurrent", ctypes.c_void_p(self.context))

    def close(self) -> None:
        """Give the context back; memory, modules and events of it are gone afterwards."""
        call("cuDevicePrimaryCtxRelease_v2", ctypes.c_int(self.index))


def open_device(index: int) -> Device:
    """Open device ``index`` of those this process sees.

    Raises:
        InfrastructureError: no driver, or no such device.
    """
    call("cuInit", ctypes.c_uint(0))
    version, handle, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    call("cuDriverGetVersion", ctypes.byref(version))
    call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(index))
    name = ctypes.create_string_buffer(_NAME_BYTES)
    call("cuDeviceGetName", name, ctypes.c_int(_NAME_BYTES), handle)
    major, minor, units = (_attribute(handle, which) for which in (_MAJOR, _MINOR, _UNITS))
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
    call("cuCtxSetCurrent", context)
    return Device(
        index, name.value.decode(), (major, minor), units, version.value, context.value or 0
    )


def _attribute(handle: ctypes.c_int, which: int) -> int:
    value = ctypes.c_int()
    call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(which), handle)
    return value.value


def synchronize() -> None:
    """Wait until the context has no work left."""
    call("cuCtxSynchronize")


def to_device(address: int, data: bytes) -> None:
    """Copy ``data`` to device memory."""
    call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))


def to_host(address: int, size: int) -> bytes:
    """Copy ``size`` bytes of device memory here."""
    data = ctypes.create_string_buffer(size)
    call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(size))
    return data.raw


class Event:
    """A point in the default stream with a time."""

    def __init__(self) -> None:
        self._event = ctypes.c_void_p()
        call("cuEventCreate", ctypes.byref(self._event), ctypes.c_uint(0))

    def record(self) -> None:
        """Mark the stream's present end."""
        call("cuEventRecord", self._event, None)

    def us_since(self, start: Event) -> float:
        """Microseconds from ``start`` to here; waits until the device has passed both."""
        elapsed = ctypes.c_float()
        call("cuEventSynchronize", self._event)
        call("cuEventElapsedTime", ctypes.byref(elapsed), start._event, self._event)
        return 1000.0 * elapsed.value

    def close(self) -> None:
        """Give the event back."""
        call("cuEventDestroy_v2", self._event)
