"""The sandbox as a tool of an agent: `python_sandbox`.

    agent = Agent(model=model, tools=[python_sandbox(packages=("sympy",))])

Invariant: the model always gets a text; nothing that its code does raises into the agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strands import tool

from strands_sglang.tools.outcome import Ending
from strands_sglang.tools.sandbox import PythonSandbox
from strands_sglang.tools.sandbox_limits import SandboxLimits

_DESCRIPTION = (
    "Run Python code and get what it prints. Each call starts a fresh interpreter: variables, imports and files are "
    "not kept. There is no network. The limit is {seconds:g} seconds.{packages}"
)


def python_sandbox(
    sandbox: PythonSandbox | None = None,
    *,
    name: str = "python",
    description: str = "",
    limits: SandboxLimits | None = None,
    packages: Sequence[str] = (),
    **settings: Any,
) -> Any:
    """Return a Strands tool that runs Python code in a sandbox.

    It may be given to any number of agents. Code that fails (a traceback, a limit) is a result with the status "error".

    Args:
        sandbox: Where to run it; None: one of its own, made of what follows.
        name: What the model calls it.
        description: What the model is told about it; "": what it does, its packages and its time limit.
        limits: As in `PythonSandbox`.
        packages: As in `PythonSandbox`.
        **settings: The other arguments of `PythonSandbox`.

    Raises:
        SandboxUnavailableError: No sandbox can be made on this machine.
    """
    place = sandbox or PythonSandbox(limits=limits, packages=packages, **settings)
    if not description:
        known = f" Besides the standard library there are: {', '.join(place.packages)}." if place.packages else ""
        description = _DESCRIPTION.format(seconds=place.limits.seconds, packages=known)
    schema = {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The program. Print what you want to see."}},
        "required": ["code"],
    }

    @tool(name=name, description=description, inputSchema={"json": schema})
    async def python(code: str) -> dict[str, Any]:
        outcome = await place.run(code)
        status = "success" if outcome.ended is Ending.FINISHED else "error"
        return {"status": status, "content": [{"text": outcome.text}]}

    return python
