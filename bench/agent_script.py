"""What a played agent says: tool calls that its model's parser reads, and a last answer, as ids made beforehand.

Shared by the loopback server and by engines that answer within the process, so that every bench plays the same
conversation. The format of a call is Hermes, which the tool policy and Qwen write.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOOL = "calculator"
"""Name of the tool that is called; its one argument is an `expression`."""

_WORDS = (
    "the of and to in is that it was for on are as with his they at be this from have or by one had not but what all "
    "were when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more her two like him see time could no make than first been its who now people my made over "
    "did down only way find use may water long little very after words called just where most know get through back "
    "much before go good new write our used me man too any day same right look think also around another came come "
    "work three word must because does part even place well such here take why things help put years away again"
).split()
_VARIANTS = 256


@dataclass(frozen=True)
class Answer:
    """One sampled turn."""

    ids: tuple[int, ...]
    """What was sampled, the end-of-turn token included."""
    text: str
    """The same as text, without the end-of-turn token."""
    prose: str
    """What stands in front of the call; of a last answer, all of it."""
    expression: str | None
    """The call's argument; None: there is no call."""


@dataclass(frozen=True)
class Script:
    """Every turn that is ever sampled, and what tells how many calls a prompt holds."""

    calls: tuple[Answer, ...]
    """Turns with one call each, of different arguments, all of about the same number of tokens."""
    last: Answer
    """The turn that ends an episode."""
    marker: tuple[int, ...]
    """Ids that stand once in each turn with a call, and nowhere else in a prompt."""

    def turn(self, number: int, turns: int, seed: int = 0) -> Answer:
        """Return what is sampled behind `number` calls in an episode of `turns` calls."""
        return self.last if number >= turns else self.calls[(number + seed) % len(self.calls)]


def tokenizer_from(path: str | Path) -> Any:
    """Load a tokenizer."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(path))
    tokenizer.model_max_length = 2**31  # nothing runs the model, so there is nothing to be warned of
    return tokenizer


def script(tokenizer: Any, tokens: int) -> Script:
    """Return a script of about `tokens` sampled tokens a turn; never fewer than a bare call takes."""

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    rng = random.Random(tokens)
    # Each part is encoded by itself: a policy may sample such ids, and the marker is then the same in every call.
    marker = ids("<tool_call>\n" + json.dumps({"name": TOOL, "arguments": {"expression": ""}})[:-3])
    close, end = ids('"}}\n</tool_call>'), [tokenizer.eos_token_id]
    calls = []
    for _ in range(_VARIANTS):
        # Words in any order: text that repeats itself would make whatever compresses it look better than it is.
        prose_ids = ids(" ".join(rng.choices(_WORDS, k=tokens)) + ".\n")
        expression = f"{rng.randint(10, 999)} {rng.choice('+-*')} {rng.randint(10, 999)}"
        call = [*marker, *ids(expression), *close, *end]
        prose = prose_ids[: tokens - len(call)] if tokens > len(call) else []
        text = tokenizer.decode([*prose, *call[:-1]])
        calls.append(Answer((*prose, *call), text, tokenizer.decode(prose), expression))
    said = ids("The answer is 10367.")
    words = [*prose_ids[: max(0, tokens - len(said) - 1)], *said]
    text = tokenizer.decode(words)
    return Script(tuple(calls), Answer((*words, *end), text, text, None), tuple(marker))
