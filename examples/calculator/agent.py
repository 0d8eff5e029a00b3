"""An agent with a calculator, and its reward: the agent of the quick start."""

from strands import Agent, tool


@tool
def calculator(expression: str) -> str:
    """Compute one operation on two integers.

    Args:
        expression: Such as `615 * 17`.
    """
    left, operator, right = expression.split()
    return str({"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[operator](int(left), int(right)))


def build(task, model):
    """Return the agent of one episode."""
    return Agent(model=model, tools=[calculator], callback_handler=None)


def reward(episode):
    """Return 1.0 if the answer is in the agent's last message."""
    return float(str(episode.task.answer) in episode.text)
