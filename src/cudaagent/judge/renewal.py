"""How the values of a task's slots may change from pass to pass.

Runs in the judge's process. What is proposed here is tried on the eager model before it is used
(``study``): a task that does not bear it keeps its pool as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cudaagent.judge.facts import case_values
from cudaagent.judge.manifest import ITEM_BYTES, TensorSpec
from cudaagent.judge.reference import Binding
from cudaagent.judge.ring import Bytes, Pools, blendable


def renewable(pools: Pools, binding: Binding) -> tuple[Pools, ...]:
    """``pools`` with what may change in timed passes, the most first.

    Pieces of float inputs and parameters change places, buffers of floats that are no tables are
    mixed, and rows of integers are moved where draws differ and are not in order. Second comes the
    same without integers: what a model indexes with is likelier to bind elements to each other.
    """
    layout, live = binding.layout, binding.live
    count = len(layout.inputs)
    shuffle = [spec.is_float and _movable(spec) for spec in layout.specs]
    blend = [False] * len(layout.specs)
    rows = [False] * len(layout.specs)
    for position, spec in enumerate(layout.inputs):
        if not spec.is_float and _movable(spec):
            rows[position] = _unordered([one[position] for one in pools.inputs], spec)
    for number, parameter in enumerate(binding.names.parameters):
        shuffle[count + number] &= live and not parameter.buffer
        if parameter.buffer and live:
            differs = pools.params[0][number] is not pools.params[-1][number]
            blend[count + number] = differs and blendable(layout.specs[count + number])
    most = replace(pools, shuffle=tuple(shuffle), blend=tuple(blend), rows=tuple(rows))
    return most, replace(most, rows=())


def variant_pools(pools: Pools, binding: Binding, kind: str, count: int) -> Pools:
    """``count`` members of a variant of inputs and weights, at most as many as there are."""
    inputs, params = pools.inputs[:count], pools.params[:count]
    last = len(inputs) - 1, len(params) - 1
    members = [
        case_values(binding, pools, kind, min(i, last[0]), min(i, last[1]))
        for i in range(max(last) + 1)
    ]
    return replace(
        pools,
        inputs=tuple(tuple(drawn) for drawn, _ in members[: len(inputs)]),
        params=tuple(tuple(weights) for _, weights in members[: len(params)]),
    )


def _movable(spec: TensorSpec) -> bool:
    return spec.numel == spec.extent and spec.numel > 1


def _unordered(draws: Sequence[Bytes], spec: TensorSpec) -> bool:
    """Whether integers are neither the same in every draw nor sorted along their first axis."""
    if spec.stride != spec.contiguous.stride or spec.shape[0] < 2:
        return False
    if all(np.array_equal(draws[0], other) for other in draws[1:]):
        return False
    words = [draw.view(f"i{ITEM_BYTES[spec.dtype]}").reshape(spec.shape[0], -1) for draw in draws]
    return not any((np.diff(one, axis=0) >= 0).all() for one in words)
