"""The bridge: from new messages to the tokens that continue a branch.

It is derived from the chat template at hand. New messages are rendered behind a stand-in conversation of the same
shape; what the template writes behind the stand-in's last assistant turn is what continues the branch. The join with
what was really sampled is made at the level of tokens (see `joint`). History is never rendered, so the cost of a turn
is that of what is new.

Invariant: the ids of a branch are only ever extended. Whether the extension is what one rendering of the whole
conversation would give is `soundness`'s to prove; here it is refused only where it cannot be derived at all.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from strands_sglang.chat.content import TemplateMessage
from strands_sglang.chat.encoder import Encoder
from strands_sglang.chat.joint import Joint, find_joint, tokens_within
from strands_sglang.chat.shape import ANCHOR, Shape, behind_words, stand_in_calls
from strands_sglang.chat.template import ChatTemplate, Rendered
from strands_sglang.errors import TemplateRefusedError

_REPLY = "xQzReplyqZx"
Tools = Sequence[Mapping[str, Any]] | None


@dataclass(frozen=True, slots=True)
class Piece:
    """Text to be encoded: what continues a branch, or opens one."""

    closing: str
    """What closes the turn before; empty when it closed itself, or there is none."""
    context: str
    """New messages and the prompt for the next turn."""
    rendered: Rendered
    """Where both come from."""
    white: str = ""
    """White space between both that the token before it swallows: written by the template, and no token."""

    @property
    def written(self) -> str:
        """What the template wrote for it, data as it was given."""
        return self.rendered.escapes.restore(f"{self.closing}{self.white}{self.context}")


@dataclass(frozen=True, slots=True)
class Extension:
    """The tokens that continue a branch, or open one."""

    closing: array[int]
    """End-of-turn tokens that the sampled turn before lacked."""
    context: array[int]
    """New messages and the prompt for the next turn."""
    tail: str
    """The end of the rendered text, for whoever wants to know whether the prompt opened a reasoning block."""


class Bridge:
    """Renders and encodes for one template on one tokenizer."""

    def __init__(self, template: ChatTemplate, encoder: Encoder) -> None:
        self.template = template
        """The chat template."""
        self.encoder = encoder
        """The tokenizer's encoder."""
        self._joints: dict[tuple[Shape, str], Joint | None] = {}

    def open(self, messages: Sequence[TemplateMessage], tools: Tools = None) -> Piece:
        """Render a whole conversation, for a new branch.

        Raises:
            TemplateRefusedError: The template does not take it.
        """
        rendered = self.template.render(messages, tools=tools)
        return Piece("", rendered.text, rendered)

    def extend(
        self, shape: Shape, ended_by: int | None, new: Sequence[TemplateMessage], tools: Tools = None
    ) -> Piece | None:
        """Render new messages behind a branch.

        Args:
            shape: The shape of the branch's conversation.
            ended_by: Last sampled token, if it is a control token; None for a turn that was cut in its text.
            new: The messages to append.
            tools: The tools of the conversation.

        Returns:
            What continues the branch; None when it cannot be derived from this template.
        """
        joint = self.joint(shape, new[0]["role"])
        if joint is None:
            return None
        return self._behind(joint, shape.stand_in(), shape.anchors, ended_by, new, tools)

    def extend_real(
        self,
        shape: Shape,
        before: Sequence[TemplateMessage],
        ended_by: int | None,
        new: Sequence[TemplateMessage],
        tools: Tools = None,
    ) -> Piece | None:
        """Render new messages behind the real conversation, at the cost of all of it.

        Args:
            shape: The shape of the branch's conversation.
            before: That conversation, system prompt included; its last message is the assistant turn.
            ended_by: Last sampled token, if it is a control token; None for a turn that was cut in its text.
            new: The messages to append.
            tools: The tools of the conversation.

        Returns:
            What continues the branch; None when it cannot be derived from this template.
        """
        joint = self.joint(shape, new[0]["role"])
        if joint is None or ANCHOR in repr(before):
            return None
        last = dict(before[-1])
        if shape.calls:
            last["tool_calls"] = stand_in_calls(shape.calls)
        else:
            last.pop("tool_calls", None)
            last["content"] = ANCHOR
        return self._behind(joint, [*before[:-1], last], max(1, len(shape.calls)), ended_by, new, tools)

    def _behind(
        self,
        joint: Joint,
        before: Sequence[TemplateMessage],
        anchors: int,
        ended_by: int | None,
        new: Sequence[TemplateMessage],
        tools: Tools,
    ) -> Piece | None:
        try:
            rendered = self.template.render([*before, *new], tools=tools)
        except TemplateRefusedError:
            return None
        at = behind_words(rendered.text, ANCHOR, anchors)
        if at is None:
            return None
        behind = rendered.text[at:]
        found = list(islice(self.encoder.control.find(behind), len(joint.zone)))
        cut = joint.cut(found, ended_by)
        if cut is None:
            return None
        # Some end-of-turn tokens swallow the white space behind them, here as in one text.
        border = next((token.id for token in found if token.end == cut.closing_end), None)
        rest = behind[cut.closing_end :]
        context = self.encoder.control.stripped(rest, border)
        white = rest[: len(rest) - len(context)]
        return Piece(behind[cut.closing_start : cut.closing_end], context, rendered, white)

    def is_slow(self, piece: Piece) -> bool:
        """Return whether encoding a piece takes long enough to be done in a thread."""
        return self.encoder.is_slow(piece.context, piece.rendered.escapes)

    def encode(self, piece: Piece) -> Extension:
        """Encode a piece. May take long for long texts: call it in a thread then."""
        escapes = piece.rendered.escapes
        closing = self.encoder.encode(piece.closing, escapes) if piece.closing else array("i")
        return Extension(closing, self.encoder.encode(piece.context, escapes), piece.context[-64:])

    def joint(self, shape: Shape, role: str) -> Joint | None:
        """Return what stands between a conversation of a shape and a message of a role; None: cannot be told."""
        key = (shape.kind, role)
        if key not in self._joints:
            try:
                self._joints[key] = self._find_joint(shape.kind, role)
            except TemplateRefusedError:
                self._joints[key] = None
        return self._joints[key]

    def _find_joint(self, shape: Shape, role: str) -> Joint | None:
        text_joint = None
        if shape.calls:
            text_joint = self.joint(replace(shape, calls=()), "user")
            if text_joint is None:
                return None
        new: list[TemplateMessage] = [{"role": role, "content": _REPLY}]
        if role == "tool":
            new = [{**new[0], "tool_call_id": call_id, "name": name} for name, call_id in shape.calls or (("x", "x"),)]
        stand_in = shape.stand_in()
        last = self.template.render(stand_in, generate=False).text
        followed = self.template.render([*stand_in, *new]).text
        at_last, at_followed = (behind_words(text, ANCHOR, shape.anchors) for text in (last, followed))
        if at_last is None or at_followed is None:
            return None
        end = followed.find(_REPLY, at_followed)
        if end < 0:
            return None
        control = self.encoder.control
        within = tokens_within(control, self.template.render(stand_in[:-1], generate=False).text, last[:at_last])
        return find_joint(control, last[at_last:], followed[at_followed:], end - at_followed, text_joint, within)
