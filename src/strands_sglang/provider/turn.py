"""The states of a turn: asked, ready to be sampled, recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from strands_sglang.chat.content import tool_schemas
from strands_sglang.chat.lineage import Entry, Lineage, Preamble
from strands_sglang.provider.blocks import Block
from strands_sglang.provider.plan import Plan
from strands_sglang.tokens import TokenTree, Turn
from strands_sglang.tokens.prepared import PreparedTurn
from strands_sglang.tool_parsers import ParsedTurn
from strands_sglang.tool_parsers.sampled import SampledText

STATE_KEY = "strands_sglang"
"""Where an agent's own memory keeps its last turn."""


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
    passing: int = 0
    """Blocks at the end of the last user message that are shown in this call only: the framework keeps them nowhere."""

    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """Return the JSON schema of the parameters of each tool on offer, by the tool's name."""
        return dict(tool_schemas(self.tool_specs))

    @property
    def lasting(self) -> Sequence[Mapping[str, Any]]:
        """The conversation as later calls will repeat it: without what is shown in this call only."""
        at = next((at for at in range(len(self.messages) - 1, -1, -1) if self.messages[at]["role"] == "user"), -1)
        if self.passing <= 0 or at < 0:
            return self.messages
        message = self.messages[at]
        kept = list(message.get("content") or ())[: -self.passing]
        return [*self.messages[:at], *([{**message, "content": kept}] if kept else []), *self.messages[at + 1 :]]

    @property
    def is_side(self) -> bool:
        """Whether this is no turn of an agent: only an agent's loop hands over a state."""
        return self.side or self.state is None


@dataclass(frozen=True, slots=True)
class Ready:
    """A turn that can be sampled."""

    request: Request
    """What was asked."""
    preamble: Preamble
    """What stands in front of the conversation."""
    tree: TokenTree
    """Where it will be recorded. An episode that is reset meanwhile has another."""
    lineage: Lineage
    """Where it will be filed; goes with the tree."""
    plan: Plan
    """How it was joined."""
    prepared: PreparedTurn
    """The prompt."""
    reasoning_open: bool
    """Whether the prompt opened a reasoning block."""

    @property
    def response(self) -> int:
        """Tokens of the prompt behind the first prompt of its branch."""
        parent = self.prepared.parent
        return 0 if parent is None else len(self.prepared.ids) - self.tree.path(parent)[0].sampled_start


@dataclass(frozen=True, slots=True)
class Recorded:
    """A turn that was sampled and recorded."""

    turn: Turn
    """The turn in the tree."""
    entry: Entry
    """Where it is filed."""
    blocks: list[Block]
    """The reply, as the framework keeps it."""
    text: SampledText
    """The reply's words, as they were sampled."""
    parsed: ParsedTurn
    """The reply, taken apart."""
    cut: bool
    """Whether its budget ended before the turn did."""


def schema_of(output_model: type[BaseModel] | None) -> str | None:
    """Return the JSON schema of the replies that are wanted; None: free text."""
    return None if output_model is None else json.dumps(output_model.model_json_schema())
