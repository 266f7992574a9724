"""Candidate tasks for a run, and the filter by execution.

Drawing needs neither torch nor a device. Whether a candidate stays is decided by whoever has a
``Judge``: it times the baselines (``Judge.prepare``) and asks ``keep``. Runs in the driver.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice

from cudaagent.errors import UserError
from cudaagent.judge.verdict import Baseline
from cudaagent.synthesis.compose import Composition, draw, render
from cudaagent.synthesis.settings import SynthesisSettings
from cudaagent.tasks.task import Task

SPARE = 1.5
"""Candidates drawn for each task that is wanted; the filter drops some."""
_MIN_DRAWS, _MAX_DRAWS, _DRAWS_EACH = 3_000, 40_000, 30


def candidates(settings: SynthesisSettings) -> tuple[list[Task], list[Task]]:
    """(training, held out): more tasks than the settings ask for, in the order to try them.

    Both lists go through the levels and the families in turn, so a short prefix holds all of them,
    and no operator sequence occurs twice in the held-out list.

    Raises:
        UserError: the settings ask for more than can be composed.
    """
    if not 1 <= settings.max_operators <= 3:
        raise UserError(f"synthesis.max_operators={settings.max_operators} is not 1, 2 or 3")
    wanted = _DRAWS_EACH * (settings.train + settings.heldout)
    draws = min(max(wanted, _MIN_DRAWS), _MAX_DRAWS)
    drawn = list(islice(draw(settings.seed, max_operators=settings.max_operators), draws))
    train = _spread((c for c in drawn if not c.heldout), settings.train, "train", repeats=True)
    heldout = _spread((c for c in drawn if c.heldout), settings.heldout, "heldout", repeats=False)
    return [render(c) for c in train], [render(c) for c in heldout]


def keep(task: Task, baseline: Baseline, settings: SynthesisSettings) -> bool:
    """Whether a task that the judge has prepared is fit for training or evaluation.

    It must run in eager mode and under ``torch.compile``, pass the judge's checks of a task
    (deterministic, neither constant nor inseparable), and take between ``min_ms`` and ``max_ms``.
    """
    if baseline.task_id != task.id:
        raise ValueError(f"baseline of {baseline.task_id} given for {task.id}")
    if baseline.failure is not None or baseline.eager_ms is None or baseline.compile_ms is None:
        return False
    return settings.min_ms <= baseline.eager_ms <= settings.max_ms


def _spread(
    compositions: Iterable[Composition], wanted: int, key: str, *, repeats: bool
) -> list[Composition]:
    """Take ``SPARE`` times ``wanted``, one level and core after the other."""
    count = math.ceil(wanted * SPARE)
    queues: dict[tuple[int, str], list[Composition]] = {}
    seen: set[tuple[str, ...]] = set()
    for composition in compositions:
        if composition.names in seen and not repeats:
            continue
        seen.add(composition.names)
        queues.setdefault((len(composition.applied), composition.core), []).append(composition)
    taken: list[Composition] = []
    turn = 0
    while len(taken) < count and any(turn < len(queue) for queue in queues.values()):
        taken += [queue[turn] for queue in queues.values() if turn < len(queue)]
        turn += 1
    if len(taken) < count:
        raise UserError(
            f"synthesis.{key}={wanted}: only {len(taken)} of the {count} candidates that the "
            "filter needs could be composed; lower it or raise synthesis.max_operators"
        )
    return taken[:count]
