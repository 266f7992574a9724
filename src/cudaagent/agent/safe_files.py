"""File access below a directory that somebody else may be rearranging at the same time.

Runs on the trusted side, often as root, while an agent's processes own the directory. Every path is
walked one component at a time from a descriptor of the root, each opened with ``O_NOFOLLOW``, and
checked after opening, never before: no symbolic link is followed and no ``..`` is taken, whoever
moves what meanwhile.

Invariants: only regular files are read; a write makes a new file and renames it into place, so it
never writes through a hard link and a reader sees the old or the new content; new files and
directories belong to the root directory's owner and share its write bits.

Not covered: mounts made inside the directory on the trusted side; none are made.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class PathRefused(Exception):
    """The path or what lies there is not acceptable; the message is for the agent."""


class SafeDirectory:
    """Reads and writes regular files below ``root``; paths are relative and POSIX."""

    def __init__(self, root: Path) -> None:
        self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        info = os.fstat(self._fd)
        self._owner = (info.st_uid, info.st_gid)
        self._write_bits = stat.S_IMODE(info.st_mode) & 0o022

    def close(self) -> None:
        """Give the descriptor back; no method may be called afterwards."""
        os.close(self._fd)

    def read(self, path: str, limit: int) -> bytes:
        """Content of a regular file.

        Raises:
            PathRefused: no such file, not a regular file, a link on the way, over ``limit`` bytes.
        """
        with (
            self._parent(path, create=False) as (parent, name),
            _explained(path),
            os.fdopen(os.open(name, _READ, dir_fd=parent), "rb") as handle,
        ):
            if not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
                raise PathRefused(f"{path} is not a regular file")
            data = handle.read(limit + 1)
        if len(data) > limit:
            raise PathRefused(f"{path} is larger than {limit >> 10} KiB; look at it with Bash")
        return data

    def exists(self, path: str) -> bool:
        """Whether something lies at ``path``; a dangling link counts."""
        try:
            with self._parent(path, create=False) as (parent, name):
                os.stat(name, dir_fd=parent, follow_symlinks=False)
        except (PathRefused, FileNotFoundError):
            return False
        return True

    def write(self, path: str, data: bytes) -> None:
        """Put ``data`` at ``path``, making the directories above it.

        Raises:
            PathRefused: a link or a non-directory on the way, not a regular file there, disk full.
        """
        with self._parent(path, create=True) as (parent, name), _explained(path):
            permissions = 0o644
            with contextlib.suppress(FileNotFoundError):
                mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
                if not stat.S_ISREG(mode):
                    raise PathRefused(f"{path} is not a regular file")
                permissions |= mode & 0o777
            temporary = f".{secrets.token_hex(8)}.tmp"
            fd = os.open(temporary, _CREATE, 0o600, dir_fd=parent)
            try:
                with os.fdopen(fd, "wb") as handle:
                    handle.write(data)
                    handle.flush()
                    self._share(handle.fileno(), permissions)
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=parent)
                raise

    @contextlib.contextmanager
    def _parent(self, path: str, *, create: bool) -> Iterator[tuple[int, str]]:
        """Descriptor of the directory that holds ``path``, and the last component."""
        parts = split(path)
        current = os.dup(self._fd)
        try:
            for part in parts[:-1]:
                with _explained(path):
                    below = self._step(current, part, create=create)
                os.close(current)
                current = below
            yield current, parts[-1]
        finally:
            os.close(current)

    def _step(self, parent: int, name: str, *, create: bool) -> int:
        try:
            return os.open(name, _DIRECTORY, dir_fd=parent)
        except FileNotFoundError:
            if not create:
                raise
        made = True
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            made = False
        below = os.open(name, _DIRECTORY, dir_fd=parent)
        if made:
            self._share(below, 0o755)
        return below

    def _share(self, fd: int, mode: int) -> None:
        """Give a new file to the root directory's owner, with its write bits."""
        if os.geteuid() == 0:
            os.fchown(fd, *self._owner)
        os.fchmod(fd, mode | self._write_bits)


def split(path: str) -> tuple[str, ...]:
    """Components of a relative path without ``.``.

    Raises:
        PathRefused: empty, absolute, holds ``..`` or a NUL.
    """
    if "\0" in path or len(path) > 1024:
        raise PathRefused("the path holds a NUL or is longer than 1024 characters")
    pure = PurePosixPath(path)
    parts = pure.parts
    if pure.is_absolute() or ".." in parts or not parts:
        raise PathRefused(f"{path!r} is not a path below the workspace; write it without / or ..")
    return parts


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise PathRefused(f"{path} does not exist") from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            reason = (
                f"{path}: a symbolic link or a plain file is on the way; links are not followed"
            )
        else:
            reason = f"{path}: {os.strerror(error.errno or errno.EIO)}"
        raise PathRefused(reason) from error
