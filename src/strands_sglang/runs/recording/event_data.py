"""Converts engine answers, engine errors and tool results to event payloads, and back.

Invariant: an answer or a tool result rebuilt from its event equals the one that was written; a rebuilt error has the
same class, message and fields. A tool result that cannot be rebuilt exactly is recorded as None, never as something
else.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import sysconfig
import traceback
from array import array
from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from typing import Any, NamedTuple, cast

import orjson
from strands.middleware import ToolResultEvent

from strands_sglang import errors
from strands_sglang._json import dump_bytes
from strands_sglang.engine import FinishReason, Generation, RoutedExperts
from strands_sglang.engine.protocol import SpecInfo
from strands_sglang.errors import EngineError, StrandsSGLangError
from strands_sglang.ledger.event import (
    CallArrays,
    CallData,
    CallDetail,
    CallErrorData,
    Event,
    PartialCallData,
    SampledArrays,
    SampledData,
    SpeculationData,
    ToolData,
    arrays_of,
    data_of,
)
from strands_sglang.ledger.files import BYTES_KEY, FILE_KEY, FileStore, Put, bytes_of, plain
from strands_sglang.tokens import KeptSets, Turn, VersionSpan


class PendingAnswer(NamedTuple):
    """An answer that is not committed as a turn yet."""

    generation: Generation
    """The answer; identified by its object identity."""
    prompt_digest: str
    prompt_tokens: int
    event: Event | None
    """The recorded event it was rebuilt from; None: it was sampled in this run."""
    within: tuple[str, ...]
    """Ids of the tool calls it was sampled inside, outermost first."""
    earlier_tokens: int = 0
    """Number of its tokens that were sampled before the episode was last paused."""
    seed: int | None = None
    """Its seed, derived from that of the run; None: the run has none."""


def call_event(turn: Turn, answer: PendingAnswer) -> tuple[CallData, CallArrays]:
    """Return data and arrays of the `CALL` event of a committed turn."""
    generation = answer.generation
    data: CallData = {
        "turn": turn.id,
        "parent": turn.parent,
        "start": turn.start,
        "finish_reason": turn.finish_reason,
        "purpose": turn.purpose.value,
        "join": turn.join.value,
        "forked_from": turn.forked_from,
        "caller": None if turn.caller is None else list(turn.caller),
        "versions": [list(span) for span in turn.versions],
        "detail": cast(CallDetail, turn.detail),
        "prompt_digest": answer.prompt_digest,
        "prompt_tokens": answer.prompt_tokens,
        "within": list(answer.within),
        "finish_detail": generation.finish_detail,
        "requests": generation.requests,
    }
    arrays: CallArrays = {
        "closing": turn.closing,
        "context": turn.context,
        "sampled": generation.token_ids,
        "logprobs": generation.logprobs,
    }
    if answer.seed is not None:
        data["seed"] = answer.seed
    if turn.images:
        data["images"] = [[*image[:3], list(image.grid)] for image in turn.images]
    _add_requested(generation, data, arrays)
    return data, arrays


def partial_call_event(
    part: Generation, prompt_digest: str, prompt_tokens: int, within: Sequence[str]
) -> tuple[PartialCallData, SampledArrays]:
    """Return data and arrays of the `PARTIAL_CALL` event of a turn that was interrupted.

    Args:
        part: The tokens that were sampled.
        prompt_digest: Digest of the prompt that was sent.
        prompt_tokens: Length of that prompt in tokens.
        within: Ids of the tool calls that the turn was made inside, outermost first.
    """
    detail: CallDetail = {
        "cached_tokens": part.cached_tokens,
        "rid": part.rid,
        "continuations": part.continuations,
        "discarded_tokens": part.discarded_tokens,
        "spec": None if part.spec is None else cast(SpeculationData, asdict(part.spec)),
    }
    if part.adapter is not None:
        detail["adapter"] = part.adapter
    data: PartialCallData = {
        "finish_reason": part.finish_reason.value,
        "finish_detail": part.finish_detail,
        "versions": [list(span) for span in part.versions],
        "detail": detail,
        "prompt_digest": prompt_digest,
        "prompt_tokens": prompt_tokens,
        "within": list(within),
        "requests": part.requests,
    }
    arrays: SampledArrays = {"sampled": part.token_ids, "logprobs": part.logprobs}
    _add_requested(part, data, arrays)
    return data, arrays


def _add_requested(generation: Generation, data: SampledData, arrays: SampledArrays) -> None:
    """Add what comes with sampled tokens if it was requested: routed experts and kept sets."""
    if (kept := generation.kept) is not None:
        arrays["kept"], arrays["kept_offsets"], arrays["kept_logprobs"] = kept.token_ids, kept.offsets, kept.logprobs
    experts = generation.routed_experts
    if experts is not None:
        data["routed_experts"] = {"rows": list(experts.rows), "start": experts.start}
        arrays["routed_experts"] = array("B", experts.decode().astype("<i4").tobytes())


def same_position(event: Event, data: CallData, arrays: CallArrays) -> bool:
    """Return whether a turn has the position in the tree and the prompt that a recorded call has."""
    return _position(data_of(event, CallData), arrays_of(event, CallArrays)) == _position(data, arrays)


def _position(call: CallData, arrays: CallArrays) -> tuple[Any, ...]:
    tree = (call["turn"], call["parent"], call["start"], call["purpose"], call["join"], call["forked_from"])
    return (*tree, call["caller"], call["prompt_digest"], arrays["closing"], arrays["context"])


def generation_of(event: Event) -> Generation:
    """Return the engine's answer, or partial answer, as it was received."""
    data, arrays = data_of(event, SampledData), arrays_of(event, SampledArrays)
    detail = data["detail"]
    spec = detail.get("spec")
    return Generation(
        token_ids=array("i", arrays["sampled"]),
        logprobs=array("d", arrays["logprobs"]),
        finish_reason=FinishReason(data["finish_reason"]),
        finish_detail=data["finish_detail"],
        versions=tuple(VersionSpan(*span) for span in data["versions"]),
        prompt_tokens=data["prompt_tokens"],
        cached_tokens=detail.get("cached_tokens"),
        rid=detail.get("rid", ""),
        requests=data["requests"],
        continuations=detail.get("continuations", 0),
        discarded_tokens=detail.get("discarded_tokens", 0),
        routed_experts=_experts(data, arrays),
        kept=KeptSets(arrays["kept"], arrays["kept_offsets"], arrays["kept_logprobs"]) if "kept" in arrays else None,
        spec=SpecInfo(**spec) if spec else None,
        adapter=detail.get("adapter"),
    )


