"""Commits a turn: parses the sampled tokens, commits them to the tree and adds the turn to the conversation index.

Invariant: nothing is changed before the whole turn is known to be valid.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from strands_sglang._strands_compat.copies import SharedMessages
from strands_sglang.chat.differences import sampled_turn
from strands_sglang.chat.failed_call import reject_reserved_name, reject_unprintable_names, template_call
from strands_sglang.engine import FinishReason, Generation
from strands_sglang.provider.config import ArgumentCheck
from strands_sglang.provider.episode import EpisodeTokens
from strands_sglang.provider.planning import Planner
from strands_sglang.provider.preparation import STATE_KEY, CommittedTurn, PreparedCall, TurnRequest
from strands_sglang.provider.stream_events import LiveEvents, blocks_of, calls_as_blocks
from strands_sglang.tokens import TokenTree, Turn, TurnStatus
from strands_sglang.tool_parsers import ParsedTurn, ToolCall, ToolParser
from strands_sglang.tool_parsers.base import Schemas
from strands_sglang.tool_parsers.schemas import checked_by_schema


def commit_turn(
    planner: Planner,
    episode: EpisodeTokens,
    prepared: PreparedCall,
    generation: Generation,
    parser: ToolParser,
    *,
    schemas: Schemas,
    latency_ms: int,
    live: LiveEvents | None = None,
    check: ArgumentCheck = ArgumentCheck.TOOL,
    ends: bool = False,
    tracked: bool = False,
    agent: str | None = None,
    temperature: float | None = None,
) -> CommittedTurn:
    """Parse a sampled turn, commit it to the tree and add it to the conversation index.

    Args:
        planner: Provides the tokenizer and inspects texts.
        episode: The episode of the turn.
        prepared: The call that was sampled.
        generation: The engine's result.
        parser: Parses reasoning and tool calls.
        schemas: JSON schema of each available tool, by name.
        latency_ms: Milliseconds from the start of the call to the complete turn.
        live: The events that were already emitted; None if nothing is streamed.
        check: What validates the arguments of its calls.
        ends: Whether the agent must stop after a failed call.
        tracked: Whether the reply is tracked (`reply_tracking`): the turn is rejected until the agent has added it.
        agent: Name of the agent that made the call; None if unknown.
        temperature: Temperature of sampling; None if unknown.

    Returns:
        The committed turn.
    """
    encoder, request = planner.bridge.encoder, prepared.request
    ids = generation.token_ids
    ended_by = ids[-1] if len(ids) and ids[-1] in encoder.control else None
    sampled = sampled_turn(encoder, parser, prepared.plan.prompt.text, ids)
    text = sampled.text
    if request.schema is not None:
        parsed = ParsedTurn(None, text, (), (), True)
    else:
        parsed = parser.parse(text, reasoning_open=prepared.reasoning_open, schemas=schemas)
        parsed = reject_unprintable_names(reject_reserved_name(parsed))
        if not schemas and (parsed.calls or parsed.failures):
            # Without tools there is nothing to call: text that looks like a call is part of the answer.
            parsed = replace(parsed, text=text[parsed.rest_start :], calls=(), failures=())
        if check is ArgumentCheck.SCHEMA:
            parsed = checked_by_schema(parsed, schemas)
    # The engine checks the budget first: it reports "length" also for a turn whose very last token ends it.
    truncated = generation.finish_reason is FinishReason.ABORT or (
        generation.finish_reason is FinishReason.LENGTH and not sampled.ended
    )
    parent = prepared.plan.parent
    known = parent.count if parent is not None and prepared.plan.aligned else 0
    calls = calls_as_blocks(parsed)
    with episode.minting(len(calls), request.messages[known:]) as call_ids:
        blocks = blocks_of(parsed, calls, call_ids, truncated=truncated, raw=text[parsed.rest_start :], ends=ends)
        if live is not None:
            blocks = live.reconcile(blocks)
        native = {
            call_id: call.id
            for call, call_id in zip(calls, call_ids, strict=True)
            if isinstance(call, ToolCall) and call.id is not None
        }
        uses = [block["toolUse"] for block in blocks if "toolUse" in block]
        call_names = tuple((template_call(use)[0], native.get(use["toolUseId"], use["toolUseId"])) for use in uses)
        shape = planner.inspected_shape(prepared.plan.shape.with_reply(call_names, bool(parsed.reasoning)), parsed)
        turn = prepared.tree.commit(
            prepared.turn,
            ids,
            generation.logprobs,
            generation.versions,
            finish_reason=generation.finish_reason.value,
            prompt_tokens=generation.prompt_tokens,
            detail=_detail(generation, parsed, request, latency_ms, agent, temperature),
            status=TurnStatus.REJECTED if tracked else TurnStatus.KEPT,
            kept=generation.kept,
        )
    with episode.lock:
        index = prepared.index
        index.call_ids.update(native)
        entry = index.add(
            turn.id,
            prepared.plan.parent,
            prepared.preamble,
            request.lasting_messages,
            {"role": "assistant", "content": blocks},
            shape,
            ended_by=ended_by,
            end=turn.end,
            aligned=prepared.plan.aligned,
            sampled=replace(sampled, whole=not truncated and not parsed.failures),
            exact=prepared.plan.exact and request.transient_blocks <= 0,
            step=prepared.plan.step,
            shared=type(request.messages) is SharedMessages and not request.transient_blocks,
        )
        entry.transient = request.transient_blocks > 0
        if episode.tree is prepared.tree:
            episode.sampled_tokens += len(ids)
            episode.keep_experts(turn, generation.routed_experts)
            if tracked:
                episode.tracked.add(turn.id)
    _update_replaced(episode, prepared, turn)
    if request.state is not None:
        request.state[STATE_KEY] = {"tree": prepared.tree.id, "turn": turn.id, "cycle": request.cycle}
    return CommittedTurn(turn, entry, blocks, text, parsed, truncated)


def _update_replaced(episode: EpisodeTokens, prepared: PreparedCall, turn: Turn) -> None:
    """Reject the turn that this one replaces, and restore a replaced turn that a conversation continues from.

    Applies only to turns whose replies are not tracked.
    """
    plan, tree = prepared.plan, prepared.tree
    if episode.tree is not tree:
        return
    parent, discarded = plan.parent, plan.discarded_turn
    if discarded is not None and _may_be_discarded(episode, tree, discarded.turn):
        tree.reject(tree[discarded.turn])
        episode.replaced[discarded.turn] = turn.id
    if parent is not None and parent.turn in episode.replaced:
        instead = episode.replaced.pop(parent.turn)
        tree.restore(tree[parent.turn])
        # The agent received another reply instead, but continues from this one: it discarded the other.
        if (
            plan.rewritten_from is not None
            and plan.rewritten_from.turn == instead
            and _may_be_discarded(episode, tree, instead)
        ):
            tree.reject(tree[instead])


def _may_be_discarded(episode: EpisodeTokens, tree: TokenTree, turn: int) -> bool:
    """Return whether a reply may have been discarded: it is not tracked, and no kept turn continues from it."""
    return turn not in episode.tracked and all(child.rejected for child in tree.children(tree[turn]))


def _detail(
    generation: Generation,
    parsed: ParsedTurn,
    request: TurnRequest,
    latency_ms: int,
    agent: str | None,
    temperature: float | None,
) -> dict[str, Any]:
    """Return the details that are stored with a turn besides its tokens."""
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
    if generation.kept is not None and temperature is not None:
        detail["temperature"] = temperature
    if generation.spec is not None:
        detail["spec"] = asdict(generation.spec)
    if parsed.failures:
        detail["failed_calls"] = [failure.failure.value for failure in parsed.failures[:100]]
    if request.schema is not None:
        detail["constrained"] = "json_schema"
    return detail
