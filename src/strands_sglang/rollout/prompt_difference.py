"""Where the prompt of a replayed agent leaves the one on record: `PromptDifference`.

Invariant: the token it names is the first that differs; what it says of the cause is a guess from the conversation
on record and the agent as it stands, and says so where there is nothing to guess from. Nothing here raises.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from strands_sglang.chat.canonical import canonical
from strands_sglang.ledger.event import Event, EventKind
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.provider.conversations import read_conversations

logger = logging.getLogger(__name__)

_BEFORE, _AFTER = 12, 24  # tokens that are shown before the first that differs, and from it on


@dataclass(frozen=True, slots=True)
class PromptDifference:
    """Two prompts that should be one."""

    event: int
    """Number of the event on record that has the prompt."""
    token: int
    """The first token that differs, counted from 0."""
    before: str
    """What stands before it, in both."""
    recorded: str
    """What stands there on record; "" where that prompt is over."""
    now: str
    """What stands there now; "" where this prompt is over."""
    cause: str
    """What was changed, as far as can be told."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def prompt_difference(
    record: EpisodeRecord,
    pending: Sequence[Event],
    asked: array[int],
    decode: Callable[[Any], str],
    agent: Any,
) -> PromptDifference | None:
    """Return how a prompt differs from the one on record that is most like it; None: nothing is on record.

    Args:
        record: The episode's.
        pending: Events that nobody asked for yet.
        asked: The prompt now.
        decode: Makes text of ids.
        agent: Who asked, as far as that is known.
    """
    try:
        calls = {call.data["turn"]: call for call in record.calls}
        best: tuple[int, Event, array[int]] | None = None
        for event in [one for one in pending if one.kind is EventKind.CALL][:32]:
            prompt = _prompt(event, calls)
            common = _common(prompt, asked)
            if best is None or common > best[0]:
                best = common, event, prompt
        if best is None:
            return None
        at, event, prompt = best
        return PromptDifference(
            event=event.number,
            token=at,
            before=decode(asked[max(0, at - _BEFORE) : at]),
            recorded=decode(prompt[at : at + _AFTER]),
            now=decode(asked[at : at + _AFTER]),
            cause=_cause(record, event, calls, agent, at),
        )
    except Exception:
        logger.warning("episode=<%s> | how its prompt differs could not be told", record.id, exc_info=True)
        return None


def _prompt(event: Event, calls: Mapping[int, Event]) -> array[int]:
    """Return the prompt of a call: the branch of its parent, its closing and its context."""
    parts = [event.arrays["closing"] + event.arrays["context"]]
    parent = event.data["parent"]
    while parent is not None:
        call = calls[parent]
        parts.append(call.arrays["closing"] + call.arrays["context"] + call.arrays["sampled"])
        parent = call.data["parent"]
    whole = array("i")
    for part in reversed(parts):
        whole.extend(part)
    return whole


def _common(left: array[int], right: array[int]) -> int:
    count = min(len(left), len(right))
    differs = np.flatnonzero(np.asarray(left[:count]) != np.asarray(right[:count]))
    return int(differs[0]) if len(differs) else count


def _cause(record: EpisodeRecord, event: Event, calls: Mapping[int, Event], agent: Any, at: int) -> str:
    """Guess what was changed."""
    turn, count = _asked(record, event, calls)
    if turn is None or not hasattr(agent, "messages"):
        first = event
        while first.data["parent"] is not None:
            first = calls[first.data["parent"]]
        if at < len(first.arrays["context"]) + len(first.arrays["closing"]):
            return "something in the first prompt: the system prompt, the tools or the question"
        return "something behind the first turn: a message or a tool's result"
    if (turn.get("system") or None) != (_system(agent) or None):
        return "the system prompt was changed"
    changed = _tools(turn.get("tools") or (), agent.tool_registry.get_all_tool_specs())
    if changed is not None:
        return changed
    was, now = turn["messages"][:count], list(agent.messages)
    for number in range(max(len(was), min(len(now), len(was) + 1))):
        if number >= len(was):
            return f"message {number} ({_what(now[number])}) was added"
        if number >= len(now):
            return f"message {number} ({_what(was[number])}) was left out"
        if canonical(was[number]) != canonical(now[number]):
            return f"message {number} ({_what(was[number])}) was edited"
    return "not the conversation: the chat template, the tokenizer or an option of the model"


def _asked(record: EpisodeRecord, event: Event, calls: Mapping[int, Event]) -> tuple[dict[str, Any] | None, int | None]:
    """Return the recorded conversation that a call was part of, and how many of its messages it was asked."""
    end = record.end
    for one in read_conversations({} if end is None else end.data):
        path: list[int] = []
        turn = one.get("leaf")
        while turn is not None and turn in calls:
            path.append(turn)
            turn = calls[turn].data["parent"]
        path.reverse()
        if event.data["turn"] in path:
            counts = one.get("counts") or []
            place = path.index(event.data["turn"])
            count = counts[place] if place < len(counts) else None
            return one, count if count is not None or place < len(path) - 1 else len(one["messages"])
    return None, None


def _system(agent: Any) -> str | None:
    prompt = getattr(agent, "system_prompt", None)
    return prompt if prompt is None or isinstance(prompt, str) else str(prompt)


def _tools(was: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> str | None:
    """Return how tools were changed; None: they were not."""
    old, new = ({one["name"]: one for one in specs} for specs in (was, now))
    added, gone = [name for name in new if name not in old], [name for name in old if name not in new]
    if added or gone:
        told = [f"{name!r} was added" for name in added] + [f"{name!r} is gone" for name in gone]
        return "the tools were changed: " + ", ".join(told[:6])
    for name in old:
        fields = {*old[name], *new[name]}
        if other := sorted(field for field in fields if old[name].get(field) != new[name].get(field)):
            return f"the tools were changed: {', '.join(other)} of {name!r}"
    return "the tools were changed: their order" if list(old) != list(new) else None


def _what(message: Mapping[str, Any]) -> str:
    """Return what kind of message one is."""
    blocks = message.get("content") or ()
    if any("toolResult" in block for block in blocks):
        return "a tool's result"
    return "the model's reply" if message.get("role") == "assistant" else "the user's"
