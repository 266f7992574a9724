"""A build's own directory: sources that it may read, one directory per command that it may write.

Runs on the trusted side, which writes the sources and reads the results without following links.
Directories of builds that a ``kill -9`` left behind are swept when the next toolchain opens.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

_PREFIX = "cudaagent-build-"
_MAX_RESULT_BYTES = 256 << 20


class Scratch:
    """The directory of one build."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sources = root / "src"
        self._sequence = 0

    def write_sources(self, files: Mapping[str, bytes]) -> None:
        """Lay out the submission's files."""
        self.sources.mkdir()
        for name, data in files.items():
            path = self.sources / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def output_dir(self, name: str, uid: int) -> Path:
        """A new directory that a command of ``uid`` may write."""
        path = self.root / name
        path.mkdir(mode=0o700)
        if os.getuid() == 0:
            os.chown(path, uid, uid)
        return path


@contextlib.contextmanager
def new_scratch() -> Iterator[Scratch]:
    """A scratch directory that is gone afterwards."""
    root = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    root.chmod(0o755)
    try:
        yield Scratch(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def sweep() -> None:
    """Remove scratch directories of our user whose process is gone."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        found = re.match(rf"{_PREFIX}(\d+)-", path.name)
        with contextlib.suppress(FileNotFoundError):
            ours = path.lstat().st_uid == os.getuid()
            if found and ours and not Path(f"/proc/{found.group(1)}").exists():
                shutil.rmtree(path, ignore_errors=True)


def read_result(path: Path) -> bytes | None:
    """Content of a regular file that an untrusted command left, or None."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as handle:
        info = os.fstat(handle.fileno())
        if not stat.S_ISREG(info.st_mode) or info.st_size > _MAX_RESULT_BYTES:
            return None
        return handle.read()
