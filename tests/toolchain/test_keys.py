"""Cache keys change with everything an object depends on, and with nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cudaagent.toolchain import keys
from cudaagent.toolchain.cache import Entry, ObjectCache

FILES = {
    "kernels/a.cpp": b'#include "h.h"\n',
    "kernels/b.cpp": b"int b;\n",
    "kernels/h.h": b"1",
    "kernels/other.h": b"2",
}


def object_key(files: dict[str, bytes], toolchain: str = "t") -> str | None:
    manifest = keys.manifest_key(toolchain, "kernels/a.cpp", files)
    return keys.object_key(manifest, ["kernels/h.h"], files)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"kernels/b.cpp": b"int c;\n"}, True),
        ({"kernels/c.cpp": b"int c;\n"}, True),
        ({"kernels/other.h": b"3"}, True),
        ({"kernels/a.cpp": b'#include "h.h"\n\n'}, False),
        ({"kernels/h.h": b"3"}, False),
        ({"kernels/new.h": b""}, False),
    ],
)
def test_object_key(change: dict[str, bytes], same: bool) -> None:
    assert (object_key({**FILES, **change}) == object_key(FILES)) is same
    assert object_key(FILES, "another toolchain") != object_key(FILES)


@pytest.mark.parametrize(
    "text",
    [
        b'asm(".incbin \\"x\\"");',
        b"#if __has_include(<x>)\n#endif",
        b'#include "b.cpp"',
        b"#define X <b>\n#include X",
        b'#inc\\\nlude "b.cpp"',
        b'#include_next "x.h"',
    ],
)
def test_hidden_dependencies_make_the_whole_submission_count(text: bytes) -> None:
    files = {**FILES, "kernels/h.h": text}
    assert object_key({**files, "kernels/b.cpp": b"int c;\n"}) != object_key(files)


def test_own_headers_of_a_dependency_list() -> None:
    depfile = (
        "../out/o: kernels/a.cpp \\\n /usr/include/math.h kernels/x/../h.h \\\n kernels/gone.h\n"
    )
    assert keys.own_headers(depfile, "kernels/a.cpp", FILES) == ("kernels/h.h",)


def test_cache_is_bounded_and_drops_the_longest_unused(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path, max_bytes=10_000)
    for number in range(9):
        cache.put(f"{number:02d}" * 8, Entry({"number": number}, bytes(1000)))
        os.utime(tmp_path / f"{number:02d}" / (f"{number:02d}" * 8), (number, number))
    assert cache.get("00" * 8) is not None  # now the youngest
    cache.put("ff" * 8, Entry({}, bytes(3000)))
    stale = tmp_path / "00" / ".killed.tmp"
    stale.write_bytes(bytes(10))
    os.utime(stale, (1, 1))
    cache.prune()
    kept = [number for number in range(9) if cache.get(f"{number:02d}" * 8) is not None]
    assert 0 in kept
    assert 1 not in kept
    assert sum(p.stat().st_size for p in tmp_path.glob("??/*")) <= 10_000
    assert not stale.exists()
