"""Recording a turn: what was sampled is taken apart, committed to the tree and filed under its conversation.

Invariant: nothing is changed before all of it is known to be good.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from strands_sglang.chat.compare import said_of
from strands_sglang.chat.failed_call import called, without_pretended, without_unseen
from strands_sglang.engine import FinishReason, Generation
from strands_sglang.provider.blocks import blocks_of, shown_calls
from strands_sglang.provider.episode import Episode
from strands_sglang.provider.live import LiveEvents
from strands_sglang.provider.plan import Planner
from strands_sglang.provider.policy import ArgumentCheck
from strands_sglang.provider.turn import STATE_KEY, Ready, Recorded, Request
from strands_sglang.tokens import TokenTree, Turn, TurnStatus
from strands_sglang.tool_parsers import ParsedTurn, ToolCall, ToolParser
from strands_sglang.tool_parsers.argument_check import checked_by_schema
from strands_sglang.tool_parsers.base import Schemas


def record(
    planner: Planner,
    episode: Episode,
    ready: Ready,
    generation: Generation,
    parser: ToolParser,
    *,
    schemas: Schemas,
    latency_ms: int,
    live: LiveEvents | None = None,
    check: ArgumentCheck = ArgumentCheck.TOOL,
    ends: bool = False,
    told: bool = False,
    agent: str | None = None,
) -> Recorded:
    """Take a sampled turn apart, commit it to the tree and file it under its conversation.

    Args:
        planner: Knows the tokenizer.
        episode: Where it is recorded.
        ready: What was asked.
        generation: What was sampled.
        parser: Takes it apart.
        schemas: JSON schema of each tool on offer.
        latency_ms: Milliseconds from the question to the whole turn.
        live: What was shown of it already; None when nothing is shown before the turn is whole.
        check: Who judges the arguments of its calls.
        ends: Whether the agent is to stop behind a failed call.
        told: Whether the agent will tell when the reply is part of its conversation; until then it is rejected.
        agent: Name of the agent that asked; None: not known.

    Returns:
        The turn, recorded.
    """
    encoder, request = planner.bridge.encoder, ready.request
    ids = generation.token_ids
    ended_by = ids[-1] if len(ids) and ids[-1] in encoder.control else None
    said = said_of(encoder, parser, ready.plan.piece.written, ids)
    text = said.text
    if request.schema is not None:
        parsed = ParsedTurn(None, text, (), (), True)
    else:
        parsed = parser.parse(text, reasoning_open=ready.reasoning_open, schemas=schemas)
        parsed = without_unseen(without_pretended(parsed))
        if not schemas and (parsed.calls or parsed.failures):
            # Without tools there is nothing to call: what looks like a call is what the agent has to say.
            parsed = replace(parsed, text=text[parsed.rest_start :], calls=(), failures=())
        if check is ArgumentCheck.SCHEMA:
            parsed = checked_by_schema(parsed, schemas)
    # The engine looks at the budget first: a turn whose very last token ends it counts as cut there, and is not.
    cut = generation.finish_reason is FinishReason.ABORT or (
        generation.finish_reason is FinishReason.LENGTH and not said.ended
    )
    parent = ready.plan.parent
    known = parent.count if parent is not None and ready.plan.aligned else 0
    calls = shown_calls(parsed)
    call_ids = episode.mint(len(calls), request.messages[known:])
    blocks = blocks_of(parsed, calls, call_ids, cut=cut, raw=text[parsed.rest_start :], ends=ends)
    if live is not None:
        blocks = live.settled(blocks)
    native = {
        call_id: call.id
        for call, call_id in zip(calls, call_ids, strict=True)
        if isinstance(call, ToolCall) and call.id is not None
    }
    uses = [block["toolUse"] for block in blocks if "toolUse" in block]
    named = tuple((called(use)[0], native.get(use["toolUseId"], use["toolUseId"])) for use in uses)
    shape = planner.seen(ready.plan.shape.ending(named, bool(parsed.reasoning)), parsed)
    turn = ready.tree.commit(
        ready.prepared,
        ids,
        generation.logprobs,
        generation.versions,
        finish=generation.finish_reason.value,
        prompt_tokens=generation.prompt_tokens,
        detail=_detail(generation, parsed, request, latency_ms, agent),
        status=TurnStatus.REJECTED if told else TurnStatus.KEPT,
    )
    with episode.lock:
        lineage = ready.lineage
        lineage.call_ids.update(native)
        entry = lineage.file(
            turn.id,
            ready.plan.parent,
            ready.preamble,
            request.lasting,
            {"role": "assistant", "content": blocks},
            shape,
            ended_by=ended_by,
            end=turn.end,
            aligned=ready.plan.aligned,
            said=replace(said, whole=not cut and not parsed.failures),
            exact=ready.plan.exact and request.passing <= 0,
            step=ready.plan.step,
        )
        entry.passing = request.passing > 0
        if episode.tree is ready.tree:
            episode.sampled_tokens += len(ids)
            episode.keep_experts(turn, generation.routed_experts)
            if told:
                episode.told.add(turn.id)
    _settle(episode, ready, turn)
    if request.state is not None:
        request.state[STATE_KEY] = {"tree": ready.tree.id, "turn": turn.id, "cycle": request.cycle}
    return Recorded(turn, entry, blocks, text, parsed, cut)


def _settle(episode: Episode, ready: Ready, turn: Turn) -> None:
    """Reject the turn that this one replaces. If a conversation goes on from one that was replaced, it was not.

    Only where no agent tells what became of its replies.
    """
    plan, tree = ready.plan, ready.tree
    if episode.tree is not tree:
        return
    parent, discarded = plan.parent, plan.discarded
    if discarded is not None and _may_be_gone(episode, tree, discarded.turn):
        tree.reject(tree[discarded.turn])
        episode.replaced[discarded.turn] = turn.id
    if parent is not None and parent.turn in episode.replaced:
        instead = episode.replaced.pop(parent.turn)
        tree.restore(tree[parent.turn])
        # The agent that got another reply instead, and goes on from this one all the same, threw the other away.
        if plan.rewritten is not None and plan.rewritten.turn == instead and _may_be_gone(episode, tree, instead):
            tree.reject(tree[instead])


def _may_be_gone(episode: Episode, tree: TokenTree, turn: int) -> bool:
    """Return whether a reply may have been thrown away: nobody said that it was not, and nothing goes on from it."""
    return turn not in episode.told and all(child.rejected for child in tree.children(tree[turn]))


def _detail(
    generation: Generation, parsed: ParsedTurn, request: Request, latency_ms: int, agent: str | None
) -> dict[str, Any]:
    """Return what is kept with a turn besides its tokens."""
    detail: dict[str, Any] = {
        "rid": generation.rid,
        "prompt_tokens": generation.prompt_tokens,
        "cached_tokens": generation.cached_tokens,
        "latency_ms": latency_ms,
    }
    if agent is not None:
        detail["agent"] = agent
    if generation.continuations:
        detail["continuations"] = generation.continuations
    if generation.discarded_tokens:
        detail["discarded_tokens"] = generation.discarded_tokens
    if generation.spec is not None:
        detail["spec"] = asdict(generation.spec)
    if parsed.failures:
        detail["failed_calls"] = [failure.failure.value for failure in parsed.failures[:100]]
    if request.schema is not None:
        detail["constrained"] = "json_schema"
    return detail
