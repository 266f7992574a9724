"""What leaves the workspace for the judge: the agent's own files, addressed by content."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cudaagent.errors import UserError

MAX_FILE_BYTES = 1 << 20
MAX_TOTAL_BYTES = 8 << 20
MAX_FILES = 256


@dataclass(frozen=True, slots=True)
class Submission:
    """``model_new.py`` and ``kernels/**`` as (relative POSIX path, bytes), sorted by path."""

    files: tuple[tuple[str, bytes], ...]

    @classmethod
    def from_mapping(cls, files: Mapping[str, bytes]) -> Submission:
        """Build a submission from path -> bytes; paths are sorted."""
        return cls(tuple(sorted(files.items())))

    @classmethod
    def from_dir(cls, directory: Path) -> Submission:
        """Read the agent's files out of ``directory`` without following a symbolic link.

        The directory may still be written to by an agent's processes, so every file is opened with
        ``O_NOFOLLOW`` and checked after opening, never before.

        Raises:
            UserError: a file or the bundle is over the size limits.
        """
        files: dict[str, bytes] = {}
        model = directory / "model_new.py"
        if (data := _read_regular(model, "model_new.py")) is not None:
            files["model_new.py"] = data
        kernels = directory / "kernels"
        if kernels.is_dir() and not kernels.is_symlink():
            for root, dirs, names in os.walk(kernels, followlinks=False):
                dirs[:] = sorted(d for d in dirs if not (Path(root) / d).is_symlink())
                for name in sorted(names):
                    path = Path(root) / name
                    relative = path.relative_to(directory).as_posix()
                    if (data := _read_regular(path, relative)) is not None:
                        files[relative] = data
                    if len(files) > MAX_FILES:
                        raise UserError(f"kernels/ holds more than {MAX_FILES} files; remove some")
        if sum(map(len, files.values())) > MAX_TOTAL_BYTES:
            raise UserError(f"the submission is larger than {MAX_TOTAL_BYTES >> 20} MiB")
        return cls.from_mapping(files)

    def get(self, path: str) -> bytes | None:
        """The bytes of one file, or None."""
        return dict(self.files).get(path)

    @property
    def model_new(self) -> str | None:
        """Text of ``model_new.py``, or None when it is missing."""
        data = self.get("model_new.py")
        return None if data is None else data.decode("utf-8", errors="replace")

    @property
    def sources(self) -> tuple[tuple[str, bytes], ...]:
        """The files below ``kernels/``."""
        return tuple((path, data) for path, data in self.files if path != "model_new.py")

    @property
    def digest(self) -> str:
        """SHA-256 over paths and contents."""
        state = hashlib.sha256()
        for path, data in self.files:
            state.update(f"{len(path)}:{path}:{len(data)}:".encode())
            state.update(data)
        return state.hexdigest()


def _read_regular(path: Path, relative: str) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError as error:
        raise UserError(f"{relative} cannot be read: {error.strerror}") from error
    except OSError:
        return None
    with os.fdopen(fd, "rb") as handle:
        info = os.fstat(handle.fileno())
        if not stat.S_ISREG(info.st_mode):
            return None
        data = handle.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise UserError(f"{relative} is larger than {MAX_FILE_BYTES >> 20} MiB")
    return data
