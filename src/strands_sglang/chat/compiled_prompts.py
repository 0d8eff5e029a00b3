"""Prompts that are compiled: fixed text around the new texts, so that a repeated step needs no rendering.

What a template writes for a step (tool results after a turn, a user message, the first prompt of an episode) is the
same text around the new contents, as long as everything else is the same: template, shape of the conversation, roles
and names of the new messages, tools. After a few uses of such a *kind* the template is rendered once with texts that
record what it does with them (`_symbolic_text`). The result is a `CompiledPrompt`: literal pieces, formulas over the
contents, and conditions that the contents must meet. Contents that meet no conditions, or that could form a control
token together with the text around them, are rendered as before.

Invariant: a compiled prompt is the text that rendering gives. It is compared with renderings of difficult contents when
it is made, and with the rendering of the real contents at its uses number 1, 2, 4, 8, ... A difference ends compilation
for this template, is logged as an error, and the rendered text is used.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeAlias

from strands_sglang.chat._symbolic_text import (
    Condition,
    Recording,
    RecordingRefusedError,
    Slot,
    SymbolicText,
    Term,
    slots_in,
)
from strands_sglang.chat._symbolic_text import record as record_rendering
from strands_sglang.chat.control_tokens import Escapes, Occurrence
from strands_sglang.chat.conversation_shape import ANCHOR, ConversationShape, offset_after
from strands_sglang.chat.messages import TemplateMessage
from strands_sglang.chat.prompt_text import PromptText
from strands_sglang.chat.template import ChatTemplate
from strands_sglang.chat.tokenization import Encoder

logger = logging.getLogger(__name__)

COMPILE_AFTER = 3
"""Uses of a kind of prompt that are rendered before it is compiled."""
_MAX_KINDS = 1024
_MAX_PROMPTS = 4
"""Compiled prompts of one kind: one for each way in which the template treats the contents."""
_MAX_TRIES = 8
_PLAIN_ID = re.compile(r"(?!.*xQz)[A-Za-z0-9_.:\-]*")
_KEYS = frozenset(("role", "content", "tool_call_id", "name"))
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_NEXT_LETTER = str.maketrans(
    _LETTERS + _LETTERS.upper(), _LETTERS[1:] + _LETTERS[0] + _LETTERS[1:].upper() + _LETTERS[0].upper()
)
_DIFFICULT = (
    "two words",
    " white space at both ends \n",
    "\n\nlines\n\n",
    "",
    " \n",
    '{"a": [1, "b\\"c", null]}',
    "<tag>\nwords\n</tag>\n\nwords",
    "{{ braces }} {% tag %} & < > ' \" \\n \\",
    "é\u3000漢字🙂\x1f\u2028",
    "/switch [LETTERS] Error: none",
    "word " * 700,
)
"""Contents on which a compiled prompt is compared with a rendering."""


class Boundary(Protocol):
    """Says which part of a text after a turn closes the turn (`bridge.TurnBoundary`)."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """Ids of the control tokens between the turn and the next message."""

    def closing_span(self, found: Sequence[Occurrence], ended_by: int | None) -> Any:
        """Return the part, with `start` and `end`; None if it cannot be told."""


class PromptRequest(NamedTuple):
    """What a prompt is made from."""

    shape: ConversationShape | None
    """The shape of the branch's conversation; None for a prompt that starts a branch."""
    ended_by: int | None
    """Last sampled token if it is a control token."""
    new: Sequence[TemplateMessage]
    """The messages: those to append, or the whole conversation."""
    tools: Any
    """The tools of the conversation. Must not be modified."""


Render: TypeAlias = Callable[[PromptRequest], PromptText | None]
"""Renders a prompt; returns None if it cannot be derived."""


class _Piece(NamedTuple):
    """A literal text, and the formula after it."""

    text: str
    tokens: tuple[Occurrence, ...]
    """The control tokens in the literal text."""
    term: Term | None


@dataclass
class CompiledPrompt:
    """One way in which the template writes a kind of prompt."""

    closing: str
    absorbed: str
    before: int
    """Length of the fixed text before the context."""
    pieces: tuple[_Piece, ...]
    """The text from the end of the turn on, including what is before the context."""
    conditions: tuple[Condition, ...]
    composed: frozenset[str]
    """The literals that the template concatenates from parts, as known when it was compiled."""
    uses: int = 0

    def context(self, values: Sequence[str], encoder: Encoder) -> str | None:
        """Return the context for some contents; None if it does not apply to them."""
        for condition, result in self.conditions:
            if condition.value(values) != result:
                return None
        written: list[str] = []
        expected: list[tuple[int, int, int]] = []
        at = 0
        for text, tokens, term in self.pieces:
            for token, start, end in tokens:
                expected.append((token, at + start, at + end))
            written.append(text)
            at += len(text)
            if term is not None:
                value = term.value(values)
                written.append(value)
                at += len(value)
        whole = "".join(written)
        if encoder.control.spans(whole) != expected:
            return None  # contents and the text around them form a control token
        return whole[self.before :]


