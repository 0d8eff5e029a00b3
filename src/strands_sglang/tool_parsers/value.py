"""Values written as bare text, typed by the schema of their parameter: is `123` a number or a string?

    {"type": "string"}                        123    -> "123"
    {"type": "integer"}                       123    -> 123
    {"anyOf": [{"type": "string"}, {...}]}    123    -> 123 if the other is a number, else "123"

Where only strings are allowed, and where nothing is known, the text is the value, as it stands. Where no string is
allowed, the text is read as strict JSON with white space around it. Where both are, nothing may be lost: the text is
something else than a string only if it is exactly how that is written (`1.10` and `1e5` stay strings: the numbers
would be written otherwise). `True`, `False` and `None` count as JSON, because chat templates write scalars the way
Python does. A text that is no scalar of the allowed types is handed over as it is, for the tool itself to refuse; but
where an object or a list is due (or null), text that is none is a malformed call.

Invariant: total. Any schema, however wrong, and any text give a value or a `CallFault`; what a schema says in words
that are not JSON Schema's, or in places outside of it, counts as not known. Values can be encoded as UTF-8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from strands_sglang.tool_parsers.call_object import kind_of
from strands_sglang.tool_parsers.fault import CallFault, shown
from strands_sglang.tool_parsers.parsed import ParseFailure
from strands_sglang.tool_parsers.strict_json import JsonReader, skip_space

_TYPES: dict[str, frozenset[str]] = {
    **{name: frozenset([name]) for name in ("string", "integer", "boolean", "null", "object", "array")},
    "number": frozenset(["integer", "number"]),
}
_ANY = frozenset().union(*_TYPES.values())
_NONE: frozenset[str] = frozenset()
_TEXT = _TYPES["string"]
_KINDS: tuple[tuple[Any, str], ...] = (
    *((type(None), "null"), (bool, "boolean"), (int, "integer"), (str, "string")),  # to Python, True is an int
    *(((list, tuple), "array"), (Mapping, "object")),
)
_HOLDERS = {"object": "object", "array": "list"}
_PYTHON = {"True": True, "False": False, "None": None}

_MAX_DEPTH = 50
_MAX_NODES = 10_000
"""How far a schema is followed: references can make a small one endless."""

_SPACE = " \t\n\r"
_SURROGATE = re.compile("[\ud800-\udfff]")


class Values:
    """Reads the values of one turn."""

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        """Make one.

        Args:
            schemas: JSON schema of the parameters of each tool, by the tool's name.
        """
        self._schemas = schemas
        self._tools: dict[str, _Tool] = {}

    def read(self, tool: str, key: str, text: str, start: int, end: int) -> Any:
        """Return the value that `text[start:end]` is for one parameter of a tool.

        Raises:
            CallFault: It is none.
        """
        if tool not in self._tools:
            self._tools[tool] = _Tool(self._schemas.get(tool))
        types = self._tools[tool].types(key)
        words = whole(text, start, end, f"The value of parameter {shown(key)}")
        if types <= _TEXT:
            return words
        if "string" in types:
            return _lossless(words, types)
        return _typed(words, types, key, start, end)


def whole(text: str, start: int, end: int, what: str) -> str:
    """Return a part of a text.

    Raises:
        CallFault: UTF-8 cannot hold it.
    """
    words = text[start:end]
    if not words.isascii() and (half := _SURROGATE.search(words)):
        reason = f"{what} holds half of a surrogate pair"
        raise CallFault(ParseFailure.INVALID_JSON, reason, past=end, at=start + half.start())
    return words


def type_of(value: Any) -> str | None:
    """Return the type of a JSON value in the words of JSON Schema, to which 1.0 is an integer; None for no JSON."""
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    return next((name for kind, name in _KINDS if isinstance(value, kind)), None)


def _lossless(words: str, types: frozenset[str]) -> Any:
    """Return what a text is where strings are allowed, and other types too."""
    if words in _PYTHON:
        return _PYTHON[words] if type_of(_PYTHON[words]) in types else words
    if not words or words[0] not in "{[-0123456789tfn" or words[-1] in _SPACE:
        return words
    try:
        value = _json(words)
    except CallFault:
        return words
    if type_of(value) not in types or (isinstance(value, float) and "number" not in types):
        return words
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return words if is_number and json.dumps(value) != words else value


def _typed(words: str, types: frozenset[str], key: str, start: int, end: int) -> Any:
    """Return what a text is where no string is allowed."""
    bare = words.strip(_SPACE)
    if bare in _PYTHON and type_of(_PYTHON[bare]) in types:
        return _PYTHON[bare]
    due = " or ".join(f"JSON {name}" for kind, name in _HOLDERS.items() if kind in types)
    must = f"The value of parameter {shown(key)} must be a {due}"
    failure, reason, at = ParseFailure.BAD_ARGUMENTS, "", None
    try:
        value = _json(words)
        if type_of(value) in types:
            return value
        kind = "an object" if isinstance(value, dict) else kind_of(value)
        reason = f"{must}, not {kind}"
    except CallFault as fault:
        failure, reason = fault.failure, f"{must}. {fault.words}"
        at = None if fault.at is None else start + fault.at
    if types - {"null", *_HOLDERS} or not types & set(_HOLDERS):
        return words
    raise CallFault(failure, reason, past=end, at=at)


def _json(words: str) -> Any:
    """Return the JSON value that a text is.

    Raises:
        CallFault: It is none; `at` counts from the beginning of the text.
    """
    value, past = JsonReader(words).read(0)
    past = skip_space(words, past)
    if past < len(words):
        reason = "The JSON is not valid: something stands behind the value"
        raise CallFault(ParseFailure.INVALID_JSON, reason, past=past, at=past)
    return value


class _Tool:
    """Which types the parameters of one tool allow. No type at all: nothing is known, or nothing is allowed."""

    def __init__(self, schema: Any) -> None:
        self._root = schema
        self._nodes = 0
        self._owners = list(self._with_parameters(schema, frozenset()))
        self._known: dict[str, frozenset[str]] = {}
        self._others = self._union([owner.get("additionalProperties") for owner in self._owners], only=Mapping)

    def types(self, key: str) -> frozenset[str]:
        """Return the types that a parameter allows."""
        if key not in self._known:
            declared = [owner["properties"][key] for owner in self._owners if key in _mapping(owner, "properties")]
            if not declared:
                return self._others
            self._known[key] = self._union(declared, only=object)
        return self._known[key]

    def _with_parameters(self, schema: Any, refs: frozenset[str], depth: int = 0) -> Iterator[Mapping[str, Any]]:
        """Yield a schema and those it is made of, whose properties are all parameters of the tool."""
        if not self._goes_on(schema, depth):
            return
        yield schema
        for word in ("allOf", "anyOf", "oneOf"):
            for part in _list(schema, word):
                yield from self._with_parameters(part, refs, depth + 1)
        ref = schema.get("$ref")
        if isinstance(ref, str) and ref not in refs:
            yield from self._with_parameters(_followed(self._root, ref), refs | {ref}, depth + 1)

    def _union(self, schemas: list[Any], only: type) -> frozenset[str]:
        self._nodes = 0
        return _NONE.union(*(self._types(schema, frozenset()) for schema in schemas if isinstance(schema, only)))

    def _types(self, schema: Any, refs: frozenset[str], depth: int = 0) -> frozenset[str]:
        if schema is True:
            return _ANY
        if not self._goes_on(schema, depth):
            return _NONE
        types = _ANY
        if "type" in schema:
            named = schema["type"] if isinstance(schema["type"], (list, tuple)) else [schema["type"]]
            types = _NONE.union(*(_TYPES.get(name, _TEXT) if isinstance(name, str) else _TEXT for name in named))
        for values in (_list(schema, "enum"), [schema["const"]] if "const" in schema else []):
            if values:
                types &= {type_of(value) or "" for value in values}
        for word in ("anyOf", "oneOf"):
            if branches := _list(schema, word):
                types &= _NONE.union(*(self._types(branch, refs, depth + 1) for branch in branches))
        for part in _list(schema, "allOf"):
            types &= self._types(part, refs, depth + 1)
        ref = schema.get("$ref")
        if isinstance(ref, str):
            types &= self._referred(ref, refs, depth)
        return types | _TYPES["null"] if schema.get("nullable") is True else types

    def _referred(self, ref: str, refs: frozenset[str], depth: int) -> frozenset[str]:
        """Return the types behind a reference: none where it leads back to itself, text where it leads nowhere."""
        if ref in refs:
            return _NONE
        target = _followed(self._root, ref)
        return _TEXT if target is None else self._types(target, refs | {ref}, depth + 1)

    def _goes_on(self, schema: Any, depth: int) -> bool:
        self._nodes += 1
        return isinstance(schema, Mapping) and depth <= _MAX_DEPTH and self._nodes <= _MAX_NODES


def _followed(root: Any, ref: str) -> Any:
    """Return what a reference into the schema itself points at; None for any other."""
    if ref != "#" and not ref.startswith("#/"):
        return None
    for step in ref.split("/")[1:]:
        step = unquote(step).replace("~1", "/").replace("~0", "~")
        if not isinstance(root, Mapping) or step not in root:
            return None
        root = root[step]
    return root


def _mapping(schema: Mapping[str, Any], word: str) -> Mapping[str, Any]:
    found = schema.get(word)
    return found if isinstance(found, Mapping) else {}


def _list(schema: Mapping[str, Any], word: str) -> list[Any]:
    found = schema.get(word)
    return list(found) if isinstance(found, (list, tuple)) else []
