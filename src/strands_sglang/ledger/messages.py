"""The messages of an episode as the data of its end event, and back: `messages_data`, `messages_of`.

The conversation of each branch is recorded beside them (`conversations`, as `provider/episode.py` collects it), and
messages that it contains are only referenced.

Invariant: role and content of messages are restored exactly, as far as they are plain data; further keys that the
framework adds are not stored. Writing and reading messages never fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strands_sglang._json import as_list, dump_text, load_text
from strands_sglang.errors import LedgerError
from strands_sglang.ledger.event import EndData, MessagesData
from strands_sglang.ledger.files import FileStore, with_images

Conversation = Mapping[str, Any]  # the conversation of a branch


def messages_data(messages: Sequence[Any], conversations: Sequence[Conversation]) -> MessagesData:
    """Return messages as the data of an end event; messages in the conversation of a branch are only referenced.

    `branch`: last turn of the branch whose conversation the messages start with, None if there is none; `rest`: the
    messages after it, as JSON text.
    """
    bare = [_bare(message) for message in messages]
    starts = [one for one in conversations if one["messages"] and _starts_with(bare, one["messages"])]
    longest = max(starts, key=lambda one: len(one["messages"]), default=None)
    count = 0 if longest is None else len(longest["messages"])
    try:
        rest = dump_text(bare[count:])
    except Exception:  # for example a message that contains itself
        rest = "[]"
    return {"branch": None if longest is None else longest["branch"], "rest": rest}


def messages_of(end: EndData, files: FileStore | None = None) -> list[Any]:
    """Return the messages of an end event. An image whose file is not in `files` stays a reference."""
    conversations = {one.get("branch"): one.get("messages") for one in read_conversations(end)}
    stored = end.get("messages")
    if not isinstance(stored, dict):
        return []
    start = map(_bare, as_list(conversations.get(stored.get("branch"))))
    return [_with_images(message, files) for message in (*start, *as_list(load_text(stored.get("rest"))))]


def read_conversations(end: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the conversations in the data of an end event; empty if it has none."""
    return [one for one in as_list(load_text(end.get("conversations"))) if isinstance(one, dict)]


def _with_images(message: Any, files: FileStore | None) -> Any:
    if not isinstance(message, dict):
        return message
    try:
        return {**message, "content": with_images(message["content"], files)} if "content" in message else message
    except LedgerError:
        return message


def _bare(message: Any) -> Any:
    if not isinstance(message, Mapping):
        return message
    return {name: message[name] for name in ("role", "content") if name in message}


def _starts_with(messages: list[Any], start: Sequence[Any]) -> bool:
    try:
        return messages[: len(start)] == [_bare(message) for message in start]
    except Exception:  # comparing objects of the user's classes may raise
        return False
