"""A small writer of C++ loops: what all kernels of the teacher have in common.

Pure text; runs in any process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Style:
    """Which devices of speed a variant uses."""

    openmp: bool
    stream: bool = False


@dataclass
class Writer:
    """Collects lines; the pragmas follow the style."""

    style: Style
    helpers: list[str] = field(default_factory=list[str])
    """Functions that stand before ``forward``."""
    lines: list[str] = field(default_factory=list[str])

    def text(self) -> list[str]:
        """The lines of the function's body."""
        return self.lines

    def add(self, *lines: str) -> None:
        """Append lines as they are."""
        self.lines.extend(lines)

    def parallel(self, indent: str) -> None:
        """The loop that follows is shared among the threads."""
        if self.style.openmp:
            self.add(f"{indent}#pragma omp parallel for")

    def simd(self, indent: str, clause: str = "") -> None:
        """The loop that follows is vectorised."""
        self.add(f"{indent}#pragma omp simd{clause}")

    def loop(self, indent: str, index: str, end: str, body: Sequence[str]) -> None:
        """A vectorised loop."""
        self.simd(indent)
        self.open(indent, index, end)
        self.add(*(f"{indent}  {line}" for line in body), f"{indent}}}")

    def open(self, indent: str, index: str, end: str) -> None:
        """The head of a loop."""
        self.add(f"{indent}for (int64_t {index} = 0; {index} < {end}; ++{index}) {{")

    def flat(self, source: str, target: str, body: Sequence[str]) -> None:
        """One pass over ``n`` elements."""
        self.add("  #pragma omp parallel for simd" if self.style.openmp else "  #pragma omp simd")
        self.open("  ", "i", "n")
        self.add(
            f"    float v = {source}[i];",
            *(f"    {line}" for line in body),
            f"    {target}[i] = v;",
            "  }",
        )

    def sum(self, indent: str, end: str, body: Sequence[str], *, name: str = "s") -> None:
        """A vectorised sum over ``j``; ``body`` adds to ``name``."""
        self.add(f"{indent}float {name} = 0.0f;")
        self.simd(indent, f" reduction(+ : {name})")
        self.open(indent, "j", end)
        self.add(*(f"{indent}  {line}" for line in body), f"{indent}}}")

    def columns(
        self, cols: str, rows: str, body: Sequence[str], finish: Sequence[str] = ()
    ) -> None:
        """Walk down strips of 128 columns, so that a strip's sums stay in the first-level cache."""
        self.parallel("  ")
        self.add(f"  for (int64_t b = 0; b < {cols}; b += 128) {{")
        self.open("    ", "i", rows)
        self.simd("      ")
        self.add("      for (int64_t j = b; j < b + 128; ++j) {")
        self.add(*(f"        {line}" for line in body), "      }", "    }")
        if finish:
            self.add("    for (int64_t j = b; j < b + 128; ++j) {")
            self.add(*(f"      {line}" for line in finish), "    }")
        self.add("  }")

    def reduce(self, indent: str, name: str, load: Sequence[str], post: Sequence[str]) -> None:
        """Reduce row ``i`` to ``out[i]``."""
        if name == "max":
            self.add(f"{indent}float s = -INFINITY;")
            self.simd(indent, " reduction(max : s)")
            step = "s = std::max(s, v);"
        else:
            self.add(f"{indent}float s = 0.0f;")
            self.simd(indent, " reduction(+ : s)")
            step = "s += v * v;" if name == "norm" else "s += v;"
        self.open(indent, "j", "cols")
        self.add(*(f"{indent}  {line}" for line in load), f"{indent}  {step}", f"{indent}}}")
        value = {"mean": "s / cols", "norm": "std::sqrt(s)"}.get(name, "s")
        self.add(f"{indent}float v = {value};", *(f"{indent}{line}" for line in post))
        self.add(f"{indent}out[i] = v;")

    def normalise(self, indent: str, name: str, load: Sequence[str], post: Sequence[str]) -> None:
        """Normalise row ``i``; the row waits in ``q``, which is ``out`` or a buffer."""
        q = "float q[4096];" if self.style.stream else "float* q = out + i * cols;"
        self.add(f"{indent}{q}")
        if name == "layer_norm":
            self.sum(indent, "cols", (*load, "q[j] = v;", "s += v;"))
            self.add(f"{indent}float m = s / cols;")
            self.sum(indent, "cols", ("float v = q[j] - m;", "t += v * v;"), name="t")
            self.add(f"{indent}float r = 1.0f / std::sqrt(t / cols + 1e-5f);")
            value = "(q[j] - m) * r"
        else:
            self.sum(indent, "cols", (*load, "q[j] = v;", "s += v * v;"))
            root = "std::sqrt(s / cols + 1e-5f)"
            if name == "normalize":
                root = "std::max(std::sqrt(s), 1e-12f)"
            self.add(f"{indent}float r = 1.0f / {root};")
            value = "q[j] * r"
        self.loop(indent, "j", "cols", (f"float v = {value};", *post, "q[j] = v;"))
        if self.style.stream:
            self.add(f"{indent}for (int64_t j = 0; j < cols; j += 8) {{")
            self.add(f"{indent}  _mm256_stream_ps(out + i * cols + j, _mm256_loadu_ps(q + j));")
            self.add(f"{indent}}}")
