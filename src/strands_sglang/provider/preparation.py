"""Prepares a turn: turns a conversation into a prompt. Also defines the three states of a turn.

A turn is a `TurnRequest`, then a `PreparedCall` that can be sampled, then a `CommittedTurn`.

Invariant: preparing a turn changes nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from strands_sglang._threads import in_thread
from strands_sglang.chat.conversation_index import ConversationIndex, IndexedTurn
from strands_sglang.chat.image_files import ImageFile, image_file, is_cheap, sources_in
from strands_sglang.chat.messages import tool_schemas
from strands_sglang.chat.preamble import Preamble
from strands_sglang.errors import ConfigurationError, TemplateRefusedError, UnsupportedContentError
from strands_sglang.provider.episode import EpisodeTokens
from strands_sglang.provider.images import ImageSupport, unusable
from strands_sglang.provider.planning import Plan, Planner
from strands_sglang.provider.stream_events import Block
from strands_sglang.tokens import ImageSpan, PreparedTurn, TokenTree, Turn, TurnPurpose
from strands_sglang.tool_parsers import ParsedTurn, SampledText, ToolParser

STATE_KEY = "strands_sglang"
"""Key in an agent's model state that stores its last turn."""


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One call of the model."""

    messages: Sequence[Mapping[str, Any]]
    """The conversation, as passed by the framework."""
    system: str | None
    """The system prompt; None if there is none."""
    tool_specs: Sequence[Mapping[str, Any]] | None
    """The available tools, as described by the framework; None if there are none."""
    state: dict[str, Any] | None
    """The agent's state for this model; None for calls that are not made by an agent's loop."""
    cycle: str | None = None
    """Id of the cycle of the agent's loop that makes this call; None if unknown. A second call in the same cycle means
    that the reply to the first was discarded."""
    schema: str | None = None
    """JSON schema that the reply must follow; None: free text."""
    side: bool = False
    """Whether this is a side turn regardless of `state`."""
    transient_blocks: int = 0
    """Number of blocks at the end of the last user message that are sent in this call only and not kept."""

    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """Return the JSON schema of the parameters of each available tool, by tool name."""
        return dict(tool_schemas(self.tool_specs))

    @property
    def lasting_messages(self) -> Sequence[Mapping[str, Any]]:
        """The conversation as later calls will repeat it: without the blocks that are sent in this call only."""
        if self.transient_blocks <= 0:
            return self.messages
        at = next((at for at in range(len(self.messages) - 1, -1, -1) if self.messages[at]["role"] == "user"), -1)
        if at < 0:
            return self.messages
        message = self.messages[at]
        kept = list(message.get("content") or ())[: -self.transient_blocks]
        return [*self.messages[:at], *([{**message, "content": kept}] if kept else []), *self.messages[at + 1 :]]

    @property
    def is_side(self) -> bool:
        """Whether this is a side turn: only an agent's loop passes a state."""
        return self.side or self.state is None


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A turn that can be sampled."""

    request: TurnRequest
    """The call."""
    preamble: Preamble
    """System prompt and tools of the conversation."""
    tree: TokenTree
    """The tree that it is committed to. An episode that is reset meanwhile has another."""
    index: ConversationIndex
    """The conversation index that belongs to the tree."""
    plan: Plan
    """How it joins its branch."""
    turn: PreparedTurn
    """The prompt as token ids, and its place in the tree."""
    reasoning_open: bool
    """Whether the prompt ends with an open reasoning block."""
    images: Mapping[str, ImageFile]
    """All images of the episode by digest."""

    @property
    def response(self) -> int:
        """Number of prompt tokens after the first prompt of its branch."""
        parent = self.turn.parent
        return 0 if parent is None else len(self.turn.ids) - self.tree.path(parent)[0].sampled_start


@dataclass(frozen=True, slots=True)
class CommittedTurn:
    """A turn that was sampled and committed."""

    turn: Turn
    """The turn in the tree."""
    entry: IndexedTurn
    """Its entry in the conversation index."""
    blocks: list[Block]
    """The reply as content blocks of the framework."""
    text: SampledText
    """The sampled text."""
    parsed: ParsedTurn
    """The parsed reply."""
    truncated: bool
    """Whether the turn ended before the model ended it: the budget was used up, or the engine aborted it."""


def schema_of(output_model: type[BaseModel] | None) -> str | None:
    """Return the JSON schema of an output model; None: free text."""
    return None if output_model is None else json.dumps(output_model.model_json_schema())


def _converted(source: bytes) -> ImageFile | None:
    """Return an image as it is sent; None if it cannot be: rendering the message says which one, and why."""
    try:
        return image_file(source)
    except UnsupportedContentError:
        return None


async def prepare(
    planner: Planner,
    episode: EpisodeTokens,
    request: TurnRequest,
    parser: ToolParser,
    images: ImageSupport,
    *,
    turns_in_messages: Collection[int] = (),
    **policy: Any,
) -> PreparedCall:
    """Find the branch of a conversation and build its next prompt.

    Args:
        planner: Finds the branch and renders new messages.
        episode: The episode of the call.
        request: The call.
        parser: The parser of the model; defines the reasoning markers.
        images: Knows how many positions an image takes.
        turns_in_messages: Ids of the turns found in the metadata of the messages of the agent.
        **policy: See `Planner.plan`.
    """
    preamble = planner.preamble(request.system, request.tool_specs)
    sources = list(sources_in(_unseen(episode, request)))
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
                **policy,
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
        purpose=_purpose(request),
        join=plan.join,
        forked_from=plan.rewritten_from.turn if plan.rewritten_from is not None else None,
        caller=caller,
    )
    opened = request.schema is None and extension.tail.rstrip().endswith(parser.reasoning_markers[0])
    if prepared.images:
        images.check(prepared)
        files.update((file.digest, file) for file in plan.images)
    return PreparedCall(request, preamble, tree, index, plan, prepared, opened, files)


def _unseen(episode: EpisodeTokens, request: TurnRequest) -> Sequence[Mapping[str, Any]]:
    """Return the messages that may have images to be read: those after the agent's last turn.

    All messages are returned if there is no such turn, or if the episode has images: history may have been edited.
    """
    with episode.lock:
        last = episode.index.get(_last_turn_in(episode, request.state)[0])
        if last is None or episode.images:
            return request.messages
    return request.messages[last.prompt_count :]


def _purpose(request: TurnRequest) -> TurnPurpose:
    if request.is_side:
        return TurnPurpose.SIDE
    return TurnPurpose.CONSTRAINED if request.schema is not None else TurnPurpose.EPISODE


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
