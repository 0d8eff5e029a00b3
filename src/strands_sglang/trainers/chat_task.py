"""A row of a chat dataset as a `Task`: messages in, a question out.

Trainers' datasets hold conversations that are to be rendered as they stand. An agent is asked: it has its own system
prompt and tools, from `build`, and the dataset's last user message is its question.

Invariant: nothing of the row is lost: what is not the question or the answer is in the task's data.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson

from strands_sglang.errors import ConfigurationError
from strands_sglang.rollout.task import Task

logger = logging.getLogger(__name__)


def chat_task(messages: Any, *, answer: Any = None, data: Mapping[str, Any] | None = None, id: str = "") -> Task:
    """Return the task of a conversation.

    Args:
        messages: Dicts with role and content, the last of a user; or a question as text.
        answer: What a reward compares with.
        data: Whatever else the row holds; `task.data["messages"]` has the conversation.
        id: Of the task; "" gets one from its content.

    Raises:
        ConfigurationError: There is no question in it, or one that is not text.
    """
    conversation = plain(messages)
    if isinstance(conversation, str):
        conversation = [{"role": "user", "content": conversation}]
    last = conversation[-1] if isinstance(conversation, list) and conversation else None
    if not isinstance(last, dict) or last.get("role") != "user":
        raise ConfigurationError(
            f"the conversation of a row should end with a user's message, not {last!r:.200}; task= makes a task of "
            "any row"
        )
    if len(conversation) > 1:
        _say_once()
    whole = {**plain(data or {}), "messages": conversation}
    return Task(_text(last.get("content")), answer=plain(answer), data=whole, id=id)


def plain(value: Any) -> Any:
    """Return a value of a dataset as plain JSON data: numpy's numbers and arrays as Python's, the rest in words."""
    return orjson.loads(
        orjson.dumps(value, default=_plainer, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    )


@lru_cache(maxsize=1)
def _say_once() -> None:
    logger.warning(
        "what=<messages> | the dataset has more than a question in its rows (a system prompt?): the agent is asked the "
        "last user message alone, and build finds the others in task.data['messages']; said once"
    )


def _plainer(value: Any) -> Any:
    """Return what JSON does not know in a simpler form."""
    if hasattr(value, "tolist"):  # a tensor, or an array of objects
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    return (
        list(value) if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes) else repr(value)
    )


def _text(content: Any) -> str:
    """Return the text of a message: its content, or the texts of its parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    if len(texts) != len(parts) or not texts:
        raise ConfigurationError(
            f"the question of a row should be text, not {content!r:.200}; task= makes a task of it"
        )
    return "".join(texts)
