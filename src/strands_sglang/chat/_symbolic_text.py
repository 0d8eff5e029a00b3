"""Renders a chat template with texts that record what the template does with them.

A `SymbolicText` is a string with a known value, and the formula (`Term`) by which the template computed it from the
given texts. Concatenating, stripping, splitting or serialising it gives another symbolic text. Where the template
decides something by a text (`if 'x' in content`), the decision becomes a *condition*: the recorded rendering applies to
other texts only if all its conditions have the same results for them.

A string subclass loses its record wherever code in C reads its characters (`str.join`, `%`, `in`, JSON, hashing). The
template is therefore run in an environment in which every operation on values passes through a guard: operators,
filters, tests, calls. A guard that does not know an operation on a symbolic text refuses the whole recording, also if
the template or Jinja catches the exception. Every method of `str` that is not followed refuses, too.

Invariant: if the recording was not refused, the rendered text for any texts that meet the conditions is the recorded
formula applied to them. (Whoever uses it still compares it with official renderings.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from datetime import datetime
from functools import lru_cache, wraps
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NoReturn, TypeAlias

from jinja2 import Undefined, nodes
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from strands_sglang.chat._jinja import as_json, chat_environment

Values: TypeAlias = Sequence[str]
"""The texts that a rendering is applied to, by slot."""
Condition: TypeAlias = "tuple[Term, Any]"
"""A term, and the result that it must have."""

_SPLIT = "xQzSplit{}qZx"
_DERIVING = frozenset("strip lstrip rstrip lower upper capitalize replace removeprefix removesuffix".split())
_SPLITTING = frozenset("split rsplit splitlines".split())
_QUERYING = frozenset("startswith endswith".split())


class RecordingRefusedError(Exception):
    """The template does something with a text that is not followed."""


class Term:
    """A formula over texts."""

    __slots__ = ()

    def value(self, values: Values) -> Any:
        """Return its value for some texts."""
        raise NotImplementedError


class Slot(Term):
    """One of the texts."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def value(self, values: Values) -> Any:
        """Return the text."""
        return values[self.number]


class Joined(Term):
    """Concatenated texts."""

    __slots__ = ("parts",)

    def __init__(self, parts: Iterable[str | Term]) -> None:
        self.parts: list[str | Term] = []
        for part in parts:
            for piece in part.parts if isinstance(part, Joined) else [part]:
                if isinstance(piece, str) and self.parts and isinstance(self.parts[-1], str):
                    self.parts[-1] += piece
                elif piece != "":
                    self.parts.append(piece)

    def value(self, values: Values) -> Any:
        """Return the concatenation."""
        return "".join(part if isinstance(part, str) else part.value(values) for part in self.parts)


class Applied(Term):
    """A function of terms and constants."""

    __slots__ = ("arguments", "function")

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def value(self, values: Values) -> Any:
        """Return the function's result."""
        return self.function(*(item.value(values) if isinstance(item, Term) else item for item in self.arguments))


class Unknown(Term):
    """A text that no formula describes, such as the time."""

    __slots__ = ()

    def value(self, values: Values) -> Any:
        """Refuse: the value is not known."""
        raise RecordingRefusedError("the template writes the time")


