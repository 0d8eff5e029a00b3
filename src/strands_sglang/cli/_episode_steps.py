"""A recorded episode as `show` presents it: `EpisodeView`, with its steps and branches as plain data.

Invariant: nothing in a ledger makes it raise. A field that is missing or has another type than declared is shown as
absent; `verify` is the judge of a ledger, not this module.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from strands_sglang.errors import StrandsSGLangError
from strands_sglang.ledger.event import Event, EventKind
from strands_sglang.ledger.record import EpisodeRecord

if TYPE_CHECKING:
    from strands_sglang.viewer.token_text import TokenTexts

UNFINISHED = "unfinished"
"""End reason of an episode that has not ended."""


def tool_failed(tool: Mapping[str, Any]) -> bool:
    """Return whether the data of a `TOOL` event is that of an error."""
    return tool.get("outcome") != "result" or _mapping(tool.get("result")).get("status") == "error"


@dataclass(slots=True)
class TokenText:
    """Sampled tokens with their text."""

    ids: list[int]
    """The ids."""
    logprobs: list[float]
    """Logprob of each."""
    texts: list[str] | None
    """Text of each; "" for a token that ends inside a character; None: no tokenizer."""


@dataclass(slots=True)
class EpisodeView:
    """One episode with everything that `show` prints of it."""

    id: str
    """Id of the episode."""
    task_id: str
    """Id of its task; "" if it is lost."""
    sample: int | None
    """Number among the samples of the task; None if it is lost."""
    end_reason: str
    """Why it ended, or `UNFINISHED`."""
    prompt: str
    """The task's prompt as text."""
    text: str
    """The agent's final text."""
    answer: Any
    """Reference answer of the task; None: it has none."""
    reward: dict[str, Any] | None
    """Value, parts, steps and error of the score that counts; None: not scored."""
    failure: dict[str, Any] | None
    """Kind, message and traceback of the error that ended it; None: no error."""
    metrics: dict[str, Any]
    """Counts and times, as the episode's end has them."""
    epoch: int
    """How often it was resumed."""
    problems: list[str]
    """What is wrong with its events; empty: nothing."""
    steps: list[dict[str, Any]] = field(default_factory=list)
    """What happened, in order: all events but the first and the last, with `kind`, the kind of the event."""
    branches: list[dict[str, Any]] = field(default_factory=list)
    """The branches, or one entry with `error` if the turns do not form a tree."""

    @classmethod
    def of(cls, record: EpisodeRecord, texts: TokenTexts | None) -> EpisodeView:
        """Return the view of a record.

        Args:
            record: The record.
            texts: The tokenizer; None: there is none.
        """
        begin, end = _data(record.begin), _data(record.end)
        task = _mapping(begin.get("task"))
        rejected = {one for one in _list(end.get("rejected")) if type(one) is int}
        kept = {event.number for event in _calls(record)}
        view = cls(
            id=record.id,
            task_id=_text(task.get("id")),
            sample=_int(begin.get("sample")),
            end_reason=_text(end.get("end_reason")) or UNFINISHED,
            prompt=plain_text(task.get("prompt")),
            text=_text(end.get("text")),
            answer=task.get("answer"),
            reward=_data(record.reward) or None,
            failure=_mapping(end.get("failure")) or None,
            metrics=_mapping(end.get("metrics")),
            epoch=record.epoch,
            problems=[str(problem) for problem in record.problems],
        )
        for event in record.events:
            if event.kind is EventKind.CALL:
                view.steps.append(_turn(event, texts, rejected, rolled_back=event.number not in kept))
            elif event.kind is EventKind.PARTIAL_CALL:
                view.steps.append({"kind": event.kind.value, **_sampled(event, texts)})
            elif event.kind not in (EventKind.BEGIN, EventKind.END):
                view.steps.append({"kind": event.kind.value, **_data(event)})
        view.branches = _branches(record)
        return view

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "id": self.id,
            "task_id": self.task_id,
            "sample": self.sample,
            "end_reason": None if self.end_reason == UNFINISHED else self.end_reason,
            "prompt": self.prompt,
            "answer": self.answer,
            "text": self.text,
            "reward": None if self.reward is None else _float(self.reward.get("value")),
            "reward_detail": self.reward,
            "failure": self.failure,
            "metrics": self.metrics,
            "epoch": self.epoch,
            "problems": self.problems,
            "steps": [{**step, **_plain_tokens(step)} for step in self.steps],
            "branches": self.branches,
        }


