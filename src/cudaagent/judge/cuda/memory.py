"""Device memory that the judge makes and runners map: the ring and the arena of outputs.

The judge allocates, exports a file descriptor, sends it over the channel and closes it; a runner
imports it and maps the same physical memory at an address of its own. Legacy CUDA IPC does not
cross users, this does.

Not covered: read-only mappings. A runner's native code can raise its own rights, so nothing here
is trusted after a runner ran: the judge renews every slot before every pass.
"""

from __future__ import annotations

import ctypes
import os

from cudaagent.judge.cuda.driver import call

_PINNED = _POSIX_FD = _ON_DEVICE = 1
_READ_WRITE = 3


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Properties(ctypes.Structure):
    """``CUmemAllocationProp``."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class _Access(ctypes.Structure):
    """``CUmemAccessDesc``."""

    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


class SharedMemory:
    """One mapped allocation; ``create`` in the judge, ``import_fd`` in a runner."""

    def __init__(self, handle: int, size: int, device: int) -> None:
        self._handle: int | None = handle
        self.size = size
        try:
            self.address = _map(handle, size, device)
        except BaseException:
            call("cuMemRelease", ctypes.c_uint64(handle))
            raise

    @classmethod
    def create(cls, size: int, device: int) -> SharedMemory:
        """Allocate at least ``size`` bytes, rounded up to the device's granularity.

        Raises:
            DriverError: the device has not so much memory.
        """
        wanted = _Properties(_PINNED, _POSIX_FD, _Location(_ON_DEVICE, device))
        grain, handle = ctypes.c_size_t(), ctypes.c_uint64()
        call(
            "cuMemGetAllocationGranularity",
            ctypes.byref(grain),
            ctypes.byref(wanted),
            ctypes.c_int(0),
        )
        size = max(1, -(-size // grain.value)) * grain.value
        call(
            "cuMemCreate",
            ctypes.byref(handle),
            ctypes.c_size_t(size),
            ctypes.byref(wanted),
            ctypes.c_uint64(0),
        )
        return cls(handle.value, size, device)

    @classmethod
    def import_fd(cls, fd: int, size: int, device: int) -> SharedMemory:
        """Map what another process exported as ``fd``, which is closed; ``size`` is its size."""
        handle = ctypes.c_uint64()
        try:
            call(
                "cuMemImportFromShareableHandle",
                ctypes.byref(handle),
                ctypes.c_void_p(fd),
                ctypes.c_int(_POSIX_FD),
            )
        finally:
            os.close(fd)
        return cls(handle.value, size, device)

    def export(self) -> int:
        """A file descriptor for another process; the caller closes it."""
        fd = ctypes.c_int(-1)
        call(
            "cuMemExportToShareableHandle",
            ctypes.byref(fd),
            ctypes.c_uint64(self._handle or 0),
            ctypes.c_int(_POSIX_FD),
            ctypes.c_uint64(0),
        )
        return fd.value

    def close(self) -> None:
        """Unmap and give the memory back once no other process maps it; may be called twice."""
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        call("cuMemUnmap", ctypes.c_uint64(self.address), ctypes.c_size_t(self.size))
        call("cuMemAddressFree", ctypes.c_uint64(self.address), ctypes.c_size_t(self.size))
        call("cuMemRelease", ctypes.c_uint64(handle))


def _map(handle: int, size: int, device: int) -> int:
    address, length = ctypes.c_uint64(), ctypes.c_size_t(size)
    zero = ctypes.c_uint64(0)
    call("cuMemAddressReserve", ctypes.byref(address), length, ctypes.c_size_t(0), zero, zero)
    try:
        call("cuMemMap", address, length, ctypes.c_size_t(0), ctypes.c_uint64(handle), zero)
        access = _Access(_Location(_ON_DEVICE, device), _READ_WRITE)
        call("cuMemSetAccess", address, length, ctypes.byref(access), ctypes.c_size_t(1))
    except BaseException:
        call("cuMemAddressFree", address, length)
        raise
    return address.value
