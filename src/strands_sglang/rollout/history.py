"""An agent's messages that are quick to copy: `History`.

The framework copies the whole conversation twice a turn, and Python's own deep copy costs more than everything else in
a turn once a conversation has some length. Messages are plain data, which goes through JSON and back ten times faster.

Invariant: a copy is equal to what it was made of and shares nothing with it that can be changed; what does not come
back equal from JSON is copied as Python does it.
"""

from __future__ import annotations

import copy
from typing import Any

import orjson


class History(list[Any]):
    """A list of messages, or the content of one."""

    def __deepcopy__(self, memo: dict[int, Any]) -> History:
        try:
            copied = orjson.loads(orjson.dumps(self))
        except (TypeError, ValueError):  # bytes, a number too large, half a surrogate pair
            copied = None
        if copied != self:
            copied = [copy.deepcopy(item, memo) for item in self]
        for item in copied:
            # The framework takes a message's content out of it and copies that once more.
            if type(item) is dict and type(item.get("content")) is list:
                item["content"] = History(item["content"])
        return History(copied)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)  # whoever stores it gets a list


def quick_to_copy(agent: Any) -> None:
    """Make the messages of an agent quick to copy, if it keeps them in a plain list."""
    if type(getattr(agent, "messages", None)) is list:
        agent.messages = History(agent.messages)
