"""The configuration: one structured tree, merged from defaults, a YAML file and overrides.

Imports neither torch nor ray nor vllm.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cudaagent.agent.settings import AgentSettings
from cudaagent.config_check import check
from cudaagent.errors import UserError
from cudaagent.judge.settings import JudgeSettings, LimitSettings
from cudaagent.rl.settings import (
    PPOSettings,
    RFTSettings,
    StageSettings,
    ValuePretrainingSettings,
)
from cudaagent.sandbox.settings import SandboxSettings
from cudaagent.synthesis.settings import SynthesisSettings

STAGES = ("single_turn", "rft", "value_pretraining", "agentic")


@dataclass
class RunSettings:
    """The run directory and its seed."""

    name: str = "default"
    """Directory below `run.root`."""
    root: str = "runs"
    """Where run directories are made."""
    seed: int = 0
    """Decides tasks' order, sampling and shuffles; measurements stay what they are."""
    stages: list[str] = field(default_factory=lambda: list(STAGES))
    """Stages to run, in this order."""
    shuffle_rewards: bool = False
    """Control experiment: permute the rewards within each batch."""


@dataclass
class TaskSettings:
    """Where tasks come from."""

    suite: str | None = None
    """Suite to train on; none: tasks are synthesised."""
    heldout: str | None = None
    """Suite to evaluate on; none: the synthesiser's held-out compositions."""


@dataclass
class RewardSettings:
    """Which state of the workspace is rewarded."""

    of: str = "final"
    """final: as the episode leaves it; best: the best snapshot a tool call verified, re-judged."""


@dataclass
class PolicySettings:
    """The model that is trained or evaluated."""

    spec: str = "hf:checkpoints/quickstart"
    """`hf:DIR`, `teacher`, `replay:FILE`, `openai:MODEL@BASE_URL` or `vllm:MODEL`."""
    device: str = "auto"
    """auto, cpu or cuda."""
    temperature: float = 1.0
    """Sampling temperature; training needs 1."""
    top_p: float = 1.0
    """Nucleus; training needs 1, or importance weights are wrong."""


@dataclass
class RolloutSettings:
    """How episodes are spread over the cluster."""

    workers: int = 2
    """Rollout worker actors."""
    chunk: int = 12
    """Episodes that one worker runs side by side."""
    profilers: int = 1
    """Profiler actors."""
    sandboxes: int = 1
    """Compile sandbox actors."""
    retries: int = 2
    """Times that a dropped episode's task is queued again."""


@dataclass
class LearnerSettings:
    """The Ray Train learner."""

    workers: int = 1
    """Ray Train workers; 0 runs the training loop inside the learner's own process."""
    use_gpu: bool = False
    """Give each worker a GPU."""
    threads: int = 2
    """CPU threads of one worker."""


@dataclass
class EvaluationSettings:
    """Evaluation on the held-out tasks."""

    samples: int = 2
    """Episodes for each task."""
    max_turns: int = 200
    """Assistant turns of one episode (paper: 200)."""
    context_tokens: int = 131072
    """Tokens of one episode."""


@dataclass
class Config:
    """All options."""

    target: str = "auto"
    """auto, cuda or cpu."""
    run: RunSettings = field(default_factory=RunSettings)
    tasks: TaskSettings = field(default_factory=TaskSettings)
    synthesis: SynthesisSettings = field(default_factory=SynthesisSettings)
    judge: JudgeSettings = field(default_factory=JudgeSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)
    reward: RewardSettings = field(default_factory=RewardSettings)
    agent: AgentSettings = field(default_factory=AgentSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    learner: LearnerSettings = field(default_factory=LearnerSettings)
    ppo: PPOSettings = field(default_factory=PPOSettings)
    rft: RFTSettings = field(default_factory=RFTSettings)
    value_pretraining: ValuePretrainingSettings = field(default_factory=ValuePretrainingSettings)
    single_turn: StageSettings = field(
        default_factory=lambda: StageSettings(max_turns=1, context_tokens=32768)
    )
    agentic: StageSettings = field(default_factory=StageSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return Path(self.run.root) / self.run.name


def load_config(path: Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """Merge defaults, the YAML file and ``key=value`` overrides, and check the result.

    Raises:
        UserError: missing or unreadable file, unknown key, wrong type, impossible combination.
    """
    tree = OmegaConf.structured(Config)
    source = f"config file {path}"
    try:
        if path is not None:
            if not path.exists():
                raise UserError(f"config file {path} does not exist")
            if not path.is_file():
                raise UserError(f"{path} is not a file; --config takes a YAML file")
            loaded = _load(path)
            if not OmegaConf.is_dict(loaded):
                raise UserError(f"config file {path} is not a mapping of keys")
            tree = OmegaConf.merge(tree, loaded)
        for override in overrides:
            key, separator, _ = override.partition("=")
            if not separator or not key:
                raise UserError(f"override {override!r} is not of the form key=value")
            source = override
            tree = OmegaConf.merge(tree, OmegaConf.from_dotlist([override]))
        source = "config"
        config = OmegaConf.to_object(tree)
    except Exception as error:
        if not _is_input_fault(error):
            raise
        raise UserError(f"{source}: {_one_line(error)}") from error
    assert isinstance(config, Config)
    check(config, STAGES)
    return config


def _load(path: Path) -> Any:
    try:
        return OmegaConf.load(path)
    except Exception as error:
        if not _is_input_fault(error):
            raise
        raise UserError(f"config file {path}: {_one_line(error)}") from error


def _is_input_fault(error: Exception) -> bool:
    # YAML errors come from the parser OmegaConf uses and share no base with its own.
    known = isinstance(error, OmegaConfBaseException | ValueError | OSError)
    return known or type(error).__module__.startswith("yaml")


def to_yaml(config: Config) -> str:
    """The resolved configuration as YAML."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def to_dict(config: Config) -> dict[str, Any]:
    """The resolved configuration as plain containers."""
    return dataclasses.asdict(config)


def _one_line(error: Exception) -> str:
    """The message's first lines; OmegaConf's words for an empty value put into ours."""
    text = " ".join(line.strip() for line in str(error).strip().splitlines()[:4])
    empty = re.search(r"'None' for field of type '(\w+)'.*full_key: (\S+)", text)
    if empty is not None:
        return f"{empty.group(2)} is empty; give a value of type {empty.group(1)}"
    return re.sub(r"\s*object_type=\S+", "", text) or type(error).__name__
