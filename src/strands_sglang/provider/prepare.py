"""Preparing a turn: from a conversation to a prompt. Nothing is changed by it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from strands_sglang.provider.episode import Episode
from strands_sglang.provider.plan import Planner
from strands_sglang.provider.turn import STATE_KEY, Ready, Request
from strands_sglang.tokens import TurnPurpose
from strands_sglang.tool_parsers import ToolParser


@lru_cache(maxsize=1)
def _threads_of(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(4, thread_name_prefix="strands-sglang-encode")


def _threads() -> ThreadPoolExecutor:
    """Return threads of our own: the loop's may all be busy with tools, and a fork has none of its parent's."""
    return _threads_of(os.getpid())


async def prepare(
    planner: Planner,
    episode: Episode,
    request: Request,
    parser: ToolParser,
    *,
    named: Collection[int] = (),
    **policy: Any,
) -> Ready:
    """Find the branch of a conversation and make its next prompt.

    Args:
        planner: Finds and renders.
        episode: Where it belongs.
        request: The conversation.
        parser: Knows how reasoning begins.
        named: Turns whose replies the agent's messages say they are.
        **policy: See `Planner.plan`.
    """
    preamble = planner.preamble(request.system, request.tool_specs)
    with episode.lock:
        lineage, tree = episode.lineage, episode.tree
        turn, cycle = _remembered(episode, request.state)
        hint, again = lineage.entry(turn), cycle is not None and cycle == request.cycle
        if again and hint is not None and not episode.stands(hint.turn):
            # Its reply was thrown away, and nothing was rewritten by that: this turn goes on from where it did.
            before, again = tree[hint.turn], False
            hint = lineage.entry(before.parent if before.parent is not None else before.forked_from)
        plan = planner.plan(
            lineage,
            preamble,
            request.lasting,
            hint,
            again=again,
            named=named,
            stands=episode.stands,
            shown=request.messages,
            **policy,
        )
        parent = tree[plan.parent.turn] if plan.parent is not None else None
        caller = episode.caller(_question(request.messages), hint, side=request.is_side) if parent is None else None
    if planner.bridge.is_slow(plan.piece):
        extension = await asyncio.get_running_loop().run_in_executor(_threads(), planner.bridge.encode, plan.piece)
    else:
        extension = planner.bridge.encode(plan.piece)
    # The tree and the parent as they were planned with: an episode may have been reset while we encoded.
    prepared = tree.prepare(
        parent,
        context=extension.context,
        closing=extension.closing,
        purpose=_purpose(request),
        join=plan.join,
        forked_from=plan.rewritten.turn if plan.rewritten is not None else None,
        caller=caller,
    )
    opened = request.schema is None and extension.tail.rstrip().endswith(parser.reasoning_markers[0])
    return Ready(request, preamble, tree, lineage, plan, prepared, opened)


def _purpose(request: Request) -> TurnPurpose:
    if request.is_side:
        return TurnPurpose.SIDE
    return TurnPurpose.CONSTRAINED if request.schema is not None else TurnPurpose.EPISODE


def _remembered(episode: Episode, state: Mapping[str, Any] | None) -> tuple[int | None, str | None]:
    """Return the turn an agent remembers, if it is one of this episode, and the step of its loop it was for."""
    known = (state or {}).get(STATE_KEY)
    if not isinstance(known, Mapping) or known.get("tree") != episode.id:
        return None, None
    turn, cycle = known.get("turn"), known.get("cycle")
    return turn if isinstance(turn, int) else None, cycle if isinstance(cycle, str) else None


def _question(messages: Sequence[Mapping[str, Any]]) -> str:
    blocks = (messages[0].get("content") or ()) if messages else ()
    return next((str(block["text"]) for block in blocks if "text" in block), "")
