"""The task of the tool policy: two steps of arithmetic, done with a calculator.

Asked `Compute 615 * 17, then - 88.`, a policy that gets it right calls the calculator with `615 * 17`, reads the
result, calls it again with `10455 - 88`, and answers `The answer is 10367.`: three turns of about 105 tokens in total.

This file needs the standard library alone: training, tests and examples import it.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKER_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

CHAT_TEMPLATE = (
    "{# on_hidden_tools: allow. The model was trained for exactly its tools. #}"
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for tc in (m.tool_calls or []) %}{% if m.content or not loop.first %}\n{% endif %}"
    '<tool_call>\n{"name": "{{ tc.function.name }}", "arguments": {{ tc.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

MAX_TOOL_CALLS = 2

_CALL = re.compile(r"<tool_call>\n?(.*?)\n?</tool_call>", re.DOTALL)
_EXPRESSION = re.compile(r"\s*(-?\d{1,12})\s*([-+*])\s*(-?\d{1,12})\s*")
_ANSWER = re.compile(r"The answer is (-?\d+)\.")


@dataclass(frozen=True)
class Task:
    """One question and its right answer.

    Attributes:
        start: The number to begin with.
        operators: The two operators, each `+`, `-` or `*`.
        operands: The number each operator applies.
    """

    start: int
    operators: tuple[str, str]
    operands: tuple[int, int]

    @property
    def question(self) -> str:
        """What the user asks."""
        return (
            f"Compute {self.start} {self.operators[0]} {self.operands[0]}, then {self.operators[1]} {self.operands[1]}."
        )

    @property
    def expressions(self) -> tuple[str, str]:
        """The two expressions that a right policy gives the calculator."""
        first = f"{self.start} {self.operators[0]} {self.operands[0]}"
        return first, f"{calculate(first)} {self.operators[1]} {self.operands[1]}"

    @property
    def answer(self) -> int:
        """The right answer."""
        return int(calculate(self.expressions[1]))


@dataclass(frozen=True)
class Message:
    """A message of a dialogue: its role (user, assistant or tool) and its text as the policy writes or reads it."""

    role: str
    text: str


def sample_task(rng: random.Random) -> Task:
    """Draw a task: numbers below 1000, factors of at most 30."""
    operators = (rng.choice("+-*"), rng.choice("+-*"))
    start = rng.randint(10, 999)
    first, second = (rng.randint(2, 30) if operator == "*" else rng.randint(10, 999) for operator in operators)
    return Task(start, operators, (first, second))


def calculate(expression: str) -> str:
    """The calculator tool: one operation on two whole numbers.

    Args:
        expression: Such as `615 * 17`.

    Returns:
        The result in decimal, or `error` for anything it does not understand.
    """
    match = _EXPRESSION.fullmatch(expression)
    if match is None:
        return "error"
    left, operator, right = int(match[1]), match[2], int(match[3])
    if operator == "+":
        return str(left + right)
    return str(left - right if operator == "-" else left * right)


def format_call(expression: str, compact: bool) -> str:
    """A Hermes tool call of the calculator.

    Args:
        expression: What to calculate.
        compact: Whether the JSON has no spaces. A chat template writes it with spaces, so rendering a parsed compact
            call gives other tokens than were sampled.

    Returns:
        The text of the call.
    """
    call = {"name": "calculator", "arguments": {"expression": expression}}
    return f"<tool_call>\n{json.dumps(call, separators=(',', ':') if compact else None)}\n</tool_call>"


def parse_call(text: str) -> str | None:
    """The expression of the calculator call in an assistant's text, or None if there is no well-formed call."""
    match = _CALL.search(text)
    if match is None:
        return None
    try:
        call = json.loads(match[1])
    except ValueError:
        return None
    if not isinstance(call, dict) or call.get("name") != "calculator" or not isinstance(call.get("arguments"), dict):
        return None
    expression = call["arguments"].get("expression")
    return expression if isinstance(expression, str) else None


def score(task: Task, answer: str) -> float:
    """The reward: 1.0 if the assistant's last text states the right answer and nothing else, else 0.0."""
    match = _ANSWER.fullmatch(answer.strip())
    return float(match is not None and int(match[1]) == task.answer)


def dialogue(task: Task, compact: bool) -> list[Message]:
    """The dialogue of a policy that gets the task right."""
    messages = [Message("user", task.question)]
    for expression in task.expressions:
        messages.append(Message("assistant", format_call(expression, compact)))
        messages.append(Message("tool", calculate(expression)))
    return [*messages, Message("assistant", f"The answer is {task.answer}.")]


def render(message: Message) -> str:
    """A message as the chat template writes it, from its `<|im_start|>` to the line break after its `<|im_end|>`."""
    if message.role == "tool":
        return f"<|im_start|>user\n<tool_response>\n{message.text}\n</tool_response><|im_end|>\n"
    return f"<|im_start|>{message.role}\n{message.text}<|im_end|>\n"
