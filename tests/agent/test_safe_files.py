"""File access below a directory that an attacker rearranges."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cudaagent.agent.safe_files import PathRefused, SafeDirectory


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "root"
    directory.mkdir()
    return directory


@pytest.fixture
def files(root: Path) -> Iterator[SafeDirectory]:
    safe = SafeDirectory(root)
    yield safe
    safe.close()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    return outside / "secret"


def test_write_makes_directories_and_read_gives_it_back(files: SafeDirectory, root: Path) -> None:
    files.write("kernels/a/b.cpp", b"x")
    assert files.read("kernels/a/b.cpp", 10) == b"x"
    assert (root / "kernels/a/b.cpp").read_bytes() == b"x"
    assert [p.name for p in (root / "kernels/a").iterdir()] == ["b.cpp"]


@pytest.mark.parametrize("path", ["", ".", "/etc/passwd", "../outside/secret", "a/../../x", "a\0b"])
def test_paths_that_leave_the_root_are_refused(
    files: SafeDirectory, secret: Path, path: str
) -> None:
    with pytest.raises(PathRefused):
        files.read(path, 100)
    with pytest.raises(PathRefused):
        files.write(path, b"x")
    assert secret.read_text() == "secret"


@pytest.mark.parametrize("linked", ["file", "directory", "dangling"])
def test_no_symbolic_link_is_followed(
    files: SafeDirectory, root: Path, secret: Path, linked: str
) -> None:
    new = secret.parent / "new"
    target, path = {
        "file": (secret, "link"),
        "directory": (secret.parent, "link/secret"),
        "dangling": (new, "link"),
    }[linked]
    (root / "link").symlink_to(target)
    with pytest.raises(PathRefused):
        files.read(path, 100)
    with pytest.raises(PathRefused):
        files.write(path, b"overwritten")
    assert secret.read_text() == "secret"
    assert not new.exists()


def test_a_write_never_goes_through_a_hard_link(
    files: SafeDirectory, root: Path, secret: Path
) -> None:
    os.link(secret, root / "copy")
    files.write("copy", b"mine")
    assert secret.read_text() == "secret"
    assert files.read("copy", 10) == b"mine"


def test_only_regular_files_are_read_and_none_makes_it_wait(
    files: SafeDirectory, root: Path
) -> None:
    os.mkfifo(root / "fifo")
    (root / "directory").mkdir()
    for name in ("fifo", "directory", "missing"):
        with pytest.raises(PathRefused, match=name):
            files.read(name, 10)
    for name in ("fifo", "directory"):
        with pytest.raises(PathRefused, match=name):
            files.write(name, b"x")


def test_a_file_over_the_limit_is_refused(files: SafeDirectory, root: Path) -> None:
    (root / "big").write_bytes(b"x" * 2049)
    with pytest.raises(PathRefused, match="larger than 2 KiB"):
        files.read("big", 2048)


def test_new_files_share_the_root_directorys_owner_and_write_bits(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    root.mkdir()
    root.chmod(0o777)
    if os.geteuid() == 0:
        os.chown(root, 61200, 61200)
    files = SafeDirectory(root)
    files.write("kernels/a.cpp", b"x")
    files.close()
    for path, mode in ((root / "kernels", 0o777), (root / "kernels/a.cpp", 0o666)):
        info = path.stat()
        assert info.st_uid == root.stat().st_uid
        assert stat.S_IMODE(info.st_mode) == mode


def test_a_directory_swapped_for_a_link_all_the_time_never_leads_out(
    files: SafeDirectory, root: Path, secret: Path
) -> None:
    inside = root / "inside"
    stop = threading.Event()

    def swap() -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            for step in (
                lambda: os.mkdir(inside),
                lambda: os.rename(inside, root / f"aside{number}"),  # noqa: B023
                lambda: os.symlink(secret.parent, inside),
                lambda: os.unlink(inside),
            ):
                with contextlib.suppress(OSError):
                    step()

    attacker = threading.Thread(target=swap)
    attacker.start()
    refused = 0
    try:
        for _ in range(2000):
            try:
                files.write("inside/secret", b"overwritten")
                assert files.read("inside/secret", 100) == b"overwritten"
            except PathRefused:
                refused += 1
    finally:
        stop.set()
        attacker.join()
    assert secret.read_text() == "secret"
    assert refused > 0


def test_a_rewritten_file_keeps_its_permissions_but_no_special_bits(
    files: SafeDirectory, root: Path
) -> None:
    script = root / "run.sh"
    script.write_text("old")
    script.chmod(0o4755)
    files.write("run.sh", b"new")
    assert stat.S_IMODE(script.stat().st_mode) == 0o755
