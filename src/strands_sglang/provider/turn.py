"""One turn of a model, from a conversation to a recorded reply.

`prepare` finds the branch and makes the prompt; the engine samples; `record` takes the sampled turn apart, commits it
and files it. Nothing changes before `record`, and `record` changes nothing before it knows that all of it is good.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from strands_sglang.chat.lineage import Preamble
from strands_sglang.engine import FinishReason, Generation
from strands_sglang.provider.blocks import Block, blocks_of
from strands_sglang.provider.episode import Episode
from strands_sglang.provider.live import LiveEvents
from strands_sglang.provider.plan import Plan, Planner
from strands_sglang.tokens import Turn, TurnPurpose
from strands_sglang.tokens.prepared import PreparedTurn
from strands_sglang.tool_parsers import ParsedTurn, ToolParser

# Encoding this many characters takes some ten milliseconds: too long for an event loop with a thousand episodes.
_LONG_TEXT = 40_000
_STATE_KEY = "strands_sglang"


@dataclass(frozen=True, slots=True)
class Request:
    """What the model is asked."""

    messages: Sequence[Mapping[str, Any]]
    """The conversation, as the framework hands it over."""
    system: str | None
    """The system prompt; None when there is none."""
    tool_specs: Sequence[Mapping[str, Any]] | None
    """The tools on offer, as the framework describes them."""
    state: dict[str, Any] | None
    """The agent's own memory of this model; None for calls that no agent's loop made."""
    cycle: str | None = None
    """Id of the step of the agent's loop that this call is made for; None when it is not known. A second call for the
    same step means that the reply to the first was thrown away."""
    schema: str | None = None
    """JSON schema the reply must follow; None: free text."""
    side: bool = False
    """Whether this is no turn of an agent, whoever calls."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A turn that can be sampled."""

    request: Request
    """What was asked."""
    preamble: Preamble
    """What stands in front of the conversation."""
    plan: Plan
    """How it was joined."""
    prepared: PreparedTurn
    """The prompt."""
    reasoning_open: bool
    """Whether the prompt opened a reasoning block."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A turn that was sampled and recorded."""

    turn: Turn
    """The turn in the tree."""
    branch: int
    """Id of the turn that began its branch."""
    blocks: list[Block]
    """The reply, as the framework keeps it."""
    parsed: ParsedTurn
    """The reply, taken apart."""
    cut: bool
    """Whether its budget ended before the turn did."""


