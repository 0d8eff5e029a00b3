"""A message in a form that can be compared: equal forms, equal meaning.

The SDK hands out deep copies, fills defaults in and rewrites blank text on the way, so messages are compared by what
they say. Invariant: whatever a chat template could render differently differs here too, with one exception: what the
SDK itself makes the same before a model can see it (blank assistant text, names that no tool can have).
"""

from __future__ import annotations

import marshal
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

Canonical: TypeAlias = tuple[Any, ...]
"""Nested tuples of strings, numbers and bytes: hashable, and equal only when every leaf has the same type too."""

_BLANK = "[blank text]"
"""What the SDK writes for blank assistant text."""
_NO_NAME = "INVALID_TOOL_NAME"
"""What the SDK writes for a name that no tool can have."""
_NAME = re.compile(r"^[a-zA-Z0-9_\-]{1,}$")
_NAME_LENGTH = 64


def canonical(message: Mapping[str, Any]) -> Canonical:
    """Return the comparable form of a message: its role and blocks, and nothing of its other keys.

    Blocks count in order, with these exceptions: cache points and empty reasoning are left out; reasoning counts by
    its text, a call by id, name and input, a result by id, status (absent is "success") and content. Keys of objects
    have no order; `True`, `1` and `1.0` are three values.

    In an assistant message, blank text beside calls is left out, blank text elsewhere is "[blank text]", and a
    message of nothing but blank text is one without any.
    """
    role = message.get("role")
    blocks = _blocks(message.get("content"))
    if role == "assistant":
        blocks = _as_the_sdk_hands_it_over(blocks)
    return (_value(role), *blocks)


def holds_numbers(value: Any) -> bool:
    """Return whether a value holds numbers at any depth (or anything that is neither text, list nor object)."""
    if isinstance(value, Mapping):
        return any(holds_numbers(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(holds_numbers(item) for item in value)
    return not (value is None or isinstance(value, (str, bytes)))


def same_numbers(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two messages that are equal to Python say the same: to it, `1`, `1.0` and `True` are equal."""
    try:
        # Version 2 writes types, values and the order of keys, and neither references nor interned strings.
        # A list of somebody's own kind, as an agent may hold its messages in, is written as a list.
        if marshal.dumps(list(one["content"]), 2) == marshal.dumps(list(other["content"]), 2):
            return True
    except ValueError:
        pass  # it holds what cannot be written that way
    return canonical(one) == canonical(other)


def _as_the_sdk_hands_it_over(blocks: list[Canonical]) -> list[Canonical]:
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
    if not isinstance(block, Mapping):
        yield ("block", _value(block))
        return
    for kind in block if len(block) == 1 else sorted(block, key=repr):
        value = block[kind]
        if kind == "text" and (value is None or isinstance(value, str)):
            yield ("text", value or "")
        elif kind == "cachePoint" or (value is None and kind != "json"):
            continue
        elif kind == "reasoningContent" and isinstance(value, Mapping):
            reasoning = value.get("reasoningText")
            text = reasoning.get("text") if isinstance(reasoning, Mapping) else reasoning
            if text:
                yield ("reasoning", _value(text))
        elif kind == "toolUse" and isinstance(value, Mapping):
            yield ("toolUse", _value(value.get("toolUseId")), _name(value.get("name")), _value(value.get("input", {})))
        elif kind == "toolResult" and isinstance(value, Mapping):
            status = _value(value.get("status") or "success")
            yield ("toolResult", _value(value.get("toolUseId")), status, tuple(_blocks(value.get("content"))))
        else:
            yield ("other", _value(kind), _value(value))


def shown_name(name: str) -> str:
    """Return the name of a call as the SDK hands it over."""
    return name if len(name) <= _NAME_LENGTH and _NAME.match(name) else _NO_NAME


def shown_text(text: str) -> str:
    """Return assistant text without what the SDK writes for blank text."""
    return "" if text.strip() == _BLANK else text


def _name(name: Any) -> Any:
    return shown_name(name) if isinstance(name, str) else _value(name)


def _value(value: Any) -> Any:
    """Return a value such that equal means the same value of the same type. A string stands for itself."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return ("object", *sorted(((_value(key), _value(item)) for key, item in value.items()), key=_by_key))
    if isinstance(value, (list, tuple)):
        return ("list", *[_value(item) for item in value])
    if isinstance(value, float):
        return ("float", repr(value))  # not a number equals itself here, and 0.0 is not -0.0
    if value is None or isinstance(value, (int, bytes)):
        return (type(value).__name__, value)
    return ("repr", type(value).__qualname__, repr(value))


def _by_key(item: tuple[Any, Any]) -> str:
    return repr(item[0])
