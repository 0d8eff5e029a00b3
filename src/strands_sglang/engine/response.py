"""Decodes the body of a `/generate` answer into a `Generation`, and classifies the failure of one attempt.

Decoding `output_token_logprobs`, one small list per token, creates thousands of objects per turn that the garbage
collector has to track. So the inner brackets are removed from the bytes first. If the bytes do not look as expected,
the body is decoded directly: this affects the speed only.

Failures: a fault is transient if the same request may succeed later: no connection, a lost connection, a body that is
incomplete or garbled, status 408, 409, 425, 429 and every 5xx. Any other error answer is final and is raised with the
server's message. A context overflow is recognised by the exact sentences that SGLang writes, not by single words:
"top_k exceeds vocab size" is an ordinary refusal.

Invariant: the ids next to the logprobs equal the output ids, and every count that the engine reports equals the count
received; otherwise `CountMismatchError` is raised.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from operator import index
from struct import error as StructError
from struct import pack
from typing import Any

import orjson
from yarl import URL

from strands_sglang._json import check_values
from strands_sglang.engine.protocol import DETAIL_KEYS, FinishReason, Generation, RoutedExperts, SpecInfo
from strands_sglang.errors import (
    ContextOverflowError,
    CountMismatchError,
    EngineError,
    EngineUnavailableError,
    MalformedResponseError,
    RequestRejectedError,
)
from strands_sglang.tokens.arrays import VersionSpan

_KEY = b'"output_token_logprobs":[['
_END = b"null]]"
# Keys of meta_info that become fields of Generation, or repeat them.
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
# The engine's finish reasons, and the key of their detail.
_KINDS = {reason.value: (reason, name) for reason, name in DETAIL_KEYS.items()}


class RefusedInside(Exception):
    """The answer's `abort` carries an HTTP status: it is a refusal or a server fault."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def loads(body: bytes) -> Any:
    """Decode an answer; the logprobs of the output become one flat list."""
    try:
        check_values(body)
    except ValueError as error:
        raise MalformedResponseError(f"the answer has too many values: {error}") from error
    at = body.find(_KEY)
    if at < 0:
        return orjson.loads(body)
    first = at + len(_KEY) - 2
    # Searched from the end of the body, which is close. A quote in between means that this is not the end of the list,
    # or that the list contains strings.
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
    computed_ids: array[int] | None = None,
    counts_images: bool = True,
) -> Generation:
    """Check an answer and convert it to a `Generation`.

    Args:
        answer: What `loads` returned; it is modified.
        requests: Requests that this answer took, including failed attempts.
        experts_start: First position whose routed experts were requested; None: none were.
        partial: Whether the answer comes from the middle of a stream and may be unfinished.
        computed_ids: The ids that the engine must have computed; None: it is not asked.
        counts_images: Whether `sent_tokens` counts every position of images; if not, the engine's count is taken.
    """
    if not isinstance(answer, dict) or not isinstance(meta := answer.get("meta_info"), dict):
        raise MalformedResponseError(f"the answer must be an object with meta_info, got {_short(answer)}")
    reason, detail = _finish(meta.get("finish_reason"), partial)
    ids, logprobs = _tokens(answer, meta)
    count = len(ids)
    counted = _count(meta, "prompt_tokens")
    if not counts_images and counted is not None:
        sent_tokens = counted
    if computed_ids is not None and (count or reason is not FinishReason.ABORT):
        _check_computed(answer.get("prompt_token_ids"), computed_ids)
    if counted != sent_tokens and counted is not None:
        raise CountMismatchError(
            f"the engine counted {counted} prompt tokens but {sent_tokens} were sent: it shortened or changed the "
            "prompt (is it running with --allow-auto-truncate?)"
        )
    try:
        token_ids = array("i", pack(f"{count}i", *ids))
        logprob_array = array("d", pack(f"{count}d", *logprobs))
    except StructError as error:
        raise MalformedResponseError(f"sampled ids and logprobs must be numbers: {error}") from error
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
        cached if type(cached) is int and cached >= 0 else None,
        rid,
        requests,
        0,
        0,
        experts,
        spec,
        meta,
        None,
        text if isinstance(text := answer.get("text"), str) else None,
    )


def _finish(raw: Any, partial: bool) -> tuple[FinishReason, Any]:
    finish = raw if isinstance(raw, dict) else {"type": raw}
    if (kind := finish.get("type")) is None:
        if not partial:
            raise MalformedResponseError(
                "the answer has no finish_reason, so it is unknown whether the turn is complete"
            )
        return FinishReason.UNKNOWN, None
    if not isinstance(kind, str):
        raise MalformedResponseError(f"the type of finish_reason must be a string, got {_short(kind)}")
    if kind == "abort" and isinstance(status := finish.get("status_code"), int):
        raise RefusedInside(status, _short(finish.get("message"), 2000))
    if kind not in _KINDS:
        return FinishReason.UNKNOWN, kind
    reason, name = _KINDS[kind]
    detail = finish.get(name)
    plain = detail is None or isinstance(detail, str | int | float)
    if not plain and not (isinstance(detail, list) and all(isinstance(one, int) for one in detail)):
        raise MalformedResponseError(f"the {name} of finish_reason must be a number or a string, got {_short(detail)}")
    return reason, detail


