"""What a chat template looks at in the texts of a conversation, besides writing them.

A stand-in conversation is only as good as the real one if the template cannot tell them apart. Most templates write
texts as they are; some ask whether `/no_think` is in one, how one begins, or how long it is. That is found out by
rendering texts that notice being asked: each question is kept, and asked of every real message before it is stood in
for.

Invariant: a message is `plain` only if it answers every question that was noticed as the stand-in's own text does.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeAlias

from jinja2 import Environment, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from strands_sglang.chat.content import TemplateMessage
from strands_sglang.chat.template import ChatTemplate
from strands_sglang.errors import TemplateRefusedError

_STAND_IN = "x"
_MANY = 128
"""Questions kept of one template. One that asks more reads its texts letter by letter."""
_TRUTH, _LENGTH = "__bool__", "__len__"
_DERIVING = (
    "strip lstrip rstrip lower upper title capitalize casefold swapcase replace removeprefix removesuffix expandtabs "
    "__getitem__ zfill center ljust rjust"
).split()
_CUTTING = "split rsplit splitlines partition rpartition".split()
_ASKING = (
    "__contains__ startswith endswith find rfind index rindex count isdigit isalpha isalnum isspace isupper islower "
    "istitle isnumeric isdecimal isidentifier __eq__ __ne__ __lt__ __le__ __gt__ __ge__"
).split()

Asked: TypeAlias = tuple[str, tuple[Any, ...]]
"""A method of a text, and its arguments."""
Question: TypeAlias = tuple[Asked, ...]
"""Methods called one after the other; the last one's answer is what the template learned."""
Field: TypeAlias = tuple[str, str]
"""Role of a message, and the key of the text in it."""


class _Noticing(str):
    """A text that keeps what it is asked."""

    notes: _Notes
    field: Field
    path: Question

    def __new__(cls, text: str, notes: _Notes, field: Field, path: Question = ()) -> _Noticing:
        made = super().__new__(cls, text)
        made.notes, made.field, made.path = notes, field, path
        return made

    __hash__ = str.__hash__

    def __bool__(self) -> bool:
        self.notes.take(self, _TRUTH, ())
        return str.__len__(self) > 0

    def __len__(self) -> int:
        self.notes.take(self, _LENGTH, ())
        return str.__len__(self)

    def __str__(self) -> str:
        return self

    def __iter__(self) -> Iterator[str]:
        # Behind the first letter: asking whether a text can be iterated over reads none.
        for letter in str.__iter__(self):
            self.notes.unbounded = True
            yield letter


@dataclass
class _Notes:
    """What was asked, by all the texts of one template."""

    asked: dict[Field, dict[Question, None]] = field(default_factory=dict)
    unbounded: bool = False

    def take(self, text: _Noticing, method: str, arguments: tuple[Any, ...]) -> None:
        if any(isinstance(argument, _Noticing) for argument in arguments):
            # Two texts compared with each other: no question that one of them could answer alone.
            self.unbounded = True
            return
        known = self.asked.setdefault(text.field, {})
        question: Question = (*text.path, (method, arguments))
        known[question] = None
        self.unbounded = self.unbounded or len(known) > _MANY


def _asking(method: str) -> Callable[..., Any]:
    def ask(self: _Noticing, *arguments: Any) -> Any:
        self.notes.take(self, method, arguments)
        return getattr(str, method)(self, *arguments)

    return ask


def _deriving(method: str) -> Callable[..., Any]:
    def derive(self: _Noticing, *arguments: Any, **named: Any) -> Any:
        if method == "replace" and arguments:
            self.notes.take(self, "__contains__", arguments[:1])
        made = getattr(str, method)(self, *arguments, **named)
        return _Noticing(made, self.notes, self.field, (*self.path, (method, _hashable(arguments))))

    return derive


def _cutting(method: str) -> Callable[..., Any]:
    def cut(self: _Noticing, *arguments: Any, **named: Any) -> Any:
        words = arguments[:1] if arguments and isinstance(arguments[0], str) else ("\n",)
        self.notes.take(self, "__contains__", words)
        pieces = getattr(str, method)(self, *arguments, **named)
        made = [_Noticing(piece, self.notes, self.field, (*self.path, (method, arguments))) for piece in pieces]
        return made if isinstance(pieces, list) else tuple(made)

    return cut


for _name in _ASKING:
    setattr(_Noticing, _name, _asking(_name))
for _name in _DERIVING:
    setattr(_Noticing, _name, _deriving(_name))
for _name in _CUTTING:
    setattr(_Noticing, _name, _cutting(_name))


def _hashable(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        ("slice", argument.start, argument.stop, argument.step) if isinstance(argument, slice) else argument
        for argument in arguments
    )


