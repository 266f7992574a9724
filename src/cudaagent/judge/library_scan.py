"""Reads the dynamic symbol table of a built extension and refuses forbidden imports.

Pure functions of bytes with a tiny reader of 64-bit little-endian ELF files; malformed files are
refused, never followed. Not covered: system calls made without an imported symbol.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from cudaagent.judge.verdict import Failure


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FORBIDDEN = _words(
    "system popen fork vfork _Fork clone clone3 execl execle execlp execv execve execveat execvp "
    "execvpe fexecve posix_spawn posix_spawnp dlopen dlsym dlvsym dlmopen dlclose dladdr "
    "dl_iterate_phdr __libc_dlopen_mode __libc_dlsym ptrace process_vm_readv process_vm_writev "
    "process_madvise mprotect pkey_mprotect mremap remap_file_pages mmap mmap64 munmap madvise "
    "memfd_create shm_open shm_unlink shmget shmat userfaultfd syscall prctl arch_prctl seccomp "
    "unshare setns chroot pivot_root mount umount umount2 socket socketpair connect bind listen "
    "accept accept4 send sendto sendmsg recv recvfrom recvmsg kill tkill tgkill raise "
    "pthread_kill signal sigaction sigprocmask pthread_sigmask sigqueue bsd_signal sysv_signal "
    "__sysv_signal exit _exit _Exit quick_exit at_quick_exit atexit on_exit __cxa_at_quick_exit "
    "open open64 openat openat64 creat creat64 fopen fopen64 freopen freopen64 fdopen read write "
    "pread pread64 pwrite pwrite64 readv writev close dup dup2 dup3 pipe pipe2 fcntl fcntl64 "
    "ioctl unlink unlinkat remove rename renameat link symlink mkdir rmdir chmod fchmod chown "
    "mkstemp mkdtemp tmpfile opendir readdir getenv secure_getenv setenv unsetenv putenv clearenv "
    "environ __environ setrlimit setrlimit64 prlimit prlimit64 setpriority nice sched_setaffinity "
    "sched_setscheduler sched_setparam pthread_setaffinity_np pthread_setschedparam setuid setgid "
    "seteuid setegid setresuid setresgid setreuid setregid setgroups setsid setpgid capset reboot "
    "perf_event_open pidfd_open pidfd_send_signal pidfd_getfd wait waitpid wait3 wait4 waitid "
    "alarm setitimer timer_create longjmp _longjmp siglongjmp __longjmp_chk setcontext "
    "swapcontext makecontext stime settimeofday clock_settime adjtimex getauxval io_setup "
    "inotify_init fanotify_init cudaIpcGetMemHandle cudaIpcOpenMemHandle cuIpcGetMemHandle "
    "cuIpcOpenMemHandle_v2 cudaDeviceReset cuDevicePrimaryCtxReset_v2 cudaProfilerStart "
    "cudaProfilerStop cuptiActivityEnable"
)
_FORBIDDEN_PATTERN = re.compile(
    r"_ZNS?t?.*(basic_filebuf|basic_[io]?fstream|filesystem)|^Py[A-Z]|^_Py|^_dl_|^__libc_start_main|^ptrace"
)
_OPERATOR = re.compile(r"^_ZN2at4_ops(\d+)(\w+)")
_OPERATORS_ALLOWED = _words(
    "empty_memory_format empty_like empty_strided zeros zeros_like ones ones_like full full_like "
    "view reshape contiguous transpose_int permute unsqueeze squeeze_dim expand narrow "
    "slice_Tensor select_int detach size_int stride_int is_contiguous flatten_using_ints "
    "as_strided"
)
_TORCH_KERNEL = re.compile(r"^_ZN2at6native|^aoti_torch_|^_ZN5torch8autograd|^_ZN5torch3jit|^at_")
LIBRARIES = re.compile(
    r"^(libstdc\+\+|libm|libgcc_s|libc|libpthread|libdl|librt|libgomp|libomp|libtvm_ffi|ld-linux-[\w-]+|"
    r"libcudart|libcuda|libcublas|libcublasLt|libcudnn\w*|libnvrtc|libc10|libc10_cuda|libtorch|libtorch_cpu|"
    r"libtorch_cuda|libtorch_python|libmvec)([-.][\w.-]*)?\.so(\.[\d.]+)?$"
)

_DYNSYM, _DYNAMIC = 11, 6
_UNDEFINED = 0
_NEEDED, _AUDIT_TAGS = 1, {0x6FFFFEFC, 0x6FFFFEFB, 0x7FFFFFFD, 0x7FFFFFFF}
_STATIC = "static-check"


@dataclass(frozen=True, slots=True)
class Imports:
    """What a shared object wants from others."""

    symbols: tuple[str, ...]
    libraries: tuple[str, ...]
    audited: bool
    """It names an audit or filter library."""


def read_imports(library: bytes) -> Imports:
    """Undefined dynamic symbols and needed libraries of a 64-bit little-endian ELF file.

    Raises:
        ValueError: the bytes are no such file, or tables lie outside it.
    """
    if library[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    try:
        offset, size, count = (
            *struct.unpack_from("<Q", library, 40),
            *struct.unpack_from("<HH", library, 58),
        )
        sections = [
            struct.unpack_from("<IIQQQQIIQQ", library, offset + i * size) for i in range(count)
        ]
        symbols: list[str] = []
        libraries: list[str] = []
        audited = False
        found = False
        for section in sections:
            if section[1] == _DYNSYM:
                found = True
                symbols.extend(_undefined(library, section, sections[section[6]]))
            elif section[1] == _DYNAMIC:
                for tag, value in struct.iter_unpack("<qQ", _content(library, section)):
                    if tag == _NEEDED:
                        libraries.append(_text(library, sections[section[6]], value))
                    audited = audited or tag in _AUDIT_TAGS
    except (struct.error, IndexError) as error:
        raise ValueError(f"damaged ELF file: {error}") from error
    if not found:
        raise ValueError("no dynamic symbol table")
    return Imports(tuple(symbols), tuple(libraries), audited)


def scan_library(library: bytes) -> Failure | None:
    """``static-check`` or ``forbidden-operator`` on a forbidden import, or None."""
    try:
        imports = read_imports(library)
    except ValueError as error:
        return Failure(_STATIC, "static", f"the extension cannot be read: {error}")
    for symbol in imports.symbols:
        name = symbol.partition("@")[0]
        match = _OPERATOR.match(name)
        operator = match.group(2)[: int(match.group(1))] if match else None
        if _TORCH_KERNEL.match(name) or (operator and operator not in _OPERATORS_ALLOWED):
            text = f"the extension calls torch's {operator or name}; write the computation yourself"
            return Failure("forbidden-operator", "static", text, {"symbol": name})
        if name in FORBIDDEN or _FORBIDDEN_PATTERN.search(name):
            text = (
                f"the extension imports {name}; kernels compute and do nothing else: no processes, "
                "signals, sockets, files, environment, loading of libraries or memory protection"
            )
            return Failure(_STATIC, "static", text, {"symbol": name})
    for needed in imports.libraries:
        if not LIBRARIES.match(needed):
            text = f"the extension needs {needed}, which is none of the allowed libraries"
            return Failure(_STATIC, "static", text, {"library": needed})
    if imports.audited:
        return Failure(_STATIC, "static", "the extension names an audit or filter library")
    return None


def _content(library: bytes, section: tuple[int, ...]) -> bytes:
    start, size = section[4], section[5]
    if start + size > len(library):
        raise ValueError("a section lies outside the file")
    return library[start : start + size]


def _undefined(library: bytes, table: tuple[int, ...], texts: tuple[int, ...]) -> list[str]:
    names: list[str] = []
    for name, _, _, section, _, _ in struct.iter_unpack("<IBBHQQ", _content(library, table)):
        if section == _UNDEFINED and name:
            names.append(_text(library, texts, name))
    return names


def _text(library: bytes, section: tuple[int, ...], position: int) -> str:
    content = _content(library, section)
    end = content.find(b"\0", position)
    if position >= len(content) or end < 0:
        raise ValueError("a name lies outside its table")
    return content[position:end].decode("utf-8", errors="replace")
