"""JSON schemas of tools: the types of values written as bare text, and a check of arguments.

Some formats write every value as bare text. Is `123` a number or a string? The parameter's schema decides:

    {"type": "string"}                        123    -> "123"
    {"type": "integer"}                       123    -> 123
    {"anyOf": [{"type": "string"}, {...}]}    123    -> 123 if the other is a number, else "123"

- If only strings are allowed, or if nothing is known, the text is the value, unchanged.
- If no string is allowed, the text is read as strict JSON with optional surrounding whitespace.
- If both are allowed, the value is something else than a string only if the text is exactly how that value is written,
  so that nothing is lost: `1.10` and `1e5` stay strings.
- `True`, `False` and `None` count as JSON, because chat templates write scalars as Python does.
- A text that is no scalar of the allowed types is passed on as it is, for the tool to refuse. Where only an object, a
  list or null is allowed, such a text is a malformed call.

Invariant: any schema, however wrong, and any text give a value or a `CallFault`. Parts of a schema that are not JSON
Schema, or that refer outside of it, count as unknown. Values can be encoded as UTF-8. In `checked_by_schema`, an
unusable schema rejects nothing.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from jsonschema import exceptions, validators

from strands_sglang.tool_parsers._json import JsonReader, kind_of, skip_space
from strands_sglang.tool_parsers.base import Schemas
from strands_sglang.tool_parsers.parsed import (
    CallFault,
    FailedCall,
    ParsedTurn,
    ParseFailure,
    ToolCall,
    quoted,
    with_failed_calls,
)

_TYPES: dict[str, frozenset[str]] = {
    **{name: frozenset([name]) for name in ("string", "integer", "boolean", "null", "object", "array")},
    "number": frozenset(["integer", "number"]),
}
_ANY = frozenset().union(*_TYPES.values())
_NONE: frozenset[str] = frozenset()
_TEXT = _TYPES["string"]
_KINDS: tuple[tuple[Any, str], ...] = (
    *(
        (type(None), "null"),
        (bool, "boolean"),
        (int, "integer"),
        (str, "string"),
    ),  # before int: True is an int in Python
    *(((list, tuple), "array"), (Mapping, "object")),
)
_HOLDERS = {"object": "object", "array": "list"}
_PYTHON = {"True": True, "False": False, "None": None}

_MAX_DEPTH = 50
_MAX_NODES = 10_000
"""Parts of a schema that are followed: references can make a small schema endless."""

_SPACE = " \t\n\r"
_SURROGATE = re.compile("[\ud800-\udfff]")


class Values:
    """Reads the bare values of one turn."""

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas
        self._tools: dict[str, _Tool] = {}

    def read(self, tool: str, key: str, text: str, start: int, end: int) -> Any:
        """Return `text[start:end]` as the value of one parameter of a tool."""
        if tool not in self._tools:
            self._tools[tool] = _Tool(self._schemas.get(tool))
        types = self._tools[tool].types(key)
        value_text = checked_text(text, start, end, f"The value of parameter {quoted(key)}")
        if types <= _TEXT:
            return value_text
        if "string" in types:
            return _lossless(value_text, types)
        return _typed(value_text, types, key, start, end)


def checked_text(text: str, start: int, end: int, what: str) -> str:
    """Return `text[start:end]`. Raises CallFault if UTF-8 cannot encode it."""
    value_text = text[start:end]
    if not value_text.isascii() and (surrogate := _SURROGATE.search(value_text)):
        reason = f"{what} contains a lone surrogate"
        raise CallFault(ParseFailure.INVALID_JSON, reason, past=end, at=start + surrogate.start())
    return value_text


def type_of(value: Any) -> str | None:
    """Return the type of a JSON value in JSON Schema's terms, where 1.0 is an integer; None if it is not JSON."""
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    return next((name for kind, name in _KINDS if isinstance(value, kind)), None)


def _lossless(value_text: str, types: frozenset[str]) -> Any:
    if value_text in _PYTHON:
        return _PYTHON[value_text] if type_of(_PYTHON[value_text]) in types else value_text
    if not value_text or value_text[0] not in "{[-0123456789tfn" or value_text[-1] in _SPACE:
        return value_text
    try:
        value = _json(value_text)
    except CallFault:
        return value_text
    if type_of(value) not in types or (isinstance(value, float) and "number" not in types):
        return value_text
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value_text if is_number and json.dumps(value) != value_text else value


def _typed(value_text: str, types: frozenset[str], key: str, start: int, end: int) -> Any:
    bare = value_text.strip(_SPACE)
    if bare in _PYTHON and type_of(_PYTHON[bare]) in types:
        return _PYTHON[bare]
    expected = " or ".join(f"JSON {name}" for kind, name in _HOLDERS.items() if kind in types)
    must = f"The value of parameter {quoted(key)} must be a {expected}"
    failure, reason, at = ParseFailure.BAD_ARGUMENTS, "", None
    try:
        value = _json(value_text)
        if type_of(value) in types:
            return value
        kind = "an object" if isinstance(value, dict) else kind_of(value)
        reason = f"{must}, not {kind}"
    except CallFault as fault:
        failure, reason = fault.failure, f"{must}. {fault.message}"
        at = None if fault.at is None else start + fault.at
    if types - {"null", *_HOLDERS} or not types & set(_HOLDERS):
        return value_text
    raise CallFault(failure, reason, past=end, at=at)


