"""Shared device memory and its renewal: what a neighbour sees, what a seed decides."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cuda_neighbour import ANSWER

from cudaagent.errors import InfrastructureError
from cudaagent.judge.cuda.driver import (
    Device,
    DriverError,
    open_device,
    synchronize,
    to_device,
    to_host,
)
from cudaagent.judge.cuda.kernels import Kernels, build_kernels
from cudaagent.judge.cuda.memory import SharedMemory
from cudaagent.judge.cuda.renewal import DevicePools, piece_starts
from cudaagent.judge.cuda.watch import Probe
from cudaagent.judge.manifest import TensorSpec, slot_layout
from cudaagent.judge.ring import Pools

ILLEGAL_ADDRESS = 700
OUT_OF_MEMORY = 2
NVCC = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"


def _has_gpu() -> bool:
    try:
        open_device(0).close()
    except InfrastructureError:
        return False
    return Path(NVCC).is_file()


gpu = pytest.mark.skipif("not _has_gpu()", reason="needs an NVIDIA GPU and nvcc")
Made = tuple[Device, Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    device = open_device(0)
    yield device, build_kernels(NVCC, device.capability, tmp_path_factory.mktemp("kernels"))
    device.close()


def _neighbour(what: str, image: Path, fd: int = 0, size: int = 0) -> dict[str, object]:
    program = Path(__file__).with_name("cuda_neighbour.py")
    command = [sys.executable, str(program), what, str(fd), str(size), str(image)]
    done = subprocess.run(command, pass_fds=[fd], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _random_bytes(size: int) -> bytes:
    return np.random.Generator(np.random.PCG64(5)).bytes(size)


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_pieces_are_a_permutation(size: int) -> None:
    for seed in range(50):
        to_starts, from_starts = piece_starts(size, random.Random(seed))
        ends = [*to_starts[1:], size]
        taken = [
            from_start + i
            for to_start, from_start, end in zip(to_starts, from_starts, ends, strict=True)
            for i in range(end - to_start)
        ]
        assert sorted(taken) == list(range(size))


@gpu
def test_a_neighbour_maps_the_same_memory(made: Made) -> None:
    device, image = made
    memory = SharedMemory.create(3_000_000, device.index)
    data = _random_bytes(memory.size)
    to_device(memory.address, data)
    fd = memory.export()
    answer = _neighbour("share", image, fd, memory.size)
    os.close(fd)
    assert answer["seen"] == hashlib.sha256(data).hexdigest()
    assert to_host(memory.address, len(ANSWER)) == ANSWER
    assert to_host(memory.address + len(ANSWER), 64) == data[len(ANSWER) :][:64]
    memory.close()
    memory.close()


@gpu
def test_too_much_memory_is_refused_and_costs_nothing(made: Made) -> None:
    with pytest.raises(DriverError) as caught:
        SharedMemory.create(1 << 45, made[0].index)
    assert caught.value.code == OUT_OF_MEMORY


@gpu
def test_an_illegal_address_ends_the_neighbour_only(made: Made) -> None:
    device, image = made
    memory = SharedMemory.create(1, device.index)
    to_device(memory.address, ANSWER)
    assert _neighbour("illegal", image) == {"code": ILLEGAL_ADDRESS}
    assert to_host(memory.address, len(ANSWER)) == ANSWER
    memory.close()


@gpu
def test_work_of_a_neighbour_is_seen_while_it_lasts(made: Made) -> None:
    device, image = made
    probe = Probe(Kernels(device, image.read_bytes()))
    assert probe.alone()
    program = Path(__file__).with_name("cuda_neighbour.py")
    command = [sys.executable, str(program), "busy", "0", "0", str(image)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as neighbour:
        assert neighbour.stdout is not None
        assert json.loads(neighbour.stdout.readline()) == {"started": True}
        assert not probe.alone()
        assert neighbour.wait(timeout=60) == 0
    assert probe.alone()
    probe.close()


@gpu
def test_a_seed_decides_a_slot(made: Made) -> None:
    device, image = made
    kernels = Kernels(device, image.read_bytes())
    names = ["float16", "float32", "float64", "uint8", "int64"]
    size = 100_003
    specs = [TensorSpec(name, (size,), (1,)) for name in names]
    layout = slot_layout(specs[:4], specs[4:])
    rng = np.random.Generator(np.random.PCG64(1))

    def rows(count: int, of: list[TensorSpec]) -> tuple[tuple[np.ndarray, ...], ...]:
        return tuple(
            tuple(np.frombuffer(rng.bytes(spec.nbytes), np.uint8) for spec in of)
            for _ in range(count)
        )

    shuffle = (True, True, True, True, False)
    pools = Pools(layout, rows(3, specs[:4]), rows(2, specs[4:]), shuffle)
    memory = SharedMemory.create(2 * layout.slot_bytes, device.index)
    source = DevicePools(pools, kernels)

    def written(address: int, seed: int) -> list[bytes]:
        source.write(address, seed)
        synchronize()
        return [
            to_host(address + offset, spec.nbytes)
            for offset, spec in zip(layout.offsets, layout.specs, strict=True)
        ]

    first = written(memory.address, 7)
    assert written(memory.address + layout.slot_bytes, 7) == first
    others = written(memory.address, 8)
    for position in range(4):
        assert others[position] != first[position]
    for position, spec in enumerate(specs[:4]):
        words = np.dtype(f"u{spec.nbytes // size}")
        mine = np.frombuffer(first[position], words)
        members = [row[position].view(words) for row in pools.inputs]
        member = next(one for one in members if np.isin(mine, one).all())
        if spec.nbytes // size >= 4:
            lost = len(np.unique(member)) - len(np.unique(mine))
            # About one element in 2048 was exchanged for another of the same tensor.
            assert 0 < lost < size // 1000
    assert first[4] in [row[0].tobytes() for row in pools.params]
    source.close()
    memory.close()