def call_error_event(
    error: StrandsSGLangError, prompt_digest: str, prompt_tokens: int, within: Sequence[str]
) -> CallErrorData:
    """Return the data of the `CALL_ERROR` event of an engine call that failed; see `partial_call_event`."""
    fields = {
        name: value for name, value in vars(error).items() if value is None or isinstance(value, (str, int, float))
    }
    return {
        "error": type(error).__name__,
        "message": str(error),
        "fields": fields,
        "prompt_digest": prompt_digest,
        "prompt_tokens": prompt_tokens,
        "within": list(within),
    }


def error_of(event: Event) -> StrandsSGLangError:
    """Return the error that an engine call failed with."""
    data = data_of(event, CallErrorData)
    kind = getattr(errors, data["error"], EngineError)
    error: StrandsSGLangError = kind(data["message"])
    for name, value in data["fields"].items():
        setattr(error, name, value)
    return error


def _experts(data: SampledData, arrays: SampledArrays) -> RoutedExperts | None:
    info = data.get("routed_experts")
    if info is None:
        return None
    raw, rows = arrays["routed_experts"].tobytes(), info["rows"]
    row = len(raw) // sum(rows) if sum(rows) else 0
    parts, at = [], 0
    for count in rows:
        parts.append(base64.b64encode(raw[at : at + count * row]).decode())
        at += count * row
    return RoutedExperts(tuple(parts), tuple(rows), info["start"])


_LIBRARY_PATHS = (
    *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    "<frozen",
)
"""Path prefixes of code that is not the user's: the standard library and installed packages."""
_TUPLE, _NUMBER, _TEXT = "__tuple__", "__number__", "__text__"


class ToolOutcome(str, Enum):
    """How a tool call ended."""

    RESULT = "result"
    RAISED = "raised"
    """The tool raised an error; the result is the error message."""
    TIMEOUT = "timeout"
    """The tool exceeded its time limit; the result is an error message."""
    REFUSED = "refused"
    """The tool was not run because the episode had reached its limit of tool calls; the result is an error message."""


