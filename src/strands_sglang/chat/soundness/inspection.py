"""Detects which properties of a conversation's texts a chat template inspects, besides writing the texts.

A stand-in is equivalent to the real conversation only if the template cannot tell them apart; some templates test
whether a text contains `/no_think`, how it starts, or how long it is, treat a tool by its name, or look up an argument
of a call. So conversations are rendered with strings and arguments that record the methods called on them, and each
recorded query is evaluated on every real message.

Invariant: a message is `plain` only if every recorded query gives the same result for it as for the stand-in's text.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

from jinja2 import Environment, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import test_sequence

from strands_sglang.chat.conversation_shape import ANCHOR
from strands_sglang.chat.messages import TemplateMessage
from strands_sglang.chat.template import OF_THE_PROCESS, PROBE_TIME, ChatTemplate
from strands_sglang.errors import TemplateRefusedError

_STAND_IN = "x"
_MAX_QUERIES = 128
"""Questions about a text that are recorded. A template with more reads its texts character by character."""
_TRUTH, _LENGTH, _JSON = "__bool__", "__len__", "tojson"
_DERIVING = (
    "strip lstrip rstrip lower upper title capitalize casefold swapcase replace removeprefix removesuffix expandtabs "
    "__getitem__ zfill center ljust rjust"
).split()
_SPLITTING = "split rsplit splitlines partition rpartition".split()
_QUERYING = (
    "__contains__ startswith endswith find rfind index rindex count isdigit isalpha isalnum isspace isupper islower "
    "istitle isnumeric isdecimal isidentifier __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__"
).split()
_CALL_NAME, _CALL_ID, _ARGUMENTS, _ARGUMENT_NAME, _ARGUMENT_VALUE = (
    ("call", key) for key in ("name", "id", "arguments", "argument name", "argument value")
)
_RESULT_ID, _TOOL_NAME = ("tool", "tool_call_id"), ("available tool", "name")
_RELATED = frozenset((_CALL_ID, _RESULT_ID, _TOOL_NAME))
"""Texts of which only the relation to other texts matters: a stand-in has the ids, and the tools, of the real one."""

MethodCall: TypeAlias = tuple[str, tuple[Any, ...]]
Query: TypeAlias = tuple[MethodCall, ...]
"""Methods called one after the other. The template sees the result of the last."""
Field: TypeAlias = tuple[str, str]


class _RecordingText(str):
    record: _Record
    field: Field
    path: Query

    def __new__(cls, text: str, record: _Record, field: Field, path: Query = ()) -> _RecordingText:
        made = super().__new__(cls, text)
        made.record, made.field, made.path = record, field, path
        return made

    __hash__ = str.__hash__

    def __bool__(self) -> bool:
        self.record.add(self, _TRUTH, ())
        return str.__len__(self) > 0

    def __len__(self) -> int:
        self.record.add(self, _LENGTH, ())
        return str.__len__(self)

    def __str__(self) -> str:
        return self

    def __iter__(self) -> Iterator[str]:
        # Set on the first character: testing whether a text is iterable reads none.
        for character in str.__iter__(self):
            self.record.unbounded = True
            yield character


class _RecordingArguments(dict[str, Any]):
    """Arguments of a call. Questions about them are recorded; reading all of them writes the call."""

    def __init__(self, arguments: Mapping[str, Any], record: _Record) -> None:
        super().__init__(arguments)
        self.record = record

    def _ask(self, method: str, *arguments: Any) -> None:
        self.record.query(_ARGUMENTS, ((method, arguments),))

    def __contains__(self, name: object) -> bool:
        found = super().__contains__(_unrecorded(name))
        if not found:
            self._ask("__contains__", name)
        return found

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        value = super().__getitem__(_unrecorded(name))
        return _RecordingText(value, self.record, _ARGUMENT_VALUE) if isinstance(value, str) else value

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default

    def __len__(self) -> int:
        self._ask(_LENGTH)
        return super().__len__()

    def __bool__(self) -> bool:
        self._ask(_TRUTH)
        return super().__len__() > 0

    def __eq__(self, other: object) -> bool:
        self.record.unbounded = True
        return super().__eq__(other)

    __hash__ = None

    def __str__(self) -> str:
        return _RecordingText(dict.__repr__(self), self.record, _ARGUMENTS, (("__str__", ()),))

    def __iter__(self) -> Iterator[str]:
        return (_RecordingText(name, self.record, _ARGUMENT_NAME) for name in super().__iter__())

    def keys(self) -> Any:
        return _Parts(self.record, [name for name in self])  # `list` would ask for the length

    def items(self) -> Any:
        return _Parts(self.record, [(name, self[name]) for name in self])

    def values(self) -> Any:
        return _Parts(self.record, [self[name] for name in self])


class _Parts(list[Any]):
    """Names or values of a call's arguments. Templates write them in a loop; comparing all at once is a question."""

    def __init__(self, record: _Record, parts: list[Any]) -> None:
        super().__init__(parts)
        self.record = record

    def __eq__(self, other: object) -> bool:
        self.record.unbounded = True
        return super().__eq__(other)

    __hash__ = None


