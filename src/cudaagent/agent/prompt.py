"""The messages that an episode starts with.

``short`` is exactly one user message, the task's source: for policies that were trained on this
environment. ``full`` explains the workspace, the tools and the rules to any instruction-following
model. Plain text on the trusted side; the task's source is a stranger's text and stands between
markers.
"""

from __future__ import annotations

from collections.abc import Iterable

from cudaagent.agent.parse import ToolSchema
from cudaagent.errors import UserError
from cudaagent.policy.base import Message
from cudaagent.tasks.task import Task

_BEGIN = "----- begin model.py -----"
_END = "----- end model.py -----"

_SYSTEM = """\
You make one PyTorch module faster by writing kernels for it. You work in a directory, by tool \
calls, and what you leave there is judged: it must compute the same as the module, and it should \
beat both eager PyTorch and torch.compile.

The directory holds
- SKILL.md: how to work here, the rules in full and worked examples. Read it first.
- model.py: the module (class Model, get_inputs, get_init_inputs). Read only.
- model_new.py: your solution, a class ModelNew with Model's constructor arguments, parameters and \
buffers; its forward calls your functions through `import cuda_extension`.
- kernels/: your sources. Each function that a source exports is an attribute of cuda_extension.
- utils/: read only. `bash utils/compile.sh` builds, `python3 utils/verification.py` compares with \
the module, `python3 utils/profiling.py` times it and says what it would earn.

A call is written like this; you may think in plain text before it, and make several calls in one \
turn, which run in order:

<function=Write>
<parameter=path>kernels/kernel.cpp</parameter>
<parameter=content>
...the file...
</parameter>
</function>

One newline after <parameter=...> is dropped. The results come back in the next message. A turn \
without a call ends your work.

The tools
{tools}

The rules in short
- All computing happens in your kernels: no torch operator in model_new.py or in C++ computes \
anything. model_new.py allocates outputs (torch.empty, torch.empty_like), takes views, and calls \
cuda_extension.
- Parameters and buffers are Model's, by name, shape and dtype. Inputs and weights change between \
calls: compute everything anew in every call and never keep a result.
- Only model_new.py and the files in kernels/ count; nothing else may be needed.
- Reward: -1 if it is not correct; 1 if it is; 2 if it is also more than 5 % faster than eager; 3 \
if more than 5 % faster than torch.compile as well.

Work in this order: read SKILL.md and model.py, write kernels and model_new.py, compile, verify, \
profile, improve, and stop when you are faster than both by a clear margin. Leave the best version \
in place.
"""


def build_prompt(task: Task, style: str, tools: Iterable[ToolSchema]) -> list[Message]:
    """Messages for ``agent.prompt=style``.

    Raises:
        UserError: ``style`` is neither ``short`` nor ``full``.
    """
    if style == "short":
        return [Message("user", task.source)]
    if style != "full":
        raise UserError(f"agent.prompt={style} is none of full, short")
    system = _SYSTEM.format(tools="\n".join(_describe(tool) for tool in tools))
    user = (
        "Make this module faster. Its source, as it lies in model.py:\n"
        f"{_BEGIN}\n{task.source.rstrip()}\n{_END}"
    )
    return [Message("system", system), Message("user", user)]


def _describe(tool: ToolSchema) -> str:
    lines = [f"- {tool.name}: {tool.description}"]
    for parameter in tool.parameters:
        optional = "" if parameter.required else " (optional)"
        lines.append(f"    {parameter.name}{optional}: {parameter.description}")
    return "\n".join(lines)
