"""UNTRUSTED SIDE: lists the operators of torch that run while somebody's forward is called.

Part of a runner. It says what honest code and code that hides behind Python's syntax do; native
code in the same process can silence it.
"""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_MAX_OPERATORS = 500


class OperatorWatch(TorchDispatchMode):
    """Lists the operators that run while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def names(self) -> list[str]:
        return sorted(self._seen)[:_MAX_OPERATORS]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._seen.add(str(func))
        return func(*args, **(kwargs or {}))
