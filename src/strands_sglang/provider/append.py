"""Appending new messages to a branch: what is written, and whether that is exact.

A stand-in for the conversation is enough where everything says so: the probes, a long walk, a real conversation of the
same kind that was compared, and texts that the template does not look into. Else the real conversation is rendered and
compared with the branch, at its full cost.

Invariant: a verdict is `proved` only if the probes proved the step and, in doubt, the whole conversation was compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strands_sglang.chat.bridge import Bridge, Piece
from strands_sglang.chat.compare import Comparison, Difference, Said
from strands_sglang.chat.content import TemplateMessage, template_messages, tool_schemas
from strands_sglang.chat.findings import Findings, Trust
from strands_sglang.chat.lineage import Entry, Preamble
from strands_sglang.chat.shape import Shape, step_of, was_tried
from strands_sglang.chat.verdict import UNTRIED, Trouble, Verdict
from strands_sglang.chat.witness import witness
from strands_sglang.errors import TemplateRefusedError
from strands_sglang.tool_parsers import ToolParser

_NOT_COMPARED = Verdict(
    Trouble.UNTRIED, "the template looks at what stands in this conversation, which is no longer one rendering"
)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation, as much of it as appending may need."""

    preamble: Preamble
    """What stands in front of it."""
    tools: Any
    """The tools in the template's form; None when there are none."""
    messages: Sequence[Mapping[str, Any]]
    """All of it."""
    call_ids: Mapping[str, str]
    """Ids that the model itself wrote, by those in the messages."""
    known: int
    """Messages up to and including the turn that is gone on from."""
    aligned: bool = True
    """Whether it is all that was there: False when the oldest messages were dropped."""

    def rendered(self) -> list[TemplateMessage]:
        """Return the messages up to and including the turn that is gone on from, in the template's form."""
        made = template_messages(self.messages[: self.known], call_ids=self.call_ids)
        if self.preamble.system is not None:
            made.insert(0, {"role": "system", "content": self.preamble.system})
        return made


@dataclass(frozen=True, slots=True)
class Appended:
    """What continues a branch."""

    piece: Piece | None
    """The text; None when it cannot be derived."""
    verdict: Verdict
    """Whether it is what one rendering of the whole would have."""


