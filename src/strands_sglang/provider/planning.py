"""Plans a turn: which branch it extends, with which text, or why it starts a new branch.

Invariant: planning changes nothing. It decides everything that is recorded of a turn except the sampled tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.conversation_index import (
    ConversationIndex,
    IndexedTurn,
    StatusLookup,
    always_present,
)
from strands_sglang.chat.conversation_shape import ConversationShape, Step, opening_shape, step_of
from strands_sglang.chat.image_files import ImageFile, images_of
from strands_sglang.chat.messages import TemplateMessage, template_messages
from strands_sglang.chat.preamble import Preamble, preamble_of
from strands_sglang.chat.prompt_text import PromptText
from strands_sglang.chat.soundness import Soundness, runtime_soundness
from strands_sglang.errors import BridgeRefusedError
from strands_sglang.provider.appending import Appended, Appender, Conversation
from strands_sglang.provider.config import RewritePolicy, Settings
from strands_sglang.tokens import Join
from strands_sglang.tool_parsers import ParsedTurn, ToolParser
from strands_sglang.tool_parsers.base import PlainTextParser

logger = logging.getLogger(__name__)

_logged: set[tuple[str, Step, RewritePolicy]] = set()


@dataclass(frozen=True, slots=True)
class Plan:
    """How a turn is made."""

    parent: IndexedTurn | None
    """The turn that it continues from; None: it starts a branch."""
    prompt: PromptText
    """The text that is appended."""
    join: Join
    """How the text joins the branch."""
    shape: ConversationShape
    """The shape of the conversation before the turn."""
    aligned: bool
    """Whether the messages start with the parent's; False if the oldest were dropped."""
    rewritten_from: IndexedTurn | None
    """The turn whose conversation was rewritten into this one; None if nothing was rewritten."""
    discarded_turn: IndexedTurn | None
    """A turn of the same agent whose reply was discarded: the conversation does not contain it; None: no such turn."""
    exact: bool = True
    """Whether the prompt equals one rendering of its conversation, as far as known."""
    step: Step | None = None
    """The kind of step that is appended; None if the turn starts a branch."""
    images: tuple[ImageFile, ...] = ()
    """The images in `prompt`, in order."""