def _plain_tokens(step: Mapping[str, Any]) -> dict[str, Any]:
    tokens = step.get("tokens")
    return {"tokens": asdict(tokens)} if isinstance(tokens, TokenText) else {}


def _sampled(event: Event, texts: TokenTexts | None) -> dict[str, Any]:
    data, ids = _data(event), [int(one) for one in _numbers(event, "sampled")]
    detail = _mapping(data.get("detail"))
    latency = _float(detail.get("latency_ms"))
    return {
        "agent": _text(detail.get("agent")) or None,
        "finish_reason": _text(data.get("finish_reason")),
        "finish_detail": data.get("finish_detail"),
        "prompt_tokens": _int(data.get("prompt_tokens")),
        "cached_tokens": _int(detail.get("cached_tokens")),
        "seconds": None if latency is None else latency / 1000,
        "requests": _int(data.get("requests")) or 1,
        "versions": [span for span in _list(data.get("versions")) if isinstance(span, list) and len(span) == 3],
        "within": [one for one in _list(data.get("within")) if isinstance(one, str)],
        "failed_calls": [one for one in _list(detail.get("failed_calls")) if isinstance(one, str)],
        "tokens": TokenText(ids, list(_numbers(event, "logprobs")), None if texts is None else token_texts(ids, texts)),
    }


def _turn(event: Event, texts: TokenTexts | None, rejected: set[int], *, rolled_back: bool) -> dict[str, Any]:
    data = _data(event)
    added = {name: [int(one) for one in _numbers(event, name)] for name in ("closing", "context")}
    return {
        "kind": event.kind.value,
        "turn": _int(data.get("turn")),
        "parent": _int(data.get("parent")),
        "purpose": _text(data.get("purpose")),
        "join": _text(data.get("join")),
        "forked_from": _int(data.get("forked_from")),
        "caller": data.get("caller") if isinstance(data.get("caller"), list) else None,
        "rejected": _int(data.get("turn")) in rejected,
        "rolled_back": rolled_back,
        **_sampled(event, texts),
        "closing_ids": added["closing"],
        "context_ids": added["context"],
        "context_text": None if texts is None else "".join(token_texts(added["closing"] + added["context"], texts)),
    }


def _branches(record: EpisodeRecord) -> list[dict[str, Any]]:
    try:
        tree = record.tree()
        found = []
        for trajectory in tree.trajectories():
            first = tree[trajectory.turn_ids[0]]
            forks = [tree[id].forked_from for id in trajectory.turn_ids if tree[id].forked_from is not None]
            found.append(
                {
                    "turns": list(trajectory.turn_ids),
                    "tokens": len(trajectory),
                    "trained_tokens": int(trajectory.loss_mask.sum()),
                    "agent": trajectory.agent,
                    "main": trajectory.main,
                    "caller": None if first.caller is None else list(first.caller),
                    "forked_from": forks[-1] if forks else None,
                }
            )
        return found
    except (StrandsSGLangError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        return [{"error": f"the turns do not form a tree: {error}"}]


def token_texts(ids: Sequence[int], texts: TokenTexts) -> list[str]:
    """Return the text of each token, so that the texts together are the text of all.

    A character of several tokens is the text of the last of them.

    Args:
        ids: The token ids; one that the tokenizer does not have is shown as `<id>`.
        texts: The tokenizer.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    found = []
    for at, id in enumerate(ids, 1):
        data = texts.bytes_of(id)
        found.append(decoder.decode(data, at == len(ids)) if data else f"{decoder.decode(b'', True)}<{id}>")
    return found


def plain_text(prompt: Any) -> str:
    """Return the text of a prompt: a string, or the text blocks of a list of content blocks."""
    if isinstance(prompt, str):
        return prompt
    blocks = prompt if isinstance(prompt, list) else []
    return "\n".join(_text(_mapping(block).get("text")) or f"[{', '.join(_mapping(block))}]" for block in blocks)


def _calls(record: EpisodeRecord) -> list[Event]:
    try:
        return record.calls
    except (KeyError, TypeError):  # a rollback or a call without its numbers
        return [event for event in record.events if event.kind is EventKind.CALL]


def _data(event: Event | None) -> dict[str, Any]:
    return {} if event is None else _mapping(event.data)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _numbers(event: Event, name: str) -> Sequence[Any]:
    found = event.arrays.get(name)
    return () if found is None else found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _int(value: Any) -> int | None:
    return value if type(value) is int else None


def _float(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and math.isfinite(value) else None