def _json(value_text: str) -> Any:
    """`at` of the fault counts from the beginning of the text."""
    value, past = JsonReader(value_text).read(0)
    past = skip_space(value_text, past)
    if past < len(value_text):
        reason = "The JSON is not valid: there is text after the value"
        raise CallFault(ParseFailure.INVALID_JSON, reason, past=past, at=past)
    return value


class _Tool:
    """An empty set means unknown, or that nothing is allowed."""

    def __init__(self, schema: Any) -> None:
        self._root = schema
        self._nodes = 0
        self._owners = list(self._with_parameters(schema, frozenset()))
        self._known: dict[str, frozenset[str]] = {}
        self._others = self._union([owner.get("additionalProperties") for owner in self._owners], only=Mapping)

    def types(self, key: str) -> frozenset[str]:
        if key not in self._known:
            declared = [owner["properties"][key] for owner in self._owners if key in _mapping(owner, "properties")]
            if not declared:
                return self._others
            self._known[key] = self._union(declared, only=object)
        return self._known[key]

    def _with_parameters(self, schema: Any, refs: frozenset[str], depth: int = 0) -> Iterator[Mapping[str, Any]]:
        """The properties of a schema and of all its parts are parameters of the tool."""
        if not self._may_follow(schema, depth):
            return
        yield schema
        for keyword in ("allOf", "anyOf", "oneOf"):
            for part in _list(schema, keyword):
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
        if not self._may_follow(schema, depth):
            return _NONE
        types = _ANY
        if "type" in schema:
            named = schema["type"] if isinstance(schema["type"], (list, tuple)) else [schema["type"]]
            types = _NONE.union(*(_TYPES.get(name, _TEXT) if isinstance(name, str) else _TEXT for name in named))
        for values in (_list(schema, "enum"), [schema["const"]] if "const" in schema else []):
            if values:
                types &= {type_of(value) or "" for value in values}
        for keyword in ("anyOf", "oneOf"):
            if branches := _list(schema, keyword):
                types &= _NONE.union(*(self._types(branch, refs, depth + 1) for branch in branches))
        for part in _list(schema, "allOf"):
            types &= self._types(part, refs, depth + 1)
        ref = schema.get("$ref")
        if isinstance(ref, str):
            types &= self._referred(ref, refs, depth)
        return types | _TYPES["null"] if schema.get("nullable") is True else types

    def _referred(self, ref: str, refs: frozenset[str], depth: int) -> frozenset[str]:
        """Return the types of a reference: none if it leads back to itself, text if it leads nowhere."""
        if ref in refs:
            return _NONE
        target = _followed(self._root, ref)
        return _TEXT if target is None else self._types(target, refs | {ref}, depth + 1)

    def _may_follow(self, schema: Any, depth: int) -> bool:
        self._nodes += 1
        return isinstance(schema, Mapping) and depth <= _MAX_DEPTH and self._nodes <= _MAX_NODES


def _followed(root: Any, ref: str) -> Any:
    """Only references into the schema itself are followed."""
    if ref != "#" and not ref.startswith("#/"):
        return None
    for step in ref.split("/")[1:]:
        step = unquote(step).replace("~1", "/").replace("~0", "~")
        if not isinstance(root, Mapping) or step not in root:
            return None
        root = root[step]
    return root


def _mapping(schema: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
    found = schema.get(keyword)
    return found if isinstance(found, Mapping) else {}


def _list(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    found = schema.get(keyword)
    return list(found) if isinstance(found, (list, tuple)) else []


logger = logging.getLogger(__name__)

_LONG = 200


def checked_by_schema(parsed: ParsedTurn, schemas: Schemas) -> ParsedTurn:
    """Return a turn in which calls that violate their tool's schema are failed calls; without one, none is."""

    def failed(call: ToolCall) -> FailedCall | None:
        problem = _problem(call.arguments, schemas[call.name]) if call.name in schemas else None
        if problem is None:
            return None
        detail = f"The arguments of {call.name} do not follow its schema: {problem}."
        return FailedCall(call.raw, call.start, ParseFailure.SCHEMA, detail, call.name)

    return with_failed_calls(parsed, failed)


def _problem(arguments: dict[str, Any], schema: Mapping[str, Any]) -> str | None:
    try:
        error = exceptions.best_match(_validator(json.dumps(schema)).iter_errors(arguments))
    except Exception as broken:  # the schema comes from the tool's author and may be anything
        _warn_once(repr(broken))
        return None
    if error is None:
        return None
    where = "".join(f"[{step!r}]" for step in error.absolute_path)
    problem = f"{where}: {error.message}" if where else str(error.message)
    return problem if len(problem) <= _LONG else f"{problem[:_LONG]}…"


@lru_cache(maxsize=1024)
def _warn_once(problem: str) -> None:
    logger.warning("error=<%s> | tool schema cannot be used, arguments are not checked", problem)


@lru_cache(maxsize=1024)
def _validator(schema: str) -> Any:
    known = json.loads(schema)
    return validators.validator_for(known)(known)