def _unrecorded(text: Any) -> Any:
    return str.__str__(text) if isinstance(text, str) else text


@dataclass
class _Record:
    queries: dict[Field, dict[Query, None]] = field(default_factory=dict)
    unbounded: bool = False

    def add(self, text: _RecordingText, method: str, arguments: tuple[Any, ...]) -> None:
        related = text.field in _RELATED
        if any(isinstance(argument, _RecordingText) for argument in arguments) or (related and method == "__hash__"):
            # Two texts are compared with each other: the result does not depend on one message alone.
            self.unbounded = True
        elif not related:
            self.query(text.field, (*text.path, (method, arguments)))

    def query(self, field: Field, query: Query) -> None:
        known = self.queries.setdefault(field, {})
        known[query] = None
        self.unbounded = self.unbounded or len(known) > _MAX_QUERIES


def _querying(method: str) -> Callable[..., Any]:
    def query(self: _RecordingText, *arguments: Any) -> Any:
        self.record.add(self, method, arguments)
        return getattr(str, method)(self, *arguments)

    return query


def _deriving(method: str) -> Callable[..., Any]:
    def derive(self: _RecordingText, *arguments: Any, **named: Any) -> Any:
        if method == "replace" and arguments:
            self.record.add(self, "__contains__", arguments[:1])
        made = getattr(str, method)(self, *arguments, **named)
        return _RecordingText(made, self.record, self.field, (*self.path, (method, _hashable(arguments))))

    return derive


def _splitting(method: str) -> Callable[..., Any]:
    def split(self: _RecordingText, *arguments: Any, **named: Any) -> Any:
        words = arguments[:1] if arguments and isinstance(arguments[0], str) else ("\n",)
        self.record.add(self, "__contains__", words)
        pieces = getattr(str, method)(self, *arguments, **named)
        made = [_RecordingText(piece, self.record, self.field, (*self.path, (method, arguments))) for piece in pieces]
        return made if isinstance(pieces, list) else tuple(made)

    return split


for _name in _QUERYING:
    setattr(_RecordingText, _name, _querying(_name))
for _name in _DERIVING:
    setattr(_RecordingText, _name, _deriving(_name))
for _name in _SPLITTING:
    setattr(_RecordingText, _name, _splitting(_name))


def _hashable(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        ("slice", argument.start, argument.stop, argument.step) if isinstance(argument, slice) else argument
        for argument in arguments
    )


@dataclass(frozen=True, slots=True)
class Inspections:
    """The queries that a template makes on the texts of a conversation."""

    queries: Mapping[Field, tuple[Query, ...]]
    expected: Mapping[tuple[Field, Query], tuple[Any, ...]]
    """Results for a stand-in's text. An assistant's text may also be empty there, which is part of the shape."""
    sizes: tuple[int, ...]
    """Sorted integers in the template's source: a length matters only relative to these."""
    unbounded: bool
    """Whether the queries cannot be recorded: the template compares texts with each other, or reads characters."""

    def plain(self, message: TemplateMessage) -> bool:
        """Return whether the template cannot tell a message's texts from those of a stand-in."""
        if isinstance(message.get("content"), list):
            return False  # no stand-in has images
        return not self.queries or all(
            _evaluate(value, query, self.sizes) in self.expected[queried, query]
            for queried, value in _texts(message)
            for query in self.queries.get(queried, ())
        )


def _texts(message: TemplateMessage) -> Iterator[tuple[Field, Any]]:
    """Yield the texts of a message, and those of its calls, with the arguments of each."""
    for key, value in message.items():
        if isinstance(value, str):
            yield (message["role"], key), value
    for call in message.get("tool_calls", ()):
        function = call["function"]
        yield _CALL_NAME, function["name"]
        if isinstance(function["arguments"], Mapping):
            yield _ARGUMENTS, function["arguments"]
            for name, value in function["arguments"].items():
                yield _ARGUMENT_NAME, name
                yield _ARGUMENT_VALUE, value


def _evaluate(text: str, query: Query, sizes: Sequence[int]) -> Any:
    value: Any = text
    try:
        for method, arguments in query:
            if isinstance(value, (list, tuple)):
                # A part of a split text. Which one is not recorded, so the query is evaluated on all of them.
                return tuple(_evaluate(part, ((method, arguments),), sizes) for part in value)
            if method == _TRUTH:
                return bool(value)
            if method == _LENGTH:
                # A template compares the number of arguments with 0 or 1, too, and few calls have exactly one.
                return len(value) if isinstance(value, Mapping) else (len(value) > 0, bisect(sizes, len(value)))
            if method == _JSON:
                value = _as_json(value, **dict(arguments))
            else:
                value = getattr(value, method)(*(_real(argument) for argument in arguments))
    except Exception as error:  # such as `index` of a missing word
        return type(error).__name__
    return value if not isinstance(value, str) else None


