"""The agent's tools: Bash, Read, Write and Edit on one workspace.

Runs on the trusted side. Bash runs inside the sandbox; the file tools work on the host's path of
the same directory through ``SafeDirectory``, so nothing that the sandbox's processes arrange there
leads them elsewhere. What a tool says goes to the policy as text, at most ``observation_chars``
characters of it; a tool's own error is such a text, a lost sandbox is an ``InfrastructureError``.

Not covered: what the agent's own commands do to its files; they may do anything there, and nothing
in the workspace is relied on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from cudaagent.agent.parse import Parameter, ParsedCall, ToolSchema
from cudaagent.agent.safe_files import PathRefused, SafeDirectory, split
from cudaagent.agent.shell import Shell
from cudaagent.agent.trajectory import ToolCall
from cudaagent.errors import UserError

_READ_BYTES = 1 << 20
_READ_LINES = 2000

SCHEMAS: dict[str, ToolSchema] = {
    tool.name: tool
    for tool in (
        ToolSchema(
            "Bash",
            "run a command with bash; the working directory persists between commands",
            (Parameter("command", "the command line, or several lines"),),
        ),
        ToolSchema(
            "Read",
            f"show a file with line numbers, at most {_READ_LINES} lines",
            (
                Parameter("path", "the file, relative to the workspace"),
                Parameter("offset", "first line to show, from 1", required=False, integer=True),
                Parameter("limit", "number of lines to show", required=False, integer=True),
            ),
        ),
        ToolSchema(
            "Write",
            "write a whole file, making its directories; read an existing file first",
            (
                Parameter("path", "the file, relative to the workspace"),
                Parameter("content", "all of the file's text"),
            ),
        ),
        ToolSchema(
            "Edit",
            "replace a text that occurs exactly once in a file",
            (
                Parameter("path", "the file, relative to the workspace"),
                Parameter("old", "the text to replace, exactly as it stands in the file"),
                Parameter("new", "the text to put in its place"),
            ),
        ),
    )
}

PROTECTED_FILES = ("model.py", "SKILL.md", ".gateway")
PROTECTED_DIRECTORIES = ("utils",)


class ToolError(Exception):
    """The call cannot be done; the message tells the agent why and what to do."""


class ToolBox:
    """The tools of one episode.

    ``root`` is the workspace on the host; ``aliases`` are the absolute paths under which the agent
    may know it. Files that lie there at the start may be overwritten unread while nobody changed
    them.
    """

    def __init__(
        self,
        root: Path,
        shell: Shell,
        *,
        names: Sequence[str] = tuple(SCHEMAS),
        observation_chars: int = 30000,
        aliases: Sequence[str] = (),
    ) -> None:
        unknown = [name for name in names if name not in SCHEMAS]
        if unknown:
            raise UserError(f"agent.tools: {unknown[0]} is none of {', '.join(SCHEMAS)}")
        self.root = root
        self.schemas = {name: SCHEMAS[name] for name in names}
        self._shell = shell
        self._limit = observation_chars
        self._aliases = tuple(PurePosixPath(alias) for alias in (str(root), *aliases))
        self._files = SafeDirectory(root)
        self._known = self._initial_files()
        self._file_tools: dict[str, Callable[[dict[str, str]], str]] = {
            "Read": self._read,
            "Write": self._write,
            "Edit": self._edit,
        }

    def close(self) -> None:
        """Give the directory's descriptor back; the sandbox is its owner's to end."""
        self._files.close()

    def run(self, call: ParsedCall, *, timeout_s: float) -> ToolCall:
        """Run one call; a command gets at most ``timeout_s`` seconds.

        Raises:
            InfrastructureError: the sandbox is lost.
        """
        if call.error is not None:
            return self._done(call, f"not run: {call.error}", ok=False, schema_error=True)
        if call.name == "Bash":
            outcome = self._shell.run(call.arguments["command"], timeout_s)
            return self._done(call, outcome.text, ok=outcome.ok)
        try:
            return self._done(call, self._file_tools[call.name](call.arguments), ok=True)
        except (ToolError, PathRefused) as error:
            return self._done(call, f"error: {error}", ok=False)

    def _done(
        self, call: ParsedCall, text: str, *, ok: bool, schema_error: bool = False
    ) -> ToolCall:
        result = cut_middle(text, self._limit)
        return ToolCall(call.name, dict(call.arguments), result, ok, schema_error)

    def _read(self, arguments: dict[str, str]) -> str:
        path = self._path(arguments)
        data = self._files.read(path, _READ_BYTES)
        lines = _text(path, data).removesuffix("\n").split("\n") if data else []
        first = int(arguments.get("offset", "1"))
        count = int(arguments.get("limit", str(_READ_LINES)))
        if first < 1 or count < 1:
            raise ToolError("offset and limit count from 1")
        self._known[path] = _digest(data)
        if not lines:
            return f"{path} is empty"
        if first > len(lines):
            raise ToolError(f"{path} has {len(lines)} lines; offset {first} is behind its end")
        shown = lines[first - 1 : first - 1 + count]
        numbered = [f"{first + index:6d}\t{line}" for index, line in enumerate(shown)]
        rest = len(lines) - (first - 1 + len(shown))
        if rest:
            numbered.append(f"({rest} more lines; go on with offset {first + len(shown)})")
        return "\n".join(numbered)

    def _write(self, arguments: dict[str, str]) -> str:
        path = self._path(arguments)
        _refuse_protected(path)
        if self._files.exists(path):
            data = self._files.read(path, _READ_BYTES)
            if path not in self._known:
                raise ToolError(f"{path} exists; Read it before you write over it")
            if self._known[path] != _digest(data):
                raise ToolError(f"{path} has changed since you saw it; Read it again first")
        content = arguments["content"].encode("utf-8", errors="replace")
        self._put(path, content)
        lines = len(arguments["content"].splitlines())
        return f"wrote {path} ({lines} lines)"

    def _edit(self, arguments: dict[str, str]) -> str:
        path = self._path(arguments)
        _refuse_protected(path)
        data = self._files.read(path, _READ_BYTES)
        text, old, new = _text(path, data), arguments["old"], arguments["new"]
        if not old:
            raise ToolError("old is empty; give the text to replace")
        count = text.count(old)
        if count != 1:
            found = "does not occur" if count == 0 else f"occurs {count} times"
            raise ToolError(f"old {found} in {path}; it must occur exactly once")
        if old == new:
            raise ToolError("old and new are equal; nothing to do")
        self._put(path, text.replace(old, new).encode("utf-8", errors="replace"))
        line = text[: text.index(old)].count("\n") + 1
        return f"edited {path} at line {line}"

    def _put(self, path: str, content: bytes) -> None:
        if len(content) > _READ_BYTES:
            raise ToolError(f"the file would be larger than {_READ_BYTES >> 20} MiB")
        self._files.write(path, content)
        self._known[path] = _digest(content)

    def _path(self, arguments: dict[str, str]) -> str:
        """The path as components below the workspace, however the agent names it."""
        path = PurePosixPath(arguments["path"].strip())
        for alias in self._aliases:
            if path.is_absolute() and path.is_relative_to(alias):
                path = path.relative_to(alias)
        return "/".join(split(str(path)))

    def _initial_files(self) -> dict[str, str]:
        """Digests of the files that the workspace starts with; nothing of the agent runs yet."""
        known: dict[str, str] = {}
        for path in sorted(self.root.rglob("*")):
            if path.is_file() and not path.is_symlink():
                known[path.relative_to(self.root).as_posix()] = _digest(path.read_bytes())
        return known


def cut_middle(text: str, limit: int) -> str:
    """``text`` in at most ``limit`` characters, its middle replaced by a note."""
    if len(text) <= limit:
        return text
    note = f"\n... {len(text) - limit} characters cut ...\n"
    room = max(0, limit - len(note))
    head = (room + 1) // 2
    tail = room - head
    return (text[:head] + note + (text[-tail:] if tail else ""))[:limit]


def _refuse_protected(path: str) -> None:
    top = path.split("/")[0]
    if path in PROTECTED_FILES or top in PROTECTED_DIRECTORIES:
        raise ToolError(
            f"{path} is protected; your own files are model_new.py and those below kernels/"
        )


def _text(path: str, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ToolError(f"{path} is not text; look at it with Bash") from error


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
