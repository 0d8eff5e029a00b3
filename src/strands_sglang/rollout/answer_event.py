"""What the engine answered, as an event of the ledger, and back.

Invariant: an answer that is made from its event is the one that was written; an error that is, has the same class,
words and fields.
"""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from strands_sglang import errors
from strands_sglang.engine import FinishReason, Generation
from strands_sglang.engine.generation import SpecInfo
from strands_sglang.engine.routed_experts import RoutedExperts
from strands_sglang.errors import EngineError, StrandsSGLangError
from strands_sglang.ledger.event import Event
from strands_sglang.tokens import Turn, VersionSpan

_PLACE = ("turn", "parent", "start", "purpose", "join", "forked_from", "caller", "prompt")


class Sent(NamedTuple):
    """An answer that is on its way to become a turn."""

    generation: Generation
    """The answer, known by its identity."""
    prompt: str
    """Digest of the prompt as it was sent."""
    sent: int
    """Tokens of that prompt."""
    event: Event | None
    """Where it is on record; None: it is new."""
    within: tuple[str, ...]
    """Ids of the tool calls it was asked inside of, outermost first."""
    earlier: int = 0
    """Tokens of it that were sampled before the episode was last set aside."""


def call_event(
    turn: Turn, generation: Generation, prompt: str, sent: int, within: Sequence[str]
) -> tuple[dict[str, Any], dict[str, array[Any]]]:
    """Return data and arrays of the event of a turn.

    Args:
        turn: As it was committed.
        generation: What the engine answered.
        prompt: Digest of the prompt that was sent.
        sent: Its tokens.
        within: Ids of the tool calls that the turn was made inside of, outermost first.
    """
    data: dict[str, Any] = {
        "turn": turn.id,
        "parent": turn.parent,
        "start": turn.start,
        "finish": turn.finish,
        "purpose": turn.purpose.value,
        "join": turn.join.value,
        "forked_from": turn.forked_from,
        "caller": None if turn.caller is None else list(turn.caller),
        "versions": [list(span) for span in turn.versions],
        "detail": turn.detail,
        "prompt": prompt,
        "sent": sent,
        "within": list(within),
        "finish_detail": generation.finish_detail,
        "requests": generation.requests,
    }
    arrays: dict[str, array[Any]] = {"closing": turn.closing, "context": turn.context}
    return _with_tokens(generation, data, arrays)


def part_event(
    part: Generation, prompt: str, sent: int, within: Sequence[str]
) -> tuple[dict[str, Any], dict[str, array[Any]]]:
    """Return data and arrays of the event of a turn that was cut; see `call_event`."""
    detail: dict[str, Any] = {
        "cached_tokens": part.cached_tokens,
        "rid": part.rid,
        "continuations": part.continuations,
        "discarded_tokens": part.discarded_tokens,
        "spec": None if part.spec is None else asdict(part.spec),
    }
    data: dict[str, Any] = {
        "finish": part.finish_reason.value,
        "finish_detail": part.finish_detail,
        "versions": [list(span) for span in part.versions],
        "detail": detail,
        "prompt": prompt,
        "sent": sent,
        "within": list(within),
        "requests": part.requests,
    }
    return _with_tokens(part, data, {})


def _with_tokens(
    generation: Generation, data: dict[str, Any], arrays: dict[str, array[Any]]
) -> tuple[dict[str, Any], dict[str, array[Any]]]:
    arrays |= {"sampled": generation.token_ids, "logprobs": generation.logprobs}
    experts = generation.routed_experts
    if experts is not None:
        data["experts"] = {"rows": list(experts.rows), "start": experts.start}
        arrays["experts"] = array("B", experts.decode().astype("<i4").tobytes())
    return data, arrays


def same_place(event: Event, data: dict[str, Any], arrays: dict[str, array[Any]]) -> bool:
    """Return whether a turn stands at the place of its conversation that an event gives it."""
    return all(event.data[name] == data[name] for name in _PLACE) and all(
        event.arrays[name] == arrays[name] for name in ("closing", "context")
    )


def generation_of(event: Event) -> Generation:
    """Return the answer of the engine, or the part of one, as it was when it came."""
    data, arrays = event.data, event.arrays
    detail = data["detail"]
    return Generation(
        token_ids=array("i", arrays["sampled"]),
        logprobs=array("d", arrays["logprobs"]),
        finish_reason=FinishReason(data["finish"]),
        finish_detail=data.get("finish_detail"),
        versions=tuple(VersionSpan(*span) for span in data["versions"]),
        prompt_tokens=data["sent"],
        cached_tokens=detail.get("cached_tokens"),
        rid=detail.get("rid", ""),
        requests=data.get("requests", 1),
        continuations=detail.get("continuations", 0),
        discarded_tokens=detail.get("discarded_tokens", 0),
        routed_experts=_experts(event),
        spec=SpecInfo(**detail["spec"]) if detail.get("spec") else None,
    )


def fault_event(error: StrandsSGLangError, prompt: str, sent: int, within: Sequence[str]) -> dict[str, Any]:
    """Return the data of the event of an engine call that failed; see `call_event`."""
    fields = {
        name: value for name, value in vars(error).items() if value is None or isinstance(value, (str, int, float))
    }
    about = {"error": type(error).__name__, "message": str(error), "fields": fields}
    return {**about, "prompt": prompt, "sent": sent, "within": list(within)}


def error_of(event: Event) -> StrandsSGLangError:
    """Return the error an engine call ended with."""
    kind = getattr(errors, event.data["error"], EngineError)
    error: StrandsSGLangError = kind(event.data["message"])
    for name, value in event.data["fields"].items():
        setattr(error, name, value)
    return error


def _experts(event: Event) -> RoutedExperts | None:
    about = event.data.get("experts")
    if about is None:
        return None
    raw, rows = event.arrays["experts"].tobytes(), about["rows"]
    row = len(raw) // sum(rows) if sum(rows) else 0
    parts, at = [], 0
    for count in rows:
        parts.append(b64encode(raw[at : at + count * row]).decode())
        at += count * row
    return RoutedExperts(tuple(parts), tuple(rows), about["start"])