def _real(argument: Any) -> Any:
    return slice(*argument[1:]) if isinstance(argument, tuple) and argument[:1] == ("slice",) else argument


def inspect(template: ChatTemplate, conversations: Sequence[tuple[Sequence[TemplateMessage], Any]]) -> Inspections:
    """Detect what a template queries; the system prompt is never replaced by a stand-in's."""
    record, source = _Record(), template.source
    try:
        compiled = _environment().from_string(source)
    except TemplateError:
        return Inspections({}, {}, (), unbounded=True)
    for messages, tools in conversations:
        recording = [_recording(message, record) for message in messages]
        available = tools and [_recording_function(tool, record, _TOOL_NAME) for tool in tools]
        given = {"tools": available, "add_generation_prompt": True, **template.variables}
        try:
            written = compiled.render(messages=_with_text_recorded(template.fitted(recording), record), **given)
        except OF_THE_PROCESS:
            raise
        except Exception:
            continue  # the template rejects this conversation
        try:
            official = template.official(template.fitted(messages), tools=tools)
        except TemplateRefusedError:
            continue
        # This is not the official renderer: the recorded queries are valid only if both render the same text.
        record.unbounded = record.unbounded or written != official
    sizes = _numbers(source)
    queries: dict[Field, tuple[Query, ...]] = {}
    expected: dict[tuple[Field, Query], tuple[Any, ...]] = {}
    for queried, known in record.queries.items():
        queries[queried] = tuple(known)
        texts: tuple[Any, ...] = (_STAND_IN, "") if queried[0] == "assistant" else (_STAND_IN,)
        if queried in (_ARGUMENTS, _ARGUMENT_VALUE):
            texts = ({_STAND_IN: ANCHOR} if queried == _ARGUMENTS else ANCHOR,)
        for query in known:
            expected[queried, query] = tuple(_evaluate(text, query, sizes) for text in texts)
    return Inspections(queries, expected, sizes, record.unbounded)


def _recording(message: TemplateMessage, record: _Record) -> TemplateMessage:
    role = message["role"]
    if role == "system":
        return message
    made: TemplateMessage = {
        key: _RecordingText(value, record, (role, key)) if isinstance(value, str) and key != "role" else value
        for key, value in message.items()
    }
    if "tool_calls" in made:
        made["tool_calls"] = [_recording_function(call, record, _CALL_NAME) for call in made["tool_calls"]]
    return made


def _recording_function(value: Mapping[str, Any], record: _Record, field: Field) -> dict[str, Any]:
    """Return a call, or an available tool."""
    made, function = dict(value), dict(value["function"])
    function["name"] = _RecordingText(function["name"], record, field)
    if field == _CALL_NAME:
        made["id"] = _RecordingText(made["id"], record, _CALL_ID)
        function["arguments"] = _RecordingArguments(function["arguments"], record)
    return {**made, "function": function}


def _with_text_recorded(messages: list[TemplateMessage], record: _Record) -> list[TemplateMessage]:
    """Return fitted messages; arguments that the template expects as JSON text record, too."""
    for message in messages:
        for call in message.get("tool_calls", ()):
            if isinstance(text := call["function"]["arguments"], str):
                call["function"]["arguments"] = _RecordingText(text, record, _ARGUMENTS, ((_JSON, ()),))
    return messages


def _numbers(source: str) -> tuple[int, ...]:
    tree = _environment().parse(source)
    found = {node.value for node in tree.find_all(nodes.Const) if type(node.value) is int and node.value > 1}
    return tuple(sorted(found))


class _PreservingEnvironment(ImmutableSandboxedEnvironment):
    """A macro that writes a single text returns the same string object."""

    @staticmethod
    def concat(pieces: Any) -> str:
        found = [piece for piece in pieces if str.__len__(piece)]
        return found[0] if len(found) == 1 else "".join(found)


class _Generation(Extension):
    """The `generation` tag, which marks generated text: renders its content."""

    tags = {"generation"}  # noqa: RUF012 - declared as in jinja2

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=1)
def _environment() -> Environment:

    def refuse(message: str) -> None:
        raise TemplateError(message)

    made = _PreservingEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    made.filters["tojson"] = _as_json
    made.tests["sequence"] = _is_sequence
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = PROBE_TIME.strftime
    return made


def _is_sequence(value: Any) -> bool:
    # As in jinja2, but the length that it asks for is not the template's question.
    return isinstance(value, (_RecordingText, _RecordingArguments)) or test_sequence(value)


def _as_json(value: Any, **options: Any) -> str:
    known = {name: item for name, item in options.items() if name in ("indent", "separators", "sort_keys")}
    text = json.dumps(value, ensure_ascii=options.get("ensure_ascii", False), **known)
    if isinstance(value, _RecordingArguments):
        return _RecordingText(text, value.record, _ARGUMENTS, ((_JSON, tuple(options.items())),))
    return text
