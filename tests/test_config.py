"""Values that a run cannot use are refused before it starts, in one line that names the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudaagent.config import load_config
from cudaagent.errors import UserError

REFUSED = """
run.name=../x run.name=. run.name=/etc run.name=a/b run.name=
run.stages=[] run.stages=[agentic,agentic] run.stages=[agentic,single_turn] run.stages=[fly]
target=gpu judge.weights=dead agent.tools=[Foo] agent.turn_tokens=0 agent.wall_clock_s=-1
judge.min_rounds=0 judge.min_rounds=20 judge.pass_ms=nan judge.pass_ms=-1 judge.verify_inputs=0
judge.max_repeats=-1 judge.disturbed_share=nan judge.disturbed_share=2
limits.build_s=nan limits.host_memory_bytes=-5 limits.output_bytes=-1 limits.device_memory=2
agentic.steps=-1 agentic.max_turns=0 agentic.context_tokens=-1 evaluation.samples=0
ppo.actor_lr=nan ppo.actor_lr=-1 ppo.actor_lr=inf ppo.gamma=7 ppo.clip_low=-2 ppo.micro_tokens=0
ppo.mini_batches=9999 rft.trajectories=0 rft.epochs=0 rft.batch=0 value_pretraining.holdout=2
learner.workers=-1 learner.threads=0 rollout.retries=-1 rollout.workers=0
sandbox.command_s=0 sandbox.processes=0 synthesis.train=0
synthesis.min_ms=nan synthesis.min_ms=200 policy.temperature=0.5 ppo.epochs=many run=3 no.such=1
""".split()


@pytest.mark.parametrize("override", REFUSED)
def test_impossible_values_are_refused_by_name(override: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(overrides=[override])
    message = str(caught.value)
    assert override.partition("=")[0].rpartition(".")[2] in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "override",
    "ppo.actor_lr=0 ppo.clip_low=0 learner.workers=0 rollout.retries=0 ppo.critic_lam=null "
    "run.name=seed1.b-2 run.stages=[rft,agentic] synthesis.heldout=0 ppo.value_clip=0.2".split(),
)
def test_the_edges_of_what_is_possible_are_accepted(override: str) -> None:
    load_config(overrides=[override])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"- a list\n", "not a mapping"),
        (b"run: [\n", "config.yaml"),
        (b"\xff\xfe\x00binary", "config.yaml"),
        (b"run: {seed: 1, seed: 2}\n", "seed"),
        (b"nonsense: 1\n", "nonsense"),
    ],
)
def test_a_config_file_that_is_none_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=said) as caught:
        load_config(path)
    assert "\n" not in str(caught.value)


def test_a_directory_is_no_config_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a file"):
        load_config(tmp_path)
