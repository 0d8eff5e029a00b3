"""From the bytes of a `/generate` answer to a `Generation`.

The engine sends `output_token_logprobs` as one small list per token. Decoding that as it stands makes thousands of
tracked objects per turn and the garbage collector pays for each; so the inner brackets are taken out of the bytes
first and one flat list is decoded. Where the bytes do not look as expected the plain way is taken: the shape of
the answer decides only the speed, never the result.

Invariant: the ids beside the logprobs are the ids of the output, and every count the engine tells is the count we
see; anything else raises `CountMismatchError`.
"""

from __future__ import annotations

from array import array
from operator import index
from struct import error as StructError
from struct import pack
from typing import Any

import orjson

from strands_sglang.engine.generation import FinishReason, Generation, SpecInfo
from strands_sglang.engine.routed_experts import RoutedExperts
from strands_sglang.errors import CountMismatchError, MalformedResponseError
from strands_sglang.tokens.versions import VersionSpan

_KEY = b'"output_token_logprobs":[['
_END = b"null]]"
_LARGE_BODY_BYTES = 2**24
_MOST_VALUES = 2**24
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
# What the engine calls its reasons, and where it keeps their detail.
_KINDS = {
    "stop": (FinishReason.STOP, "matched"),
    "length": (FinishReason.LENGTH, "length"),
    "abort": (FinishReason.ABORT, "message"),
}


