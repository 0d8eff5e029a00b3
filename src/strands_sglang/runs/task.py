"""The input of an episode: `Task`.

Invariant: a task is plain JSON data, except for the bytes of images in its prompt, so that it can be written to the
ledger, sent to a worker, and identified by its id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from strands_sglang.engine.adapters import check_name
from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.event import TaskData
from strands_sglang.ledger.files import FileStore, Put, plain, with_images

_FIELDS = ("prompt", "answer", "data", "id")


@dataclass(frozen=True, slots=True)
class Task:
    """One task. All episodes of a task form a group.

    Example:
        >>> Task("Fix the failing test.", data={"repository": "demo"}, id="demo-17")
    """

    prompt: str | list[dict[str, Any]]
    """The user's message: text, or Strands blocks (`{"image": {"format": "png", "source": {"bytes": ...}}}`)."""
    answer: Any = None
    """The expected answer, for the reward function: plain JSON data, never shown to the model."""
    data: dict[str, Any] = field(default_factory=dict)
    """Any other data of the task: plain JSON data, never shown to the model."""
    id: str = ""
    """Unique within a run: up to 200 printable characters without "/". "" is replaced by a digest of the content."""
    adapter: str | None = None
    """LoRA adapter that samples the episodes of this task; None: that of the run."""

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, (str, list)):
            raise ConfigurationError(
                f"the prompt of a task must be a str or a list of content blocks, got {self.prompt!r:.100}"
            )
        if self.adapter is not None:
            check_name(self.adapter)
        whole = [plain(self.prompt, None), self.answer, self.data]
        try:
            content = orjson.dumps(whole, option=orjson.OPT_SORT_KEYS)
        except TypeError as error:
            raise ConfigurationError(
                f"a task must be plain JSON data (numbers, strings, lists, and dicts with string keys): {error}"
            ) from error
        if orjson.loads(content) != whole:
            raise ConfigurationError(
                f"a task must be plain JSON data, got {whole!r:.200}, which changes when it is written as JSON and "
                "read again: use numbers, strings, lists, and dicts with string keys"
            )
        id = "" if self.id is None else str(self.id)
        content += (self.adapter or "").encode()
        id = id or hashlib.blake2b(content, digest_size=6).hexdigest()
        object.__setattr__(self, "id", id)
        if "/" in id or not id.isprintable() or len(id) > 200:
            raise ConfigurationError(
                f"the id of a task must be up to 200 printable characters without '/', got {id!r:.250}"
            )

    @classmethod
    def of(cls, value: Task | str | Mapping[str, Any]) -> Task:
        """Return a `Task` from a task, a prompt, or a dict with "prompt", whose further keys become `data`."""
        if isinstance(value, Task):
            return value
        if isinstance(value, str):
            return cls(value)
        if isinstance(value, Mapping) and "prompt" in value:
            known = {name: value[name] for name in ("prompt", "answer", "id") if value.get(name) is not None}
            data = {**(value.get("data") or {}), **{k: v for k, v in value.items() if k not in _FIELDS}}
            return cls(**known, data=data)
        raise ConfigurationError(f"a task must be a Task, a str, or a dict with the key 'prompt', got {value!r:.200}")

    def copy(self) -> Task:
        """Return a deep copy."""
        return Task.from_dict(orjson.loads(orjson.dumps(self.to_dict())))

    def to_dict(self, put: Put | None = None) -> TaskData:
        """Return the task as the data of a `BEGIN` event; `put` stores bytes of images, None: the data has them."""
        data: TaskData = {"prompt": plain(self.prompt, put), "answer": self.answer, "data": self.data, "id": self.id}
        if self.adapter is not None:
            data["adapter"] = self.adapter
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], files: FileStore | None = None) -> Task:
        """Return the task that `to_dict` wrote (`files` None: it has the images' bytes); LedgerError if one is lost."""
        prompt = data["prompt"]
        return cls(**{**data, "prompt": with_images(prompt, files)})


def check_unique(task: Task, seen: Collection[str]) -> None:
    """Raise ConfigurationError if the id of a task is among the ids `seen`."""
    if task.id in seen:
        raise ConfigurationError(
            f"task ids must be unique within a run, got {task.id!r} twice (prompt {task.prompt!r:.80}); without an id "
            "of its own, a task has a digest of its content as its id. Remove one of the tasks, or give them different "
            "ids; to run several episodes of one task, use samples_per_task"
        )
