"""What is refused before anything runs: early, cheap, with a sentence that says what to do.

This layer explains; the zones of the judge are what is relied on. Runs in the judge's process and
in the workspace's gateway; parses text and bytes and never runs them.

``forbidden-operator`` is a computing operator of torch or ATen, ``static-check`` every other
refusal. Types are inferred, and an operator is refused only where an operand is a tensor for sure.
What remains for the layers that watch the run: values whose type cannot be inferred (a parameter
that is annotated as an int but is a tensor, entries of dictionaries with mixed values), functions
that are reached through such values, names that the C++ preprocessor pastes together, and anything
that native code does without an imported symbol.
"""

from __future__ import annotations

import ast
import re
import warnings

from cudaagent.judge.library_scan import scan_library
from cudaagent.judge.python_access import Located
from cudaagent.judge.python_check import Checker
from cudaagent.judge.source_scan import scan_sources
from cudaagent.judge.verdict import Failure
from cudaagent.workspace.submission import Submission

__all__ = ["check_model_new", "check_submission", "scan_library", "scan_sources"]

MAX_SOURCE_BYTES = 256 << 10

_CODING = re.compile(r"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")


def check_model_new(source: str) -> Failure | None:
    """Check ``model_new.py`` against the allow-list on its syntax tree.

    Returns:
        None, or ``forbidden-operator`` or ``static-check`` with the line, the rule and what to
        write instead.
    """
    if len(source) > MAX_SOURCE_BYTES:
        return _failure("static-check", 1, f"the file is larger than {MAX_SOURCE_BYTES >> 10} KiB")
    source = source.removeprefix("\ufeff")
    for number, line in enumerate(source.splitlines()[:2], start=1):
        match = _CODING.match(line)
        if match and match.group(1).lower().replace("_", "-") not in ("utf-8", "utf8", "ascii"):
            return _failure(
                "static-check", number, "write the file in UTF-8, without a coding line"
            )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
        Checker(tree).check()
    except SyntaxError as error:
        text = f"syntax error: {error.msg}"
        if error.text:
            text += f": {error.text.strip()[:120]}"
        return _failure("static-check", error.lineno or 1, text)
    except ValueError as error:
        return _failure("static-check", 1, f"the file cannot be parsed: {error}")
    except (RecursionError, MemoryError):
        return _failure("static-check", 1, "expressions are nested too deeply; write them plainly")
    except Located as located:
        return _failure(located.refusal.code, located.line, located.refusal.text)
    return None


def check_submission(submission: Submission) -> Failure | None:
    """``no-solution``, ``check_model_new`` and ``scan_sources`` in this order."""
    source = submission.model_new
    if source is None:
        text = "there is no model_new.py; write one that defines class ModelNew(nn.Module)"
        return Failure("no-solution", "static", text)
    return check_model_new(source) or scan_sources(submission)


def _failure(code: str, line: int, text: str) -> Failure:
    return Failure(
        code, "static", f"model_new.py, line {line}: {text}", {"file": "model_new.py", "line": line}
    )
