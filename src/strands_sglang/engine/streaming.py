"""Streaming calls: tokens as they are sampled, and the complete `Generation` at the end.

By default the engine repeats the whole output so far in each server-sent event; with `--incremental-streaming-output`
it sends only what is new. `Accumulator` returns the whole output so far in both cases. Kept sets are not decoded before
the stream has ended.

Invariant: the tokens of all chunks, concatenated, are the tokens of the `Generation` in the last one. Tokens that were
delivered are never withdrawn: a broken stream is continued after them, or ends in `StreamInterruptedError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import aiohttp
import orjson

from strands_sglang.engine.call import Call
from strands_sglang.engine.cancellation import CancelScope
from strands_sglang.engine.connections import (
    MAX_ANSWER_BYTES,
    check_encoding,
    closed_error,
    not_json,
    read,
    translate,
)
from strands_sglang.engine.continuation import is_interrupted, no_progress
from strands_sglang.engine.kept_sets import SetsText, check_missing, cut_sets, loads_with_sets, with_sets
from strands_sglang.engine.protocol import Generation, GenerationChunk
from strands_sglang.engine.response import TransientFault, from_message, loads
from strands_sglang.errors import (
    AttemptTimeoutError,
    ConnectionLostError,
    CountMismatchError,
    EngineError,
    MalformedResponseError,
    StreamInterruptedError,
)
from strands_sglang.tokens.arrays import VersionSpan, joined_spans

MAX_EVENT_BYTES = 2**28
"""Bytes of one event, more than any turn with all its metadata."""
_DATA = b"data:"
_DONE = b"[DONE]"
_ENDS = (b"\n\n", b"\n\r\n")


class StreamingCall(Call):
    """A call whose tokens are yielded as they are sampled."""

    _output: Accumulator

    async def chunks(self, scope: Callable[[], CancelScope]) -> AsyncGenerator[GenerationChunk, None]:
        """Yield new tokens; the last chunk carries the complete turn.

        `scope` creates the scope of one wait. The caller's code runs between these waits and must not be cancelled.
        """
        while True:
            snapshots = self._snapshots(scope)
            part: Generation | None = None
            ended = False
            seen = 0
            fault: TransientFault | None = None
            try:
                async for part, ended in snapshots:
                    if not ended and len(part) > seen:
                        if self._retries is not None:
                            self._retries.progressed()
                        yield GenerationChunk(part.token_ids[seen:], part.logprobs[seen:])
                        seen = len(part)
            except TransientFault as error:
                fault = error
            finally:
                await snapshots.aclose()
            outcome: Generation | TransientFault | None = fault or no_progress(None)
            if part is not None:
                if self._request.kept_sets:
                    with scope():
                        part = await with_sets(part, self._output.sets)
                if len(part) > seen and is_interrupted(part, self._on_abort):
                    yield GenerationChunk(part.token_ids[seen:], part.logprobs[seen:])
                    seen = len(part)
                outcome = self._advance(part, None, fault, ended=ended)
                if isinstance(outcome, Generation):
                    yield GenerationChunk(part.token_ids[seen:], part.logprobs[seen:], outcome)
                    return
            if isinstance(outcome, TransientFault):
                with scope():
                    await self.retries.after(outcome)

    def _before_restart(self, part: Generation, fault: TransientFault | None) -> None:
        if self._request.kept_sets and part.kept is None:
            raise StreamInterruptedError(
                f"the engine interrupted a streamed turn ({part.finish_detail}) and returned its tokens without their "
                "kept sets, so that the turn could not be trained"
            )
        raise StreamInterruptedError(
            f"the stream broke in the middle of a turn ({fault or part.finish_detail}) and cannot be continued "
            "exactly: its sampling parameters keep state in the request (stop strings, grammar, penalties) or leave "
            "max_new_tokens open"
        )

    async def _snapshots(self, scope: Callable[[], CancelScope]) -> AsyncGenerator[tuple[Generation, bool], None]:
        """Yield the output so far of one attempt, and whether the engine ended it; if it never does, raise a fault."""
        pool = self._pool
        with scope():
            await self._choose_worker()
        url = self._url
        rid, body = self._next()
        ended = False
        http: aiohttp.ClientResponse | None = None
        if not pool.slots.take():
            with scope():
                await pool.slots.wait()
        pool.in_flight.add(rid)
        expires_at = self._expiry()
        try:
            with scope(), self._within(expires_at):
                if pool.closing:
                    raise closed_error(url)
                limits = self._limits() or pool.session.timeout
                http = await pool.session_for(url).post(
                    url, data=body, headers=self._headers, allow_redirects=False, timeout=limits
                )
                if http.status != 200:
                    content = await read(http, MAX_ANSWER_BYTES)
                    fault = pool.status_error(http.status, content, url, http.headers)
                    ended = not (isinstance(fault, TransientFault) and fault.in_flight)
                    if not isinstance(fault, TransientFault):
                        pool.server_history.record_answer(served=False)
                    raise fault
                check_encoding(http)
                pool.server_history.record_answer()
            output = self._output = Accumulator(kept_sets=self._request.kept_sets)
            events = payloads(http.content)
            versions: tuple[VersionSpan, ...] = ()
            while not ended:
                with scope(), self._within(expires_at):
                    arrived = await anext(events, None)
                if arrived is None:
                    raise TransientFault(ConnectionLostError(f"the stream of {url} ended early"), in_flight=True)
                answer = output.take(arrived)
                if isinstance(answer, dict) and isinstance(error := answer.get("error"), dict):
                    ended = True
                    status = code if isinstance(code := error.get("code"), int) else None
                    raise pool.redactor.error(from_message(status, str(error.get("message")), str(url)))
                has_versions, ended = _has(answer, "weight_versions"), _has(answer, "finish_reason")
                part = self._parsed(answer, rid, partial=True, ended=ended)
                if self._request.kept_sets and not ended and not output.sets:
                    check_missing(part)
                if len(part) < (versions[-1].end if versions else 0):
                    raise CountMismatchError(f"the stream of {url} withdrew tokens it had sent")
                if not has_versions:
                    part = _with_earlier_versions(part, versions)
                versions = part.versions
                yield part, ended
        except AttemptTimeoutError as error:
            raise TransientFault(error, in_flight=True) from error
        except EngineError:
            raise  # includes a passed deadline, which is an OSError but not a lost connection
        except orjson.JSONDecodeError as error:
            raise TransientFault(not_json(url, error), in_flight=True) from error
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise translate(error, url, pool) from error
        finally:
            if http is not None:
                http.close()
            pool.slots.release()
            pool.in_flight.discard(rid)
            if not ended:
                pool.abort(rid)


def _has(answer: Any, key: str) -> bool:
    try:
        return bool(answer["meta_info"].get(key))
    except (KeyError, TypeError, AttributeError):
        return False  # malformed; parsing it raises the error


def _with_earlier_versions(part: Generation, earlier: tuple[VersionSpan, ...]) -> Generation:
    """Keep the weight versions of tokens that earlier events contained.

    Before its last event the engine reports only the current version, which may differ from that of older tokens.
    """
    if not earlier or part.versions[0].version == earlier[-1].version == earlier[0].version:
        return part
    (span,) = part.versions
    newer = (VersionSpan(span.version, 0, span.end - earlier[-1].end),) if span.end > earlier[-1].end else ()
    return replace(part, versions=joined_spans(earlier, newer))


async def payloads(content: aiohttp.StreamReader) -> AsyncIterator[list[bytes]]:
    """Yield the payloads of the events that have arrived; end at `[DONE]` or with the connection."""
    buffer, searched = bytearray(), 0  # the next event so far, and how much of it was searched for its end
    async for chunk in content.iter_any():
        buffer += chunk
        end = max((at + len(mark) for mark in _ENDS if (at := buffer.rfind(mark, searched)) >= 0), default=0)
        if not end:
            searched = max(0, len(buffer) - 2)
            if len(buffer) > MAX_EVENT_BYTES:
                raise MalformedResponseError(f"an event of a stream must have at most {MAX_EVENT_BYTES} bytes")
            continue
        whole = bytes(buffer[:end]).replace(b"\r\n", b"\n")
        del buffer[:end]
        searched = 0
        events = whole.split(b"\n\n")
        arrived = [event.removeprefix(_DATA).strip() for event in events if event.startswith(_DATA)]
        done = _DONE in arrived
        if done:
            arrived = arrived[: arrived.index(_DONE)]
        if arrived:
            yield arrived
        if done:
            return


class Accumulator:
    """Converts events into the whole output so far; kept sets are collected in `sets` and not decoded."""

    def __init__(self, *, kept_sets: bool = False) -> None:
        self._ids: list[Any] = []
        self._entries: list[Any] = []
        self._kept_sets = kept_sets
        self.sets: list[SetsText] = []

    def take(self, arrived: list[bytes]) -> Any:
        """Take the events that have arrived; return the newest answer, with the whole output in it."""
        newest, sets = self._loads(arrived[-1])
        if _is_increment(newest):
            for event in arrived[:-1]:
                self._add(*self._loads(event))
        elif self._kept_sets and sets is None and len(arrived) > 1:
            # The answer to a request aborted in the queue has no sets. The event before it has them.
            before = cut_sets(arrived[-2])[1]
            self.sets = self.sets if before is None else [before]
        self._add(newest, sets)  # an event with the whole output replaces those before it
        return newest

    def _loads(self, event: bytes) -> tuple[Any, SetsText | None]:
        return loads_with_sets(event) if self._kept_sets else (loads(event), None)

    def _add(self, answer: Any, sets: SetsText | None) -> None:
        if not isinstance(answer, dict) or not isinstance(meta := answer.get("meta_info"), dict):
            return
        ids, entries = answer.get("output_ids"), meta.get("output_token_logprobs")
        if not isinstance(ids, list) or not isinstance(entries, list):
            return
        if _is_increment(answer) and len(entries) // _width(entries) == meta["completion_tokens"]:
            # The answer to a request aborted in the queue has all logprobs but only the last id.
            answer["output_ids"] = None
            return
        if sets is not None and not _is_increment(answer):
            self.sets.clear()
        if sets is not None:
            self.sets.append(sets)
        if _is_increment(answer):
            answer["output_ids"] = ids = self._ids + ids
            meta["output_token_logprobs"] = entries = self._entries + entries
        self._ids, self._entries = ids, entries


def _width(entries: list[Any]) -> int:
    """Items per token: 1 as the engine sends them, 3 in a flat list."""
    return 1 if entries and isinstance(entries[0], list) else 3


def _is_increment(answer: Any) -> bool:
    try:
        return bool(len(answer["output_ids"]) < answer["meta_info"]["completion_tokens"])
    except (KeyError, TypeError):
        return False
