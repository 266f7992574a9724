"""The directory that an agent works in: made from a template, read back as a submission.

Runs on the trusted side. The template's ``utils/`` are clients that only pass a question on; the
compiler and the judge live elsewhere. Not covered: who may write what inside, which is the
sandbox's to enforce.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from cudaagent.errors import UserError
from cudaagent.tasks.task import Task
from cudaagent.workspace.submission import Submission

TARGETS = ("cpu", "cuda")
_TEMPLATE = Path(__file__).with_name("template")
_UTILS = ("compile.sh", "compile.py", "verification.py", "profiling.py", "gateway_client.py")
_PLACE = "<!-- target -->\n"


@dataclass(frozen=True, slots=True)
class Workspace:
    """One workspace directory."""

    directory: Path

    @classmethod
    def create(cls, task: Task, directory: Path, target: str) -> Workspace:
        """Lay out a new workspace for ``task`` in ``directory``, made if it is absent.

        Raises:
            UserError: ``target`` is neither cpu nor cuda, or ``directory`` has something in it.
        """
        if target not in TARGETS:
            raise UserError(f"target {target} is neither cpu nor cuda")
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise UserError(f"{directory} is not an empty directory; choose a new one")
        existed = directory.exists()
        try:
            _lay_out(task, directory, target)
        except OSError:
            # Half a workspace would stand in the way of the next attempt.
            if existed:
                _clear(directory)
            else:
                shutil.rmtree(directory, ignore_errors=True)
            raise
        return cls(directory)

    @property
    def snapshot(self) -> Submission:
        """The agent's files as they lie there, an untouched ``model_new.py`` included."""
        return Submission.from_dir(self.directory)

    def submission(self) -> Submission:
        """What is submitted: the snapshot, without ``model_new.py`` while it is the starter.

        Raises:
            UserError: a file or the bundle is over the size limits.
        """
        snapshot = self.snapshot
        if not is_untouched(snapshot):
            return snapshot
        return Submission(snapshot.sources)

    def restore(self, submission: Submission) -> None:
        """Replace the agent's files by those of ``submission``; no agent process may be running."""
        kernels = self.directory / "kernels"
        if kernels.is_symlink() or kernels.is_file():
            kernels.unlink()
        elif kernels.exists():
            shutil.rmtree(kernels)
        kernels.mkdir()
        (self.directory / "model_new.py").unlink(missing_ok=True)
        for name, data in submission.files:
            path = self.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def _lay_out(task: Task, directory: Path, target: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "SKILL.md").write_text(skill(target))
    (directory / "model.py").write_text(task.source)
    (directory / "model_new.py").write_text(starter())
    (directory / "kernels").mkdir()
    (directory / "utils").mkdir()
    for name in _UTILS:
        shutil.copyfile(_TEMPLATE / "utils" / name, directory / "utils" / name)


def _clear(directory: Path) -> None:
    for entry in directory.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def starter() -> str:
    """Text of ``model_new.py`` in a new workspace."""
    return (_TEMPLATE / "starter.txt").read_text()


def is_untouched(submission: Submission) -> bool:
    """Whether ``model_new.py`` is still the starter."""
    return submission.model_new is not None and submission.model_new.strip() == starter().strip()


def skill(target: str) -> str:
    """Text of ``SKILL.md`` for ``target``."""
    common = (_TEMPLATE / "SKILL.md").read_text()
    return common.replace(_PLACE, (_TEMPLATE / "targets" / f"{target}.md").read_text())
