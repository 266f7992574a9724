"""Output of untrusted processes, kept in bounded memory: the head and the end, never the middle."""

from __future__ import annotations

from collections import deque


class MiddleCut:
    """Collects bytes and keeps at most ``limit`` of them: the first third and the end."""

    def __init__(self, limit: int) -> None:
        self._head_limit = max(1, limit // 3)
        self._tail_limit = max(1, limit - self._head_limit)
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._dropped = 0

    def add(self, data: bytes) -> None:
        """Append ``data``."""
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail.append(data)
        self._tail_bytes += len(data)
        while self._tail_bytes - len(self._tail[0]) >= self._tail_limit:
            first = self._tail.popleft()
            self._tail_bytes -= len(first)
            self._dropped += len(first)

    def text(self) -> str:
        """What was kept, as text, with a line in place of what was cut."""
        tail = b"".join(self._tail)
        surplus = max(0, len(tail) - self._tail_limit)
        cut = self._dropped + surplus
        head_text = bytes(self._head).decode("utf-8", errors="replace")
        tail_text = tail[surplus:].decode("utf-8", errors="replace")
        if not cut:
            return (bytes(self._head) + tail).decode("utf-8", errors="replace")
        return f"{head_text}\n[... {cut} bytes cut ...]\n{tail_text}"


def cut_middle(text: str, limit: int) -> str:
    """``text``, its middle cut when it has more than ``limit`` bytes."""
    collected = MiddleCut(limit)
    collected.add(text.encode("utf-8", errors="replace"))
    return collected.text()