class Planner:
    """Plans turns for one bridge and its soundness report."""

    def __init__(self, bridge: Bridge, soundness: Soundness, parser: ToolParser | None = None) -> None:
        self.bridge = bridge
        self.parser = parser or PlainTextParser()
        self.soundness = soundness
        """For which steps the bridge is exact, according to the probes."""
        self.appender = Appender(bridge, runtime_soundness(soundness.digest), self.parser)
        """Appends messages to a branch, and determines whether the result is exact."""

    def preamble(self, system: str | None, tool_specs: Sequence[Mapping[str, Any]] | None) -> Preamble:
        """Return the preamble of a conversation: one object for equal system prompts and tools."""
        return preamble_of(system, tool_specs)

    def plan(
        self,
        index: ConversationIndex,
        preamble: Preamble,
        messages: Sequence[Mapping[str, Any]],
        hint: IndexedTurn | None,
        *,
        is_retry: bool = False,
        turns_in_messages: Collection[int] = (),
        status: StatusLookup = always_present,
        full_messages: Sequence[Mapping[str, Any]] | None = None,
        settings: Settings,
    ) -> Plan:
        """Plan a turn.

        Args:
            index: The recorded turns.
            preamble: System prompt and tools.
            messages: The conversation, as later calls will repeat it.
            hint: The agent's last turn according to the agent's state; None if it has none.
            is_retry: Whether the agent repeats the call that the last turn answered.
            turns_in_messages: Ids of the turns found in the metadata of the messages of the agent.
            status: Returns whether the reply of a turn is part of a conversation.
            full_messages: The conversation with the text that is added for this call only; None: no such text.
            settings: What to do if history was rewritten.

        Raises:
            BridgeRefusedError: The policy is to refuse.
            TemplateRefusedError: The template does not accept the conversation.
            UnsupportedContentError: A message has content that cannot be rendered.
        """
        parent, known, aligned = (
            index.find(preamble, messages, hint, turns_in_messages=turns_in_messages, status=status),
            0,
            True,
        )
        if parent is not None:
            known = parent.count
        trimmed = (
            index.find_trimmed(preamble, messages, hint, status) if settings.on_trim is not RewritePolicy.FORK else None
        )
        if trimmed is not None and trimmed[0] is not parent:
            if settings.on_trim is RewritePolicy.REFUSE:
                raise BridgeRefusedError(
                    "the oldest messages of the conversation were dropped, and on_trim is 'refuse': use a "
                    "NullConversationManager, or set on_trim to 'fork' or 'keep'",
                    step="trim",
                )
            parent, known, aligned = *trimmed, False
        called = index.last_caller(messages, status) if hint is None else None
        origin = called[0] if called is not None else hint
        discarded_turn = None
        if is_retry and hint is not None and hint is not parent and _is_discarded(hint, preamble, messages):
            discarded_turn = hint
        rewritten_from = (
            origin if origin is not None and origin is not parent and origin is not discarded_turn else None
        )
        if rewritten_from is not None and parent is not None and _descends(parent, rewritten_from):
            rewritten_from = None
        tools = preamble.template_tools
        messages = messages if full_messages is None else full_messages
        if parent is not None:
            new = template_messages(messages[known - 1 :], call_ids=index.call_ids, first=known - 1)[1:]
            fork = parent.transient and _forks_at_reminder(settings.on_reminder)
            conversation = Conversation(preamble, tools, messages, index.call_ids, known, aligned)
            appended = (
                self._extend(parent, new, conversation, settings.on_template_rewrite) if new and not fork else None
            )
            if appended is not None and appended.prompt is not None:
                proved = aligned and not parent.transient and appended.result.proved
                shape = parent.shape.after(new)
                return Plan(
                    parent,
                    appended.prompt,
                    Join.PROVED if proved else Join.KEPT,
                    shape if appended.plain or not shape.plain else replace(shape, plain=False),
                    aligned,
                    rewritten_from,
                    discarded_turn,
                    exact=proved and parent.exact,
                    step=step_of(new),
                    images=tuple(images_of(new)),
                )
            rewritten_from = rewritten_from or parent
        whole = Conversation(preamble, tools, messages, index.call_ids, len(messages)).rendered()
        join = Join.ROOT if rewritten_from is None else Join.FORKED
        shape = self.appender.inspected_shape(opening_shape(whole), whole)
        opening, images = self.bridge.open(whole, tools), tuple(images_of(whole))
        return Plan(None, opening, join, shape, True, rewritten_from, discarded_turn, images=images)

    def inspected_shape(self, shape: ConversationShape, parsed: ParsedTurn) -> ConversationShape:
        """Return the shape with `plain` unset if the template inspects the texts of the sampled turn."""
        reply: TemplateMessage = {"role": "assistant", "content": parsed.text}
        if parsed.reasoning:
            reply["reasoning_content"] = parsed.reasoning
        return self.appender.inspected_shape(shape, [reply])

    def _extend(
        self, parent: IndexedTurn, new: list[TemplateMessage], conversation: Conversation, policy: RewritePolicy
    ) -> Appended | None:
        """Render new messages after a turn; None if the policy is to start a new branch."""
        step, appended = step_of(new), self.appender.append(parent, new, conversation)
        result = appended.result
        if not result.proved:
            _log_once(self.soundness.digest, step, policy, result.detail)
            if policy is RewritePolicy.REFUSE:
                raise BridgeRefusedError(
                    f"a {step.value} step cannot be appended exactly with this chat template: {result.detail}. "
                    "on_template_rewrite is 'refuse'; 'keep' appends to the branch, 'fork' renders a new one",
                    step=step.value,
                    first_difference=result.detail,
                )
            if policy is RewritePolicy.FORK:
                return None
        return appended


def _log_once(digest: str, step: Step, policy: RewritePolicy, first_difference: str) -> None:
    """Log what happens to a step that is not proved, once per process for each template, step and policy."""
    if (digest, step, policy) in _logged:
        return
    _logged.add((digest, step, policy))
    if policy is RewritePolicy.KEEP:  # no warning: training stays exact, and every such turn is counted
        logger.info(
            "step=<%s>, first_difference=<%s> | the chat template would render this conversation differently from what "
            "the model saw; the sampled tokens are kept, and such turns are counted (on_template_rewrite='keep')",
            step.value,
            first_difference,
        )
    elif policy is RewritePolicy.FORK:
        logger.warning(
            "step=<%s>, first_difference=<%s> | the chat template rewrites earlier turns at this step, so each such "
            "turn starts a new branch (on_template_rewrite='fork'); 'keep' continues in one branch",
            step.value,
            first_difference,
        )


def _is_discarded(turn: IndexedTurn, preamble: Preamble, messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a repeated call contains no reply at the place of a turn, not even an edited one."""
    at = turn.prompt_count
    replied = turn.prompt_matches(preamble, messages) and len(messages) > at and messages[at]["role"] == "assistant"
    return not replied


def _forks_at_reminder(policy: RewritePolicy) -> bool:
    """Return whether to start a new branch because text that was added for one call is no longer there."""
    if policy is RewritePolicy.REFUSE:
        raise BridgeRefusedError(
            "the prompt of the last turn had text that the conversation no longer contains (the framework's "
            "dynamic_trailing_blocks), and on_reminder is 'refuse': remove its source, or set "
            "on_reminder to 'keep' or 'fork'",
            step="reminder",
        )
    return policy is RewritePolicy.FORK


def _descends(entry: IndexedTurn, ancestor: IndexedTurn) -> bool:
    node: IndexedTurn | None = entry
    while node is not None:
        if node is ancestor:
            return True
        node = node.parent
    return False