@dataclass
class _Kind:
    """Prompts that differ only in their contents."""

    tools: Any
    """Kept alive, because kinds are told apart by the identity of their tools."""
    uses: int = 0
    tries: int = 0
    prompts: list[CompiledPrompt] = field(default_factory=list)


class CompiledPrompts:
    """The compiled prompts of one template on one tokenizer. Thread-safe: state is only added or replaced."""

    def __init__(
        self, template: ChatTemplate, encoder: Encoder, boundary: Callable[[ConversationShape, str], Boundary | None]
    ) -> None:
        """Start without compiled prompts.

        Args:
            template: The chat template.
            encoder: The tokenizer's encoder.
            boundary: Returns the boundary between a conversation of a shape and a message of a role.
        """
        self.enabled = template.is_official
        """Whether prompts are compiled. Ends with the first difference."""
        self.refused: dict[str, int] = {}
        """Why kinds of prompts were not compiled, with the number of tries."""
        self.compiled = 0
        """Prompts that were compiled."""
        self._template, self._encoder, self._boundary = template, encoder, boundary
        self._kinds: OrderedDict[tuple[Any, ...], _Kind] = OrderedDict()

    def prompt(self, request: PromptRequest, render: Render) -> PromptText | None:
        """Return a prompt: from a compiled one if possible, otherwise rendered."""
        kind = self._kind(request) if self.enabled else None
        if kind is None:
            return render(request)
        kind.uses += 1
        if kind.uses <= COMPILE_AFTER:
            return render(request)
        escapes = Escapes(self._encoder.control)
        values = self._values(request.new, escapes)
        if values is None:
            return render(request)
        for compiled in kind.prompts:
            if compiled.composed is not self._template.composed:
                continue
            context = compiled.context(values, self._encoder)
            if context is not None:
                made = PromptText(compiled.closing, context, escapes, compiled.absorbed, request.shape is None)
                compiled.uses += 1
                if compiled.uses & (compiled.uses - 1) == 0:
                    return self._checked(made, request, render)
                return made
        rendered = render(request)
        if rendered is not None and kind.tries < _MAX_TRIES and len(kind.prompts) < _MAX_PROMPTS:
            kind.tries += 1
            self._compile(kind, request, values, render)
        return rendered

    def _kind(self, request: PromptRequest) -> _Kind | None:
        """Return the kind of a request; None if such requests are not compiled."""
        shape, ended_by, new, tools = request
        described: list[Any] = [ended_by, id(tools)]
        answered = []
        for message in new:
            role = message["role"]
            if role == "tool":
                answered.append(message["tool_call_id"])
            elif role == "system" and shape is None:
                described.append(message["content"])
            elif role != "user":
                return None
            if not isinstance(message["content"], str) or not message.keys() <= _KEYS:
                return None
            described += (role, message.get("name"))
        if len(set(answered)) != len(answered):
            return None
        if shape is None:
            if answered:
                return None
        else:
            if shape.calls and [call_id for _, call_id in shape.calls] != answered:
                return None
            described += [name for name, _ in shape.calls]
            described += (
                len(shape.calls),
                shape.reasoning,
                shape.no_reasoning,
                shape.tool_rounds,
                shape.exchanges,
                shape.earlier_rounds,
                shape.system,
            )
        key = tuple(described)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind(tools)
            while len(self._kinds) > _MAX_KINDS:
                self._kinds.popitem(last=False)
        return kind

    def _values(self, new: Sequence[TemplateMessage], escapes: Escapes) -> list[str] | None:
        """Return the texts by slot, as the template gets them; None if they are rendered in any case."""
        values: list[str] = []
        composed = self._template.composed
        for message in self._template.fitted(new):
            role = message["role"]
            if role == "system":
                continue
            if role == "tool":
                call_id = message["tool_call_id"]
                if not _PLAIN_ID.fullmatch(call_id) or escapes.escape(call_id, composed=composed) != call_id:
                    return None
                values.append(call_id)
            values.append(escapes.escape(message["content"], composed=composed))
        return values

    def _checked(self, made: PromptText, request: PromptRequest, render: Render) -> PromptText | None:
        """Return the rendered prompt, after comparing it with the compiled one."""
        rendered = render(request)
        if self._same(made, rendered):
            return made
        self.enabled = False
        logger.error(
            "compiled=<%r>, rendered=<%r> | a compiled prompt differs from its rendering; prompts of this chat "
            "template are rendered from now on. The rendered one is used here. Please report this with the template",
            made.text[-200:],
            None if rendered is None else rendered.text[-200:],
        )
        return rendered

    def _same(self, made: PromptText, rendered: PromptText | None) -> bool:
        """Return whether two prompts have the same texts and the same tokens."""
        if rendered is None:
            return False
        texts = (made.closing, made.absorbed, made.context)
        if texts == (rendered.closing, rendered.absorbed, rendered.context) and made.escapes.same_as(rendered.escapes):
            return True  # equal texts have equal tokens, and encoding them would block the event loop
        encode = self._encoder.encode
        one, other = (
            (
                prompt.text,
                prompt.absorbed,
                encode(prompt.closing, prompt.escapes) if prompt.closing else None,
                encode(prompt.context, prompt.escapes),
            )
            for prompt in (made, rendered)
        )
        return bool(one == other)

    def _compile(self, kind: _Kind, request: PromptRequest, values: Sequence[str], render: Render) -> None:
        """Compile a kind of prompt for contents like these, if that is possible."""
        try:
            compiled = self._record(request, values)
            self._verify(compiled, request, render)
        except RecordingRefusedError as error:
            reason = str(error)
            self.refused[reason] = self.refused.get(reason, 0) + 1
            logger.debug("reason=<%s> | a prompt is not compiled", reason)
            return
        kind.prompts = [*(one for one in kind.prompts if one.composed is compiled.composed), compiled]
        self.compiled += 1

    def _record(self, request: PromptRequest, values: Sequence[str]) -> CompiledPrompt:
        """Render with recording texts, and cut the result after the stand-in's last turn."""
        shape, ended_by, new, tools = request
        composed = self._template.composed
        before = [] if shape is None else shape.stand_in()
        messages = self._template.fitted([*before, *({**one, "content": ""} if _is_slot(one) else one for one in new)])
        escapes = Escapes(self._encoder.control)
        safe, safe_tools = self._template.escaped(messages, tools, escapes)
        if escapes:
            raise RecordingRefusedError("names, tools or system prompt contain text that is escaped")
        recording = Recording()
        texts = [SymbolicText(value, recording, Slot(number)) for number, value in enumerate(values)]
        ids = _place_texts(safe, len(before), texts, shape)
        pieces, written = record_rendering(
            self._template.marked_source, recording, self._template.marked_variables(safe, safe_tools)
        )
        if written != self._template.render_escaped(_plain_texts(safe), safe_tools):
            raise RecordingRefusedError("the recorded rendering differs from the official one")
        anchors = 0 if shape is None else shape.anchor_count
        following = self._after_anchors(pieces, anchors, ids)
        compiled = CompiledPrompt("", "", 0, following, tuple(recording.conditions), composed)
        text = compiled.context(values, self._encoder)
        if text is None:
            raise RecordingRefusedError("a content and the text around it form a control token")
        whole = self._encoder.control.unmarked(written)[0]
        at = offset_after(whole, ANCHOR, anchors)
        if at is None or whole[at:] != text:
            raise RecordingRefusedError("the end of the stand-in is not found")
        return compiled if shape is None else self._closed(compiled, shape, ended_by, new[0]["role"], text)

    def _after_anchors(self, pieces: Sequence[str | Term], anchors: int, ids: frozenset[int]) -> tuple[_Piece, ...]:
        """Return the pieces after the last anchor, with their control tokens instead of marks."""
        control, composed = self._encoder.control, self._template.composed
        made: list[_Piece] = []
        literal = ""
        tokens: tuple[Occurrence, ...] = ()
        for piece in pieces:
            if isinstance(piece, str):
                text, own = control.unmarked(piece)
                if anchors:
                    found = min(anchors, text.count(ANCHOR))
                    anchors -= found
                    if anchors:
                        continue
                    cut = offset_after(text, ANCHOR, found) or 0
                    text, own = text[cut:], [Occurrence(id, start - cut, end - cut) for id, start, end in own]
                literal, tokens = text, tuple(control.find(text))
                foreign = {token for token in tokens if token not in own}
                if any(control.texts[token.id] not in composed for token in foreign):
                    raise RecordingRefusedError("the template writes a control token of which no mark is left")
            elif anchors:
                if not slots_in(piece) <= ids:
                    raise RecordingRefusedError("a content is written before the end of the stand-in")
            else:
                made.append(_Piece(literal, tokens, piece))
                literal, tokens = "", ()
        if anchors:
            raise RecordingRefusedError("the end of the stand-in is not written")
        return (*made, _Piece(literal, tokens, None))

    def _closed(
        self, compiled: CompiledPrompt, shape: ConversationShape, ended_by: int | None, role: str, text: str
    ) -> CompiledPrompt:
        """Return the compiled prompt with the part that closes the turn, which must be fixed text."""
        control, fixed = self._encoder.control, compiled.pieces[0].text
        boundary = self._boundary(shape, role)
        found = [] if boundary is None else list(islice(control.find(text), len(boundary.tokens)))
        closing = None if boundary is None else boundary.closing_span(found, ended_by)
        if closing is None or closing.end > len(fixed):
            raise RecordingRefusedError("the end of the turn is not fixed text")
        border = next((token.id for token in found if token.end == closing.end), None)
        rest = control.stripped(fixed[closing.end :], border)
        if not rest and len(compiled.pieces) > 1:
            raise RecordingRefusedError("nothing is written between the end of the turn and a content")
        before = len(fixed) - len(rest)
        return replace(
            compiled, closing=fixed[closing.start : closing.end], absorbed=fixed[closing.end : before], before=before
        )

    def _verify(self, compiled: CompiledPrompt, request: PromptRequest, render: Render) -> None:
        """Compare a compiled prompt with renderings of other contents, of which some must be like those it is for."""
        alike = 0
        for other in _variants(request, _some(list(self._encoder.control.ids))):
            escapes = Escapes(self._encoder.control)
            values = self._values(other.new, escapes)
            context = None if values is None else compiled.context(values, self._encoder)
            if context is None:
                continue
            made = PromptText(compiled.closing, context, escapes, compiled.absorbed)
            if not self._same(made, render(other)):
                raise RecordingRefusedError("the compiled prompt differs from a rendering")
            alike += 1
        if not alike:
            raise RecordingRefusedError("no other contents are treated like these")


