"""Conversations made up by hypothesis, and a branch grown along them the way `SGLangModel` grows one.

No model is needed: what it would sample is taken from the template's own rendering of each assistant turn, up to and
including the token that ends it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from hypothesis import strategies as st

from families import tokenizer
from strands_sglang.chat.bridge import Bridge, Extension, Piece
from strands_sglang.chat.content import TemplateMessage
from strands_sglang.chat.proved import sound_bridge
from strands_sglang.chat.shape import Shape, opening_shape, step_of, was_tried
from strands_sglang.chat.verdict import UNTRIED, Soundness, Trouble, Verdict

Messages = list[TemplateMessage]

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string", "description": "Such as 1 + 1."}},
                "required": ["expression"],
            },
        },
    }
    for name, description in (("calculator", "Work out an expression."), ("look_up", "Schlägt nach: 🙂."))
]


@dataclass(frozen=True)
class Family:
    """A family's bridge, what is proved of it, and what its template takes."""

    name: str
    tokenizer: Any
    bridge: Bridge
    sound: Soundness
    most_calls: int
    """Calls a turn may have; 0: the template knows no tools."""
    text_with_calls: bool
    """Whether a turn's text is written beside its calls."""
    user_after_tool: bool
    """Whether a user message may follow tool results."""

    def official(self, messages: Messages, tools: Any, *, generate: bool = True) -> str:
        """Return what transformers renders."""
        return self.bridge.template.official(self.bridge.template.fitted(messages), tools=tools, generate=generate)

    def official_ids(self, messages: Messages, tools: Any, *, generate: bool = True) -> array[int]:
        """Return the ids that transformers gives for a whole conversation."""
        ids = self.tokenizer.apply_chat_template(
            self.bridge.template.fitted(messages),
            tools=tools,
            add_generation_prompt=generate,
            tokenize=True,
            return_dict=False,
        )
        return array("i", ids)

    def controls(self, ids: Sequence[int]) -> list[int]:
        """Return the control tokens among ids, in order."""
        return [token for token in ids if token in self.bridge.encoder.control]


@cache
def family(name: str) -> Family:
    """Return a family, its bridge proved once a run."""
    bridge, sound = sound_bridge(tokenizer(name))
    template = bridge.template
    most = 0 if not template.calls else 3 if sound.parallel.proved else 1
    both = False
    if most:
        message = assistant("xQzTextqZx", None, ["xQzCallqZx"], 0)
        written = template.render([{"role": "user", "content": "x"}, message], generate=False).text
        both = "xQzTextqZx" in written and "xQzCallqZx" in written
    refusals = [verdict for (step, _), verdict in sound.verdicts.items() if step.value == "user after tool"]
    after = all(verdict.trouble not in (Trouble.REFUSES, Trouble.LACKS) for verdict in refusals)
    return Family(name, tokenizer(name), bridge, sound, most, both, after)


def assistant(text: str, reasoning: str | None, expressions: Sequence[str], turn: int) -> TemplateMessage:
    """Return an assistant turn with a call for each expression."""
    message: TemplateMessage = {"role": "assistant", "content": text}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if expressions:
        message["tool_calls"] = [
            {
                "type": "function",
                "id": call_id(turn, number),
                "function": {"name": tool_name(number), "arguments": {"expression": expression}},
            }
            for number, expression in enumerate(expressions)
        ]
    return message


def calls_of(said: TemplateMessage) -> tuple[tuple[str, str], ...]:
    """Return name and id of each call of an assistant turn."""
    return tuple((call["function"]["name"], call["id"]) for call in said.get("tool_calls", ()))


def call_id(turn: int, number: int) -> str:
    """Return nine letters and digits, which every template takes."""
    return f"call{turn:03d}{number:02d}"


def tool_name(number: int) -> str:
    return str(TOOLS[number % 2]["function"]["name"])


# --- what people and tools write ------------------------------------------------------------------------------------

