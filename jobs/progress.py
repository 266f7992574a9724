"""Progress bars on a terminal, sparse plain lines elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType

from tqdm import tqdm


class Progress:
    """One bar with a moving description; a line at the start and the end when not a terminal."""

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=total,
            desc=title,
            file=sys.stderr,
            dynamic_ncols=terminal,
            ncols=None if terminal else 90,
            mininterval=0.2 if terminal else 10.0,
            leave=True,
            bar_format="{desc:<28} {percentage:3.0f}%|{bar:24}| {n_fmt}/{total_fmt} "
            "[{elapsed}<{remaining}] {postfix}",
        )

    def advance(self, count: int = 1, note: str = "") -> None:
        """``count`` more units are done."""
        if note:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(count)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()
