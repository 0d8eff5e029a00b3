"""Recognises an agent's copy of a recorded reply: `echo_of`, `restored`.

An agent over HTTP sends its history with every request, and its copies of earlier replies differ from what it was sent:
JSON is written again, defaults are added to arguments, reasoning is dropped. A copy is replaced by the recorded reply,
so the conversation continues after the tokens that were sampled.

Invariant: a copy is only an echo of a reply to the very messages before it, found by walking from the first message on,
and only if it differs in one of the ways of `Echo`. Everything else stays as the agent sent it, and becomes a fork.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeAlias

from strands_sglang.chat.conversation import Message, Preamble
from strands_sglang.chat.conversation_index import ConversationIndex, IndexedTurn

Blocks: TypeAlias = Sequence[Mapping[str, Any]]


class Echo(str, Enum):
    """How a copy of a reply differs from the reply."""

    EXACT = "exact"
    NUMBERS = "numbers"
    """A number in the arguments of a call has another type, such as 1 for 1.0."""
    ADDED_KEYS = "added_keys"
    """An object in the arguments has more keys, such as the defaults of the agent's own schema."""
    REASONING_DROPPED = "reasoning_dropped"
    TRIMMED = "trimmed"
    """The text or the reasoning has other white space at its ends than what was sent."""


_PARTS = frozenset({"text", "toolUse", "reasoningContent"})
"""What a reply consists of."""


def echo_of(reply: Blocks, copy: Blocks) -> frozenset[Echo] | None:
    """Return how a copy differs from a reply; None if it is not a copy of it."""
    if not all(block.keys() & _PARTS for block in copy):
        return None
    found: set[Echo] = set()
    calls, copied = _calls(reply), _calls(copy)
    if len(calls) != len(copied):
        return None
    for one, other in zip(calls, copied, strict=True):
        if (one["toolUseId"], one["name"]) != (other["toolUseId"], other["name"]):
            return None
        if not _contains(other["input"], one["input"], found):
            return None
    for texts_of, may_lack in ((_texts, False), (_reasoning, True)):
        own, theirs = texts_of(reply), texts_of(copy)
        if theirs in (own, own.strip()):  # answers are sent without white space at the ends
            continue
        if own.strip() == theirs.strip():
            found.add(Echo.TRIMMED)
        elif may_lack and not theirs.strip():
            found.add(Echo.REASONING_DROPPED)
        else:
            return None
    return frozenset(found or {Echo.EXACT})


def _contains(copy: Any, value: Any, found: set[Echo]) -> bool:
    """Return whether a copied value equals a recorded one, with keys added at most; add how it differs to `found`."""
    if isinstance(value, Mapping):
        if not isinstance(copy, Mapping) or not all(
            key in copy and _contains(copy[key], item, found) for key, item in value.items()
        ):
            return False
        if len(copy) > len(value):
            found.add(Echo.ADDED_KEYS)
        return True
    if isinstance(value, (list, tuple)):
        return (
            isinstance(copy, (list, tuple))
            and len(copy) == len(value)
            and all(_contains(other, one, found) for other, one in zip(copy, value, strict=True))
        )
    if type(value) is type(copy):
        return bool(value == copy)
    if {type(value), type(copy)} == {int, float} and value == copy:
        found.add(Echo.NUMBERS)
        return True
    return False


def _calls(blocks: Blocks) -> list[Mapping[str, Any]]:
    return [block["toolUse"] for block in blocks if "toolUse" in block]


def _texts(blocks: Blocks) -> str:
    return "\n".join(block["text"] for block in blocks if "text" in block)


def _reasoning(blocks: Blocks) -> str:
    return "\n".join(
        block["reasoningContent"]["reasoningText"]["text"] for block in blocks if "reasoningContent" in block
    )


def restored(
    index: ConversationIndex,
    preamble: Preamble,
    messages: Sequence[Message],
    reply_of: Callable[[int], Blocks | None],
    accepts: Callable[[frozenset[Echo]], bool],
) -> tuple[list[Message], dict[int, frozenset[Echo]]]:
    """Return messages with each echo replaced by the recorded reply, and the turns replied with, with their echoes.

    Args:
        reply_of: Returns the content blocks of a turn's reply; None if the turn is unknown.
        accepts: Returns whether an echo of this kind, which is not exact, is replaced.
    """
    echoes: dict[int, frozenset[Echo]] = {}

    def replace(turns: Sequence[IndexedTurn], copy: Message) -> tuple[IndexedTurn, Message] | None:
        best: tuple[tuple[bool, int, int], IndexedTurn, Blocks, frozenset[Echo]] | None = None
        for turn in turns:
            blocks = reply_of(turn.turn)
            echo = None if blocks is None else echo_of(blocks, copy.get("content") or ())
            if blocks is None or echo is None:
                continue
            # Equal replies to equal messages: prefer the closest copy, then one that was continued, then the latest.
            rank = (echo == {Echo.EXACT}, turn.children, turn.turn)
            if best is None or rank > best[0]:
                best = rank, turn, blocks, echo
        if best is None or not (best[0][0] or accepts(best[3])):
            return None
        _, turn, blocks, echo = best
        echoes[turn.turn] = echo
        return turn, {"role": "assistant", "content": list(blocks)}

    return index.with_replies(preamble, messages, replace), echoes
