"""The plan of a turn: which branch it extends, with what text, and why so.

Invariant: planning changes nothing. Everything that will be recorded of a turn besides what is sampled is decided
here.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from strands_sglang.chat.bridge import Bridge, Piece
from strands_sglang.chat.canonical import canonical
from strands_sglang.chat.content import TemplateMessage, template_messages, template_tools
from strands_sglang.chat.lineage import Entry, Lineage, Preamble
from strands_sglang.chat.shape import Shape, opening_shape, step_of, was_tried
from strands_sglang.chat.verdict import UNTRIED, Soundness
from strands_sglang.errors import BridgeRefusedError
from strands_sglang.provider.policy import RewritePolicy
from strands_sglang.tokens import Join

logger = logging.getLogger(__name__)

_PREAMBLES = 256  # kept, of all that were ever seen


@dataclass(frozen=True, slots=True)
class Plan:
    """How a turn will be made."""

    parent: Entry | None
    """The turn it goes on from; None: it begins a branch."""
    piece: Piece
    """What is appended, as text."""
    join: Join
    """How it is appended."""
    shape: Shape
    """The shape of the conversation before the turn."""
    aligned: bool
    """Whether the messages begin with the parent's."""
    rewritten: Entry | None
    """The turn whose conversation was rewritten into this one; None when nothing was."""
    discarded: Entry | None
    """A turn of the same agent whose reply is gone from the conversation: it was thrown away."""


