"""The scripted turns of an agent: tool calls in the format of its model, and a final answer, as prepared ids.

Shared by the loopback server and by the in-process engines, so that every benchmark runs the same conversation. Tool
calls have the Hermes format, which the tool policy and Qwen use.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOOL = "calculator"
"""Name of the tool that is called; its only argument is `expression`."""

WORDS = (
    "the of and to in is that it was for on are as with his they at be this from have or by one had not but what all "
    "were when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more her two like him see time could no make than first been its who now people my made over "
    "did down only way find use may water long little very after words called just where most know get through back "
    "much before go good new write our used me man too any day same right look think also around another came come "
    "work three word must because does part even place well such here take why things help put years away again"
).split()
"""Common words; a text of them in random order compresses about as well as real text."""
_VARIANTS = 256
_VARIANT_TOKENS = 2**16
"""Most tokens of all variants, so that long turns do not take long to prepare."""


@dataclass(frozen=True)
class Answer:
    """One sampled turn."""

    ids: tuple[int, ...]
    """The sampled ids, including the end-of-turn token."""
    text: str
    """The decoded ids, without the end-of-turn token."""
    prose: str
    """The text before the tool call; for a final answer, the whole text."""
    expression: str | None
    """Argument of the tool call; None: there is no tool call."""


@dataclass(frozen=True)
class Script:
    """All turns that are sampled, and the marker by which the calls in a prompt are counted."""

    calls: tuple[Answer, ...]
    """Turns with one tool call each, with different arguments and about the same number of tokens."""
    last: Answer
    """The turn that ends an episode."""
    marker: tuple[int, ...]
    """Ids that occur once in each turn with a tool call, and nowhere else in a prompt."""
    marker_text: str
    """The decoded marker."""

    def turn(self, number: int, turns: int, seed: int = 0) -> Answer:
        """Return the turn after `number` calls in an episode of `turns` calls."""
        return self.last if number >= turns else self.calls[(number + seed) % len(self.calls)]


def tokenizer_from(path: str | Path) -> Any:
    """Load a tokenizer."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(path))
    tokenizer.model_max_length = 2**31  # no model is run, so the length warning does not apply
    return tokenizer


def script(tokenizer: Any, tokens: int) -> Script:
    """Return a script of about `tokens` sampled tokens per turn, and at least as many as a tool call needs."""

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    rng = random.Random(tokens)
    # Each part is encoded separately, so that the marker is the same in every call; a policy may sample such ids.
    marker = ids("<tool_call>\n" + json.dumps({"name": TOOL, "arguments": {"expression": ""}})[:-3])
    close, end = ids('"}}\n</tool_call>'), [tokenizer.eos_token_id]
    calls = []
    for _ in range(max(8, min(_VARIANTS, _VARIANT_TOKENS // tokens))):
        # Random words: repeated text would compress better than real text.
        prose_ids = ids(" ".join(rng.choices(WORDS, k=tokens)) + ".\n")
        expression = f"{rng.randint(10, 999)} {rng.choice('+-*')} {rng.randint(10, 999)}"
        call = [*marker, *ids(expression), *close, *end]
        prose = prose_ids[: tokens - len(call)] if tokens > len(call) else []
        text = tokenizer.decode([*prose, *call[:-1]])
        calls.append(Answer((*prose, *call), text, tokenizer.decode(prose), expression))
    sentence = ids("The answer is 10367.")
    final = [*prose_ids[: max(0, tokens - len(sentence) - 1)], *sentence]
    text = tokenizer.decode(final)
    return Script(tuple(calls), Answer((*final, *end), text, text, None), tuple(marker), tokenizer.decode(marker))
