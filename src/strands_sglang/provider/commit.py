"""Commits a turn: parses the sampled tokens, commits them to the tree and adds the turn to the conversation index.

A turn that was truncated is committed as it was sampled. The end-of-turn token that it lacks is added when the next
messages are appended to it (`chat/bridge.py`).

Invariant: nothing is changed before the whole turn is known to be valid.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Any

from strands_sglang._strands_compat.agents import name_of
from strands_sglang.chat.differences import sampled_turn
from strands_sglang.chat.failed_call import reject_reserved_name, reject_unprintable_names, template_call
from strands_sglang.engine import FinishReason, Generation
from strands_sglang.provider.config import ArgumentCheck, FailedCallPolicy
from strands_sglang.provider.episode import EpisodeTokens
from strands_sglang.provider.planning import Planner
from strands_sglang.provider.preparation import STATE_KEY
from strands_sglang.provider.stream_events import LiveEvents, blocks_of, calls_as_blocks
from strands_sglang.provider.turn import CommittedTurn, PreparedCall, TurnRequest
from strands_sglang.tokens import TokenTree, Turn, TurnStatus
from strands_sglang.tool_parsers import ParsedTurn, ToolCall
from strands_sglang.tool_parsers.schemas import checked_by_schema


def commit_turn(
    planner: Planner, call: PreparedCall, generation: Generation, live: LiveEvents | None = None
) -> CommittedTurn:
    """Parse a sampled turn, commit it to the tree and add it to the conversation index."""
    latency_ms = int(1000 * (time.monotonic() - call.request.started))
    encoder, parser, request, plan = planner.bridge.encoder, planner.parser, call.request, call.plan
    episode, settings, conversation = request.episode, request.settings, request.conversation
    ids, schemas = generation.token_ids, conversation.preamble.schemas
    sampled = sampled_turn(encoder, parser, plan.prompt.text, ids)
    text = sampled.text
    if request.schema is not None:
        parsed = ParsedTurn(None, text, (), (), True)
    else:
        parsed = parser.parse(text, reasoning_open=call.reasoning_open, schemas=schemas)
        parsed = reject_unprintable_names(reject_reserved_name(parsed))
        if not schemas and (parsed.calls or parsed.failures):
            # Without tools there is nothing to call: text that looks like a call is part of the answer.
            parsed = replace(parsed, text=text[parsed.rest_start :], calls=(), failures=())
        if settings.arguments_checked_by is ArgumentCheck.SCHEMA:
            parsed = checked_by_schema(parsed, schemas)
    # The engine checks the budget first: it reports "length" also for a turn whose very last token ends it.
    truncated = generation.finish_reason is FinishReason.ABORT or (
        generation.finish_reason is FinishReason.LENGTH and not sampled.ended
    )
    known = plan.lineage.known if plan.lineage.aligned else 0
    calls = calls_as_blocks(parsed)
    with episode.minting(len(calls), conversation.call_ids(known)) as call_ids:
        ends, raw = settings.on_failed_call is FailedCallPolicy.END, text[parsed.rest_start :]
        blocks = blocks_of(parsed, calls, call_ids, truncated=truncated, raw=raw, ends=ends)
        if live is not None:
            blocks = live.reconcile(blocks)
        native = {
            call_id: made.id
            for made, call_id in zip(calls, call_ids, strict=True)
            if isinstance(made, ToolCall) and made.id is not None
        }
        uses = [block["toolUse"] for block in blocks if "toolUse" in block]
        call_names = tuple((template_call(use)[0], native.get(use["toolUseId"], use["toolUseId"])) for use in uses)
        shape = plan.shape.with_reply(call_names, bool(parsed.reasoning))
        turn = call.tree.commit(
            call.turn,
            ids,
            generation.logprobs,
            generation.versions,
            finish_reason=generation.finish_reason.value,
            prompt_tokens=generation.prompt_tokens,
            detail=_detail(generation, parsed, request, latency_ms),
            status=TurnStatus.REJECTED,  # until its reply is received: see `TurnReply` and `reply_tracking`
            kept=generation.kept,
        )
    with episode.lock:
        index = call.index
        index.call_ids.update(native)
        entry = index.add(
            turn.id,
            conversation,
            plan.lineage,
            {"role": "assistant", "content": blocks},
            shape,
            ended_by=encoder.control.ended_by(ids),
            end=turn.end,
            sampled=replace(sampled, whole=not truncated and not parsed.failures),
            exact=plan.exact and not conversation.transient,
            step=plan.step,
        )
        if episode.tree is call.tree:
            episode.sampled_tokens += len(ids)
            episode.keep_experts(turn, generation.routed_experts)
            if request.is_tracked:
                episode.tracked.add(turn.id)
    _update_replaced(call, turn)
    if request.state is not None:
        request.state[STATE_KEY] = {"tree": call.tree.id, "turn": turn.id, "cycle": request.cycle}
    if episode.observer is not None:
        episode.observer.committed(turn, generation)
    return CommittedTurn(call, generation, live, turn, entry, blocks, text, parsed, truncated)


def _update_replaced(call: PreparedCall, turn: Turn) -> None:
    """Reject the turn that this one replaces; restore one that a conversation continues from. Untracked turns only."""
    lineage, tree, episode = call.plan.lineage, call.tree, call.request.episode
    if episode.tree is not tree:
        return
    parent, discarded, origin = lineage.parent, lineage.discarded, lineage.rewritten_from
    if discarded is not None and _may_be_discarded(episode, tree, discarded.turn):
        tree.reject(tree[discarded.turn])
        episode.replaced[discarded.turn] = turn.id
    if parent is not None and parent.turn in episode.replaced:
        instead = episode.replaced.pop(parent.turn)
        tree.restore(tree[parent.turn])
        # The agent received another reply instead, but continues from this one: it discarded the other.
        if origin is not None and origin.turn == instead and _may_be_discarded(episode, tree, instead):
            tree.reject(tree[instead])


def _may_be_discarded(episode: EpisodeTokens, tree: TokenTree, turn: int) -> bool:
    """A reply may have been discarded if it is not tracked, and no kept turn continues from it."""
    return turn not in episode.tracked and all(child.rejected for child in tree.children(tree[turn]))


def _detail(generation: Generation, parsed: ParsedTurn, request: TurnRequest, latency_ms: int) -> dict[str, Any]:
    detail: dict[str, Any] = {
        "rid": generation.rid,
        "prompt_tokens": generation.prompt_tokens,
        "cached_tokens": generation.cached_tokens,
        "latency_ms": latency_ms,
        "time": round(time.time(), 3),
        **request.detail,
    }
    if request.agent is not None and (agent := name_of(request.agent)) is not None:
        detail["agent"] = agent
    if generation.adapter is not None:
        detail["adapter"] = generation.adapter
    if generation.continuations:
        detail["continuations"] = generation.continuations
    if generation.discarded_tokens:
        detail["discarded_tokens"] = generation.discarded_tokens
    if generation.kept is not None and (temperature := request.settings.temperature) is not None:
        detail["temperature"] = temperature
    if generation.spec is not None:
        detail["spec"] = asdict(generation.spec)
    if parsed.failures:
        detail["failed_calls"] = [failure.failure.value for failure in parsed.failures[:100]]
    if request.schema is not None:
        detail["constrained"] = "json_schema"
    return detail
