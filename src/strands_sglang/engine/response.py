"""From the bytes of a `/generate` answer to flat arrays.

The engine sends `output_token_logprobs` as one small list per token. Decoding that as it stands makes thousands of
tracked objects per turn and the garbage collector pays for each; so the inner brackets are taken out of the bytes
first and one flat list is decoded. Where the bytes do not look as expected the plain way is taken: the shape of
the answer decides only the speed, never the result.

Invariant: a `Leg` has as many logprobs as ids, the ids beside the logprobs are the ids of the output, and the
version spans cover them; anything else raises `CountMismatchError`.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from strands_sglang.engine.generation import FinishReason, SpecInfo, VersionSpan
from strands_sglang.errors import CountMismatchError, MalformedResponseError

_KEY = b'"output_token_logprobs":[['
_END = b"null]]"
# Keys of meta_info that become fields, or repeat what fields say.
_TAKEN = (
    "id",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "weight_version",
    "weight_versions",
    "input_token_logprobs",
    "output_token_logprobs",
    "output_token_logprobs_length",
    "routed_experts",
)


@dataclass(slots=True)
class Leg:
    """What one request sampled: a whole turn, or the part of it up to an interruption."""

    token_ids: array[int]
    """Sampled ids."""
    logprobs: array[float]
    """Logprob of each sampled id."""
    finish_reason: FinishReason | None
    """Why it ended; None only in the middle of a stream."""
    finish_detail: int | str | list[int] | None
    """As `Generation.finish_detail`."""
    abort_status: int | None
    """HTTP status inside an abort that is really a refusal or a server fault; else None."""
    spans: tuple[VersionSpan, ...]
    """Weight versions over `token_ids`, counted from the first of them."""
    spans_told: bool
    """Whether the engine told the spans; if not, they are one span of the version it named."""
    cached_tokens: int | None
    """Prompt tokens from the prefix cache; None when not told."""
    routed_experts: str | None
    """Base64 of int32 as it came; None when absent."""
    spec: SpecInfo | None
    """Speculative decoding counts; None when absent."""
    meta: dict[str, Any]
    """The rest of meta_info."""


def loads(body: bytes) -> Any:
    """Decode an answer, with the logprobs of the output laid flat.

    Raises:
        orjson.JSONDecodeError: The body is not JSON: cut off, garbled, or not from the engine.
    """
    at = body.find(_KEY)
    if at < 0:
        return orjson.loads(body)
    first = at + len(_KEY) - 2
    # Sought from the end, which is near. A quote in between shows that this is not the list's own end, or that texts
    # stand in it.
    last = body.rfind(_END) + len(_END)
    if last <= first or body.find(b'"', first, last) >= 0:
        return orjson.loads(body)
    flat = body[first:last].translate(None, b"[]")
    return orjson.loads(b"".join((body[:first], b"[", flat, b"]", body[last:])))


def parse(answer: Any, sent_tokens: int) -> Leg:
    """Check an answer and lay it flat.

    Args:
        answer: What `loads` gave.
        sent_tokens: Length of the prompt that was sent; an engine that counted another number cut the prompt.

    Raises:
        MalformedResponseError: A part that is needed is missing or of the wrong type.
        CountMismatchError: Counts do not agree.
    """
    if not isinstance(answer, dict) or not isinstance(meta := answer.get("meta_info"), dict):
        raise MalformedResponseError(f"the answer has no meta_info: {_short(answer)}")
    reason, detail, status = _finish(meta.get("finish_reason"))
    if status is None:
        ids, logprobs = _tokens(answer, meta)
    else:
        ids, logprobs = [], []
    count = len(ids)
    if (told := meta.get("prompt_tokens")) is not None and told != sent_tokens:
        raise CountMismatchError(
            f"the engine counted {told} prompt tokens but {sent_tokens} were sent: it cut or changed the prompt "
            "(is it running with --allow-auto-truncate?)"
        )
    try:
        token_ids = array("i", struct.pack(f"{count}i", *ids))
        logprob_array = array("d", struct.pack(f"{count}d", *logprobs))
    except struct.error as error:
        raise MalformedResponseError(f"a sampled id or logprob is not a number: {error}") from error
    leg = Leg(
        token_ids=token_ids,
        logprobs=logprob_array,
        finish_reason=reason,
        finish_detail=detail,
        abort_status=status,
        spans=_spans(meta, count),
        spans_told=bool(meta.get("weight_versions")),
        cached_tokens=_count(meta.get("cached_tokens")),
        routed_experts=_text(meta.get("routed_experts")),
        spec=_spec(meta),
        meta=meta,
    )
    for key in _TAKEN:
        meta.pop(key, None)
    return leg


def _finish(raw: Any) -> tuple[FinishReason | None, int | str | list[int] | None, int | None]:
    if raw is None:
        return None, None, None
    kind = raw.get("type") if isinstance(raw, dict) else raw
    if kind == "stop":
        return FinishReason.STOP, raw.get("matched") if isinstance(raw, dict) else None, None
    if kind == "length":
        return FinishReason.LENGTH, raw.get("length") if isinstance(raw, dict) else None, None
    if kind == "abort":
        if not isinstance(raw, dict):
            return FinishReason.ABORT, None, None
        return FinishReason.ABORT, _text(raw.get("message")), _count(raw.get("status_code"))
    return FinishReason.UNKNOWN, str(kind), None


def _tokens(answer: dict[str, Any], meta: dict[str, Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    entries = meta.get("output_token_logprobs")
    ids = answer.get("output_ids")
    if entries is None or not isinstance(entries, list):
        if ids == [] or (ids is None and meta.get("completion_tokens") == 0):
            return [], []  # ended before the first token: there is nothing to have a logprob
        raise CountMismatchError("the engine returned no logprobs for its output")
    if entries and isinstance(entries[0], list):
        if any(len(entry) < 2 for entry in entries):
            raise MalformedResponseError("an entry of output_token_logprobs lacks its logprob or its id")
        logprobs, beside = [entry[0] for entry in entries], [entry[1] for entry in entries]
    else:
        if len(entries) % 3:
            raise CountMismatchError(f"{len(entries)} values of output_token_logprobs are not triples")
        logprobs, beside = entries[0::3], entries[1::3]
    if ids is None:
        ids = beside
    elif ids != beside:
        if not isinstance(ids, list) or len(ids) != len(beside):
            shown = len(ids) if isinstance(ids, list) else repr(ids)
            raise CountMismatchError(f"{shown} output ids but {len(beside)} logprobs")
        at = next(i for i, (a, b) in enumerate(zip(ids, beside, strict=True)) if a != b)
        raise CountMismatchError(f"output id {ids[at]} at {at} has the logprob of id {beside[at]}")
    told = meta.get("completion_tokens")
    if told is not None and told != len(ids):
        raise CountMismatchError(f"the engine counted {told} completion tokens but returned {len(ids)}")
    return ids, logprobs


def _spans(meta: dict[str, Any], count: int) -> tuple[VersionSpan, ...]:
    if not count:
        return ()
    raw = meta.get("weight_versions")
    if not raw:
        return (VersionSpan(_text(meta.get("weight_version")), 0, count),)
    spans = []
    at = 0
    try:
        for entry in raw:
            start, end = entry["start"], entry["end"]
            if start != at or end < start:
                raise CountMismatchError(f"weight_versions {raw} have a gap or overlap at token {at}")
            if end > start:
                spans.append(VersionSpan(_text(entry["version"]), start, end))
            at = end
    except (TypeError, KeyError) as error:
        raise MalformedResponseError(f"weight_versions are not spans: {_short(raw)}") from error
    if at != count:
        raise CountMismatchError(f"weight_versions cover {at} of {count} sampled tokens")
    return tuple(spans)


def _spec(meta: dict[str, Any]) -> SpecInfo | None:
    verify = _count(meta.get("spec_verify_ct"))
    if not verify:
        return None
    accepted = _count(meta.get("spec_accept_token_num")) or 0
    drafted = _count(meta.get("spec_draft_token_num")) or 0
    return SpecInfo(accepted_tokens=accepted, drafted_tokens=drafted, verify_count=verify)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."
