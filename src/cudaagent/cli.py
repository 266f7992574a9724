"""The command line: parsing, exit statuses, and nothing else.

Exit status: 0 when a verdict or result was reached, whatever it is; 2 for unusable input, with one
clear line on stderr; 1 for a fault of our own. With ``--json`` stdout is exactly one JSON object.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from cudaagent import __version__
from cudaagent.errors import InfrastructureError, UserError

_OVERRIDE = re.compile(r"[a-z_]+(\.[a-z0-9_]+)*=")
_OVERRIDES = "Configuration overrides are key=value arguments, e.g. judge.precision=strict."
_WITHOUT_OVERRIDES = ("doctor", "init-workspace", "report")


_MENDABLE = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOENT, errno.EEXIST,
    errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.ELOOP, errno.ENAMETOOLONG,
}  # fmt: skip
"""What the file system says of a path or disk that the user chose."""


class _Parser(argparse.ArgumentParser):
    """Errors as one line and exit status 2, without the usage block."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.prog}: {message}; see {self.prog} --help")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = _Parser(
        prog="cudaagent",
        description="Train, run and judge agents that write kernels faster than torch.compile.",
    )
    parser.add_argument("--version", action="version", version=f"cudaagent {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(name: str, text: str, *, target: bool = False) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        command.add_argument("--json", action="store_true", help="one JSON object on stdout")
        if target:
            command.add_argument("--target", choices=("auto", "cuda", "cpu"), default=None)
            command.epilog = _OVERRIDES
        return command

    add("doctor", "Say what this machine has and what will therefore work.")
    init = add("init-workspace", "Make an agent's work directory for a task.")
    init.add_argument("task", type=Path, metavar="TASK")
    init.add_argument("directory", type=Path, metavar="DIR")
    init.add_argument("--target", choices=("auto", "cuda", "cpu"), default="auto")
    for name, text in (
        ("build", "Compile a solution directory's kernels."),
        ("verify", "Check that a solution directory computes what its task does."),
        ("profile", "Verify, then time a solution against eager and torch.compile."),
        ("judge", "Give the verdict on a solution directory."),
    ):
        command = add(name, text)
        command.add_argument("directory", type=Path, metavar="DIR")
        _judging(command)
    lint = add("lint-task", "Say whether a task can be judged, and its baselines' times.")
    lint.add_argument("task", type=Path, metavar="TASK")
    _judging(lint)
    train = add("train", "Train a policy through all stages.", target=True)
    train.add_argument("--from-scratch", action="store_true", help="cold-start a new policy first")
    evaluate = add("evaluate", "Evaluate a policy on a suite.", target=True)
    evaluate.add_argument("--policy", required=True, metavar="POLICY")
    evaluate.add_argument("--suite", required=True, metavar="SUITE")
    synthesize = add("synthesize", "Compose tasks, filter them by execution, write Parquet.",
                     target=True)  # fmt: skip
    synthesize.add_argument("--out", type=Path, required=True, metavar="FILE")
    for command in (train, evaluate, synthesize):
        command.add_argument("--config", type=Path, default=None, metavar="FILE")
        command.add_argument("--dry-run", action="store_true", help="resolve, print, exit")
    report = add("report", "Print a run's table and write its report.html and table.md.")
    report.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    return parser


def _judging(command: argparse.ArgumentParser) -> None:
    command.add_argument("--target", choices=("auto", "cuda", "cpu"), default="auto")
    command.add_argument("--device", default=None, help="cpu or cuda:N")
    command.add_argument("--precision", choices=("equal", "strict", "paper"), default=None)
    command.add_argument("--weights", choices=("live", "frozen"), default=None)
    command.add_argument("--tolerance", choices=("scaled", "paper"), default=None)
    command.epilog = _OVERRIDES


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in arguments
    terminated: list[int] = []

    def terminate(number: int, _: object) -> NoReturn:
        # A terminated command ends what it started, as an interrupted one does. Ray's waits, which
        # are native code, pass on this exception only, and as a new one: hence the list.
        terminated.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminate)
    try:
        # Overrides may stand anywhere, which argparse does not offer beside subcommands.
        overrides = [a for a in arguments if _OVERRIDE.match(a)]
        options = build_parser().parse_args([a for a in arguments if not _OVERRIDE.match(a)])
        options.overrides = overrides
        if overrides and options.command in _WITHOUT_OVERRIDES:
            raise UserError(f"{options.command} takes no key=value overrides: {overrides[0]}")
        return _run(options)
    except UserError as error:
        return _fail(str(error), 2, as_json)
    except InfrastructureError as error:
        return _fail(str(error), 1, as_json)
    except KeyboardInterrupt:
        if terminated:
            return _fail("terminated", 143, as_json)
        return _fail("interrupted", 130, as_json)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in _MENDABLE:
            traceback.print_exc()
            return _fail(f"{type(error).__name__}: {error}", 1, as_json)
        where = f"{error.filename}: " if error.filename is not None else ""
        return _fail(f"{where}{error.strerror}", 2, as_json)
    except Exception as error:
        traceback.print_exc()
        return _fail(f"a fault of ours, {type(error).__name__}: {error}", 1, as_json)


def _fail(message: str, status: int, as_json: bool) -> int:
    line = " ".join(message.split())
    print(f"cudaagent: {line}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": line}))
    return status


def _run(options: argparse.Namespace) -> int:
    # Each command imports what it needs, so that `doctor` and errors answer at once.
    if options.command in ("build", "verify", "profile", "judge", "lint-task", "init-workspace"):
        from cudaagent import local

        return local.run(options)
    if options.command == "doctor":
        from cudaagent.doctor import command

        return command(as_json=options.json)
    if options.command == "report":
        from cudaagent.report.command import command

        return command(options.runs, as_json=options.json)
    # The package is mapped from jobs/, which type checkers do not follow.
    from cudaagent.jobs import commands  # pyright: ignore[reportMissingImports]

    return commands.run(options)


if __name__ == "__main__":
    sys.exit(main())
