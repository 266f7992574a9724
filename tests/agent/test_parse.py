"""The tool-call syntax: what is read as written, and which mistakes get which sentence."""

from __future__ import annotations

import pytest

from cudaagent.agent.parse import parse_calls
from cudaagent.agent.tools import SCHEMAS

WRITE = (
    "<function=Write>\n<parameter=path>kernels/kernel.cpp</parameter>\n"
    "<parameter=content>\nint x;\n</parameter>\n</function>"
)
BASH = "<function=Bash>\n<parameter=command>bash utils/compile.sh</parameter>\n</function>"


def test_calls_are_read_in_order_and_thought_is_left_out() -> None:
    calls = parse_calls(f"I try variant 2.\n{WRITE}\nthen\n{BASH}\n", SCHEMAS)

    assert [(call.name, call.error) for call in calls] == [("Write", None), ("Bash", None)]
    assert calls[0].arguments == {"path": "kernels/kernel.cpp", "content": "int x;\n"}
    assert calls[1].arguments == {"command": "bash utils/compile.sh"}


def test_a_value_loses_one_leading_newline_only() -> None:
    text = (
        "<function=Write><parameter=path>a</parameter>"
        "<parameter=content>\n\n x \n\n</parameter></function>"
    )
    assert parse_calls(text, SCHEMAS)[0].arguments["content"] == "\n x \n\n"


def test_values_are_text_and_nothing_else() -> None:
    value = "__import__('os').system('false') && `false` {0} %s &lt; <b> <function=Read> ]]>"
    text = f"<function=Bash>\n<parameter=command>{value}</parameter>\n</function>"
    (call,) = parse_calls(text, SCHEMAS)
    assert call.arguments == {"command": value}
    assert call.error is None


def test_text_without_a_call_gives_none() -> None:
    assert parse_calls("Done. f(x) < 3, <b>, </function>, <parameter=path>x</parameter>", {}) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<function=Grep>\n</function>", ("no tool Grep", "Bash, Read, Write, Edit")),
        ("<function=Write>\n<parameter=path>a</parameter>\n</function>", ("needs", "content")),
        ("<function=Bash>\n<parameter=cmd>ls</parameter>\n</function>", ("cmd", "command")),
        (
            "<function=Bash><parameter=command>a</parameter><parameter=command>b</parameter>"
            "</function>",
            ("twice",),
        ),
        ("<function=Bash>\n<parameter=command>ls</parameter>", ("not closed", "</function>")),
        ("<function=Bash>\n<parameter=command>ls", ("command", "not closed", "</parameter>")),
        ("<function=Bash>\nls\n</function>", ("'ls'", "<parameter=NAME>")),
        ("<function=>\n</function>", ("<function=NAME>",)),
        (
            "<function=Read><parameter=path>a</parameter><parameter=limit>ten</parameter>"
            "</function>",
            ("limit", "whole number"),
        ),
    ],
)
def test_a_mistake_gets_a_sentence_that_names_it(text: str, words: tuple[str, ...]) -> None:
    (call,) = parse_calls(text, SCHEMAS)
    assert call.error is not None
    for word in words:
        assert word in call.error


def test_an_unclosed_value_does_not_swallow_the_next_call() -> None:
    text = f"<function=Bash>\n<parameter=command>ls\n</function>\n{WRITE}"
    broken, good = parse_calls(text, SCHEMAS)
    assert broken.error is not None
    assert "not closed" in broken.error
    assert good.error is None
    assert good.arguments["content"] == "int x;\n"


def test_an_unclosed_call_does_not_swallow_the_next_one() -> None:
    text = f"<function=Bash>\n<parameter=command>ls</parameter>\n{BASH}"
    broken, good = parse_calls(text, SCHEMAS)
    assert broken.error is not None
    assert good.error is None


def test_reading_is_linear_in_the_text() -> None:
    text = "<function=Bash>" * 20000 + "<parameter=command>" * 20000
    assert all(call.error for call in parse_calls(text, SCHEMAS))
