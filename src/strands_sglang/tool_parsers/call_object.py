"""A call written as one JSON object: `{"name": ..., "arguments": {...}}`.

Invariant: a name that is a string with something in it, and an object as arguments; or a `CallFault`. Other keys are
ignored: they say nothing about what to execute.
"""

from __future__ import annotations

from typing import Any

from strands_sglang.tool_parsers.fault import CallFault
from strands_sglang.tool_parsers.parsed import ParseFailure


def name_of(value: Any, past: int) -> str:
    """Return the tool that a JSON value calls.

    Args:
        value: What was read.
        past: Where it ends in the text.

    Raises:
        CallFault: It calls none.
    """
    if not isinstance(value, dict):
        words = f"A tool call must be a JSON object, not {kind_of(value)}"
        raise CallFault(ParseFailure.NOT_AN_OBJECT, words, past=past)
    if "name" not in value:
        raise CallFault(ParseFailure.MISSING_NAME, 'The tool call has no key "name"', past=past)
    name = value["name"]
    if not isinstance(name, str) or not name.strip():
        kind = "a blank one" if isinstance(name, str) else kind_of(name)
        words = f'The "name" of a tool call must be a string that names a tool, not {kind}'
        raise CallFault(ParseFailure.MISSING_NAME, words, past=past)
    return name


def arguments_of(value: dict[str, Any], past: int, key: str = "arguments") -> dict[str, Any]:
    """Return the arguments of a call.

    Args:
        value: The call's JSON object.
        past: Where it ends in the text.
        key: What the format calls them.

    Raises:
        CallFault: There are none, or they are no object.
    """
    if key not in value:
        words = f'The tool call has no key "{key}"; a call without arguments needs "{key}": {{}}'
        raise CallFault(ParseFailure.BAD_ARGUMENTS, words, past=past)
    return as_arguments(value[key], past, f'"{key}"')


def as_arguments(value: Any, past: int, what: str = "arguments") -> dict[str, Any]:
    """Return a JSON value that stands where arguments should.

    Raises:
        CallFault: It is no object.
    """
    if not isinstance(value, dict):
        words = f"The {what} of a tool call must be a JSON object, not {kind_of(value)}"
        raise CallFault(ParseFailure.BAD_ARGUMENTS, words, past=past)
    return value


def kind_of(value: Any) -> str:
    """Return what a JSON value that is no object is, in JSON's own words."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "a number"
