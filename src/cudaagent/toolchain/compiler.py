"""What a compiler promises: sources in, one loadable extension or diagnostics out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cudaagent.workspace.submission import Submission


@dataclass(frozen=True, slots=True)
class CompileResult:
    """One build.

    ``library`` holds the bytes of the shared object, so that a result can cross machines;
    ``failure`` is None or ``build-failed``, ``build-timeout``, ``no-solution``.
    """

    library: bytes | None
    digest: str
    """SHA-256 of the library, empty when there is none."""
    failure: str | None
    diagnostics: str
    """Compiler output as the agent sees it, capped, the middle cut."""
    seconds: float
    compiled: tuple[str, ...] = ()
    """Files for which a compiler was started."""
    reused: tuple[str, ...] = ()
    """Files whose object came from the cache."""

    @property
    def ok(self) -> bool:
        return self.library is not None


class Compiler(Protocol):
    """Builds submissions; implemented by the local toolchain and by the compile sandbox actor."""

    def compile(self, submission: Submission) -> CompileResult:
        """Build ``submission``; a fault of the sources is a result, not an exception.

        Raises:
            InfrastructureError: the toolchain or its sandbox failed.
        """
        ...
