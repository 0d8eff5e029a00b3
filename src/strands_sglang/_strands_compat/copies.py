"""Copies of conversations that cost little: `fast_deepcopy` for any value, `ConversationCopies` turn after turn.

The SDK deep-copies the conversation and the tool specs for every model call. They are plain data, which `marshal`
copies several times faster than `copy.deepcopy`. A conversation that only grew since the last call needs no new copies
of its older messages. Any of them may have been edited in place, so all are read again at every call: as JSON, which is
the fastest way, of which only a hash is kept.

Invariants: a copy equals its original, has the same types, and shares nothing mutable with it. What is not plain data
is copied by `copy.deepcopy`. `ConversationCopies` returns the same copies again only for messages whose types, values
and order of keys are unchanged (a list that became a tuple counts as unchanged), so its copies must not be modified.
"""

from __future__ import annotations

import copy
import marshal
from collections.abc import Callable
from typing import Any

import orjson

_STRICT = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_WITHOUT_REFERENCES = 2  # version of `marshal` in which equal objects are written equally, whoever shares them


def fast_deepcopy(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """Return a deep copy; see `copy.deepcopy`."""
    kind = type(value)
    if value is None or kind is str:
        return value
    if (kind is list or kind is dict) and not memo:
        if not value:
            return kind()
        try:
            orjson.dumps(value, option=_STRICT)  # refuses what marshal would change: buffers become bytes
            return marshal.loads(marshal.dumps(value))
        except (TypeError, ValueError, RecursionError):  # bytes, objects, enums, large ints, deep nesting
            pass
    return copy.deepcopy(value, memo)


class CopiedMessages(list[Any]):
    """A copy of a conversation, made by `copies`."""

    copies: ConversationCopies


class SharedMessages(list[Any]):
    """Messages that are passed to a model again at the next call: the same objects, which nobody may modify."""


class ConversationCopies:
    """Copies one growing conversation again and again."""

    def __init__(self) -> None:
        self._copied: list[Any] = []
        self._prepared: list[Any] = []
        self._size = 0  # of the copied messages as JSON, without the closing bracket
        self._hash = 0
        # JSON does not tell None from a number that is not finite: messages with either are compared by marshal, too.
        self._with_null: list[int] = []
        self._nulls_hash = 0

    def copy(self, messages: list[Any]) -> list[Any]:
        """Return a copy of a conversation. Older messages of it are those of the last copy, if they are unchanged."""
        try:
            data = memoryview(orjson.dumps(messages, option=_STRICT))
            count = len(self._copied)
            if not self._is_unchanged(messages, data):
                self._copied, self._prepared, self._with_null, self._size, count = [], [], [], 0, 0
            new = messages[count:]
            self._copied += marshal.loads(marshal.dumps(new))
            if b"null" in bytes(data[self._size :]):
                self._with_null += [at for at, one in enumerate(new, count) if b"null" in orjson.dumps(one)]
        except (TypeError, ValueError, RecursionError):  # not plain data
            self.__init__()  # type: ignore[misc]
            return list(copy.deepcopy(messages))
        self._size = len(data) - 1
        self._hash, self._nulls_hash = hash(data[: self._size]), self._hash_of_nulls(messages)
        copied = CopiedMessages(self._copied)
        copied.copies = self
        return copied

    def _is_unchanged(self, messages: list[Any], data: memoryview) -> bool:
        """Return whether messages, of which JSON is given, start with those of the last copy."""
        return (
            0 < len(self._copied) <= len(messages)
            and hash(data[: self._size]) == self._hash
            and self._hash_of_nulls(messages) == self._nulls_hash
        )

    def _hash_of_nulls(self, messages: list[Any]) -> int:
        chosen = [messages[at] for at in self._with_null]
        return hash(marshal.dumps(chosen, _WITHOUT_REFERENCES)) if chosen else 0

    def prepared(self, messages: list[Any], prepare: Callable[[Any], Any]) -> list[Any]:
        """Return a copy with a function applied to each message; it is called once for each copied message."""
        if len(messages) != len(self._copied):
            return [prepare(message) for message in messages]
        self._prepared += [prepare(message) for message in messages[len(self._prepared) :]]
        return SharedMessages(self._prepared)