class Recording:
    """What one rendering did with its texts."""

    def __init__(self) -> None:
        self.conditions: list[Condition] = []
        """What the template decided by the texts."""
        self.refused: str | None = None
        """Why the rendering cannot be applied to other texts; None if it can."""

    def refuse(self, reason: str) -> NoReturn:
        """Refuse the recording: the reason stays, even if the exception is caught."""
        self.refused = self.refused or reason
        raise RecordingRefusedError(reason)

    def decided(self, result: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        """Record a decision; return its result."""
        self.conditions.append((Applied(function, *map(_term, arguments)), result))
        return result


class SymbolicText(str):
    """A string that a template computed from the given texts."""

    _recording: Recording
    _term: Term

    # Its own names start with an underscore: the sandbox hides them from templates.

    def __new__(cls, text: str, recording: Recording, term: Term) -> SymbolicText:
        """Create a symbolic text.

        Args:
            text: Its value in this rendering.
            recording: The recording it belongs to.
            term: Its formula.
        """
        made = str.__new__(cls, text)
        made._recording, made._term = recording, term
        return made

    def __str__(self) -> str:
        return self

    def __bool__(self) -> bool:
        return bool(self._recording.decided(str.__len__(self) > 0, bool, self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return False
        return bool(self._recording.decided(_plain(self) == _plain(other), _equal, self, other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:  # noqa: PLE0309 - it always raises
        self._recording.refuse("a text is used as a key")

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            raise TypeError("a text has no keys")
        if not isinstance(key, slice) or _holds_symbolic([key.start, key.stop, key.step]):
            self._recording.refuse("a character of a text is read")
        return _derived(self, str.__getitem__, key)


class TextLength:
    """The length of a symbolic text. It can only be compared."""

    def __init__(self, text: SymbolicText) -> None:
        self.text = text

    def __bool__(self) -> bool:
        return bool(self.text)

    def compared(self, operator: str, other: Any) -> bool:
        """Return the result of comparing it with a number."""
        if type(other) is not int:
            self.text._recording.refuse("a length is compared with something else than a number")
        result = _COMPARED[operator](str.__len__(self.text), other)
        return bool(self.text._recording.decided(result, _length_compared, operator, self.text, other))

    def __eq__(self, other: object) -> bool:
        return self.compared("eq", other)

    def __ne__(self, other: object) -> bool:
        return self.compared("ne", other)

    def __lt__(self, other: object) -> bool:
        return self.compared("lt", other)

    def __le__(self, other: object) -> bool:
        return self.compared("le", other)

    def __gt__(self, other: object) -> bool:
        return self.compared("gt", other)

    def __ge__(self, other: object) -> bool:
        return self.compared("ge", other)

    def __hash__(self) -> int:  # noqa: PLE0309 - it always raises
        self.text._recording.refuse("a length is used as a key")

    def _refused(self, *_: Any) -> NoReturn:
        self.text._recording.refuse("a length is used in a calculation")

    __str__ = __repr__ = __int__ = __index__ = __add__ = __radd__ = __sub__ = __rsub__ = __mod__ = _refused


_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "eq": int.__eq__,
    "ne": int.__ne__,
    "lt": int.__lt__,
    "le": int.__le__,
    "gt": int.__gt__,
    "ge": int.__ge__,
}


def _length_compared(operator: str, text: str, other: int) -> bool:
    return _COMPARED[operator](len(text), other)


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other)


def _contains(text: str, word: str) -> bool:
    return word in text


def _part_count(method: Callable[..., list[str]], text: str, *arguments: Any) -> int:
    return len(method(text, *arguments))


def _part(method: Callable[..., list[str]], number: int, text: str, *arguments: Any) -> str:
    return method(text, *arguments)[number]


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: SymbolicText, *_: Any, **__: Any) -> NoReturn:
        self._recording.refuse(f"str.{name} of a text")

    return refuse


def _method(name: str) -> Callable[..., Any]:
    own: Any = getattr(str, name)

    def method(self: SymbolicText, *arguments: Any, **named: Any) -> Any:
        recording = self._recording
        if named or _holds_symbolic(arguments):
            recording.refuse(f"str.{name} with a text as its argument, or with named arguments")
        if name in _QUERYING:
            return recording.decided(own(_plain(self), *arguments), own, self, *arguments)
        if name in _DERIVING:
            return _derived(self, own, *arguments)
        parts = own(_plain(self), *arguments)
        recording.decided(len(parts), _part_count, own, self, *arguments)
        return [
            SymbolicText(part, recording, Applied(_part, own, number, self._term, *arguments))
            for number, part in enumerate(parts)
        ]

    return method


# Methods of every object, which do not read the characters.
_OF_OBJECTS = frozenset(
    "__class__ __delattr__ __dir__ __doc__ __getattribute__ __init__ __init_subclass__ __new__ __setattr__ "
    "__sizeof__ __subclasshook__".split()
)
for _name in dir(str):
    if _name in _DERIVING | _SPLITTING | _QUERYING:
        setattr(SymbolicText, _name, _method(_name))
    elif _name not in _OF_OBJECTS and _name not in vars(SymbolicText):
        setattr(SymbolicText, _name, _refusing(_name))


def _derived(text: SymbolicText, function: Callable[..., str], *arguments: Any) -> SymbolicText:
    term = Applied(function, text._term, *arguments)
    return SymbolicText(function(_plain(text), *arguments), text._recording, term)


def _plain(text: str) -> str:
    return str.__str__(text)


_active = threading.local()
"""The recording that is made in this thread."""
_WITHOUT_TEXTS = (str, int, float, range, type, Undefined, Macro, FunctionType, BuiltinFunctionType)
"""Values that cannot contain a symbolic text."""


def _term(value: Any) -> Any:
    return value._term if isinstance(value, SymbolicText) else value


def _holds_symbolic(value: Any) -> bool:
    """Return whether a value is a symbolic text or may contain one."""
    return _first_symbolic(value) is not None


def _first_symbolic(value: Any) -> Recording | None:
    """Return the recording of a symbolic text in a value; None if there is none."""
    if isinstance(value, SymbolicText):
        return value._recording
    if isinstance(value, TextLength):
        return value.text._recording
    if isinstance(value, MethodType):
        return _first_symbolic(value.__self__)
    if isinstance(value, Mapping):
        return _first_symbolic([*value.keys(), *value.values()])
    if isinstance(value, (list, tuple)):
        return next((found for item in value if (found := _first_symbolic(item)) is not None), None)
    if isinstance(value, (KeysView, ValuesView, ItemsView)):
        return _first_symbolic(list(value))
    active: Recording | None = getattr(_active, "recording", None)
    if active is not None and not (value is None or isinstance(value, _WITHOUT_TEXTS)):
        active.refuse(f"a value of type {type(value).__name__}, which may contain texts")
    return None


def joined(pieces: Iterable[Any]) -> str:
    """Return concatenated pieces: a symbolic text if one of them is."""
    found: list[str] = [piece if type(piece) is str else str(piece) for piece in pieces]
    symbolic = [piece for piece in found if isinstance(piece, SymbolicText)]
    if not symbolic:
        return "".join(found)
    text = "".join(map(_plain, found))
    return SymbolicText(text, symbolic[0]._recording, Joined(map(_term, found)))


def _json(value: Any, **options: Any) -> str:
    recording = _first_symbolic(value)
    if recording is None:
        return as_json(value, **options)
    found: list[SymbolicText] = []

    def standing(item: Any) -> Any:
        if isinstance(item, SymbolicText):
            found.append(item)
            return _SPLIT.format(len(found) - 1)
        if isinstance(item, dict):
            if _holds_symbolic(list(item)):
                item_recording.refuse("a text is a key in JSON")
            return {key: standing(one) for key, one in item.items()}
        if isinstance(item, (list, tuple)):
            return [standing(one) for one in item]
        if item is None or type(item) in (str, int, float, bool):
            return item
        item_recording.refuse(f"a value of type {type(item).__name__} in JSON")

    item_recording = recording
    text = as_json(standing(value), **options)
    ascii_only = {"ensure_ascii": True} if options.get("ensure_ascii") else {}
    pieces: list[str] = []
    for number, item in enumerate(found):
        word = f'"{_SPLIT.format(number)}"'
        if text.count(word) != 1:
            recording.refuse("the place of a text in JSON is not found")
        before, text = text.split(word)
        written = SymbolicText(
            as_json(_plain(item), **ascii_only), recording, Applied(_ascii_json if ascii_only else as_json, item._term)
        )
        pieces += (before, written)
    return joined([*pieces, text])


def _ascii_json(text: str) -> str:
    return as_json(text, ensure_ascii=True)


def _is_in(value: Any, container: Any) -> bool:
    recording = _first_symbolic([value, container])
    if recording is None:
        return value in container
    if isinstance(container, str) and isinstance(value, str):
        return bool(recording.decided(_plain(value) in _plain(container), _contains, container, value))
    if isinstance(container, dict) and not isinstance(value, SymbolicText) and not _holds_symbolic(list(container)):
        return value in container
    if isinstance(container, (list, tuple, dict)):
        return any(bool(value == item) for item in container)
    recording.refuse("`in` with a text and something else than text, list or object")


_STRUCTURAL = frozenset(
    "default d first last list reverse selectattr rejectattr select reject map items batch slice".split()
)
"""Filters that pass values on, and read texts only by other filters and tests, or by their truth."""
_TESTS = {
    **dict.fromkeys("defined string sequence iterable".split(), True),
    **dict.fromkeys(
        "undefined none mapping number integer float boolean true false callable".split(),
        False,
    ),
}
"""What tests say of any text."""
_EQUAL_TESTS = frozenset("eq == equalto".split())
_UNEQUAL_TESTS = frozenset("ne !=".split())


def _refuse_markup() -> NoReturn:
    """Refuse markup: it compares itself with a text in C, which is not recorded."""
    active: Recording | None = getattr(_active, "recording", None)
    if active is not None:
        active.refuse("a filter makes markup")
    raise TypeError("markup is not made while a template is compiled")


def _guarded_filter(name: str, native: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(native)
    def guarded(*given: Any, **named: Any) -> Any:
        arguments = given[1:] if hasattr(native, "jinja_pass_arg") else given
        recording = _first_symbolic([arguments, named])
        if recording is None:
            if name == "random":
                raise TypeError("a choice is random, so its rendering cannot be repeated")
            made = native(*given, **named)
            if isinstance(made, Markup):
                _refuse_markup()
            return made
        value, *rest = arguments
        is_text = isinstance(value, SymbolicText)
        if name == "tojson" and not rest and not _holds_symbolic(named):
            return _json(value, **named)
        if name in ("length", "count"):
            return TextLength(value) if is_text else native(*given, **named)
        if is_text and not named and not _holds_symbolic(rest):
            if name == "trim":
                return value.strip(*rest)
            if name == "string" and not rest:
                return value
            if name in ("upper", "lower", "capitalize"):
                return getattr(value, name)(*rest)
            if name == "replace" and len(rest) == 2 and all(isinstance(one, str) for one in rest):
                return value.replace(*rest)
        if name == "join" and isinstance(value, (list, tuple)) and not named and len(rest) <= 1:
            between = rest[0] if rest else ""
            return joined([piece for item in value for piece in (between, item)][1:])
        if name in ("default", "d") or (name in _STRUCTURAL and not is_text):
            found = native(*given, **named)
            # A guard cannot look into an iterator.
            return list(found) if isinstance(found, Iterator) else found
        recording.refuse(f"the filter {name!r} on a text")

    return guarded


def _guarded_test(name: str, native: Any) -> Callable[..., Any]:
    @wraps(native)
    def guarded(*given: Any, **named: Any) -> Any:
        arguments = given[1:] if hasattr(native, "jinja_pass_arg") else given
        recording = _first_symbolic([arguments, named])
        if recording is None:
            return native(*given, **named)
        if isinstance(arguments[0], SymbolicText) and len(arguments) == 1 and name in _TESTS:
            return _TESTS[name]
        if isinstance(arguments[0], (dict, list, tuple)) and len(arguments) == 1 and name in _TESTS:
            return native(*given, **named)
        if len(arguments) == 2 and name in _EQUAL_TESTS:
            return arguments[0] == arguments[1]
        if len(arguments) == 2 and name in _UNEQUAL_TESTS:
            return arguments[0] != arguments[1]
        if len(arguments) == 2 and name == "in":
            return _is_in(*arguments)
        recording.refuse(f"the test {name!r} of a text")

    return guarded


class _RecordingEnvironment(ImmutableSandboxedEnvironment):
    """An environment in which every operation on values passes through a guard."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)
    intercepted_unops = frozenset(ImmutableSandboxedEnvironment.default_unop_table)
    concat = staticmethod(joined)
    joined_all = staticmethod(lambda *pieces: joined(pieces))
    is_in = staticmethod(_is_in)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator."""
        recording = _first_symbolic([left, right])
        if recording is None or (
            operator == "+" and isinstance(left, (list, tuple)) and isinstance(right, (list, tuple))
        ):
            return super().call_binop(context, operator, left, right)
        if operator == "+" and all(isinstance(one, str) and not isinstance(one, Markup) for one in (left, right)):
            return joined((left, right))
        recording.refuse(f"the operator {operator} on a text")

    def call_unop(self, context: Any, operator: str, arg: Any) -> Any:
        """Apply an operator with one operand."""
        recording = _first_symbolic(arg)
        if recording is not None:
            recording.refuse(f"the operator {operator} on a text")
        return super().call_unop(context, operator, arg)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(obj, "__self__", None)
        recording = _first_symbolic([args, kwargs])
        if isinstance(owner, SymbolicText):
            if getattr(obj, "__name__", "") != "method":  # a method of `str` itself
                owner._recording.refuse("an unknown method of a text")
        elif recording is not None and not (
            isinstance(obj, Macro)
            or any(obj is known for known in (Namespace, dict, self.joined_all, self.is_in))
            or _is_get(obj, args)
        ):
            recording.refuse(f"{getattr(obj, '__name__', obj)!s} is called with a text")
        return super().call(context, obj, *args, **kwargs)


def _is_get(function: Any, arguments: Sequence[Any]) -> bool:
    """Return whether a call is `get` of an object, with a key that is not a text of the conversation."""
    is_get = getattr(function, "__name__", "") == "get" and isinstance(getattr(function, "__self__", None), dict)
    return is_get and not _holds_symbolic(arguments[:1])


class _Guarding(NodeTransformer):
    """Replaces the operators that compiled templates apply without asking the environment: `~` and `in`."""

    refused: str | None = None

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """Replace `~`."""
        self.generic_visit(node)
        return _call("joined_all", node.nodes, node)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        """Replace `in` and `not in`."""
        self.generic_visit(node)
        kinds = {operand.op for operand in node.ops}
        if not kinds & {"in", "notin"}:
            return node
        if len(node.ops) > 1:
            self.refused = "a chain of comparisons with `in`"
            return node
        found = _call("is_in", [node.expr, node.ops[0].expr], node)
        return found if kinds == {"in"} else nodes.Not(found, lineno=node.lineno)

    def visit_ImportedName(self, node: nodes.Node) -> nodes.Node:
        """Refuse whatever loads other code."""
        self.refused = "a template that imports"
        return node

    visit_Include = visit_Import = visit_FromImport = visit_Extends = visit_ImportedName

    def visit_EvalContextModifier(self, node: nodes.Node) -> nodes.Node:
        """Refuse `autoescape`: it turns texts into markup."""
        self.refused = "a template that escapes"
        return node

    visit_ScopedEvalContextModifier = visit_EvalContextModifier


def _call(name: str, arguments: list[nodes.Expr], at: nodes.Node) -> nodes.Call:
    function = nodes.EnvironmentAttribute(name, lineno=at.lineno)
    return nodes.Call(function, arguments, [], None, None, lineno=at.lineno)


@lru_cache(maxsize=1)
def _environment() -> _RecordingEnvironment:
    made = chat_environment(_RecordingEnvironment)
    made.filters = {name: _guarded_filter(name, native) for name, native in made.filters.items()}
    made.tests = {name: _guarded_test(name, native) for name, native in made.tests.items()}
    return made


@lru_cache(maxsize=32)
def _compiled(source: str) -> Any:
    environment = _environment()
    tree, guarding = environment.parse(source), _Guarding()
    tree = guarding.visit(tree)
    if guarding.refused is not None:
        raise RecordingRefusedError(guarding.refused)
    tree.set_environment(environment)
    return environment.template_class.from_code(environment, environment.compile(tree), environment.make_globals(None))


def _with_plain_texts(value: Any, recording: Recording) -> Any:
    """Return a variable in which every text is symbolic or exactly a `str`: others compare themselves unrecorded."""
    if isinstance(value, SymbolicText) or type(value) is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, dict):
        return {key: _with_plain_texts(item, recording) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_with_plain_texts(item, recording) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if callable(value):
        recording.refuse("a function is passed to the template")
    return value


def slots_in(term: Any) -> frozenset[int]:
    """Return the numbers of the slots in a term."""
    if isinstance(term, Slot):
        return frozenset((term.number,))
    parts = term.parts if isinstance(term, Joined) else term.arguments if isinstance(term, Applied) else ()
    return frozenset().union(*map(slots_in, parts))


def record(source: str, recording: Recording, variables: Mapping[str, Any]) -> tuple[list[str | Term], str]:
    """Render a template with symbolic texts.

    Args:
        source: Source text of the template.
        recording: The recording that the symbolic texts in `variables` belong to; receives the conditions.
        variables: The template's variables.

    Returns:
        The rendered text as literal text and terms, in order, and as it is in this rendering. No two literals are
        adjacent. A term can be `Unknown` or depend on it: then its value cannot be computed.

    Raises:
        RecordingRefusedError: The template does something with a text that is not followed.
    """
    template = _compiled(source)

    def now(form: str) -> str:
        return SymbolicText(datetime.now().strftime(form), recording, Unknown())

    def chance(*_: Any, **__: Any) -> NoReturn:
        recording.refuse("the template writes something random")

    _active.recording = recording
    try:
        given = {name: _with_plain_texts(value, recording) for name, value in variables.items()}
        context = template.new_context({**given, "strftime_now": now, "lipsum": chance})
        written = joined(template.root_render_func(context))
    except RecordingRefusedError:
        raise
    except Exception as error:  # a template can raise anything
        recording.refuse(f"{type(error).__name__}: {error}")
    finally:
        _active.recording = None
    if recording.refused is not None:
        raise RecordingRefusedError(recording.refused)
    term = written._term if isinstance(written, SymbolicText) else written
    return Joined([term]).parts, _plain(written)
