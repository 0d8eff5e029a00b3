"""A recorded run for the viewer's tests and pictures: a real tokenizer, real agents, a scripted engine.

It has groups with different rewards, reasoning, parallel tools, tool errors and timeouts, forks, a sub-agent, malformed
calls, closing tokens, two weight versions in one turn, tokens that would drift, and hostile text.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from strands import tool
from strands.agent.conversation_manager import SlidingWindowConversationManager

from strands_sglang import SGLangModel
from strands_sglang.engine import FinishReason, Generation
from strands_sglang.runs import Limits, RunResult, Task
from strands_sglang.tokens import VersionSpan
from support.families import tokenizer_path
from support.rollout.agent_kinds import plain
from support.rollout.scripts import PromptEngine, run
from support.scripted_engine import Answer, EngineCall, Reply, tool_call

FAMILY = "qwen3"
TOKENIZER = tokenizer_path(FAMILY)
HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'> </script> \u202egnp.exe\u202c "
    "\u200b\u2066hidden\u2069 \x1b[31mred\x1b[0m \x00 \ufeff"
)
"""What a hostile tool returns, and a hostile model writes."""


@tool
async def calculator(expression: str) -> str:
    """Evaluate an expression.

    Args:
        expression: Two whole numbers and an operator between them.
    """
    await asyncio.sleep(0.003)
    found = re.fullmatch(r"(-?\d+) ([-+*]) (-?\d+)", expression)
    if found is None:
        raise ValueError(f"not an expression: {expression!r}")
    left, sign, right = found.groups()
    return str({"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[sign](int(left), int(right)))


@tool
async def fetch(page: str) -> str:
    """Read a page.

    Args:
        page: Its name.
    """
    if page == "slow":
        await asyncio.sleep(30)
    return HOSTILE if page == "hostile" else f"{page}: naïve café – ✓ 東京 🙂"


TOOLS = [calculator, fetch]


def build(task: Task, model: SGLangModel) -> Any:
    kind = task.id.partition("-")[0]
    system = f"You compute with care, topic: {kind}."
    if kind == "window":
        manager = SlidingWindowConversationManager(window_size=4, per_turn=True)
        return plain(model, system_prompt=system, tools=TOOLS, conversation_manager=manager)
    if kind == "helper":
        helper = plain(model, name="helper", system_prompt="You help.", description="Helps.", tools=[calculator])
        return plain(model, system_prompt=system, tools=[helper.as_tool()])
    if kind == "broken":
        raise RuntimeError(f"no agent for this task {HOSTILE}")
    return plain(model, system_prompt=None if kind == "hostile" else system, tools=TOOLS)


def script(prompt: str, before: int) -> Answer:
    done = prompt.count("<tool_response>")
    if "You help." in prompt:
        return "It is 7." if done else tool_call("calculator", expression="3 + 4")
    question = re.findall(r"topic: (\w+)|(\w+) is the question", prompt)[0]
    question = question[0] or question[1]
    if question == "helper":
        return "The helper said 7." if done else tool_call("helper", input="3 + 4?")
    if question == "window":
        last = int((re.findall(r"<tool_response>\s*(\d+)", prompt) or ["0"])[-1])
        return tool_call("calculator", expression=f"{last} + 1") if last < 5 else "Done."
    if question == "hostile":
        return f"It said {HOSTILE}" if done else tool_call("fetch", page="hostile")
    if question == "errors":
        if done == 0:
            return '<tool_call>\n{"name": "calculator", "arguments": {"expression": }\n</tool_call>'
        if done == 1:
            calls = [tool_call("fetch", page="slow"), tool_call("calculator", expression="nonsense")]
            return "\n".join([*calls, tool_call("fetch", page="tokyo")])
        return "Nothing worked."
    number = int(re.findall(r"Compute (\d+)", prompt)[0])
    if done == 0:
        text = f"<think>\nI multiply {number} by 17 first.\n</think>\n\nI multiply first.\n"
        return Reply(text + tool_call("calculator", expression=f"{number} * 17"))
    if done == 1:
        wrong = 88 if number % 3 else 87
        return Reply(tool_call("calculator", expression=f"{number * 17} - {wrong}"), ended=False)
    return f"<think>\nThat is the result.\n</think>\n\nThe answer is {number * 17 - 88}."


class DemoEngine(PromptEngine):
    """Adds weight versions, varied logprobs, and words that are sampled in two tokens where one would do."""

    def __init__(self) -> None:
        super().__init__(script, FAMILY)
        self.delay = 0.004

    def _generation(self, call: EngineCall, reply: Reply) -> Generation:
        made = super()._generation(call, reply)
        rng = random.Random(int(hashlib.blake2b(f"{call.asked['prompt']}{call.asked['nth']}".encode()).hexdigest(), 16))
        ids: list[int] = []
        for id in made.token_ids:
            halves = self._split(id) if rng.random() < 0.06 else [id]
            ids += halves
        logprobs = np.array([-(rng.expovariate(1 / 0.35) ** 2) for _ in ids], np.float32).astype(np.float64)
        middle = rng.randrange(1, len(ids)) if len(ids) > 8 and rng.random() < 0.4 else 0
        spans = [("17", 0, middle), ("18", middle, len(ids))] if middle else [(rng.choice(["17", "18"]), 0, len(ids))]
        return replace(
            made,
            token_ids=array("i", ids),
            logprobs=array("d", logprobs.tolist()),
            versions=tuple(VersionSpan(*span) for span in spans),
            finish_detail=ids[-1] if made.finish_reason is FinishReason.STOP else made.finish_detail,
        )

    def _split(self, id: int) -> list[int]:
        text = self.decode([id])
        if len(text) < 4 or not text.strip().isalpha() or not text.isascii():
            return [id]
        parts = [*self.encode(text[:3]), *self.encode(text[3:])]
        return parts if len(parts) == 2 else [id]


def score(task: Task, episode: Any) -> Any:
    if task.answer is None:
        return {"reward": 0.5 if "Done" in episode.text else 0.0, "length": float(len(episode.text))}
    digits = sum(map(int, re.findall(r"\d", episode.text)))
    return {"reward": float(str(task.answer) in episode.text) - 0.25 * (episode.sample % 3), "digits": float(digits)}


def tasks(groups: int = 6) -> list[Task]:
    made = [
        Task(f"Compute {n} * 17, then subtract 88.", answer=n * 17 - 88, id=f"algebra-{n}")
        for n in range(600, 600 + groups)
    ]
    others = ("window", "helper", "hostile", "errors", "broken")
    return [*made, *(Task(f"{kind} is the question.", id=f"{kind}-1") for kind in others)]


async def write_recorded_run(directory: Path, *, groups: int = 6, samples: int = 4) -> RunResult:
    return await run(
        build, tasks(groups), DemoEngine(), directory, reward=score, samples_per_task=samples,
        limits=Limits(tool_timeout=5, max_turns=12), preflight=False, stop_if_first_fail=None,
    )  # fmt: skip
