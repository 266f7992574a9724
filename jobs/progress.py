"""Progress: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from tqdm import tqdm

_LINE_EVERY_S = 20.0


class Progress:
    """One piece of work of known length; a context manager."""

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = total
        self._done = 0
        self._note = ""
        self._started = time.monotonic()
        self._last_line = 0.0
        self._bar: tqdm | None = None
        if sys.stderr.isatty():
            self._bar = tqdm(
                total=total,
                desc=title,
                file=sys.stderr,
                dynamic_ncols=True,
                bar_format="{desc:<28} {percentage:3.0f}%|{bar:24}| {n_fmt}/{total_fmt} "
                "[{elapsed}<{remaining}] {postfix}",
            )

    def advance(self, count: int = 1, note: str = "") -> None:
        """``count`` more units are done; work that had to be repeated makes the whole longer."""
        self._done += count
        self._total = max(self._total, self._done)
        self._note = note or self._note
        if self._bar is not None:
            self._bar.total = self._total
            self._bar.set_postfix_str(self._note, refresh=False)
            self._bar.update(count)
        elif time.monotonic() - self._last_line > _LINE_EVERY_S and self._done < self._total:
            self._line()

    def _line(self) -> None:
        self._last_line = time.monotonic()
        seconds = self._last_line - self._started
        text = f"{self._title:<28} {self._done}/{self._total}  {seconds:5.0f} s  {self._note}"
        print(text.rstrip(), file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        elif kind is None:
            self._line()
