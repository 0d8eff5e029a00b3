"""Copies of conversations that cost little: `fast_deepcopy` for any value, `ConversationCopies` turn after turn.

The SDK deep-copies the conversation and the tool specs for every model call. They are plain data, which `marshal`
copies several times faster than `copy.deepcopy`. A conversation that only grew since the last call needs no new copies
of its older messages: comparing it is ten times faster than copying it.

Invariants: a copy equals its original, has the same types, and shares nothing mutable with it. What is not plain data
is copied by `copy.deepcopy`. `ConversationCopies` returns the same copies again only for messages whose types, values
and order of keys are unchanged, so its copies must not be modified.
"""

from __future__ import annotations

import copy
import hashlib
import marshal
from collections.abc import Callable
from typing import Any

import orjson

_STRICT = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_WITHOUT_REFERENCES = 2  # version of `marshal` in which equal objects are written equally, whoever shares them
_HEADER = 5  # type and length of a list


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


class ConversationCopies:
    """Copies one growing conversation again and again."""

    def __init__(self) -> None:
        self._copied: list[Any] = []
        self._prepared: list[Any] = []
        self._size = 0  # of the copied messages as `marshal` writes them
        self._digest = b""

    def copy(self, messages: list[Any]) -> list[Any]:
        """Return a copy of a conversation. Older messages of it are those of the last copy, if they are unchanged."""
        try:
            data = memoryview(marshal.dumps(messages, _WITHOUT_REFERENCES))[_HEADER:]
            known, count = hashlib.blake2b(data[: self._size], digest_size=16), len(self._copied)
            if not count or len(data) <= self._size or known.digest() != self._digest:
                self._copied, self._prepared, count = [], [], 0
                known = hashlib.blake2b(digest_size=16)
                self._size = 0
            new = messages[count:]
            orjson.dumps(new, option=_STRICT)
            self._copied += marshal.loads(marshal.dumps(new))
        except (TypeError, ValueError, RecursionError):  # not plain data
            self.__init__()  # type: ignore[misc]
            return list(copy.deepcopy(messages))
        known.update(data[self._size :])
        self._size, self._digest = len(data), known.digest()
        copied = CopiedMessages(self._copied)
        copied.copies = self
        return copied

    def prepared(self, messages: list[Any], prepare: Callable[[Any], Any]) -> list[Any]:
        """Return a copy with a function applied to each message; it is called once for each copied message."""
        if len(messages) != len(self._copied):
            return [prepare(message) for message in messages]
        self._prepared += [prepare(message) for message in messages[len(self._prepared) :]]
        return list(self._prepared)