_ODD = (
    "",
    " ",
    "\n",
    " \n\t ",
    "\n\nа\n",
    '{"a": [1, true, null], "b": "\\n"}',
    "[]",
    "87",
    "-1.5e3",
    "null",
    "<tool_response>x</tool_response>",
    "</think>",
    "<think>x",
    "<b>&amp;</b>",
    "{{ messages }}{% if x %}",
    "\\u0041 \\n C:\\new",
    "e\u0301 \u0301 x\u0308\u0301",
    "שלום עולם \u202eabc\u202c",
    "👩‍👩‍👧‍👦🏳️‍🌈 ‼️",
    "한국어 日本語 中文。",
    "\U000f0000\U000f1234 \U00100000",
    "\x00\x07\x1b[31m\u2028\ufeff",
    "▁▁ ▁x",
    "xQzAnchorqZx xQzReplyqZx",
)
_LETTERS = st.characters(codec="utf-8", exclude_categories=("Cs", "Cn"))
_WORDS = st.text(_LETTERS, max_size=24)
_LONG = st.builds(lambda word, times: (word + " ") * times, st.text(_LETTERS, min_size=1, max_size=8), st.just(150))
DATA: st.SearchStrategy[str] = st.one_of(
    _WORDS, st.sampled_from(_ODD), st.lists(st.sampled_from(_ODD), min_size=2, max_size=3).map("".join), _LONG
)
"""What a user or a tool may write."""
_SAID = st.sampled_from(("It is", "Grüße 🙂,", "好的", "نعم", "a\n\nb", "`x < 1`", "{'a': 1}", "No. 5\tx", "x́"))
_ENDINGS = ("", ".", "!", "🙂", "。", ")", "…", "```", '"', "5", "é")


@dataclass(frozen=True)
class Turn:
    """An assistant turn, and what is answered."""

    text: str
    reasoning: str | None
    expressions: tuple[str, ...]
    answers: tuple[str, ...]
    """A result of each call; or the next question, when there are no calls."""
    question: str | None
    """A question straight behind the results; None when there is none."""
    mark: str
    """The turn's last word, up to its ending."""
    ending: str
    """What its text ends with, behind that word."""


@dataclass(frozen=True)
class Talk:
    """A whole conversation."""

    system: str | None
    tools: bool
    question: str
    turns: tuple[Turn, ...]
    forks: bool
    """Whether a new branch is begun where appending is not proved, rather than appended all the same."""

    def opening(self) -> Messages:
        system: Messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": self.question}]

    def said(self, number: int) -> TemplateMessage:
        """Return an assistant turn."""
        turn = self.turns[number]
        return assistant(turn.text, turn.reasoning, turn.expressions, number)

    def answered(self, number: int) -> Messages:
        """Return what comes behind it."""
        turn = self.turns[number]
        if not turn.expressions:
            return [{"role": "user", "content": turn.answers[0]}]
        new: Messages = [
            {"role": "tool", "tool_call_id": call_id(number, at), "name": tool_name(at), "content": content}
            for at, content in enumerate(turn.answers)
        ]
        if turn.question is not None:
            new.append({"role": "user", "content": turn.question})
        return new


def harmless(of: Family) -> st.SearchStrategy[str]:
    """Return data that holds no control token of a family: what transformers encodes just as we do."""

    def without(text: str) -> str:
        while (found := next(of.bridge.encoder.control.find(text), None)) is not None:
            text = f"{text[: found.start]}word{text[found.end :]}"
        return text

    return DATA.map(without)


