"""Compares messages by content: their canonical form, and copies that can be compared quickly.

The SDK passes deep copies, fills in defaults and rewrites blank text, so messages are compared in a canonical form
instead of by identity or plain equality.

Invariant: two messages that a chat template could render differently have different canonical forms. The one exception
is what the SDK itself normalises before a model sees it: blank assistant text, and invalid tool names.
"""

from __future__ import annotations

import copy
import marshal
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Canonical: TypeAlias = tuple[Any, ...]
"""Nested tuples of strings, numbers and bytes. Hashable; equal only if all leaves are equal and of the same type."""

_BLANK = "[blank text]"
_NO_NAME = "INVALID_TOOL_NAME"
_NAME = re.compile(r"^[a-zA-Z0-9_\-]{1,}$")
_NAME_LENGTH = 64


def canonical(message: Mapping[str, Any]) -> Canonical:
    """Return the canonical form of a message. Only its role and its blocks, in order, are part of it.

    Cache points and empty reasoning are ignored. Reasoning is compared by its text, a call by id, name and input, a
    result by id, status (default "success") and content. The order of object keys is ignored; `True`, `1` and `1.0`
    are three different values.

    In an assistant message, blank text is ignored next to calls and is "[blank text]" otherwise; a message with only
    blank text equals one without content.
    """
    role = message.get("role")
    blocks = _blocks(message.get("content"))
    if role == "assistant":
        blocks = _normalised_by_sdk(blocks)
    return (_value(role), *blocks)


def holds_numbers(value: Any) -> bool:
    """Return whether a value contains, at any depth, a number or anything that is not text, list or object."""
    if value is None or isinstance(value, (str, bytes)):
        return False
    if isinstance(value, (dict, Mapping)):
        return any(holds_numbers(item) for item in value.values())
    return not isinstance(value, (list, tuple)) or any(holds_numbers(item) for item in value)


def copied(value: Any) -> Any:
    """Return a deep copy of a value. Fast for JSON data."""
    kind = type(value)
    if kind is str or value is None:
        return value
    if kind is dict:
        return {key: item if type(item) is str else copied(item) for key, item in value.items()}
    if kind is list:
        return [item if type(item) is str else copied(item) for item in value]
    return copy.deepcopy(value)


def same_numbers(ones: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether messages that compare equal also agree in type, since `1 == 1.0 == True` in Python."""
    try:
        # Version 2 serialises types, values and key order, without references or interned strings.
        # list(): an agent may hold its messages in a list subclass, which marshal rejects.
        one, other = (marshal.dumps([list(message["content"]) for message in many], 2) for many in (ones, others))
        if one == other:
            return True
    except ValueError:
        pass  # contains a value that marshal does not support
    return all(canonical(one) == canonical(other) for one, other in zip(ones, others, strict=True))


def _normalised_by_sdk(blocks: list[Canonical]) -> list[Canonical]:
    blank = [kind == "text" and (value == _BLANK or not value.strip()) for kind, value, *_ in blocks]
    if all(blank):
        return []
    if any(block[0] == "toolUse" for block in blocks):
        return [block for block in blocks if block[0] != "text" or block[1].strip()]
    return [("text", _BLANK) if is_blank else block for block, is_blank in zip(blocks, blank, strict=True)]


def _blocks(content: Any) -> list[Canonical]:
    if content is None or isinstance(content, (list, tuple)):
        return [part for block in content or () for part in _parts(block)]
    return [("content", _value(content))]


def _parts(block: Any) -> Iterator[Canonical]:
    if not isinstance(block, (dict, Mapping)):
        yield ("block", _value(block))
        return
    for kind in block if len(block) == 1 else sorted(block, key=repr):
        value = block[kind]
        if kind == "text" and (value is None or isinstance(value, str)):
            yield ("text", value or "")
        elif kind == "cachePoint" or (value is None and kind != "json"):
            continue
        elif kind == "reasoningContent" and isinstance(value, (dict, Mapping)):
            reasoning = value.get("reasoningText")
            text = reasoning.get("text") if isinstance(reasoning, Mapping) else reasoning
            if text:
                yield ("reasoning", _value(text))
        elif kind == "toolUse" and isinstance(value, (dict, Mapping)):
            yield ("toolUse", _value(value.get("toolUseId")), _name(value.get("name")), _value(value.get("input", {})))
        elif kind == "toolResult" and isinstance(value, (dict, Mapping)):
            status = _value(value.get("status") or "success")
            yield ("toolResult", _value(value.get("toolUseId")), status, tuple(_blocks(value.get("content"))))
        else:
            yield ("other", _value(kind), _value(value))


def sdk_tool_name(name: str) -> str:
    """Return the name of a call as the SDK passes it: an invalid name is replaced."""
    return name if len(name) <= _NAME_LENGTH and _NAME.match(name) else _NO_NAME


def without_blank_marker(text: str) -> str:
    """Return assistant text, or "" if it is only the SDK's replacement for blank text."""
    return "" if text.strip() == _BLANK else text


def _name(name: Any) -> Any:
    return sdk_tool_name(name) if isinstance(name, str) else _value(name)


def _value(value: Any) -> Any:
    """Return a hashable form that is equal only for the same value of the same type. A string is its own form."""
    if isinstance(value, str):
        return value
    if isinstance(value, (dict, Mapping)):
        return ("object", *sorted(((_value(key), _value(item)) for key, item in value.items()), key=_by_key))
    if isinstance(value, (list, tuple)):
        return ("list", *[_value(item) for item in value])
    if isinstance(value, float):
        return ("float", repr(value))  # NaN equals itself, and 0.0 differs from -0.0
    if value is None or isinstance(value, (int, bytes)):
        return (type(value).__name__, value)
    return ("repr", type(value).__qualname__, repr(value))


def _by_key(item: tuple[Any, Any]) -> str:
    return repr(item[0])