def _tokens(answer: dict[str, Any], meta: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    entries = meta.get("output_token_logprobs")
    ids = answer.get("output_ids")
    if not isinstance(entries, list):
        if ids == [] or (ids is None and _count(meta, "completion_tokens") == 0):
            return [], []  # ended before the first token
        raise CountMismatchError("the engine returned no logprobs for its output")
    if entries and isinstance(entries[0], list):
        if any(not isinstance(entry, list) or len(entry) < 2 for entry in entries):
            raise MalformedResponseError("an entry of output_token_logprobs has no logprob or no id")
        logprobs, logprob_ids = [entry[0] for entry in entries], [entry[1] for entry in entries]
    else:
        if len(entries) % 3:
            raise CountMismatchError(f"output_token_logprobs must be triples, got {len(entries)} values")
        logprobs, logprob_ids = entries[0::3], entries[1::3]
    if ids is None:
        ids = logprob_ids
    elif ids != logprob_ids:
        if not isinstance(ids, list) or len(ids) != len(logprob_ids):
            shown = len(ids) if isinstance(ids, list) else repr(ids)
            raise CountMismatchError(f"{shown} output ids but {len(logprob_ids)} logprobs")
        at = next(i for i, (a, b) in enumerate(zip(ids, logprob_ids, strict=True)) if a != b)
        raise CountMismatchError(f"output id {at} is {ids[at]}, but its logprob is that of id {logprob_ids[at]}")
    counted = _count(meta, "completion_tokens")
    if counted != len(ids) and counted is not None:
        raise CountMismatchError(f"the engine counted {counted} completion tokens but returned {len(ids)}")
    return ids, logprobs


def _count(meta: dict[str, Any], name: str) -> int | None:
    """Return a count of the engine; None if it reports none."""
    if (count := meta.get(name)) is not None and (type(count) is not int or count < 0):
        raise MalformedResponseError(f"{name} must be a number of tokens, got {_short(count)}")
    return count


def _check_computed(reported: Any, expected: array[int]) -> None:
    """Raise CountMismatchError unless the engine computed the ids that it should have: with images, it expands them."""
    if reported is None:
        raise CountMismatchError(
            "the answer does not say which ids the engine computed (prompt_token_ids), which proves that images are "
            "where they should be: SGLang 0.5.21 and newer report them; is there a proxy in between that drops fields "
            "of the request?"
        )
    ids = expected.tolist()
    if reported == ids:
        return
    found = reported if isinstance(reported, list) else []
    at = next((at for at, (one, other) in enumerate(zip(ids, found, strict=False)) if one != other), len(found))
    raise CountMismatchError(
        f"the engine computed other ids than the prompt has, from position {at} on ({len(found)} ids instead of "
        f"{len(ids)}): it resized an image differently, or tokenised the text again. Start Qwen-VL servers with "
        "--mm-preprocess-cache-size-mb 64, and check that image_processor belongs to the served model"
    )


def _spans(meta: dict[str, Any], count: int) -> tuple[VersionSpan, ...]:
    """Return the version spans as reported; `Generation` checks that they cover the tokens without gaps."""
    if not count:
        return ()
    raw = meta.get("weight_versions")
    if not raw:
        return (VersionSpan(_text(meta.get("weight_version")), 0, count),)
    try:
        spans = [VersionSpan(_text(entry["version"]), index(entry["start"]), index(entry["end"])) for entry in raw]
        # A weight update before the first token of a request leaves an empty span.
        return tuple(spans) if len(spans) == 1 else tuple(span for span in spans if span.end > span.start)
    except (TypeError, KeyError) as error:
        raise MalformedResponseError(f"weight_versions must be a list of spans, got {_short(raw)}") from error


def _experts(meta: dict[str, Any], fed_tokens: int, start: int) -> RoutedExperts | None:
    data = meta.get("routed_experts")
    if data is None:
        return None
    rows = fed_tokens - start
    if not isinstance(data, str) or rows < 0:
        raise MalformedResponseError(
            f"routed experts from position {start} of {fed_tokens} must be a string, got {_short(data)}"
        )
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
    if isinstance(value, str):
        return value[:most]
    try:
        text = repr(value)
    except RecursionError:
        text = f"a {type(value).__name__} that is nested too deeply to print"
    return text if len(text) <= most else text[:most] + "..."


_TRANSIENT = frozenset({408, 409, 425, 429})
# Statuses of a router or proxy that stopped waiting: its engine may still be processing the request.
_GATEWAY = frozenset({408, 502, 504})
_MAX_MESSAGE_CHARS = 2000

# The groups are the number of tokens requested and the limit, if the sentence contains them.
_OVERFLOW = tuple(
    re.compile(pattern)
    for pattern in (
        r"The input \((?P<requested>\d+) tokens\) is longer than the model's context length \((?P<limit>\d+) tokens\)",
        r"exceeds the model's maximum context length of (?P<limit>\d+) tokens\."
        r" You requested a total of (?P<requested>\d+) tokens",
        r"Input length \((?P<requested>\d+) tokens\) exceeds the maximum allowed length \((?P<limit>\d+) tokens\)",
        r"Request prompt exceeds the KV memory budget: input_len=(?P<requested>\d+)",
        r"Multimodal prompt is too long after expanding multimodal tokens",
    )
)


class TransientFault(Exception):
    """One attempt failed in a way that may not last; `error` is raised if it is not retried."""

    def __init__(self, error: EngineError, *, retry_after: float | None = None, in_flight: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after = retry_after
        """Seconds; None if the server did not ask to wait."""
        self.in_flight = in_flight
        """Whether the engine may still be processing the request."""


def is_transient(status: int) -> bool:
    """Return whether a request that was answered with this HTTP status may succeed later."""
    return status in _TRANSIENT or status >= 500


def from_status(
    status: int, body: bytes, url: str, headers: Mapping[str, str] | None = None, keyless: str = ""
) -> Exception:
    """Return the exception for an HTTP error answer: a `TransientFault`, or the final error.

    `keyless`: what to do if the server wants a key, in place of the usual advice.
    """
    if 300 <= status < 400:
        return _redirected(status, url, headers)
    error = from_message(status, server_message(body), url, keyless)
    if isinstance(error, TransientFault):
        error.retry_after = _retry_after(headers)
        error.in_flight = status in _GATEWAY
    return error


def _redirected(status: int, url: str, headers: Mapping[str, str] | None) -> RequestRejectedError:
    try:
        place = URL(headers.get("Location", "") if headers else "")
        where = f" to {place.origin()}" if place.is_absolute() else ""
    except ValueError:
        where = ""
    return RequestRejectedError(
        f"{url} answered {status}, a redirect{where}; redirects are not followed, so that prompts are sent only to "
        "base_url | is base_url complete (https:// if the server requires it, path)? if the server moved, pass its new "
        "address",
        status=status,
    )


def from_message(status: int | None, message: str, url: str, keyless: str = "") -> Exception:
    """Return the exception for a status (None: unknown) and the server's own message."""
    if status is not None and is_transient(status):
        text = f"{url} answered {status}: {message or '(no text)'}"
        return TransientFault(EngineUnavailableError(text, attempts=1, status=status, body=message))
    for pattern in _OVERFLOW:
        if found := pattern.search(message):
            groups = found.groupdict()
            return ContextOverflowError(
                f"the request does not fit into the engine's context: {message}",
                status=status,
                server_message=message,
                requested_tokens=_number(groups.get("requested")),
                limit_tokens=_number(groups.get("limit")),
            )
    hint = keyless if keyless and status in _NO_ACCESS else _HINTS.get(status, "")
    code = "" if status is None else f" with {status}"
    return RequestRejectedError(
        f"{url} refused the request{code}: {message or '(no text)'}{hint}", status=status, server_message=message
    )


_NO_ACCESS = frozenset({401, 403})
_HINTS: dict[int | None, str] = {
    401: " | pass api_key= to the client",
    403: " | pass api_key= to the client, or check what this key is allowed to do",
    404: " | is base_url an SGLang server or router? it should answer GET /health",
}


def server_message(body: bytes) -> str:
    """Return the message in an error body of the engine, the router, or a proxy."""
    try:
        answer: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body[:_MAX_MESSAGE_CHARS].decode("utf-8", "replace").strip()
    for _ in range(3):
        if not isinstance(answer, dict):
            break
        answer = next((answer[key] for key in ("error", "message", "detail") if answer.get(key)), answer.get("msg", ""))
    message = answer if isinstance(answer, str) else orjson.dumps(answer).decode()
    return message[:_MAX_MESSAGE_CHARS]


def _retry_after(headers: Mapping[str, str] | None) -> float | None:
    value = headers.get("Retry-After") if headers else None
    try:
        seconds = float(value) if value else None
    except ValueError:
        return None  # a date: the policy's own backoff is used instead
    return seconds if seconds is not None and 0 <= seconds < 3600 else None


def _number(text: str | None) -> int | None:
    return int(text) if text else None