@st.composite
def talks(draw: st.DrawFn, of: Family, data: st.SearchStrategy[str] = DATA, count: int | None = None) -> Talk:
    """Make up a conversation that the family's template takes; `count`: its turns, 1 to 30 when not given."""
    if count is None:
        # Long conversations are rare and short ones common, or a run would take an hour.
        count = draw(st.one_of(st.integers(1, 4), st.integers(2, 10), st.integers(3, 30)))
    thinks = draw(st.sampled_from(("always", "never", "sometimes"))) if of.sound.reasoning else "never"
    turns = []
    for number in range(count):
        calls = draw(st.integers(0, of.most_calls)) if of.most_calls else 0
        mark, ending = f"Fin{number}", draw(st.sampled_from(_ENDINGS))
        thought = thinks == "always" or (thinks == "sometimes" and draw(st.booleans()))
        reasoning = f"{draw(_SAID)} hm{draw(st.sampled_from(_ENDINGS))}" if thought else None
        text = f"{draw(_SAID)} {mark}{ending}"
        expressions: tuple[str, ...] = ()
        question = None
        if calls:
            text = f"Now {draw(_SAID)}" if of.text_with_calls and draw(st.booleans()) else ""
            expressions = tuple(f"{draw(_SAID)} {mark}" for _ in range(calls))
            ending = ""
            question = draw(data) if of.user_after_tool and draw(st.integers(0, 4)) == 0 else None
        answers = tuple(draw(data) for _ in range(max(1, calls)))
        turns.append(Turn(text, reasoning, expressions, answers, question, mark, ending))
    system = draw(st.sampled_from((None, "You are a helpful agent.", "Grüße 🙂\n\nUse tools.")))
    return Talk(system, bool(of.most_calls) and draw(st.booleans()), draw(data), tuple(turns), draw(st.booleans()))


# --- a branch ------------------------------------------------------------------------------------------------------


@dataclass
class Branch:
    """The tokens of a conversation, grown turn by turn as `provider.plan` and `provider.turn` do it."""

    of: Family
    tools: Any
    ids: array[int] = field(default_factory=lambda: array("i"))
    shape: Shape = field(default_factory=Shape)
    """The shape of the conversation, its last turn included once there is one."""
    ended_by: int | None = None
    closing: array[int] = field(default_factory=lambda: array("i"))
    """What was last added to close a turn."""

    def open(self, messages: Messages) -> None:
        bridge = self.of.bridge
        self.ids = bridge.encode(bridge.open(messages, self.tools)).context
        self.shape = opening_shape(messages)

    def sample(self, ids: Sequence[int], said: TemplateMessage, *, cut: bool = False) -> None:
        """Put a sampled turn behind the prompt."""
        self.ids = self.ids + array("i", ids)
        self.end(said, cut=cut)

    def end(self, said: TemplateMessage, *, cut: bool = False) -> None:
        """Take the tokens at the end for a sampled turn."""
        last = self.ids[-1]
        self.ended_by = last if last in self.of.bridge.encoder.control else None
        self.shape = self.shape.ending(() if cut else calls_of(said), "reasoning_content" in said)

    def extend(self, new: Messages) -> tuple[Verdict, Extension | None]:
        """Append messages; None when that cannot be derived and a model would fork."""
        verdict = self.of.sound.verdict(step_of(new), self.shape) if was_tried(self.shape, new) else UNTRIED
        piece = self._piece(self.shape, new)
        if piece is None and self.shape.calls and not verdict.proved:
            piece = self._piece(replace(self.shape, calls=()), new)
        if piece is None:
            return verdict, None
        extension = self.of.bridge.encode(piece)
        self.ids = self.ids + extension.closing + extension.context
        self.closing = extension.closing
        self.shape = self.shape.behind(new)
        return verdict, extension

    def _piece(self, shape: Shape, new: Messages) -> Piece | None:
        return self.of.bridge.extend(shape, self.ended_by, new, self.tools)


def ended(of: Family, shape: Shape, role: str, text: str, turn: Turn) -> str:
    """Return a rendered conversation as a model leaves it: up to the token that ends its last turn.

    Args:
        of: The family.
        shape: The shape of the conversation, last turn included.
        role: The role of the message that will follow.
        text: What the template writes when nothing follows.
        turn: The last turn.
    """
    at = text.rindex(turn.mark) + len(turn.mark) + len(turn.ending)
    behind = list(of.bridge.encoder.control.find(text, at))
    joint = of.bridge.joint(shape, role)
    assert joint is not None
    if joint.end_of_turn is None:
        return text[: behind[joint.own - 1].end if joint.own else at]
    usual = [token for token in behind if token.id == joint.zone[joint.end_of_turn]]
    return text[: (usual[:1] or behind[-1:])[0].end]
