"""Cache keys: what an object file and a library depend on, all of it and nothing else.

Pure functions on the trusted side. An object depends on the toolchain, its source, the names of the
submission's headers (a new one may shadow an old one) and the contents of those that the compiler
really read. Sources that can read files in ways no dependency list shows (``.incbin``,
``__has_include``, computed or source includes) depend on the whole submission.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence

_VERSION = "1"
_UNTRACKED = re.compile(
    rb"incbin|__has_include|__has_embed|include_next|\?\?/|\\\s*\n|"
    rb"#\s*(?:include|embed)\s*(?![\s<\"])|#\s*(?:include|import)\s*[<\"][^>\"\n]*\.(?:cpp|cc|cxx|c)[>\"]"
)


def digest(parts: Iterable[bytes | str]) -> str:
    """SHA-256 over length-prefixed parts."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(b"%d:" % len(data))
        state.update(data)
    return state.hexdigest()


def manifest_key(toolchain: str, path: str, files: Mapping[str, bytes]) -> str:
    """Key under which the header lists of ``path`` are remembered."""
    names = sorted(name for name in files if not name.endswith(".cpp"))
    parts: list[bytes | str] = [_VERSION, "manifest", toolchain, path, files[path], *names]
    if any(map(_UNTRACKED.search, files.values())):
        for name, data in sorted(files.items()):
            parts += [name, data]
    return digest(parts)


def object_key(manifest: str, headers: Sequence[str], files: Mapping[str, bytes]) -> str | None:
    """Key of the object built with these own headers; None when one of them is gone."""
    parts: list[bytes | str] = [_VERSION, "object", manifest]
    for name in headers:
        if name not in files:
            return None
        parts += [name, files[name]]
    return digest(parts)


def library_key(toolchain: str, files: Mapping[str, bytes]) -> str:
    """Key of the library built from exactly these files."""
    parts: list[bytes | str] = [_VERSION, "library", toolchain]
    for name, data in sorted(files.items()):
        parts += [name, data]
    return digest(parts)


def own_headers(depfile: str, path: str, files: Mapping[str, bytes]) -> tuple[str, ...]:
    """The submission's files, other than ``path``, that a make-style dependency list names."""
    text = depfile.replace("\\\n", " ").partition(":")[2]
    words = [word.replace("\\ ", " ") for word in re.split(r"(?<!\\)\s+", text) if word]
    names = {posixpath.normpath(word) for word in words}
    return tuple(sorted(name for name in names if name in files and name != path))