class ToolArguments(str, Enum):
    """How the arguments of tool calls are recorded."""

    RECORD = "record"
    """Completely, as plain data."""
    DIGEST = "digest"
    """Only their digest: for tools that receive secrets from hooks."""


class RecordedToolError(Exception):
    """Replaces the error that a tool raised when it was recorded; it has the message of that error."""


def arguments_digest(arguments: Any, *, size: int = 8) -> str:
    """Return a digest (of `size` bytes) of a call's arguments; equal arguments have equal digests."""
    try:
        data = dump_bytes(arguments, sort_keys=True, non_str_keys=True)
    except (TypeError, ValueError):
        data = repr(arguments).encode(errors="replace")
    return hashlib.blake2b(data, digest_size=size).hexdigest()


def rebuildable_data(value: Any, put: Put | None = None) -> Any:
    """Return arguments or a result of a tool call as plain data; None if they cannot be rebuilt exactly from it.

    Args:
        value: The arguments, or the result.
        put: Stores bytes in it as a file; None: they are part of the data.
    """
    try:
        data = _wrap(value, put)
        return data if orjson.loads(orjson.dumps(data)) == data else None
    except (TypeError, ValueError, RecursionError):
        return None


def raise_location(error: BaseException | None) -> str | None:
    """Return file, line and function where a tool raised an error, in the user's code if possible; None: unknown."""
    frames = [] if error is None else traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARY_PATHS)]
    at = next(reversed(own or frames), None)
    return None if at is None else f"{at.filename}:{at.lineno} in {at.name}"


def result_data(event: ToolResultEvent, put: Put | None = None) -> dict[str, Any] | None:
    """Return a tool result as plain data; see `rebuildable_data`."""
    data: dict[str, Any] | None = rebuildable_data(
        {k: v for k, v in event.tool_result.items() if k != "toolUseId"}, put
    )
    return data


def result_of(event: Event, call_id: str, files: FileStore | None = None) -> ToolResultEvent:
    """Return the recorded result of a tool call.

    Args:
        event: The `TOOL` event.
        call_id: Id of the call.
        files: The files of the run, such as images in the result; None: the run is not known.

    Raises:
        LedgerError: A file of the result is missing, or was changed.
    """
    data = data_of(event, ToolData)
    result = {"toolUseId": call_id, **rebuilt(data["result"], files)}
    raised = data["raised"]
    return ToolResultEvent(result, exception=None if raised is None else RecordedToolError(raised))  # type: ignore[arg-type]


def _wrap(value: Any, put: Put | None) -> Any:
    """Return a value as JSON data; values that JSON cannot represent are wrapped in a dict with one key."""
    if isinstance(value, (bytes, bytearray)):
        return plain(value, put)
    if isinstance(value, dict):
        if len(value) == 1 and next(iter(value)) in _WRAPPED:
            raise ValueError("the value has the form of a wrapped value")
        return {name: _wrap(item, put) for name, item in value.items()}
    if type(value) is tuple:
        return {_TUPLE: [_wrap(item, put) for item in value]}
    if isinstance(value, list):
        return [_wrap(item, put) for item in value]
    if type(value) is float and not math.isfinite(value):
        return {_NUMBER: repr(value)}
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        return {_NUMBER: str(value)}
    if type(value) is str and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # a lone surrogate
            return {_TEXT: base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()}
    return value


def rebuilt(value: Any, files: FileStore | None) -> Any:
    """Return what `rebuildable_data` was made of; LedgerError if one of its `files` is missing or was changed."""
    if isinstance(value, list):
        return [rebuilt(item, files) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        [(name, item)] = value.items()
        if name in (BYTES_KEY, FILE_KEY):
            return bytes_of(value, files)
        if name == _TUPLE:
            return tuple(rebuilt(one, files) for one in item)
        if name == _NUMBER:
            return float(item) if item in ("nan", "inf", "-inf") else int(item)
        if name == _TEXT:
            return base64.b64decode(item).decode("utf-8", "surrogatepass")
    return {name: rebuilt(item, files) for name, item in value.items()}


_WRAPPED = frozenset((BYTES_KEY, FILE_KEY, _TUPLE, _NUMBER, _TEXT))
"""Keys of values that JSON cannot represent."""
