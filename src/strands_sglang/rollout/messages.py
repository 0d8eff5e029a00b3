"""The messages of an episode on record: written once, beside the conversations of its branches; and read back.

Invariant: role and content come back as they were, as far as they are plain data; what the framework hangs on a message
beside them does not. Writing and reading never fail. Where nothing says what the messages were (an end of an earlier
version), those that the main branch was last asked come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strands_sglang.provider.conversations import plain_json, read_conversations, read_json

Conversation = Mapping[str, Any]
"""What a branch was asked: `provider/conversations.py`."""


def kept_messages(messages: Sequence[Any], asked: Sequence[Conversation]) -> dict[str, Any]:
    """Return messages as an end event keeps them: what a branch was asked stands there already and is only named.

    Args:
        messages: The agent's.
        asked: What each branch was asked, as the same end has it.

    Returns:
        `leaf`: the branch whose messages come first, None: there is none; `rest`: those behind, as JSON text.
    """
    bare = [_bare(message) for message in messages]
    longest: Conversation | None = None
    for one in asked:
        begun = one["messages"]
        if len(begun) > (0 if longest is None else len(longest["messages"])) and _begins(bare, begun):
            longest = one
    count = 0 if longest is None else len(longest["messages"])
    try:
        rest = plain_json(bare[count:])
    except Exception:  # one that holds itself, say
        rest = "[]"
    return {"leaf": None if longest is None else longest["leaf"], "rest": rest}


def messages_of(end: Mapping[str, Any], main: int | None = None) -> list[Any]:
    """Return the messages that an end event holds.

    Args:
        end: Its data.
        main: Last turn of the main branch, whose messages are taken where the end does not say which they were.
    """
    asked = {one.get("leaf"): one.get("messages") for one in read_conversations(end)}
    kept = end.get("messages")
    if not isinstance(kept, dict):
        found = asked.get(main)
        return [_bare(message) for message in found] if isinstance(found, list) else []
    begun = asked.get(kept.get("leaf"))
    rest = read_json(kept.get("rest"))
    begun, rest = (value if isinstance(value, list) else [] for value in (begun, rest))
    return [*map(_bare, begun), *rest]


def _bare(message: Any) -> Any:
    """Return a message without what the framework hangs on it: usage, ids."""
    if not isinstance(message, Mapping):
        return message
    return {name: message[name] for name in ("role", "content") if name in message}


def _begins(messages: list[Any], begun: Sequence[Any]) -> bool:
    try:
        return messages[: len(begun)] == [_bare(message) for message in begun]
    except Exception:  # objects of the user's may not like to be compared
        return False
