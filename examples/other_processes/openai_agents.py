"""The OpenAI Agents SDK, on the Responses protocol: `pip install openai-agents`."""

import os
import sys

from agents import Agent, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)  # it would be sent elsewhere


@function_tool
def calculator(expression: str) -> str:
    """Compute one operation on two integers.

    Args:
        expression: Such as `615 * 17`.
    """
    left, operator, right = expression.split()
    return str({"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[operator](int(left), int(right)))


agent = Agent(name="calculator", tools=[calculator], model=os.environ["OPENAI_MODEL"])
print(Runner.run_sync(agent, sys.argv[1]).final_output)
