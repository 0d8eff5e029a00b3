"""A row of a chat dataset as a `Task`: `chat_task`.

Datasets of trainers hold conversations that other rollouts render unchanged. Here an agent answers instead: `build`
gives it a system prompt and tools, and the last user message of the conversation is its question.

Invariant: nothing in the row is lost. Everything but the question and the answer is in the task's data.
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
        messages: Dicts with role and content, the last one from the user; or a question as text.
        answer: Reference answer for the reward function.
        data: The rest of the row. `task.data["messages"]` holds the conversation.
        id: Id of the task; "" derives one from the content.

    Raises:
        ConfigurationError: If the conversation does not end with a user message that is text.

    Example:
        >>> chat_task([{"role": "user", "content": "What is 6 * 7?"}], answer=42).prompt
        'What is 6 * 7?'
    """
    conversation = plain(messages)
    if isinstance(conversation, str):
        conversation = [{"role": "user", "content": conversation}]
    last = conversation[-1] if isinstance(conversation, list) and conversation else None
    if not isinstance(last, dict) or last.get("role") != "user":
        raise ConfigurationError(
            f"the conversation of a row must end with a user message, got {last!r:.200}; pass task= to make the task "
            "of a row yourself"
        )
    if len(conversation) > 1:
        _warn_once()
    whole = {**plain(data or {}), "messages": conversation}
    return Task(_text(last.get("content")), answer=plain(answer), data=whole, id=id)


def plain(value: Any) -> Any:
    """Return a dataset's value as JSON data: numpy numbers and arrays as Python's, unknown types as their repr."""
    return orjson.loads(
        orjson.dumps(value, default=_plainer, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    )


@lru_cache(maxsize=1)
def _warn_once() -> None:
    logger.warning(
        "field=<messages> | rows of the dataset hold more than a question (a system prompt?): the agent gets only the "
        "last user message; build can read the rest in task.data['messages'] (logged once)"
    )


def _plainer(value: Any) -> Any:
    """Return a value that JSON does not support in a simpler form."""
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
            f"the question of a row must be text, got {content!r:.200}; pass task= to make the task of a row yourself"
        )
    return "".join(texts)
