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


def main() -> int:
    """Parse the command line and run the recipe; exit status 2 for unusable input."""
    # Imported here: the recipe's pool of processes imports this file and needs no torch.
    from cudaagent.errors import UserError
    from cudaagent.policy.coldstart import ColdStartSettings, cold_start
    from cudaagent.policy.small import SmallShape

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("checkpoints/quickstart"))
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    defaults = _numbers(SmallShape()) | _numbers(ColdStartSettings())
    for name, value in defaults.items():
        parser.add_argument(
            "--" + name.replace("_", "-"), type=type(value), default=value, help="see the recipe"
        )
    given = vars(parser.parse_args())
    shape = SmallShape(**{name: given[name] for name in _numbers(SmallShape())})
    names = _numbers(ColdStartSettings())
    settings = ColdStartSettings(**{name: given[name] for name in names}, shape=shape)
    try:
        cold_start(given["out"], settings, device=given["device"])
    except UserError as error:
        print(f"cold_start: {error}", file=sys.stderr)
        return 2
    return 0


def _numbers(settings: Any) -> dict[str, int | float]:
    """The fields that are numbers, with their values."""
    values = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


if __name__ == "__main__":
    sys.exit(main())
