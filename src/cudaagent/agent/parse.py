"""Reads tool calls out of an assistant turn; the text is only ever sliced, never evaluated.

Runs on the trusted side. A call is written as::

    <function=Write>
    <parameter=path>kernels/kernel.cpp</parameter>
    <parameter=content>
    ...
    </parameter>
    </function>

A value that begins with a newline loses that one newline; everything else of it is kept, so the
newline before ``</parameter>`` is a file's own last newline. What stands outside calls is thought.

Invariant: a turn gives an entry for every ``<function=`` outside another call's value, in order;
an entry is a call that fits its tool's schema or carries a sentence that says what to mend.

Not covered: a value cannot hold ``</parameter>``, nor a line that is just ``</function>``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_NAME = r"[A-Za-z_][A-Za-z0-9_.-]*"
_OPEN = re.compile(r"<function=")
_HEAD = re.compile(rf"<function=\s*({_NAME})\s*>")
_PARAMETER = re.compile(rf"<parameter=\s*({_NAME})\s*>")
_CLOSE_VALUE = "</parameter>"
_CLOSE_CALL = "</function>"
_RUNAWAY = re.compile(r"^\s*</function>\s*$", re.MULTILINE)
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a tool; ``integer`` values are checked to be whole numbers."""

    name: str
    description: str
    required: bool = True
    integer: bool = False


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """What a tool is called, what it does and what it takes."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One call of a turn; with ``error`` set it breaks the schema and must not run."""

    name: str
    arguments: dict[str, str] = field(default_factory=dict[str, str])
    error: str | None = None


class _Malformed(Exception):
    """The call's syntax is broken; ``resume`` is where reading goes on, or None to stop."""

    def __init__(self, message: str, resume: int | None) -> None:
        super().__init__(message)
        self.resume = resume


def parse_calls(text: str, tools: Mapping[str, ToolSchema]) -> list[ParsedCall]:
    """Calls of one assistant turn, in order; empty when the turn makes none."""
    calls: list[ParsedCall] = []
    position = 0
    while (opening := _OPEN.search(text, position)) is not None:
        head = _HEAD.match(text, opening.start())
        if head is None:
            calls.append(ParsedCall("", error="a call starts with <function=NAME>, then a newline"))
            position = opening.end()
            continue
        name = head.group(1)
        try:
            values, position = _read_values(text, head.end(), name)
        except _Malformed as broken:
            calls.append(ParsedCall(name, error=str(broken)))
            if broken.resume is None:
                break
            position = broken.resume
            continue
        calls.append(_check(name, values, tools))
    return calls


def _read_values(text: str, position: int, name: str) -> tuple[list[tuple[str, str]], int]:
    """(parameter, value) pairs as written, and the position after ``</function>``."""
    values: list[tuple[str, str]] = []
    while True:
        position = _skip_space(text, position)
        if text.startswith(_CLOSE_CALL, position):
            return values, position + len(_CLOSE_CALL)
        parameter = _PARAMETER.match(text, position)
        if parameter is None:
            raise _Malformed(*_unexpected(text, position, name))
        start = parameter.end()
        end = text.find(_CLOSE_VALUE, start)
        runaway = _RUNAWAY.search(text, start, len(text) if end < 0 else end)
        if end < 0 or runaway is not None:
            raise _Malformed(
                f"parameter {parameter.group(1)} of {name} is not closed; end its value with "
                f"{_CLOSE_VALUE}",
                None if runaway is None else runaway.end(),
            )
        value = text[start:end]
        values.append((parameter.group(1), value[1:] if value.startswith("\n") else value))
        position = end + len(_CLOSE_VALUE)


def _unexpected(text: str, position: int, name: str) -> tuple[str, int | None]:
    if position == len(text):
        return f"the call of {name} is not closed; end it with {_CLOSE_CALL}", None
    if text.startswith("<function=", position):
        return f"the call of {name} is not closed; end it with {_CLOSE_CALL}", position
    found = text[position : position + 20].splitlines()[0]
    message = (
        f"in the call of {name}, {found!r} stands where <parameter=NAME> or {_CLOSE_CALL} belongs"
    )
    end = text.find(_CLOSE_CALL, position)
    return message, None if end < 0 else end + len(_CLOSE_CALL)


def _check(name: str, values: list[tuple[str, str]], tools: Mapping[str, ToolSchema]) -> ParsedCall:
    tool = tools.get(name)
    arguments = dict(values)
    if tool is None:
        known = ", ".join(tools)
        return ParsedCall(name, arguments, f"there is no tool {name}; the tools are {known}")
    known = {parameter.name: parameter for parameter in tool.parameters}
    for key, _ in values:
        if key not in known:
            names = ", ".join(known)
            return ParsedCall(name, arguments, f"{name} has no parameter {key}; it takes {names}")
    if len(arguments) != len(values):
        return ParsedCall(name, arguments, f"a parameter of {name} is given twice; give it once")
    for parameter in tool.parameters:
        value = arguments.get(parameter.name)
        if value is None:
            if parameter.required:
                return ParsedCall(name, arguments, _missing(name, parameter))
        elif parameter.integer and not re.fullmatch(r"\s*-?[0-9]{1,9}\s*", value):
            return ParsedCall(name, arguments, f"{name}: {parameter.name} must be a whole number")
    return ParsedCall(name, arguments)


def _missing(name: str, parameter: Parameter) -> str:
    return (
        f"{name} needs the parameter {parameter.name} ({parameter.description}); write "
        f"<parameter={parameter.name}>...{_CLOSE_VALUE}"
    )


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return position if match is None else match.end()
