"""On SGLang's own code: its parsers and ours read the same well-formed outputs alike, or the difference is listed.

The outputs are written by the families' own chat templates where they render calls, else by the writers of
`tool_parsers/grammars.py`; so it is known what each of them says. Ours must read exactly that. Where SGLang reads
something else, `DIFFERENCES` must say so; and what it says must still be true of the SGLang that the lab installs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import pytest

from families import tokenizer
from lab_servers import LAB
from strands_sglang.tool_parsers.registry import get_tool_parser
from tool_parsers.grammars import GRAMMARS, SCHEMAS, Call
from tool_parsers.mutations import turn

sys.path.append(str(LAB))

import engine  # noqa: E402 - the lab is not a package

pytestmark = pytest.mark.engine

EACH = 300
"""Outputs of each pair."""

TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]


@dataclass(frozen=True)
class Pair:
    """Two parsers of one format, and what writes it."""

    ours: str
    theirs: str
    family: str | None = None
    """Whose chat template writes the outputs; None: the grammar's writer."""
    most: int = 4
    """Calls that the template can write in one turn."""
    as_text: bool = False
    """Whether the template wants arguments as text."""

    def __str__(self) -> str:
        return f"{self.theirs}-{self.family or 'written'}"


PAIRS = [
    Pair("hermes", "qwen25", "qwen3"),
    Pair("hermes", "hermes", "qwen2.5"),
    Pair("hermes", "qwen25"),
    Pair("hermes", "hermes"),
    Pair("qwen3_coder", "qwen3_coder", "qwen3-coder"),
    Pair("qwen3_coder", "qwen3_coder", "qwen3.5"),
    Pair("qwen3_coder", "qwen3_coder", "qwen3.6"),
    Pair("qwen3_coder", "qwen3_coder", "nemotron-3-nano"),
    Pair("glm", "glm45", "glm-4.5"),
    Pair("glm", "glm45", "glm-4.6"),
    Pair("glm", "glm47", "glm-4.7-flash"),
    Pair("deepseek_v3", "deepseekv3", "deepseek-v3", most=2, as_text=True),
    Pair("deepseek_v3", "deepseekv3", "deepseek-r1", as_text=True),
    Pair("deepseek_v3", "deepseekv3"),
    Pair("deepseek_v31", "deepseekv31", "deepseek-v3.1"),
    Pair("deepseek_v31", "deepseekv31"),
    Pair("deepseek_v32", "deepseekv32", "deepseek-v3.2"),
    Pair("deepseek_v32", "deepseekv4", "deepseek-v4"),
    Pair("kimi_k2", "kimi_k2", "kimi-k2"),
    Pair("kimi_k2", "kimi_k2", "kimi-k2-thinking"),
    Pair("kimi_k2", "kimi_k2"),
    Pair("llama3_json", "llama3", "llama-3.1", most=1),
    Pair("llama3_json", "llama3", "llama-3.2", most=1),
    Pair("llama3_json", "llama3"),
    Pair("pythonic", "pythonic"),
    Pair("mistral", "mistral", "mistral-nemo"),
    Pair("mistral", "mistral", "mistral-small-3.2"),
    Pair("mistral", "mistral", "devstral-2507"),
    Pair("mistral", "mistral", "ministral-3-reasoning"),
    Pair("mistral", "mistral"),
    Pair("harmony", "gpt-oss", "gpt-oss", most=1),
    Pair("harmony", "gpt-oss"),
    Pair("minimax_m2", "minimax-m2", "minimax-m2"),
    Pair("gemma", "gemma4"),
]
"""SGLang has no parser for what Phi-4 and the older Nemotron models write."""


class Case(NamedTuple):
    """One output, and what it says."""

    pair: Pair
    text: str
    calls: list[Call]


class Difference(NamedTuple):
    """What SGLang reads otherwise than it was written: a whole turn, or one argument of a call."""

    case: Case
    wrote: Any
    read: Any
    """What SGLang made of it; for a turn, its calls or why there are none."""
    key: str | None = None
    """The argument; None for a whole turn."""


# --- writing ---------------------------------------------------------------------------------------------------------

_TURN_END = re.compile(r"(?:<\|im_end\|>|<｜end▁of▁sentence｜>|</s>|<\|eot_id\|>|\[e~\[)?\n*\Z")


def rendered(pair: Pair, calls: list[Call]) -> str:
    """Return what the family's template writes for a turn of calls: from the first call on, without the turn's end."""
    assert pair.family is not None
    template = tokenizer(pair.family)
    question = {"role": "user", "content": "?"}
    is_kimi = pair.theirs == "kimi_k2"
    tool_calls = [
        {
            "id": f"functions.{call.name}:{number}" if is_kimi else f"call{number:05}",
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": json.dumps(call.arguments, ensure_ascii=False) if pair.as_text else call.arguments,
            },
        }
        for number, call in enumerate(calls)
    ]
    answer = {"role": "assistant", "content": None if pair.as_text else "", "tool_calls": tool_calls}
    prompt = template.apply_chat_template([question], tokenize=False, add_generation_prompt=True)
    whole = template.apply_chat_template([question, answer], tokenize=False)
    turn_text = whole[len(os.path.commonprefix([prompt, whole])) :]
    turn_text = re.sub(r"\A\s*(?:<think>|/think>|</think>|\s)*", "", turn_text) if "think>" in turn_text else turn_text
    return _TURN_END.sub("", turn_text, count=1)


def cases_of(pair: Pair) -> list[Case]:
    """Return outputs of a pair; the same every time."""
    dice, grammar = Random(str(pair)), GRAMMARS[pair.ours]
    made = []
    while len(made) < EACH:
        text, calls = turn(dice, grammar)
        if pair.family is not None:
            calls = calls[: pair.most]
            text = rendered(pair, calls)
        made.append(Case(pair, text, calls))
    return made


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def answers() -> dict[Pair, list[tuple[Case, Any]]]:
    """What SGLang reads in every output."""
    engine.ensure([])
    folder = engine.environment()
    assert folder is not None, "the engine is not set up: run lab/setup"
    cases = [case for pair in PAIRS if pair.ours in GRAMMARS for case in cases_of(pair)]
    lines = [json.dumps({"parser": case.pair.theirs, "text": case.text, "tools": TOOLS}) for case in cases]
    command = [str(folder / "bin" / "python"), str(LAB / "sglang_parse.py")]
    result = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, env=engine.variables(), timeout=500
    )
    assert result.returncode == 0, result.stderr[-3000:]
    read = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(read) == len(cases), result.stderr[-3000:]
    answered: dict[Pair, list[tuple[Case, Any]]] = {pair: [] for pair in PAIRS}
    for case, answer in zip(cases, read, strict=True):
        answered[case.pair].append((case, answer))
    return answered
