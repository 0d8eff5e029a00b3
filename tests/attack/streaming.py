"""Turns shown while they are sampled against the same turns shown when they are whole: is it the same message?

Markers of the family as tokens and spelled letter by letter, halves of them, calls, odd characters, in random order and
random chunks.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from strands_sglang.chat.tokenization import Encoder
from strands_sglang.provider.stream_events import Block, LiveEvents, LiveText, blocks_of, calls_as_blocks
from strands_sglang.tool_parsers import ToolParser
from support.families import tokenizer
from support.tool_parsers.written import WITH_TOOLS, bridge_of, parser_of

_WORDS = ("Hello ", "\n", "\n\n", " ", "x", "é", "🙂", "{", "}", "[", "echo", "<", "|", "日本", "\U00100000")
_CALL = '{"name": "echo", "arguments": {"text": "a"}}'


def streaming(quick: bool, seed: int) -> dict[str, int]:
    """Compare all families that call tools.

    Args:
        quick: Whether to try a small share.
        seed: Decides what is drawn.

    Returns:
        `messages`: how many were compared; `differences`: how many differed.
    """
    total = Counter(messages=0, differences=0)
    for family in WITH_TOOLS:
        total.update(differences(family, 25 if quick else 400, seed))
    return dict(total)


def differences(family: str, count: int, seed: int) -> dict[str, int]:
    """Compare messages of one family; see `streaming`."""
    encoder, parser = bridge_of(family).encoder, parser_of(family)
    rng = random.Random(f"{seed} {family}")
    words = [*parser.reasoning_markers, *parser.markers, *_WORDS, _CALL]
    total = Counter(messages=count, differences=0)
    for _ in range(count):
        ids = _turn(family, words, rng)
        reasoning_open = rng.random() < 0.3
        whole = _whole(encoder, parser, ids, reasoning_open)
        live = LiveEvents(LiveText(encoder, parser, reasoning_open=reasoning_open))
        at = 0
        while at < len(ids):
            size = rng.randint(1, 4)
            live.feed(ids[at : at + size])
            at += size
        total["differences"] += live.reconcile(whole) != whole
    return dict(total)


def _turn(family: str, words: Sequence[str], rng: random.Random) -> list[int]:
    """Return the tokens of a turn: each word as the tokenizer writes it, or letter by letter."""
    tok = tokenizer(family)
    ids: list[int] = []
    for _ in range(rng.randint(0, 9)):
        word = rng.choice(words)
        for part in word if rng.random() < 0.35 else (word,):
            ids += tok.encode(part, add_special_tokens=False)
    if rng.random() < 0.8:
        ids.append(tok.eos_token_id)
    return ids


def _whole(encoder: Encoder, parser: ToolParser, ids: list[int], reasoning_open: bool) -> list[Block]:
    """Return the blocks of a turn that is not shown before it is whole."""
    control = encoder.control
    last = control.texts.get(ids[-1]) if ids and ids[-1] in control.special else None
    ended = last is not None and last not in parser.markers
    text = encoder.sampled(ids[:-1] if ended else ids)
    parsed = parser.parse(text, reasoning_open=reasoning_open)
    calls = calls_as_blocks(parsed)
    call_ids = [str(number) for number in range(len(calls))]
    return blocks_of(parsed, calls, call_ids, truncated=False, raw=text[parsed.rest_start :])
