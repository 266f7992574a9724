"""Which operators of torch a forward may run: allocation and views, nothing that computes.

Runs in the judge's process, on names that the runner's watcher lists. The static layer says the
same of the text; this says it of what ran, so that it also holds where the text hides something.

Not covered: native code that computes with torch's library beneath the dispatcher, or that
silences the watcher.
"""

from __future__ import annotations

from cudaagent.judge.process import RunnerForged, RunnerRefused

_ALLOWED = frozenset(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided zeros zeros_like "
    "new_zeros ones ones_like new_ones full full_like new_full zero_ fill_ scalar_tensor "
    "view view_as reshape _unsafe_view _reshape_alias view_as_real view_as_complex alias detach "
    "detach_ lift_fresh as_strided transpose transpose_ t t_ permute movedim unsqueeze unsqueeze_ "
    "squeeze squeeze_ expand expand_as broadcast_to select slice narrow split split_with_sizes "
    "chunk unbind unfold diagonal flatten unflatten swapaxes mT mH adjoint contiguous clone copy_ "
    "set_ size stride storage_offset is_contiguous sym_size sym_stride sym_numel numel "
    "is_same_size _local_scalar_dense item".split()
)
_SHOWN = 5


def check_operators(found: object) -> None:
    """Raise unless all operators that were seen are allowed.

    Args:
        found: the watcher's list of overload names, such as ``aten.mul.Tensor``.

    Raises:
        RunnerRefused: ``forbidden-operator``.
        RunnerForged: this is no such list.
    """
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise RunnerForged("no list of operators")
    computing = sorted(one for one in found if not _allowed(one))
    if computing:
        more = f" and {len(computing) - _SHOWN} more" if len(computing) > _SHOWN else ""
        raise RunnerRefused(
            "forbidden-operator",
            f"forward computes with torch: {', '.join(computing[:_SHOWN])}{more}; write it in "
            "kernels/ and use torch for allocation and views only",
        )


def _allowed(name: str) -> bool:
    parts = name.split(".")
    return len(parts) > 1 and parts[1] in _ALLOWED
