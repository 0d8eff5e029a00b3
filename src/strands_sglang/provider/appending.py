"""Renders new messages after a branch, and determines whether the result is exact.

A stand-in conversation is used only if all evidence supports it: the probes, the check of a long conversation, a real
conversation of the same kind that was compared, and texts that the template does not inspect. Otherwise the new
messages are rendered after the real conversation, which costs time in proportion to its length, and if the step is
proved, that rendering is compared with the branch.

A step that is not proved needs the same evidence for a stand-in, except that the template may rewrite what precedes it.

Invariants: a result is `proved` only if the probes proved the step and, in case of doubt, the whole conversation was
compared. A stand-in that is used gave the text of a real conversation of its kind before, unless the template rejects
the real one or drops its turn. No word of a stand-in is in a prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strands_sglang.chat.bridge import Bridge, PromptText
from strands_sglang.chat.control_tokens import Escapes, without_surrogates
from strands_sglang.chat.conversation import Conversation, Preamble
from strands_sglang.chat.conversation_index import IndexedTurn, Lineage
from strands_sglang.chat.conversation_shape import ConversationShape, is_probed, step_of
from strands_sglang.chat.differences import Comparison, Difference, SampledTurn, first_difference
from strands_sglang.chat.messages import TemplateMessage
from strands_sglang.chat.soundness import UNPROBED, FailureReason, RuntimeSoundness, StandIn, StepResult
from strands_sglang.chat.template import Rendered
from strands_sglang.errors import TemplateRefusedError
from strands_sglang.tool_parsers import ToolParser

_NOT_COMPARED = StepResult(
    FailureReason.UNPROBED, "the template inspects texts of this conversation, which no longer equals one rendering"
)
_UNDERIVED = StepResult(FailureReason.LACKS, "the text that the template writes after a turn cannot be determined")


@dataclass(frozen=True, slots=True)
class Appended:
    """The text that continues a branch."""

    prompt: PromptText | None
    """None if it cannot be derived."""
    result: StepResult
    plain: bool
    """Whether the template treats all texts so far like those of a stand-in (see `soundness.inspection`)."""


class Appender:
    """Appends messages to branches, for one template."""

    def __init__(self, bridge: Bridge, soundness: RuntimeSoundness, parser: ToolParser) -> None:
        self.soundness = soundness
        self._bridge = bridge
        self._parser = parser

    def inspected_shape(self, shape: ConversationShape, messages: Iterable[TemplateMessage]) -> ConversationShape:
        """Return the shape with `plain` unset if the template inspects the texts of these messages."""
        inspections = self.soundness.inspections(self._bridge)
        if not shape.plain or all(inspections.plain(message) for message in messages):
            return shape
        return replace(shape, plain=False)

    def append(
        self,
        parent: IndexedTurn,
        reply: TemplateMessage,
        new: list[TemplateMessage],
        conversation: Conversation,
        lineage: Lineage,
    ) -> Appended:
        """Render new messages after a turn and its reply, and determine whether the result is exact."""
        step, shape, soundness = step_of(new), parent.shape, self.soundness
        preamble = conversation.preamble
        tools = preamble.template_tools is not None
        result = soundness.result(self._bridge, step, shape, tools=tools) if is_probed(shape, new) else UNPROBED
        stand_in = soundness.stand_in(preamble, step, shape)
        plain = self.inspected_shape(shape, [reply, *new]).plain
        # What an audit withdrew may depend on something that no check has found.
        is_evident = plain and result is not UNPROBED and not soundness.is_withdrawn(result)
        if is_evident and stand_in not in (None, StandIn.NONE):
            without = stand_in is StandIn.WITHOUT_PREAMBLE
            prompt = self._with_stand_in(shape, parent.ended_by, new, preamble, without=without)
            if prompt is not None and not prompt.has_probe_word:
                return Appended(prompt, result, plain)
        before = self._history(parent, conversation, lineage)
        learn = is_evident and stand_in is None
        return Appended(*self._with_history(parent, before, new, preamble, result, learn), plain)

    def _history(self, parent: IndexedTurn, conversation: Conversation, lineage: Lineage) -> list[TemplateMessage]:
        """Return the conversation of a turn with its reply, and with what the new conversation has dropped of it."""
        if not lineage.aligned:
            reply = conversation.messages[lineage.known - 1]
            conversation = Conversation(parent.preamble, [*parent.history[: parent.prompt_count], reply])
            return conversation.rendered(lineage.call_ids)
        return conversation.rendered(lineage.call_ids, lineage.known)

    def _with_stand_in(
        self,
        shape: ConversationShape,
        ended_by: int | None,
        new: list[TemplateMessage],
        preamble: Preamble,
        *,
        without: bool = False,
    ) -> PromptText | None:
        """Render new messages after a stand-in with the system prompt and the tools, or `without` both."""
        extend = self._bridge.at(preamble.time).extend
        if without:
            return extend(replace(shape, system=None), ended_by, new)
        return extend(shape, ended_by, new, preamble.template_tools)

    def _with_history(
        self,
        parent: IndexedTurn,
        before: list[TemplateMessage],
        new: list[TemplateMessage],
        preamble: Preamble,
        result: StepResult,
        learn: bool,
    ) -> tuple[PromptText | None, StepResult]:
        """Render new messages after the real conversation; compare the rendering with the branch if the step is proved.

        `learn`: it decides which stand-in is used.
        """
        step, shape, soundness, bridge = step_of(new), parent.shape, self.soundness, self._bridge.at(preamble.time)
        tools, prompt, failure, shapes = preamble.template_tools, None, _UNDERIVED, [shape]
        if shape.calls and not result.proved:
            # A template that does not write calls may still accept results, after a turn that is text for it.
            shapes.append(replace(shape, calls=()))
        try:
            whole = bridge.template.render([*before, *new], tools=tools)
            extend = bridge.extend_with_history
            prompt = _first(extend(one, before, parent.ended_by, new, tools, whole) for one in shapes)
        except TemplateRefusedError as error:
            failure = StepResult(FailureReason.REFUSES, error.template_message)
        if prompt is None:
            # The end of the turn is not in the real conversation: the text after a stand-in is all that is left.
            prompt = _first(self._with_stand_in(one, parent.ended_by, new, preamble) for one in shapes)
            result = failure if result.proved else result
            return None if prompt is None or prompt.has_probe_word else prompt, result
        stand_in, given = StandIn.NONE, tools is not None
        if learn and not soundness.depends_on_position(self._bridge, step, shape, tools=given, proved=result.proved):
            stand_in = self._find_stand_in(parent, new, preamble, prompt)
        if result.proved:
            turns = branch_text(parent)
            if turns is not None:
                found = self._compared(turns, prompt.text, whole.escapes.restore(whole.text), preamble)
                result = StepResult() if found is None else StepResult(FailureReason.REWRITES, found.excerpt)
            elif stand_in is not StandIn.NONE:
                # The branch no longer equals one rendering: only the step itself is checked.
                result = self._check_step(bridge, before, whole, tools)
            else:
                result = _NOT_COMPARED
            learn = learn and result.proved
        if learn:
            soundness.learn(preamble, step, shape, stand_in)
        return prompt, result

    def _check_step(self, bridge: Bridge, before: Sequence[TemplateMessage], whole: Rendered, tools: Any) -> StepResult:
        try:
            prompt = bridge.template.render(before[:-1], tools=tools)
        except TemplateRefusedError as error:
            return StepResult(FailureReason.REFUSES, error.template_message)
        prompt_text, whole_text = (one.escapes.restore(one.text) for one in (prompt, whole))
        return (
            StepResult()
            if whole_text.startswith(prompt_text)
            else StepResult(FailureReason.REWRITES, first_difference(prompt_text, whole_text))
        )

    def _find_stand_in(
        self, parent: IndexedTurn, new: list[TemplateMessage], preamble: Preamble, prompt: PromptText
    ) -> StandIn:
        for stand_in in (StandIn.WITHOUT_PREAMBLE, StandIn.WITH_PREAMBLE):
            without = stand_in is StandIn.WITHOUT_PREAMBLE
            continuation = self._with_stand_in(parent.shape, parent.ended_by, new, preamble, without=without)
            if continuation is not None and (continuation.closing, continuation.text) == (prompt.closing, prompt.text):
                return stand_in
        return StandIn.NONE

    def difference(
        self,
        turns: Sequence[SampledTurn],
        following: str,
        messages: Sequence[TemplateMessage],
        preamble: Preamble,
        *,
        recoded: bool = False,
    ) -> Difference | None:
        """Return the first difference between one rendering of a conversation and its branch; None if they are equal.

        `recoded`: the branch was decoded from its tokens. Not every tokenizer decodes to the original text, so the
        rendering is then encoded and decoded as well.
        """
        encoder, template = self._bridge.encoder, self._bridge.template.at(preamble.time)
        try:
            whole = without_surrogates(template.official(template.fitted(messages), tools=preamble.template_tools))
        except TemplateRefusedError as error:
            return Difference(len(turns), error.template_message)
        if recoded:
            try:
                rendered = template.render(messages, tools=preamble.template_tools)
            except TemplateRefusedError:  # its text is known, but not which control tokens in it are from data
                rendered = Rendered(whole, Escapes(encoder.control))
            whole = encoder.decode(encoder.encode(rendered.text, rendered.escapes))
        return self._compared(turns, following, whole, preamble)

    def _compared(
        self, turns: Sequence[SampledTurn], following: str, whole: str, preamble: Preamble
    ) -> Difference | None:
        comparison = Comparison(self._bridge.encoder, self._parser, preamble.schemas)
        return comparison.difference(turns, following, whole)


def _first(prompts: Iterable[PromptText | None]) -> PromptText | None:
    return next((prompt for prompt in prompts if prompt is not None), None)


def branch_text(entry: IndexedTurn) -> list[SampledTurn] | None:
    """Return the turns of a branch as text; None if it is not one rendering, or if not all its text was kept."""
    turns: list[SampledTurn] = []
    node: IndexedTurn | None = entry
    while node is not None:
        if node.sampled is None or not node.exact:
            return None
        turns.append(node.sampled)
        node = node.parent
    return turns[::-1]