@dataclass(frozen=True, slots=True)
class Inspections:
    """What a template asks of the texts of a conversation."""

    questions: Mapping[Field, tuple[Question, ...]]
    """By the text asked."""
    usual: Mapping[tuple[Field, Question], tuple[Any, ...]]
    """What a stand-in answers. An assistant's text may be empty there, too: that is part of a conversation's shape."""
    sizes: tuple[int, ...]
    """Numbers that stand in the template, sorted: a length is looked at no closer than these."""
    unbounded: bool
    """Whether the template asks what cannot be kept: it compares texts with each other, or reads their letters."""

    def plain(self, message: TemplateMessage) -> bool:
        """Return whether a template cannot tell a message's texts from those of a stand-in."""
        if not self.questions:
            return True
        role = message["role"]
        for (asked, key), questions in self.questions.items():
            text = message.get(key) if asked == role else None
            if isinstance(text, str) and any(
                self._answer(text, question) not in self.usual[(asked, key), question] for question in questions
            ):
                return False
        return True

    def _answer(self, text: str, question: Question) -> Any:
        return _answered(text, question, self.sizes)


def _answered(text: str, question: Question, sizes: Sequence[int]) -> Any:
    value: Any = text
    try:
        for method, arguments in question:
            if isinstance(value, (list, tuple)):
                # A piece of a text that was cut: which one is not kept, so all of them count.
                return tuple(_answered(piece, ((method, arguments),), sizes) for piece in value)
            if method == _TRUTH:
                return bool(value)
            if method == _LENGTH:
                return (len(value) > 0, bisect(sizes, len(value)))
            value = getattr(value, method)(*(_real(argument) for argument in arguments))
    except Exception as error:  # such as `index` of what is not there
        return type(error).__name__
    return value if not isinstance(value, str) else None


def _real(argument: Any) -> Any:
    return slice(*argument[1:]) if isinstance(argument, tuple) and argument[:1] == ("slice",) else argument


def inspect(template: ChatTemplate, conversations: Sequence[tuple[Sequence[TemplateMessage], Any]]) -> Inspections:
    """Find out what a template asks.

    Args:
        template: The chat template.
        conversations: What to render: messages, and tools.

    Returns:
        What it asks of the texts of users, tools and assistants. The system prompt is not stood in for.
    """
    notes, source = _Notes(), template.source
    try:
        compiled = _environment().from_string(source)
    except TemplateError:
        return Inspections({}, {}, (), unbounded=True)
    for messages, tools in conversations:
        noticing = [_noticing(message, notes) for message in messages]
        given = {"tools": tools, "add_generation_prompt": True, **template.variables}
        try:
            written = compiled.render(messages=template.fitted(noticing), **given)
        except Exception:
            continue  # a conversation that the template refuses asks nothing further
        try:
            official = template.official(template.fitted(messages), tools=tools)
        except TemplateRefusedError:
            continue
        # Rendered here by other means than officially: what was noticed counts only if both write the same.
        notes.unbounded = notes.unbounded or (written != official and not _tells_time(source))
    sizes = _numbers(source)
    questions: dict[Field, tuple[Question, ...]] = {}
    usual: dict[tuple[Field, Question], tuple[Any, ...]] = {}
    for asked, known in notes.asked.items():
        questions[asked] = tuple(known)
        texts = (_STAND_IN, "") if asked[0] == "assistant" else (_STAND_IN,)
        for question in known:
            usual[asked, question] = tuple(_answered(text, question, sizes) for text in texts)
    return Inspections(questions, usual, sizes, notes.unbounded)


def _noticing(message: TemplateMessage, notes: _Notes) -> TemplateMessage:
    role = message["role"]
    if role == "system":
        return message
    return {
        key: _Noticing(value, notes, (role, key))
        if isinstance(value, str) and key not in ("role", "tool_call_id", "name")
        else value
        for key, value in message.items()
    }


def _numbers(source: str) -> tuple[int, ...]:
    """Return the whole numbers above 1 that stand in a template."""
    tree = _environment().parse(source)
    found = {node.value for node in tree.find_all(nodes.Const) if type(node.value) is int and node.value > 1}
    return tuple(sorted(found))


def _tells_time(source: str) -> bool:
    return "strftime_now" in source


class _Generation(Extension):
    """The tag that marks what a model generated: it writes what stands inside it."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return what stands inside."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Joining(ImmutableSandboxedEnvironment):
    """An environment whose macros hand a text on that they write alone."""

    @staticmethod
    def concat(pieces: Any) -> str:
        """Return pieces joined: the only one that is not empty as it is."""
        found = [piece for piece in pieces if str.__len__(piece)]
        return found[0] if len(found) == 1 else "".join(found)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    """Return the environment that chat templates are written for."""

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def as_json(value: Any, **options: Any) -> str:
        known = {name: item for name, item in options.items() if name in ("indent", "separators", "sort_keys")}
        return json.dumps(value, ensure_ascii=options.get("ensure_ascii", False), **known)

    made = _Joining(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
    made.filters["tojson"] = as_json
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made
