"""Files that are either whole or absent, whatever kills the process that writes them."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary sibling of ``path`` (file or directory) that replaces it if the block ends well.

    A directory replaces only an absent or older directory of the same name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        _sync(temporary)
        if temporary.is_dir() and path.exists():
            old = path.with_name(f".{path.name}.{secrets.token_hex(4)}.old.tmp")
            path.rename(old)
            temporary.rename(path)
            shutil.rmtree(old)
        else:
            temporary.replace(path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text)


def _sync(path: Path) -> None:
    targets = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
    for target in targets:
        fd = os.open(target, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
