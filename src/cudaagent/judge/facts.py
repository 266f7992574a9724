"""Records of what the judge knows about a task, and how a case is put together from them.

Used in the judge's process only; see ``study`` for how they are made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cudaagent.judge.compare import Array, LeafLayout, Scale
from cudaagent.judge.manifest import Node, SlotLayout, TensorSpec
from cudaagent.judge.reference import Binding, InitArgs
from cudaagent.judge.ring import Bytes, Pools, slot_stride
from cudaagent.judge.values import OWN, transform_input, transform_parameter

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Case:
    """One input to compare on, with what the outputs must be."""

    label: str
    kind: str
    inputs: int
    """Which draw of the inputs."""
    params: int
    """Which set of weights."""
    expected: tuple[Array, ...]
    exempt: tuple[Mask | None, ...]


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """What stays known about a task."""

    key: str
    seed: int
    init: InitArgs
    binding: Binding
    node: Node
    """Structure of the output."""
    constants: dict[str, str]
    outputs: tuple[TensorSpec, ...]
    """Leaves of the output as the eager model lays them out."""
    leaves: tuple[LeafLayout, ...]
    aliases: tuple[int | None, ...]
    """For each leaf, the input whose memory it lies in, or None."""
    mutates: bool
    scales: dict[str, Scale]
    precise_kind: str | None
    """Kind of inputs on which the precision rule applies."""
    reference: str
    mode_dependent: bool
    floor_inputs: int
    """Bytes of the inputs of which every element was seen to matter."""

    @property
    def layout(self) -> SlotLayout:
        return self.binding.layout

    @property
    def output_bytes(self) -> int:
        return sum(spec.nbytes for spec in self.outputs)


@dataclass(frozen=True, slots=True)
class TaskBulk:
    """What is large about a task."""

    pools: Pools
    cases: tuple[Case, ...]

    @property
    def nbytes(self) -> int:
        pools = (*self.pools.inputs, *self.pools.params)
        if self.pools.variant is not None:
            pools += (*self.pools.variant.inputs, *self.pools.variant.params)
        values = sum(data.nbytes for one in pools for data in one)
        return values + sum(array.nbytes for case in self.cases for array in case.expected)


def case_values(
    facts: TaskFacts | Binding, pools: Pools, kind: str, inputs: int, params: int
) -> tuple[list[Bytes], list[Bytes]]:
    """Inputs and weights of a case as raw extents."""
    binding = facts.binding if isinstance(facts, TaskFacts) else facts
    specs = binding.layout.inputs
    drawn = [
        transform_input(data, spec, kind)
        for data, spec in zip(pools.inputs[inputs], specs, strict=True)
    ]
    weights = [
        transform_parameter(data, parameter, kind if binding.live else OWN)
        for data, parameter in zip(pools.params[params], binding.names.parameters, strict=True)
    ]
    return drawn, weights


def aliased_input(address: int, ring_address: int, layout: SlotLayout, *, slots: int) -> int | None:
    """Which input of a slot (or weight, counted on) lies at an address of the runner."""
    stride = slot_stride(layout)
    offset = address - ring_address
    if not 0 <= offset < stride * slots:
        return None
    inside = offset % stride
    starts = [i for i, start in enumerate(layout.offsets) if start <= inside]
    return starts[-1] if starts else 0
