"""A content-addressed store on disk that survives kill -9, concurrency and torn files.

Runs on the trusted side, which alone writes it. An entry is one file: a digest over the rest, a
JSON head and the payload; it is written under a temporary name and renamed, and a reader that finds
a wrong digest treats the entry as absent. Nothing is locked: equal keys hold equal content.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PRUNE_EVERY = 64
_STALE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored result."""

    head: dict[str, Any]
    """JSON object."""
    payload: bytes


class ObjectCache:
    """Entries by key; at most about ``max_bytes`` on disk, the longest unused are dropped."""

    def __init__(self, directory: Path, max_bytes: int = 2 << 30) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._writes = 0
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def get(self, key: str) -> Entry | None:
        """The entry of ``key``, or None."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        entry = _decode(data)
        with contextlib.suppress(OSError):
            if entry is None:
                path.unlink()
            else:
                os.utime(path)
        return entry

    def put(self, key: str, entry: Entry) -> None:
        """Store ``entry`` under ``key``."""
        path = self._path(key)
        path.parent.mkdir(exist_ok=True)
        temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
        try:
            temporary.write_bytes(_encode(entry))
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        self._writes += 1
        if self._writes % _PRUNE_EVERY == 1:
            self.prune()

    def prune(self) -> None:
        """Drop leftovers of killed writers, and the longest unused entries when over the bound."""
        now = time.time()
        files: list[tuple[float, int, Path]] = []
        for path in self._directory.glob("??/*"):
            with contextlib.suppress(FileNotFoundError):
                info = path.stat()
                if path.suffix == ".tmp":
                    if now - info.st_mtime > _STALE_S:
                        path.unlink()
                    continue
                files.append((info.st_mtime, info.st_size, path))
        total = sum(size for _, size, _ in files)
        if total <= self._max_bytes:
            return
        for _, size, path in sorted(files):
            path.unlink(missing_ok=True)
            total -= size
            if total <= 0.8 * self._max_bytes:
                return

    def _path(self, key: str) -> Path:
        return self._directory / key[:2] / key


def _encode(entry: Entry) -> bytes:
    head = json.dumps(entry.head).encode()
    body = len(head).to_bytes(4, "big") + head + entry.payload
    return hashlib.sha256(body).digest() + body


def _decode(data: bytes) -> Entry | None:
    body = data[32:]
    if hashlib.sha256(body).digest() != data[:32]:
        return None
    end = 4 + int.from_bytes(body[:4], "big")
    return Entry(json.loads(body[4:end]), body[end:])