class Planner:
    """Plans turns with one bridge and what is proved of it."""

    def __init__(self, bridge: Bridge, soundness: Soundness) -> None:
        self.bridge = bridge
        """Renders what is new."""
        self.soundness = soundness
        """Where that is exact."""
        self._warned: set[str] = set()
        self._tools: tuple[str | None, Any] = (None, None)
        self._preambles: dict[str, Preamble] = {}

    def preamble(self, system: str | None, tool_specs: Sequence[Mapping[str, Any]] | None) -> Preamble:
        """Return what stands in front of a conversation."""
        tools = tuple(tool_specs or ())
        try:
            key = orjson.dumps([system, tools], default=repr).decode()
        except TypeError:  # what JSON cannot hold as it stands: half a surrogate pair, a number of more than 64 bits
            key = repr(canonical({"role": system, "content": tools}))
        # The framework hands over a fresh copy of all tools at every turn, and every turn on record keeps its preamble.
        known = self._preambles.get(key)
        if known is None:
            if len(self._preambles) >= _PREAMBLES:
                self._preambles.pop(next(iter(self._preambles)), None)
            known = self._preambles[key] = Preamble(system, copy.deepcopy(tools), key)
        return known

    def plan(
        self,
        lineage: Lineage,
        preamble: Preamble,
        messages: Sequence[Mapping[str, Any]],
        hint: Entry | None,
        *,
        again: bool = False,
        shown: Sequence[Mapping[str, Any]] | None = None,
        on_rewrite: RewritePolicy,
        on_trim: RewritePolicy,
        on_reminder: RewritePolicy = RewritePolicy.KEEP,
    ) -> Plan:
        """Plan a turn.

        Args:
            lineage: The turns known.
            preamble: What stands in front of the conversation.
            messages: The conversation, as later calls will repeat it.
            hint: The agent's last turn, by its own memory; None when it has none.
            again: Whether the agent asks a second time for what that turn was to be.
            shown: The conversation with what is shown in this call only; None: there is no such thing.
            on_rewrite: What to do where the template would rewrite history.
            on_trim: What to do where the oldest messages were dropped.
            on_reminder: What to do where something that was shown for one call is gone.

        Raises:
            BridgeRefusedError: The policy is to refuse.
            TemplateRefusedError: The template does not take the conversation.
            UnsupportedContentError: A message has a kind of content that cannot be rendered.
        """
        parent, known, aligned = lineage.find(preamble, messages, hint), 0, True
        if parent is not None:
            known = parent.count
        trimmed = lineage.trimmed(preamble, messages, hint) if on_trim is not RewritePolicy.FORK else None
        if trimmed is not None and trimmed[0] is not parent:
            if on_trim is RewritePolicy.REFUSE:
                raise BridgeRefusedError(
                    "the oldest messages of the conversation were dropped, and on_trim is 'refuse': use a "
                    "NullConversationManager, or choose on_trim='fork' or 'keep'",
                    step="trim",
                )
            parent, known, aligned = *trimmed, False
        called = lineage.called(messages) if hint is None else None
        origin = called[0] if called is not None else hint
        discarded = None
        if again and hint is not None and hint is not parent and _thrown_away(hint, preamble, messages):
            discarded = hint
        rewritten = origin if origin is not None and origin is not parent and origin is not discarded else None
        if rewritten is not None and parent is not None and _descends(parent, rewritten):
            rewritten = None
        tools = self._template_tools(preamble)
        messages = messages if shown is None else shown
        if parent is not None:
            new = template_messages(messages[known - 1 :], call_ids=lineage.call_ids, first=known - 1)[1:]
            forget = parent.passing and _forgets(on_reminder)
            extended = self._extend(parent, new, tools, on_rewrite) if new and not forget else None
            if extended is not None:
                piece, join = extended
                join = join if aligned and not parent.passing else Join.KEPT
                return Plan(parent, piece, join, parent.shape.behind(new), aligned, rewritten, discarded)
            rewritten = rewritten or parent
        whole = template_messages(messages, call_ids=lineage.call_ids)
        if preamble.system is not None:
            whole.insert(0, {"role": "system", "content": preamble.system})
        join = Join.ROOT if rewritten is None else Join.FORKED
        return Plan(None, self.bridge.open(whole, tools), join, opening_shape(whole), True, rewritten, discarded)

    def _extend(
        self,
        parent: Entry,
        new: list[TemplateMessage],
        tools: Any,
        policy: RewritePolicy,
    ) -> tuple[Piece, Join] | None:
        """Render new messages behind a turn; None when a new branch is to be made."""
        step, shape = step_of(new), parent.shape
        verdict = self.soundness.verdict(step, shape) if was_tried(shape, new) else UNTRIED
        if not verdict.proved:
            self._say(step.value, f"{verdict.witness} (policy: {policy.value})")
            if policy is RewritePolicy.REFUSE:
                raise BridgeRefusedError(
                    f"a {step.value} step cannot be appended exactly with this chat template: {verdict.witness}. "
                    "on_template_rewrite is 'refuse'; 'keep' appends as it stands, 'fork' renders a new branch",
                    step=step.value,
                    witness=verdict.witness,
                )
            if policy is RewritePolicy.FORK:
                return None
        piece = self._piece(shape, parent.ended_by, new, tools)
        if piece is None and shape.calls and not verdict.proved:
            # A template without calls may still take results: behind a turn that is text to it.
            piece = self._piece(replace(shape, calls=()), parent.ended_by, new, tools)
        if piece is None:
            return None
        return piece, Join.PROVED if verdict.proved else Join.KEPT

    def _piece(self, shape: Shape, ended_by: int | None, new: list[TemplateMessage], tools: Any) -> Piece | None:
        """Render new messages behind a shape, with no more in front of them than the template looks at."""
        if self.soundness.preamble_free:
            return self.bridge.extend(replace(shape, system=None), ended_by, new)
        return self.bridge.extend(shape, ended_by, new, tools)

    def _say(self, what: str, why: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("step=<%s>, witness=<%s> | not proved with this chat template; said once", what, why)

    def _template_tools(self, preamble: Preamble) -> Any:
        """Return tools in the template's form; agents hand over the same ones turn after turn."""
        known, made = self._tools
        if known != preamble.key:
            made = template_tools(preamble.tools)
            self._tools = (preamble.key, made)
            if made is not None and not self.bridge.template.tools:
                self._say("tools", "the chat template writes no tools: the model does not see them")
        return made


def _thrown_away(turn: Entry, preamble: Preamble, messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a conversation that asks again has nothing of a turn, not even an edited reply."""
    at = turn.prompt_count
    kept = turn.asked(preamble, messages) and len(messages) > at and messages[at]["role"] == "assistant"
    return not kept


def _forgets(policy: RewritePolicy) -> bool:
    """Return whether a conversation is rendered anew because what was shown for one call of it is gone."""
    if policy is RewritePolicy.REFUSE:
        raise BridgeRefusedError(
            "the last turn was shown text that the conversation no longer holds (the framework's "
            "dynamic_trailing_blocks), and on_reminder is 'refuse': take out what adds it, or choose "
            "on_reminder='keep' or 'fork'",
            step="reminder",
        )
    return policy is RewritePolicy.FORK


def _descends(entry: Entry, ancestor: Entry) -> bool:
    node: Entry | None = entry
    while node is not None:
        if node is ancestor:
            return True
        node = node.parent
    return False