@lru_cache(maxsize=1)
def _threads_of(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(4, thread_name_prefix="strands-sglang-encode")


def _threads() -> ThreadPoolExecutor:
    """Return threads of our own: the loop's may all be busy with tools, and a fork has none of its parent's."""
    return _threads_of(os.getpid())


async def prepare(planner: Planner, episode: Episode, request: Request, parser: ToolParser, **policy: Any) -> Ready:
    """Find the branch of a conversation and make its next prompt."""
    preamble = planner.preamble(request.system, request.tool_specs)
    with episode.lock:
        lineage = episode.lineage
        turn, cycle = _remembered(episode, request.state)
        hint = lineage.entry(turn)
        again = cycle is not None and cycle == request.cycle
        plan = planner.plan(lineage, preamble, request.messages, hint, again=again, **policy)
        side = request.side or (request.state is None and episode.has_agent)
        episode.has_agent = episode.has_agent or request.state is not None
        caller = episode.caller(_question(request.messages), hint, side=side) if plan.parent is None else None
    if plan.piece.length > _LONG_TEXT:
        extension = await asyncio.get_running_loop().run_in_executor(_threads(), planner.bridge.encode, plan.piece)
    else:
        extension = planner.bridge.encode(plan.piece)
    prepared = episode.tree.prepare(
        episode.tree[plan.parent.turn] if plan.parent is not None else None,
        context=extension.context,
        closing=extension.closing,
        purpose=_purpose(request, side),
        join=plan.join,
        forked_from=plan.rewritten.turn if plan.rewritten is not None else None,
        caller=caller,
    )
    opened = request.schema is None and extension.tail.rstrip().endswith(parser.reasoning_markers[0])
    return Ready(request, preamble, plan, prepared, opened)


def record(
    planner: Planner,
    episode: Episode,
    ready: Ready,
    generation: Generation,
    parser: ToolParser,
    ends: Container[int],
    *,
    latency_ms: int,
    live: LiveEvents | None = None,
) -> Recorded:
    """Take a sampled turn apart, commit it to the tree and file it under its conversation.

    Args:
        planner: Knows the tokenizer.
        episode: Where it is recorded.
        ready: What was asked.
        generation: What was sampled.
        parser: Takes it apart.
        ends: Tokens that end a turn when they come last, and are none of its words. A turn may end with a control
            token that is one of its words: cut, or stopped, right behind the closing marker of a call.
        latency_ms: Milliseconds from the question to the whole turn.
        live: What was shown of it already; None when nothing is shown before the turn is whole.

    Returns:
        The turn, recorded.
    """
    encoder, request = planner.bridge.encoder, ready.request
    ids = generation.token_ids
    ended_by = ids[-1] if len(ids) and ids[-1] in encoder.control else None
    ended = ended_by is not None and ended_by in ends
    text = encoder.decode(ids[:-1] if ended else ids)
    if request.schema is not None:
        parsed = ParsedTurn(None, text, (), (), True)
    else:
        parsed = parser.parse(text, reasoning_open=ready.reasoning_open, schemas=_schemas(request.tool_specs))
    # The engine looks at the budget first: a turn whose very last token ends it counts as cut there, and is not.
    cut = generation.finish_reason is FinishReason.ABORT or (
        generation.finish_reason is FinishReason.LENGTH and not ended
    )
    call_ids = episode.mint(len(parsed.calls), request.messages)
    blocks = blocks_of(parsed, call_ids, cut=cut, raw=text if parsed.reasoning is None else _behind(text, parser))
    if live is not None:
        blocks = live.settled(blocks)
    calls = (
        ()
        if cut
        else tuple((call.name, call.id or call_id) for call, call_id in zip(parsed.calls, call_ids, strict=True))
    )
    shape = ready.plan.shape.ending(calls, bool(parsed.reasoning))
    turn = episode.tree.commit(
        ready.prepared,
        ids,
        generation.logprobs,
        generation.versions,
        finish=generation.finish_reason.value,
        prompt_tokens=generation.prompt_tokens,
        detail=_detail(generation, parsed, request, latency_ms),
    )
    with episode.lock:
        lineage = episode.lineage
        for call, call_id in zip(parsed.calls, call_ids, strict=True):
            if call.id is not None:
                lineage.call_ids[call_id] = call.id
        entry = lineage.file(
            turn.id,
            ready.plan.parent,
            ready.preamble,
            request.messages,
            {"role": "assistant", "content": blocks},
            shape,
            ended_by=ended_by,
            end=turn.end,
            aligned=ready.plan.aligned,
        )
        episode.sampled_tokens += len(ids)
    if ready.plan.discarded is not None:
        episode.tree.reject(episode.tree[ready.plan.discarded.turn])
    episode.keep_experts(turn, generation.routed_experts)
    if request.state is not None:
        request.state[_STATE_KEY] = {"tree": episode.id, "turn": turn.id, "cycle": request.cycle}
    return Recorded(turn, entry.branch, blocks, parsed, cut)


def _purpose(request: Request, side: bool) -> TurnPurpose:
    if side:
        return TurnPurpose.SIDE
    return TurnPurpose.CONSTRAINED if request.schema is not None else TurnPurpose.EPISODE


def _remembered(episode: Episode, state: Mapping[str, Any] | None) -> tuple[int | None, str | None]:
    """Return the turn an agent remembers, if it is one of this episode, and the step of its loop it was for."""
    known = (state or {}).get(_STATE_KEY)
    if not isinstance(known, Mapping) or known.get("tree") != episode.id:
        return None, None
    turn, cycle = known.get("turn"), known.get("cycle")
    return turn if isinstance(turn, int) else None, cycle if isinstance(cycle, str) else None


def _question(messages: Sequence[Mapping[str, Any]]) -> str:
    blocks = messages[0]["content"] if messages else []
    return next((str(block["text"]) for block in blocks if "text" in block), "")


def _behind(text: str, parser: ToolParser) -> str:
    """Return what stands behind a turn's reasoning, calls included."""
    _, closing, rest = text.partition(parser.reasoning_markers[1])
    return rest.lstrip("\n") if closing else ""


def _schemas(tool_specs: Sequence[Mapping[str, Any]] | None) -> dict[str, Mapping[str, Any]]:
    found = {}
    for spec in tool_specs or ():
        schema = spec.get("inputSchema") or {}
        found[spec["name"]] = schema.get("json", schema)
    return found


def _detail(generation: Generation, parsed: ParsedTurn, request: Request, latency_ms: int) -> dict[str, Any]:
    """Return what is kept with a turn besides its tokens."""
    detail: dict[str, Any] = {
        "rid": generation.rid,
        "prompt_tokens": generation.prompt_tokens,
        "cached_tokens": generation.cached_tokens,
        "latency_ms": latency_ms,
    }
    if generation.continuations:
        detail["continuations"] = generation.continuations
    if generation.discarded_tokens:
        detail["discarded_tokens"] = generation.discarded_tokens
    if parsed.failures:
        detail["failed_calls"] = [failure.failure.value for failure in parsed.failures[:100]]
    if request.schema is not None:
        detail["constrained"] = "json_schema"
    return detail
