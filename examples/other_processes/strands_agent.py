"""A Strands agent in another process, which needs nothing of this package: `pip install 'strands-agents[openai]'`."""

import os
import sys

from strands import Agent, tool
from strands.models.openai import OpenAIModel


@tool
def calculator(expression: str) -> str:
    """Compute one operation on two integers.

    Args:
        expression: Such as `615 * 17`.
    """
    left, operator, right = expression.split()
    return str({"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[operator](int(left), int(right)))


model = OpenAIModel(client_args={"base_url": os.environ["OPENAI_BASE_URL"]}, model_id=os.environ["OPENAI_MODEL"])
print(Agent(model=model, tools=[calculator], callback_handler=None)(sys.argv[1]))
