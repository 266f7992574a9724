"""Make the quickstart's checkpoint: a small model that imitates the teacher.

``python jobs/cold_start.py --out checkpoints/quickstart``: minutes on a GPU, hours on two CPU
cores. Needs no Ray. An interrupted run goes on with the same command.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

from cudaagent.errors import UserError
from cudaagent.policy.coldstart import ColdStartSettings, cold_start
from cudaagent.policy.small import SmallShape


def main() -> int:
    """Parse the command line and run the recipe; exit status 2 for unusable input."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("checkpoints/quickstart"))
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    for settings in (ColdStartSettings(), SmallShape()):
        for field in dataclasses.fields(settings):
            default = getattr(settings, field.name)
            flag = "--" + field.name.replace("_", "-")
            if isinstance(default, int | float) and flag not in parser._option_string_actions:
                parser.add_argument(flag, type=type(default), default=default)
    arguments = vars(parser.parse_args())
    shape = SmallShape(**_of(SmallShape, arguments))
    settings = ColdStartSettings(**_of(ColdStartSettings, arguments), shape=shape)
    try:
        cold_start(arguments["out"], settings, device=arguments["device"])
    except UserError as error:
        print(f"cold_start: {error}", file=sys.stderr)
        return 2
    return 0


def _of(kind: type, arguments: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in arguments.items() if name in names}


if __name__ == "__main__":
    sys.exit(main())
