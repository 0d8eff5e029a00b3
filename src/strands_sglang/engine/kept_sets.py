"""The kept sets of top-p, top-k and min-p in an answer: cut out of its bytes, and decoded once.

The sets are the largest part of an answer, and a stream repeats them in every event. So they are cut out before the
rest is decoded, and decoded once the part has ended, in a thread if they are large.

A request aborted in the engine's queue has its tokens without their sets; they must not be trained.

Invariant: sets are returned for every token of a part, or not at all. Only an aborted part may lack them.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, chain
from typing import Any, NamedTuple

import orjson

from strands_sglang._async import in_thread
from strands_sglang.engine.protocol import FinishReason, Generation
from strands_sglang.engine.response import loads
from strands_sglang.errors import KeptSetsMissingError, MalformedResponseError, TreeError
from strands_sglang.tokens.arrays import logprob_array, token_array
from strands_sglang.tokens.kept_sets import KeptSets

logger = logging.getLogger(__name__)

SETS_KEY, LOGPROBS_KEY, LENGTH_KEY = (
    "output_token_sampling_mask",
    "output_token_sampling_logprobs",
    "output_token_sampling_mask_length",
)
"""Keys of meta_info: one list of ids per token, one logprob per token, and the number of sets."""
_LARGE_BYTES = 1 << 18
_PIECE_BYTES = 1 << 16
"""Bytes that are decoded at a time, so that a thread lets the event loop run in between."""
_MOST_VALUES = 2**24


class SetsText(NamedTuple):
    """Kept sets as they were received: JSON that is not decoded."""

    sets: bytes
    logprobs: bytes


def cut_sets(body: bytes) -> tuple[bytes, SetsText | None]:
    """Return an answer (JSON) with null in place of its kept sets, and the sets.

    None: it has none, or not where the engine writes them; then `sets_in` finds them in the decoded answer.
    """
    sets = _place(body, SETS_KEY, b"[[", b"]]")
    logprobs = _place(body, LOGPROBS_KEY, b"[", b"]")
    if sets is None or logprobs is None:
        return body, None
    (first, end), (later, last) = sorted((sets, logprobs))
    if end > later:
        return body, None
    rest = b"".join((body[:first], b"null", body[end:later], b"null", body[last:]))
    return rest, SetsText(body[slice(*sets)], body[slice(*logprobs)])


def loads_with_sets(body: bytes) -> tuple[Any, SetsText | None]:
    """Decode an answer without its kept sets, as `response.loads` does; return it and the sets, None if it has none."""
    body, sets = cut_sets(body)
    answer = loads(body)
    if isinstance(answer, dict) and isinstance(meta := answer.get("meta_info"), dict):
        sets = sets_in(meta) or sets
    return answer, sets


def sets_in(meta: dict[str, Any]) -> SetsText | None:
    """Remove the kept sets from a decoded meta_info and return them; None if it has none."""
    meta.pop(LENGTH_KEY, None)
    sets, logprobs = meta.pop(SETS_KEY, None), meta.pop(LOGPROBS_KEY, None)
    if not isinstance(sets, list) or not isinstance(logprobs, list):
        return None
    return SetsText(orjson.dumps(sets), orjson.dumps(logprobs))


async def with_sets(part: Generation, received: list[SetsText]) -> Generation:
    """Return a part of a turn with its kept sets, given as they were received, in order."""
    if not received:
        return check_missing(part)
    if sum(len(text.sets) for text in received) > _LARGE_BYTES:
        kept = await in_thread(_decoded, received)
    else:
        kept = _decoded(received)
    if len(kept) < len(part) and part.finish_reason is FinishReason.ABORT:
        return check_missing(part)
    return replace(part, kept=kept)


def check_missing(part: Generation) -> Generation:
    """Return a part without kept sets; raise `KeptSetsMissingError` if it has tokens and was not aborted."""
    if not len(part):
        return replace(part, kept=KeptSets.of((), ()))
    if part.finish_reason is not FinishReason.ABORT:
        raise KeptSetsMissingError(
            "the answer has no kept sets, which exact training with top_p or top_k needs: SGLang 0.5.21 and newer "
            "return them; is there a proxy in between that drops fields of the request? kept_sets=False samples without"
        )
    logger.warning(
        "rid=<%s>, tokens=<%d>, message=<%s> | the engine aborted a request in its queue and returned the tokens "
        "without their kept sets: they cannot be trained",
        part.rid,
        len(part),
        part.finish_detail,
    )
    return part


def _place(body: bytes, key: str, begins: bytes, ends: bytes) -> tuple[int, int] | None:
    """Return where a list is in the bytes of an answer; None if it is not there, or written in another way."""
    name = f'"{key}":'.encode()
    start = body.find(name) + len(name)
    if start < len(name) or not body.startswith(begins, start):
        return None
    # A list of numbers, or a list of such lists: the first closing brackets end it.
    end = body.find(ends, start)
    return None if end < 0 else (start, end + len(ends))


def _decoded(received: list[SetsText]) -> KeptSets:
    ids, sizes, logprobs = array("i"), array("i"), array("d")
    try:
        for text in received:
            if text.sets.count(b",") > _MOST_VALUES:
                raise MalformedResponseError(f"the kept sets of an answer must have at most {_MOST_VALUES} ids")
            for piece in _pieces(text.sets):
                sets = orjson.loads(piece)
                sizes.extend(map(len, sets))
                ids += token_array(list(chain.from_iterable(sets)), "kept")
            logprobs += logprob_array(orjson.loads(text.logprobs))
    except (TreeError, TypeError, ValueError) as error:
        raise MalformedResponseError(f"kept sets must be lists of ids with logprobs: {error}") from error
    return KeptSets(ids, array("i", accumulate(sizes, initial=0)), logprobs)


def _pieces(sets: bytes) -> Iterator[bytes]:
    start, end = 1, len(sets) - 1
    while start < end:
        cut = sets.find(b"],[", start + _PIECE_BYTES, end)
        if cut < 0:
            cut = end - 1
        yield b"".join((b"[", sets[start : cut + 1], b"]"))
        start = cut + 2
