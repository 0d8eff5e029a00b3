"""A row of a chat dataset as a `Task`: `chat_task`.

Datasets of trainers hold conversations that other rollouts render unchanged. Here an agent answers instead: `build`
gives it a system prompt and tools, and the last user message of the conversation is its question.

Invariant: nothing in the row is lost. Everything but the question and the answer is in the task's data.
"""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from strands_sglang.errors import ConfigurationError
from strands_sglang.runs.task import Task

logger = logging.getLogger(__name__)


def chat_task(messages: Any, *, answer: Any = None, data: Mapping[str, Any] | None = None, id: str = "") -> Task:
    """Return the task of a conversation.

    Args:
        messages: Dicts with role and content, the last one from the user; or a question as text. Content may have
            images: `{"type": "image", "image": ...}`, as images of Pillow, files as bytes, paths, data URLs, or base64.
        data: The rest of the row. `task.data["messages"]` holds the conversation.
        id: Id of the task; "" derives one from the content.
    """
    given = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    conversation = plain([_without_images(message) for message in given] if isinstance(given, list) else given)
    last = conversation[-1] if isinstance(conversation, list) and conversation else None
    if not isinstance(last, dict) or last.get("role") != "user":
        raise ConfigurationError(
            f"the conversation of a row must end with a user message, got {last!r:.200}; pass task= to make the task "
            "of a row yourself"
        )
    if len(conversation) > 1:
        _warn_once()
    whole = {**plain(data or {}), "messages": conversation}
    # Not from the plain form, which has no images.
    return Task(_prompt(list(given)[-1].get("content")), answer=plain(answer), data=whole, id=id)


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
    if hasattr(value, "tolist"):  # a tensor, or an array of objects
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    return (
        list(value) if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes) else repr(value)
    )


def _without_images(message: Any) -> Any:
    """The prompt of the task has the images; a short mark takes the place of each."""
    content: Any = message.get("content") if isinstance(message, Mapping) else None
    content = content.tolist() if hasattr(content, "tolist") else content
    if not isinstance(content, (list, tuple)):
        return message
    images = [isinstance(part, Mapping) and ("image" in part or "image_url" in part) for part in content]
    if not any(images):
        return message
    marked = [{"type": "image"} if image else part for part, image in zip(content, images, strict=True)]
    return {**message, "content": marked}


def _prompt(content: Any) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    content = content.tolist() if hasattr(content, "tolist") else content
    parts = content if isinstance(content, (list, tuple)) else [content]
    blocks = [_block(part) for part in parts]
    if not blocks or None in blocks:
        raise ConfigurationError(
            f"the question of a row must be text and images, got {content!r:.200}; pass task= to make the task of a "
            "row yourself"
        )
    found = [block for block in blocks if block is not None]
    return found if any("image" in block for block in found) else "".join(block["text"] for block in found)


def _block(part: Any) -> dict[str, Any] | None:
    if not isinstance(part, Mapping):
        return None
    if isinstance(text := part.get("text"), str):
        return {"text": text}
    image = part.get("image", part.get("image_url"))
    data = _image_bytes(image.get("url") if isinstance(image, Mapping) and "url" in image else image)
    return None if data is None else {"image": {"format": "png", "source": {"bytes": data}}}


def _image_bytes(image: Any) -> bytes | None:
    if isinstance(image, Mapping) and isinstance(image.get("bytes"), bytes):  # as `datasets` stores it
        image = image["bytes"]
    if isinstance(image, (bytes, bytearray)):
        return bytes(image)
    if isinstance(image, str):
        return _named_image(image)
    if hasattr(image, "save") and hasattr(image, "mode"):  # an image of Pillow
        written = io.BytesIO()
        image.convert("RGB").save(written, "PNG")
        return written.getvalue()
    return None


def _named_image(text: str) -> bytes | None:
    if not text.startswith("data:"):
        try:
            return Path(text.removeprefix("file://")).read_bytes()
        except (OSError, ValueError):
            pass  # not the path of a file
    try:
        return base64.b64decode(text.partition(";base64,")[2] if text.startswith("data:") else text, validate=True)
    except ValueError:
        return None