def _some(literals: Sequence[str]) -> list[str]:
    """Return a few literals, from the beginning to the end of the list."""
    return [literals[at * (len(literals) - 1) // 3] for at in range(4)] if literals else []


def _is_slot(message: TemplateMessage) -> bool:
    return bool(message["role"] != "system")


def _place_texts(
    safe: list[TemplateMessage], first: int, texts: Sequence[SymbolicText], shape: ConversationShape | None
) -> frozenset[int]:
    """Put symbolic texts into messages; return the slots of the call ids.

    Args:
        safe: All messages; modified.
        first: Index of the first new message.
        texts: The texts of the new messages, in order.
        shape: The shape of the branch's conversation.
    """
    remaining = iter(enumerate(texts))
    ids: list[tuple[int, SymbolicText]] = []
    for at in range(first, len(safe)):
        message = safe[at] = dict(safe[at])
        if message["role"] == "tool":
            ids.append(next(remaining))
            message["tool_call_id"] = ids[-1][1]
        if _is_slot(message):
            message["content"] = next(remaining)[1]
    if shape is not None and shape.calls:
        last = safe[first - 1]
        calls = [{**call, "id": text} for call, (_, text) in zip(last["tool_calls"], ids, strict=True)]
        safe[first - 1] = {**last, "tool_calls": calls}
    return frozenset(number for number, _ in ids)


def _plain_texts(value: Any) -> Any:
    """Return a value with plain strings instead of symbolic texts."""
    if isinstance(value, SymbolicText):
        return str.__str__(value)
    if isinstance(value, dict):
        return {key: _plain_texts(item) for key, item in value.items()}
    return [_plain_texts(item) for item in value] if isinstance(value, list) else value


def _variants(request: PromptRequest, literals: Sequence[str]) -> Iterator[PromptRequest]:
    """Yield requests of the same kind in which every content and every call id is another.

    Args:
        request: The request.
        literals: Control-token literals that contents contain.
    """
    shape, ended_by, new, tools = request
    ids = {message["tool_call_id"]: "" for message in new if message["role"] == "tool"}
    for call_id in ids:
        ids[call_id] = call_id.translate(_NEXT_LETTER)
    if shape is not None:
        shape = replace(shape, calls=tuple((name, ids.get(call_id, call_id)) for name, call_id in shape.calls))
    # The last two contain the real contents: a template that inspects them may treat no others alike.
    for text in (*_DIFFICULT, *(f"a {literal} b" for literal in literals), "{} more", "\n{} "):
        messages = []
        for number, message in enumerate(new):
            if _is_slot(message):
                message = {**message, "content": _varied(text, number, message["content"])}
                if message["role"] == "tool":
                    message["tool_call_id"] = ids[message["tool_call_id"]]
            messages.append(message)
        yield PromptRequest(shape, ended_by, messages, tools)


def _varied(text: str, number: int, content: str) -> str:
    """Return a text that differs between the messages of a request."""
    if "{}" in text:
        return text.replace("{}", content)
    middle = len(text) // 2
    return f"{text[:middle]}{number}{text[middle:]}" if text.strip() else text