class Appender:
    """Appends to branches, for one template."""

    def __init__(self, bridge: Bridge, findings: Findings, parser: ToolParser) -> None:
        self.findings = findings
        """What was found out about the template."""
        self._bridge = bridge
        self._parser = parser

    def seen(self, shape: Shape, messages: Iterable[TemplateMessage]) -> Shape:
        """Return a shape that knows whether the template can tell its texts, these included, from a stand-in's."""
        inspections = self.findings.inspections(self._bridge)
        if not shape.plain or all(inspections.plain(message) for message in messages):
            return shape
        return replace(shape, plain=False)

    def append(self, parent: Entry, new: list[TemplateMessage], conversation: Conversation) -> Appended:
        """Render new messages behind a turn, and say whether that is exact."""
        step, shape, findings = step_of(new), parent.shape, self.findings
        tools = conversation.tools is not None
        verdict = findings.verdict(self._bridge, step, shape, tools=tools) if was_tried(shape, new) else UNTRIED
        trust = findings.trust(conversation.preamble, step, shape)
        plain = self.seen(shape, new).plain
        if verdict.proved and (not plain or trust in (None, Trust.NEVER)):
            return self._carefully(parent, new, conversation, learn=plain and trust is None)
        return Appended(self._stood_in(parent, new, conversation, verdict, trust), verdict)

    def _stood_in(
        self,
        parent: Entry,
        new: list[TemplateMessage],
        conversation: Conversation,
        verdict: Verdict,
        trust: Trust | None,
    ) -> Piece | None:
        shape, extend = parent.shape, self._bridge.extend
        if trust is Trust.ALONE:
            return extend(replace(shape, system=None), parent.ended_by, new)
        piece = extend(shape, parent.ended_by, new, conversation.tools)
        if piece is None and shape.calls and not verdict.proved:
            # A template without calls may still take results: behind a turn that is text to it.
            piece = extend(replace(shape, calls=()), parent.ended_by, new, conversation.tools)
        return piece

    def _carefully(
        self, parent: Entry, new: list[TemplateMessage], conversation: Conversation, *, learn: bool
    ) -> Appended:
        """Render new messages behind the real conversation, and compare it with the branch."""
        step, shape, extend = step_of(new), parent.shape, self._bridge.extend
        tools, findings = conversation.tools, self.findings
        before = conversation.rendered()
        real = self._bridge.extend_real(shape, before, parent.ended_by, new, tools) if conversation.aligned else None
        piece = real or extend(shape, parent.ended_by, new, tools)
        if piece is None:
            return Appended(None, Verdict(Trouble.LACKS, "what the template writes behind a turn cannot be told apart"))
        trust = Trust.NEVER
        if real is None or not findings.counts_places(self._bridge, step, shape, tools=tools is not None):
            trust = self._trust(parent, new, tools, piece)
        told = told_of(parent)
        if told is None or real is None:
            # The branch is no rendering any more: the step is judged by itself.
            verdict = self._step(before, new, tools) if learn and trust is not Trust.NEVER else _NOT_COMPARED
        else:
            found = self.difference(told, piece.written, [*before, *new], conversation)
            verdict = Verdict() if found is None else Verdict(Trouble.REWRITES, found.witness)
        if learn and verdict.proved:
            findings.learn(conversation.preamble, step, shape, trust)
        return Appended(piece, verdict)

    def _step(self, before: Sequence[TemplateMessage], new: Sequence[TemplateMessage], tools: Any) -> Verdict:
        """Say whether a prompt still stands, in one rendering, once the turn behind it and new messages do."""
        render = self._bridge.template.render
        try:
            prompt, whole = render(before[:-1], tools=tools), render([*before, *new], tools=tools)
        except TemplateRefusedError as error:
            return Verdict(Trouble.REFUSES, error.template_message)
        stood, stands = (one.escapes.restore(one.text) for one in (prompt, whole))
        return Verdict() if stands.startswith(stood) else Verdict(Trouble.REWRITES, witness(stood, stands))

    def _trust(self, parent: Entry, new: list[TemplateMessage], tools: Any, piece: Piece) -> Trust:
        """Return which stand-in gives what the real conversation gave."""
        shape, extend = parent.shape, self._bridge.extend
        for trust, like, offered in (
            (Trust.ALONE, replace(shape, system=None), None),
            (Trust.BEHIND_PREAMBLE, shape, tools),
        ):
            stood_in = extend(like, parent.ended_by, new, offered)
            if stood_in is not None and (stood_in.closing, stood_in.written) == (piece.closing, piece.written):
                return trust
        return Trust.NEVER

    def difference(
        self,
        told: Sequence[Said],
        behind: str,
        messages: Sequence[TemplateMessage],
        conversation: Conversation,
        *,
        recoded: bool = False,
    ) -> Difference | None:
        """Return where one rendering of a conversation is not its branch; None when it is.

        Args:
            told: The turns of the branch.
            behind: What the template wrote behind them.
            messages: The conversation, up to there.
            conversation: Where its tools are.
            recoded: Whether the branch was decoded from its tokens, which not every tokenizer gives back as they were.
        """
        try:
            rendered = self._bridge.template.render(messages, tools=conversation.tools)
        except TemplateRefusedError as error:
            return Difference(len(told), error.template_message)
        encoder = self._bridge.encoder
        whole = rendered.escapes.restore(rendered.text)
        if recoded:
            whole = encoder.decode(encoder.encode(rendered.text, rendered.escapes))
        comparison = Comparison(encoder, self._parser, tool_schemas(conversation.preamble.tools))
        return comparison.difference(told, behind, whole)


def told_of(entry: Entry) -> list[Said] | None:
    """Return the turns of a branch as text; None when it is not one rendering, or not all of it is kept."""
    told: list[Said] = []
    node: Entry | None = entry
    while node is not None:
        if node.said is None or not node.exact:
            return None
        told.append(node.said)
        node = node.parent
    return told[::-1]
