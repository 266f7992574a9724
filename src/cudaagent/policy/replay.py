"""``replay:FILE``: plays the assistant turns of stored trajectories again.

The tools run anew and the judge judges anew; only the policy's text is the stored one. Ids are
byte-level, so a replayed trajectory cannot be trained on. A request names its episode; a file that
holds a single trajectory plays it for every episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cudaagent.agent.trajectory import Trajectory, read_trajectories
from cudaagent.errors import UserError
from cudaagent.policy import byte_level
from cudaagent.policy.base import Generation, GenerationRequest, Message


class ReplayPolicy:
    """Answer with the turns that the trajectory of the same id holds; then end the episode."""

    def __init__(self, trajectories: Sequence[Trajectory], source: str) -> None:
        if not trajectories:
            raise UserError(f"{source} holds no trajectory")
        self._texts = {item.id: [turn.text for turn in item.turns] for item in trajectories}
        self._source = source

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a Parquet file of trajectories.

        Raises:
            UserError: missing, unreadable or empty file.
        """
        if not path.is_file():
            raise UserError(f"replay: {path} is not a file")
        try:
            return cls(read_trajectories(path), str(path))
        except (pa.ArrowException, KeyError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"replay: {path} holds no trajectories: {reason}") from error

    def start(self, messages: Sequence[Message]) -> NDArray[np.int32]:
        return byte_level.start(messages)

    def observe(self, text: str) -> NDArray[np.int32]:
        return byte_level.observe(text)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: GenerationRequest) -> Generation:
        texts = self._texts.get(request.episode_id)
        if texts is None and len(self._texts) == 1:
            (texts,) = self._texts.values()
        if texts is None:
            raise UserError(f"replay: {self._source} has no trajectory {request.episode_id}")
        turn = byte_level.turn_index(request.token_ids)
        text = texts[turn] if turn < len(texts) else ""
        return byte_level.generation(text, request.max_new_tokens)
