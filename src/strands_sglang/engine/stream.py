"""Streaming a call: tokens as they come, and the same whole `Generation` at the end.

Invariant: the tokens of all chunks, joined, are the tokens of the `Generation` in the last one. Tokens once handed
out are never taken back: a stream that breaks goes on behind them, or ends in `StreamInterruptedError`.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import orjson

from strands_sglang.engine import faults
from strands_sglang.engine.call import Call, no_progress, not_json
from strands_sglang.engine.faults import TransientFault
from strands_sglang.engine.generation import Generation
from strands_sglang.engine.guard import CallGuard
from strands_sglang.engine.sse import Accumulator, payloads
from strands_sglang.engine.transport import MAX_ANSWER_BYTES, check_encoding, closed, read, translate
from strands_sglang.errors import (
    AttemptTimeoutError,
    ConnectionLostError,
    CountMismatchError,
    EngineError,
    StreamInterruptedError,
)
from strands_sglang.tokens.versions import VersionSpan, joined_spans


@dataclass(frozen=True, slots=True)
class GenerationChunk:
    """Tokens that have just been sampled."""

    token_ids: array[int]
    """The new ids."""
    logprobs: array[float]
    """Their logprobs, aligned with `token_ids`."""
    generation: Generation | None = None
    """The whole turn, in the last chunk; None before."""


class StreamingCall(Call):
    """A call whose tokens are handed out as they come."""

    __slots__ = ()

    async def chunks(self, guard: Callable[[], CallGuard]) -> AsyncGenerator[GenerationChunk, None]:
        """Yield new tokens; the last chunk carries the whole turn.

        Args:
            guard: Makes the guard of one wait. The caller's code runs between our waits and is not ours to cancel.
        """
        assembly = self.assembly
        while True:
            snapshots = self._snapshots(guard)
            part: Generation | None = None
            finished = False
            seen = 0
            fault: TransientFault | None = None
            try:
                async for part, finished in snapshots:
                    if not finished and len(part) > seen:
                        self.retries.progressed()
                        yield GenerationChunk(part.token_ids[seen:], part.logprobs[seen:])
                        seen = len(part)
            except TransientFault as error:
                fault = error
            finally:
                await snapshots.aclose()
            if part is not None and finished and self._whole(part):
                whole = assembly.finish(part)
                yield GenerationChunk(part.token_ids[seen:], part.logprobs[seen:], whole)
                return
            if part is None or not len(part):
                with guard():
                    await self.retries.after(fault or no_progress(part))
                continue
            if len(part) > seen:
                yield GenerationChunk(part.token_ids[seen:], part.logprobs[seen:])
            if not self._request.continuable:
                raise StreamInterruptedError(
                    f"the stream broke in mid-turn ({fault or part.finish_detail}) and cannot go on exactly: its "
                    "sampling parameters keep state in the request (stop strings, grammar, penalties) or leave "
                    "max_new_tokens open"
                )
            assembly.keep(part)
            if assembly.spent:
                yield GenerationChunk(array("i"), array("d"), assembly.finish_spent())
                return
            if fault is not None:
                with guard():
                    await self.retries.after(fault)

    async def _snapshots(self, guard: Callable[[], CallGuard]) -> AsyncGenerator[tuple[Generation, bool], None]:
        """Yield the output so far of one attempt, and whether it is finished; the last one is, or a fault is raised."""
        pool, url = self._pool, self._url
        rid, body = self._next()
        ended = False
        response: aiohttp.ClientResponse | None = None
        if not pool.slots.take():
            with guard():
                await pool.slots.wait()
        pool.live.add(rid)
        expires_at = self._expiry()
        try:
            with guard(), self._within(expires_at):
                if pool.closing:
                    raise closed(url)
                limits = self._limits() or pool.session.timeout
                response = await pool.session.post(
                    url, data=body, headers=self._headers, allow_redirects=False, timeout=limits
                )
                if response.status != 200:
                    words = await read(response, MAX_ANSWER_BYTES)
                    fault = faults.from_status(response.status, words, str(url), response.headers)
                    ended = not (isinstance(fault, TransientFault) and fault.in_flight)
                    if not isinstance(fault, TransientFault):
                        pool.contact.heard(served=False)
                    raise fault
                check_encoding(response)
                pool.contact.heard()
            output = Accumulator()
            events = payloads(response.content)
            versions: tuple[VersionSpan, ...] = ()
            while not ended:
                with guard(), self._within(expires_at):
                    arrived = await _next(events)
                if arrived is None:
                    raise TransientFault(ConnectionLostError(f"the stream of {url} ended early"), in_flight=True)
                answer = output.take(arrived)
                if isinstance(answer, dict) and isinstance(error := answer.get("error"), dict):
                    ended = True
                    status = code if isinstance(code := error.get("code"), int) else None
                    raise faults.from_words(status, str(error.get("message")), str(url))
                told, ended = _told(answer, "weight_versions"), _told(answer, "finish_reason")
                part = self._parsed(answer, rid, partial=True)
                if len(part) < (versions[-1].end if versions else 0):
                    raise CountMismatchError(f"the stream of {url} took back tokens it had sent")
                if not told:
                    part = _with_earlier_versions(part, versions)
                versions = part.versions
                yield part, ended
        except AttemptTimeoutError as error:
            raise TransientFault(error, in_flight=True) from error
        except EngineError:
            raise  # ours already; a passed deadline is an OSError too and must not be taken for a lost connection
        except orjson.JSONDecodeError as error:
            raise TransientFault(not_json(url, error), in_flight=True) from error
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise translate(error, url, pool) from error
        finally:
            if response is not None:
                response.close()
            pool.slots.release()
            pool.live.discard(rid)
            if not ended:
                pool.abort(rid)


def _told(answer: Any, key: str) -> bool:
    try:
        return bool(answer["meta_info"].get(key))
    except (KeyError, TypeError, AttributeError):
        return False  # the answer is malformed, which is for its parser to say


def _with_earlier_versions(part: Generation, earlier: tuple[VersionSpan, ...]) -> Generation:
    """Keep the versions of tokens that came with earlier events.

    Until its last event the engine names only the version of the moment, which need not be that of older tokens.
    """
    if not earlier or part.versions[0].version == earlier[-1].version == earlier[0].version:
        return part
    (span,) = part.versions
    newer = (VersionSpan(span.version, 0, span.end - earlier[-1].end),) if span.end > earlier[-1].end else ()
    return replace(part, versions=joined_spans(earlier, newer))


async def _next(events: AsyncIterator[list[bytes]]) -> list[bytes] | None:
    try:
        return await events.__anext__()
    except StopAsyncIteration:
        return None
