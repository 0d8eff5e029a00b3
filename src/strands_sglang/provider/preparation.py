"""Prepares a turn: turns a conversation into a prompt.

Invariants: preparing a turn adds nothing to the tree. It restores turns whose replies are in the agent's messages, and
keeps the images of the prompt; both stay right if the turn is not committed. The messages of a prepared call are those
that its prompt was rendered from, whatever the caller does to its own meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from strands_sglang._async import in_thread
from strands_sglang.chat.conversation_index import IndexedTurn
from strands_sglang.errors import TemplateRefusedError
from strands_sglang.provider.config import RewritePolicy
from strands_sglang.provider.images import ImageSupport
from strands_sglang.provider.planning import Planner
from strands_sglang.provider.reply_tracking import restore_kept_turns
from strands_sglang.provider.turn import PreparedCall, TurnRequest
from strands_sglang.tokens import ImageSpan

STATE_KEY = "strands_sglang"


async def prepare(planner: Planner, images: ImageSupport, request: TurnRequest) -> PreparedCall:
    """Find the branch of a conversation and build its next prompt."""
    episode, conversation, settings = request.episode, request.conversation, request.settings
    turns_in_messages = () if request.agent is None else restore_kept_turns(request.agent, episode)
    # Kept until the plan has them: an image that was read is forgotten with its last user.
    read = await images.read(conversation, _first_unseen(request))
    with episode.lock:
        index, tree, files = episode.index, episode.tree, episode.images
        last, is_retry = _last_turn(request)
        lineage = index.lineage(
            conversation,
            last,
            is_retry=is_retry,
            turns_in_messages=turns_in_messages,
            status=episode.reply_status,
            trimmed=settings.on_trim is not RewritePolicy.FORK,
        )
        try:
            plan = planner.plan(conversation, lineage, settings)
        except TemplateRefusedError as error:
            if not read:
                raise
            raise images.refusal(error) from error
        # From here on others may run, and the caller may change its messages.
        request = replace(request, conversation=plan.lineage.owned(conversation))
        parent, origin = plan.lineage.parent, plan.lineage.rewritten_from
        caller = None
        if parent is None:
            caller = request.caller or episode.caller(conversation.question, last, side=request.is_side)
    if planner.bridge.is_slow(plan.prompt):
        extension = await in_thread(planner.bridge.encode, plan.prompt)
    else:
        extension = planner.bridge.encode(plan.prompt)
    context, spans = extension.context, list[ImageSpan]()
    if plan.images:
        context, spans = images.expand(context, plan.images)
    # Use the tree and parent of the plan: the episode may have been reset during encoding.
    prepared = tree.prepare(
        None if parent is None else tree[parent.turn],
        context=context,
        images=spans,
        closing=extension.closing,
        purpose=request.purpose,
        join=plan.join,
        forked_from=None if origin is None else origin.turn,
        caller=caller,
    )
    opened = request.schema is None and extension.tail.rstrip().endswith(planner.parser.reasoning_markers[0])
    if prepared.images:
        images.check(prepared)
        files.update((file.digest, file) for file in plan.images)
    return PreparedCall(request, tree, index, plan, prepared, opened, files)


def _first_unseen(request: TurnRequest) -> int:
    """Return the index from which on messages may have images to be read: after the agent's last turn.

    It is 0 if there is no such turn, or if the episode has images: history may have been edited.
    """
    episode = request.episode
    with episode.lock:
        last = episode.index.get(_turn_in_state(request)[0])
        return 0 if last is None or episode.images else last.prompt_count


def _last_turn(request: TurnRequest) -> tuple[IndexedTurn | None, bool]:
    """The second value says whether the agent repeats the call that its last turn answered."""
    episode = request.episode
    turn, cycle = _turn_in_state(request)
    last, is_retry = episode.index.get(turn), cycle is not None and cycle == request.cycle
    if not is_retry or last is None or episode.reply_status(last.turn):
        return last, is_retry
    # Its reply was discarded, which is not a rewrite: this turn continues from where that one did.
    before = episode.tree[last.turn]
    return episode.index.get(before.parent if before.parent is not None else before.forked_from), False


def _turn_in_state(request: TurnRequest) -> tuple[int | None, str | None]:
    """Return the last turn in an agent's state, if it belongs to this episode, and the cycle it was made in."""
    known = (request.state or {}).get(STATE_KEY)
    if not isinstance(known, Mapping) or known.get("tree") != request.episode.id:
        return None, None
    turn, cycle = known.get("turn"), known.get("cycle")
    return turn if isinstance(turn, int) else None, cycle if isinstance(cycle, str) else None
