"""Full-text search over the conversations of a run: `search_run`.

Shards are read one block at a time. An event is first searched as the bytes it has on disk, which is fast; only events
that may match are decoded, and their texts are searched for certain.

Invariant: an episode is reported once, if the text occurs in anything that was said or went wrong: its task, a message,
a tool's name, arguments or result, its final text, the name of a reward's part, or an error of a tool, an engine call,
a malformed call, a rollback, the reward or the episode. Names of fields and digests never match. Upper and lower case
are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from strands_sglang._json import as_list, load_text
from strands_sglang.errors import LedgerError
from strands_sglang.ledger.encoding import EventHead, decoded_head, first_size
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.run_dir import shard_paths
from strands_sglang.ledger.shard import ShardReader
from strands_sglang.viewer.conversation import answer_text

MAX_QUERY = 200  # maximum length of a query in characters

_FIELDS: dict[EventKind, tuple[str, ...]] = {
    EventKind.BEGIN: ("task",),
    EventKind.CALL: ("finish_detail",),
    EventKind.TOOL: ("name", "arguments", "result", "raised", "raised_at"),
    EventKind.TOOL_LIST: ("name", "tools"),
    EventKind.MODEL: ("name", "asked"),
    EventKind.MODEL_ERROR: ("name", "asked", "error", "message"),
    EventKind.CALL_ERROR: ("error", "message"),
    EventKind.ROLLBACK: ("reason",),
    EventKind.REWARD: ("error", "parts"),
    EventKind.END: ("text", "failure", "output", "error_output"),
}
"""Fields of each kind of event whose strings are searched."""
_NAMED_VALUES = ("arguments", "parts")  # fields whose keys are data too


def search_run(directory: Path, query: str) -> Iterator[str | None]:
    """Yield the id of each episode that contains a text; None now and then, so that the caller can stop."""
    wanted = query[:MAX_QUERY].lower()
    if not wanted.strip():
        return
    needles = _needles(wanted)
    found: set[str] = set()
    for path in shard_paths(directory):
        with suppress(FileNotFoundError):
            for block in ShardReader(path):
                for raw in block.events:
                    if (id := _match(raw, wanted, needles)) is not None and id not in found:
                        found.add(id)
                        yield id
                yield None


def _needles(wanted: str) -> list[bytes]:
    """Return the query as it is spelled in JSON, and in JSON text inside of JSON."""
    try:
        once = orjson.dumps(wanted)[1:-1]
        twice = orjson.dumps(once.decode())[1:-1]
    except TypeError:  # a lone surrogate
        return [b""]
    return list({once, twice})


def _match(raw: bytes, wanted: str, needles: list[bytes]) -> str | None:
    try:
        folded = raw[: first_size(raw)].lower()
        if wanted.isascii() and not any(needle in folded for needle in needles):
            return None
        head = decoded_head(raw)
    except LedgerError:
        return None
    return head.episode if any(wanted in text.lower() for text in _texts(head)) else None


def _texts(head: EventHead) -> Iterator[str]:
    for name in _FIELDS.get(head.kind, ()):
        yield from _strings(head.data.get(name), keys=name in _NAMED_VALUES)
    if head.kind is EventKind.CALL:
        detail = head.data.get("detail")
        yield from _strings(detail.get("failed_calls") if isinstance(detail, dict) else None)
    if head.kind is EventKind.MODEL:
        yield answer_text(head.data.get("answer"))
    if head.kind is EventKind.END:
        for conversation in as_list(load_text(head.data.get("conversations"))):
            if isinstance(conversation, dict):
                yield from _strings([conversation.get("system"), conversation.get("messages")])
        messages = head.data.get("messages")
        if isinstance(messages, dict):
            yield from _strings(load_text(messages.get("rest")))


def _strings(value: Any, *, keys: bool = False) -> Iterator[str]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            waiting += [*one.values(), *(one if keys else ())]
        elif isinstance(one, list):
            waiting += one
