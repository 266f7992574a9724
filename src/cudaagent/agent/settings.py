"""Options of the agent loop."""

from __future__ import annotations

from dataclasses import dataclass, field

TOOLS = ("Bash", "Read", "Write", "Edit")


@dataclass
class AgentSettings:
    """The limits of one episode and what the prompt holds."""

    prompt: str = "full"
    """full: instructions, tools and the skill's outline; short: the task's source alone."""
    tools: list[str] = field(default_factory=lambda: list(TOOLS))
    """Tools offered."""
    max_turns: int = 150
    """Assistant turns (paper: 150 in training, 200 in evaluation)."""
    context_tokens: int = 131072
    """Tokens of prompt, turns and observations together."""
    turn_tokens: int = 16384
    """Tokens of one assistant turn."""
    wall_clock_s: float = 7200.0
    """Seconds for one episode, sandbox start included."""
    observation_chars: int = 30000
    """Characters of one tool result that the policy sees; the middle is cut."""