class RefusedInside(Exception):
    """An answer whose `abort` is really a refusal or a server fault: it carries an HTTP status."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.words = words


def loads(body: bytes) -> Any:
    """Decode an answer, with the logprobs of the output laid flat.

    Raises:
        orjson.JSONDecodeError: The body is not JSON: cut off, garbled, or not from the engine.
        MalformedResponseError: It would take far more memory than its bytes.
    """
    if len(body) > _LARGE_BODY_BYTES and body.count(b",") > _MOST_VALUES:
        raise MalformedResponseError(f"the answer has more than {_MOST_VALUES} values")  # each takes some 60 bytes here
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


def parse(
    answer: Any,
    sent_tokens: int,
    *,
    rid: str = "",
    requests: int = 1,
    experts_start: int | None = None,
    partial: bool = False,
) -> Generation:
    """Check an answer and lay it flat.

    Args:
        answer: What `loads` gave; taken apart in the process.
        sent_tokens: Length of the prompt that was sent; an engine that counted another number cut the prompt.
        rid: Id of the request.
        requests: Requests the call has taken so far.
        experts_start: First position whose routed experts were asked for; None: none were.
        partial: Whether this comes from the middle of a stream and need not be finished.

    Raises:
        RefusedInside: It is a refusal or a server fault.
        MalformedResponseError: A part that is needed is missing or of the wrong type.
        CountMismatchError: Counts do not agree.
    """
    if not isinstance(answer, dict) or not isinstance(meta := answer.get("meta_info"), dict):
        raise MalformedResponseError(f"the answer has no meta_info: {_short(answer)}")
    reason, detail = _finish(meta.get("finish_reason"), partial)
    ids, logprobs = _tokens(answer, meta)
    count = len(ids)
    told = meta.get("prompt_tokens")
    if told != sent_tokens and told is not None:
        raise CountMismatchError(
            f"the engine counted {told} prompt tokens but {sent_tokens} were sent: it cut or changed the prompt "
            "(is it running with --allow-auto-truncate?)"
        )
    try:
        token_ids = array("i", pack(f"{count}i", *ids))
        logprob_array = array("d", pack(f"{count}d", *logprobs))
    except StructError as error:
        raise MalformedResponseError(f"a sampled id or logprob is not a number: {error}") from error
    versions = _spans(meta, count)
    cached = meta.get("cached_tokens")
    spec = _spec(meta) if "spec_verify_ct" in meta else None
    experts = None if experts_start is None else _experts(meta, sent_tokens + count - 1, experts_start)
    for key in _TAKEN:
        meta.pop(key, None)
    return Generation(
        token_ids,
        logprob_array,
        reason,
        detail,
        versions,
        sent_tokens,
        cached if isinstance(cached, int) and cached >= 0 else None,
        rid,
        requests,
        0,
        0,
        experts,
        spec,
        meta,
        text if isinstance(text := answer.get("text"), str) else None,
    )


def _finish(raw: Any, partial: bool) -> tuple[FinishReason, Any]:
    told = raw if isinstance(raw, dict) else {"type": raw}
    if (kind := told.get("type")) is None:
        if not partial:
            raise MalformedResponseError("the answer has no finish_reason: it cannot be told whether the turn is whole")
        return FinishReason.UNKNOWN, None
    if not isinstance(kind, str):
        raise MalformedResponseError(f"the type of finish_reason is not a text: {_short(kind)}")
    if kind == "abort" and isinstance(status := told.get("status_code"), int):
        raise RefusedInside(status, _short(told.get("message"), 2000))
    if kind not in _KINDS:
        return FinishReason.UNKNOWN, kind
    reason, name = _KINDS[kind]
    detail = told.get(name)
    plain = detail is None or isinstance(detail, str | int | float)
    if not plain and not (isinstance(detail, list) and all(isinstance(one, int) for one in detail)):
        raise MalformedResponseError(f"the {name} of finish_reason is neither a number nor a text: {_short(detail)}")
    return reason, detail


def _tokens(answer: dict[str, Any], meta: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    entries = meta.get("output_token_logprobs")
    ids = answer.get("output_ids")
    if not isinstance(entries, list):
        if ids == [] or (ids is None and meta.get("completion_tokens") == 0):
            return [], []  # ended before the first token: there is nothing to have a logprob
        raise CountMismatchError("the engine returned no logprobs for its output")
    if entries and isinstance(entries[0], list):
        if any(not isinstance(entry, list) or len(entry) < 2 for entry in entries):
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
    if told != len(ids) and told is not None:
        raise CountMismatchError(f"the engine counted {told} completion tokens but returned {len(ids)}")
    return ids, logprobs


def _spans(meta: dict[str, Any], count: int) -> tuple[VersionSpan, ...]:
    """Return the spans as told; that they cover the tokens without gaps is for `Generation` to check."""
    if not count:
        return ()
    raw = meta.get("weight_versions")
    if not raw:
        return (VersionSpan(_text(meta.get("weight_version")), 0, count),)
    try:
        spans = [VersionSpan(_text(entry["version"]), index(entry["start"]), index(entry["end"])) for entry in raw]
        # An update before the first token of a request leaves an empty span, which says nothing.
        return tuple(spans) if len(spans) == 1 else tuple(span for span in spans if span.end > span.start)
    except (TypeError, KeyError) as error:
        raise MalformedResponseError(f"weight_versions are not spans: {_short(raw)}") from error


def _experts(meta: dict[str, Any], fed_tokens: int, start: int) -> RoutedExperts | None:
    data = meta.get("routed_experts")
    if data is None:
        return None
    rows = fed_tokens - start
    if not isinstance(data, str) or rows < 0:
        raise MalformedResponseError(f"routed experts from position {start} of {fed_tokens}: {_short(data)}")
    return RoutedExperts((data,), (rows,), start)


def _spec(meta: dict[str, Any]) -> SpecInfo | None:
    accepted, drafted, verified = (
        value if isinstance(value := meta.get(key), int) else 0
        for key in ("spec_accept_token_num", "spec_draft_token_num", "spec_verify_ct")
    )
    return SpecInfo(accepted, drafted, verified) if verified else None


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else _short(value)


def _short(value: Any, most: int = 200) -> str:
    """Return something as a text that may be shown."""
    if isinstance(value, str):
        return value[:most]
    try:
        text = repr(value)
    except RecursionError:
        text = f"a {type(value).__name__}, nested too deeply to be shown"
    return text if len(text) <= most else text[:most] + "..."
