"""Renders new messages after a branch, and determines whether the result is exact.

A stand-in conversation is used only if all evidence supports it: the probes, the check of a long conversation, a real
conversation of the same kind that was compared, and texts that the template does not inspect. Otherwise the real
conversation is rendered and compared with the branch, which costs time in proportion to its length.

Invariant: a result is `proved` only if the probes proved the step and, in case of doubt, the whole conversation was
compared.
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
        self, parent: IndexedTurn, new: list[TemplateMessage], conversation: Conversation, lineage: Lineage
    ) -> Appended:
        """Render new messages after a turn, and determine whether the result is exact."""
        step, shape, soundness = step_of(new), parent.shape, self.soundness
        preamble = conversation.preamble
        tools = preamble.template_tools is not None
        result = soundness.result(self._bridge, step, shape, tools=tools) if is_probed(shape, new) else UNPROBED
        stand_in = soundness.stand_in(preamble, step, shape)
        plain = self.inspected_shape(shape, new).plain
        if result.proved and (not plain or stand_in in (None, StandIn.NONE)):
            before = conversation.rendered(lineage.call_ids, lineage.known)
            learn = plain and stand_in is None
            return Appended(*self._with_history(parent, before, new, preamble, lineage.aligned, learn), plain)
        return Appended(self._with_stand_in(parent, new, preamble, result, stand_in), result, plain)

    def _with_stand_in(
        self,
        parent: IndexedTurn,
        new: list[TemplateMessage],
        preamble: Preamble,
        result: StepResult,
        stand_in: StandIn | None,
    ) -> PromptText | None:
        shape, extend = parent.shape, self._bridge.at(preamble.time).extend
        if stand_in is StandIn.WITHOUT_PREAMBLE:
            return extend(replace(shape, system=None), parent.ended_by, new)
        prompt = extend(shape, parent.ended_by, new, preamble.template_tools)
        if prompt is None and shape.calls and not result.proved:
            # A template that does not write calls may still accept results, after a turn that is text for it.
            prompt = extend(replace(shape, calls=()), parent.ended_by, new, preamble.template_tools)
        return prompt

    def _with_history(
        self,
        parent: IndexedTurn,
        before: list[TemplateMessage],
        new: list[TemplateMessage],
        preamble: Preamble,
        aligned: bool,
        learn: bool,
    ) -> tuple[PromptText | None, StepResult]:
        """Render new messages after the real conversation, and compare the rendering with the branch.

        `aligned` is False if the oldest messages were dropped. `learn`: the result decides which stand-in is used.
        """
        step, shape, bridge = step_of(new), parent.shape, self._bridge.at(preamble.time)
        tools, soundness = preamble.template_tools, self.soundness
        real = bridge.extend_with_history(shape, before, parent.ended_by, new, tools) if aligned else None
        prompt = real or bridge.extend(shape, parent.ended_by, new, tools)
        if prompt is None:
            detail = "the text that the template writes after a turn cannot be determined"
            return None, StepResult(FailureReason.LACKS, detail)
        stand_in = StandIn.NONE
        if real is None or not soundness.depends_on_position(self._bridge, step, shape, tools=tools is not None):
            stand_in = self._find_stand_in(bridge, parent, new, tools, prompt)
        turns = branch_text(parent)
        if turns is None or real is None:
            # The branch no longer equals one rendering: only the step itself is checked.
            result = (
                self._check_step(bridge, before, new, tools)
                if learn and stand_in is not StandIn.NONE
                else _NOT_COMPARED
            )
        else:
            found = self.difference(turns, prompt.text, [*before, *new], preamble)
            result = StepResult() if found is None else StepResult(FailureReason.REWRITES, found.excerpt)
        if learn and result.proved:
            soundness.learn(preamble, step, shape, stand_in)
        return prompt, result

    def _check_step(
        self, bridge: Bridge, before: Sequence[TemplateMessage], new: Sequence[TemplateMessage], tools: Any
    ) -> StepResult:
        render = bridge.template.render
        try:
            prompt, whole = render(before[:-1], tools=tools), render([*before, *new], tools=tools)
        except TemplateRefusedError as error:
            return StepResult(FailureReason.REFUSES, error.template_message)
        prompt_text, whole_text = (one.escapes.restore(one.text) for one in (prompt, whole))
        return (
            StepResult()
            if whole_text.startswith(prompt_text)
            else StepResult(FailureReason.REWRITES, first_difference(prompt_text, whole_text))
        )

    def _find_stand_in(
        self, bridge: Bridge, parent: IndexedTurn, new: list[TemplateMessage], tools: Any, prompt: PromptText
    ) -> StandIn:
        shape, extend = parent.shape, bridge.extend
        for stand_in, stand_in_shape, offered in (
            (StandIn.WITHOUT_PREAMBLE, replace(shape, system=None), None),
            (StandIn.WITH_PREAMBLE, shape, tools),
        ):
            continuation = extend(stand_in_shape, parent.ended_by, new, offered)
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
            whole = template.official(template.fitted(messages), tools=preamble.template_tools)
        except TemplateRefusedError as error:
            return Difference(len(turns), error.template_message)
        whole = without_surrogates(whole)
        if recoded:
            try:
                rendered = template.render(messages, tools=preamble.template_tools)
            except TemplateRefusedError:  # its text is known, but not which control tokens in it are from data
                rendered = Rendered(whole, Escapes(encoder.control))
            whole = encoder.decode(encoder.encode(rendered.text, rendered.escapes))
        comparison = Comparison(encoder, self._parser, preamble.schemas)
        return comparison.difference(turns, following, whole)


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
