"""What a turn carries: a `TurnRequest`, then a `PreparedCall`, then a `CommittedTurn`, then a `TurnReply`.

Each state holds the one before it, so the steps of a turn (`preparation`, `sampling`, `commit`) take one object.

Invariant: no field of these objects is set after they are created. The tree, the index, the images and the state of the
agent that they refer to belong to the episode and the agent, and grow.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from strands_sglang.chat.conversation import Conversation
from strands_sglang.chat.conversation_index import ConversationIndex, IndexedTurn
from strands_sglang.chat.image_files import ImageFile
from strands_sglang.engine import Generation
from strands_sglang.provider.config import Settings
from strands_sglang.provider.episode import EpisodeTokens
from strands_sglang.provider.planning import Plan
from strands_sglang.provider.reply_tracking import TURN_KEY
from strands_sglang.provider.stream_events import Block, Event, LiveEvents, block_events, closing_events
from strands_sglang.tokens import PreparedTurn, TokenTree, Turn, TurnPurpose
from strands_sglang.tool_parsers import ParsedTurn, SampledText


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One call of the model."""

    conversation: Conversation
    episode: EpisodeTokens
    settings: Settings
    agent: Any = None
    """None if not certain."""
    cancel_signal: Any = None
    state: dict[str, Any] | None = None
    """None for calls that are not made by an agent's loop."""
    cycle: str | None = None
    """None if unknown. A second call in one cycle of the agent's loop: the reply to the first was discarded."""
    schema: str | None = None
    side: bool = False
    """A side turn regardless of `state`."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """Further facts to record with the turn."""
    caller: tuple[int, str | None] | None = None
    """The turn and the tool call that started the conversation; None: derived from the context of the call."""
    started: float = field(default_factory=time.monotonic)

    @property
    def is_side(self) -> bool:
        """Whether this is a side turn: only an agent's loop passes a state."""
        return self.side or self.state is None

    @property
    def is_tracked(self) -> bool:
        """Whether the reply is tracked (`reply_tracking`): only an agent's loop adds it to the agent's messages."""
        return self.cycle is not None and not self.is_side and hasattr(self.agent, "add_hook")

    @property
    def purpose(self) -> TurnPurpose:
        """What is sampled for."""
        if self.is_side:
            return TurnPurpose.SIDE
        return TurnPurpose.CONSTRAINED if self.schema is not None else TurnPurpose.EPISODE


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A turn that can be sampled."""

    request: TurnRequest
    tree: TokenTree
    """An episode that is reset meanwhile has another tree."""
    index: ConversationIndex
    plan: Plan
    turn: PreparedTurn
    reasoning_open: bool
    images: Mapping[str, ImageFile]

    @property
    def response(self) -> int:
        """Number of prompt tokens after the first prompt of its branch."""
        parent = self.turn.parent
        return 0 if parent is None else len(self.turn.ids) - self.tree.path(parent)[0].sampled_start


@dataclass(frozen=True, slots=True)
class CommittedTurn:
    """A turn that was sampled and committed."""

    call: PreparedCall
    generation: Generation
    live: LiveEvents | None
    """None if it was not streamed."""
    turn: Turn
    entry: IndexedTurn
    blocks: list[Block]
    text: SampledText
    parsed: ParsedTurn
    truncated: bool
    """Whether the turn ended before the model ended it: the budget was used up, or the engine aborted it.

    `chat/bridge.py` adds the missing end of the turn when the next messages are appended.
    """


@dataclass(frozen=True, slots=True)
class TurnReply:
    """What the framework receives of a committed turn.

    It is a context manager: the turn is committed as rejected, and kept once the `with` block has passed on all of it.
    A tracked reply is kept once it is added to the agent's messages (`reply_tracking`).
    """

    committed: CommittedTurn

    @property
    def blocks(self) -> list[Block]:
        """Its content blocks."""
        return self.committed.blocks

    @property
    def stop_reason(self) -> str:
        """Why it ended, in the framework's words."""
        if self.committed.truncated:
            return "max_tokens"
        if any("toolUse" in block for block in self.blocks):
            return "tool_use"
        return "stop_sequence" if isinstance(self.committed.generation.finish_detail, str) else "end_turn"

    @property
    def usage(self) -> dict[str, int]:
        """Its token counts."""
        generation = self.committed.generation
        prompt, sampled = generation.prompt_tokens, len(generation)
        usage = {"inputTokens": prompt, "outputTokens": sampled, "totalTokens": prompt + sampled}
        if generation.cached_tokens is not None:
            usage["cacheReadInputTokens"] = generation.cached_tokens
        return usage

    @property
    def metrics(self) -> dict[str, Any]:
        """Its latency, and its place in the tree."""
        turn, branch = self.committed.turn, self.committed.entry.branch
        place = {"tree": self.committed.call.request.episode.id, "branch": branch, "turn": turn.id}
        return {"latencyMs": turn.detail["latency_ms"], TURN_KEY: {**place, "parent": turn.parent}}

    def events(self) -> list[Event]:
        """Return the stream events of the turn that were not emitted while it was sampled."""
        live, events = self.committed.live, list[Event]()
        if live is not None:
            events += live.finish(self.blocks)
        else:
            events.append({"messageStart": {"role": "assistant"}})
            for block in self.blocks:
                events += block_events(block)
        return events + closing_events(self.stop_reason, self.usage, self.metrics)

    def __enter__(self) -> TurnReply:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        call = self.committed.call
        if kind is None and not call.request.is_tracked:
            call.tree.restore(self.committed.turn)


def schema_of(output_model: type[BaseModel] | None) -> str | None:
    """Return the JSON schema of an output model; None: free text."""
    return None if output_model is None else json.dumps(output_model.model_json_schema())
