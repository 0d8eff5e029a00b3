"""Prepares a turn: turns a conversation into a prompt.

Invariant: preparing a turn changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from strands_sglang._async import in_thread
from strands_sglang.chat.image_files import ImageFile, image_file, is_cheap, sources_in
from strands_sglang.errors import ConfigurationError, TemplateRefusedError, UnsupportedContentError
from strands_sglang.provider.episode import EpisodeTokens
from strands_sglang.provider.images import ImageSupport, unusable
from strands_sglang.provider.planning import Planner
from strands_sglang.provider.reply_tracking import restore_kept_turns
from strands_sglang.provider.turn import PreparedCall, TurnRequest
from strands_sglang.tokens import ImageSpan

STATE_KEY = "strands_sglang"
"""Key in an agent's model state that stores its last turn."""


def _converted(source: bytes) -> ImageFile | None:
    """Return an image as it is sent; None if it cannot be: rendering the message says which one, and why."""
    try:
        return image_file(source)
    except UnsupportedContentError:
        return None


async def prepare(planner: Planner, images: ImageSupport, request: TurnRequest) -> PreparedCall:
    """Find the branch of a conversation and build its next prompt.

    Args:
        planner: Finds the branch and renders new messages.
        images: Knows how many positions an image takes.
        request: The call.
    """
    episode = request.episode
    turns_in_messages = () if request.agent is None else restore_kept_turns(request.agent, episode)
    preamble = planner.preamble(request.system, request.tool_specs)
    sources = list(sources_in(_unseen(request)))
    # Kept until the plan has them: a conversion is forgotten with its last user.
    slow = [source for source in sources if not is_cheap(source)]
    converted = await asyncio.gather(*(in_thread(_converted, source) for source in slow))
    if sources and not images.loaded:
        try:
            await in_thread(ImageSupport.load, images)
        except ConfigurationError as error:
            raise unusable(request.messages, error) from error
    with episode.lock:
        index, tree, files = episode.index, episode.tree, episode.images
        turn, cycle = _last_turn_in(episode, request.state)
        hint, is_retry = index.get(turn), cycle is not None and cycle == request.cycle
        if is_retry and hint is not None and not episode.reply_status(hint.turn):
            # Its reply was discarded, which is not a rewrite: this turn continues from where that one did.
            before, is_retry = tree[hint.turn], False
            hint = index.get(before.parent if before.parent is not None else before.forked_from)
        try:
            plan = planner.plan(
                index,
                preamble,
                request.lasting_messages,
                hint,
                is_retry=is_retry,
                turns_in_messages=turns_in_messages,
                status=episode.reply_status,
                full_messages=request.messages,
                settings=request.settings,
            )
        except TemplateRefusedError as error:
            if not sources:
                raise
            raise images.refusal(error) from error
        del converted
        parent = tree[plan.parent.turn] if plan.parent is not None else None
        caller = episode.caller(_question(request.messages), hint, side=request.is_side) if parent is None else None
    if planner.bridge.is_slow(plan.prompt):
        extension = await in_thread(planner.bridge.encode, plan.prompt)
    else:
        extension = planner.bridge.encode(plan.prompt)
    context, spans = extension.context, list[ImageSpan]()
    if plan.images:
        context, spans = images.expand(context, plan.images)
    # Use the tree and parent of the plan: the episode may have been reset during encoding.
    prepared = tree.prepare(
        parent,
        context=context,
        images=spans,
        closing=extension.closing,
        purpose=request.purpose,
        join=plan.join,
        forked_from=plan.rewritten_from.turn if plan.rewritten_from is not None else None,
        caller=caller,
    )
    opened = request.schema is None and extension.tail.rstrip().endswith(planner.parser.reasoning_markers[0])
    if prepared.images:
        images.check(prepared)
        files.update((file.digest, file) for file in plan.images)
    return PreparedCall(request, preamble, tree, index, plan, prepared, opened, files)


def _unseen(request: TurnRequest) -> Sequence[Mapping[str, Any]]:
    """Return the messages that may have images to be read: those after the agent's last turn.

    All messages are returned if there is no such turn, or if the episode has images: history may have been edited.
    """
    episode = request.episode
    with episode.lock:
        last = episode.index.get(_last_turn_in(episode, request.state)[0])
        if last is None or episode.images:
            return request.messages
    return request.messages[last.prompt_count :]


def _last_turn_in(episode: EpisodeTokens, state: Mapping[str, Any] | None) -> tuple[int | None, str | None]:
    """Return the last turn in an agent's state, if it belongs to this episode, and the cycle it was made in."""
    known = (state or {}).get(STATE_KEY)
    if not isinstance(known, Mapping) or known.get("tree") != episode.id:
        return None, None
    turn, cycle = known.get("turn"), known.get("cycle")
    return turn if isinstance(turn, int) else None, cycle if isinstance(cycle, str) else None


def _question(messages: Sequence[Mapping[str, Any]]) -> str:
    blocks = (messages[0].get("content") or ()) if messages else ()
    return next((str(block["text"]) for block in blocks if "text" in block), "")
