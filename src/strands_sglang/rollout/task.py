"""What an agent is asked to do: `Task`.

Invariant: a task is plain data, so that it can be written to the ledger, sent to a worker, and found again by its id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from strands_sglang.errors import ConfigurationError

_FIELDS = ("prompt", "answer", "data", "id")


@dataclass(frozen=True, slots=True)
class Task:
    """One task. Episodes of the same task form a group."""

    prompt: str | list[dict[str, Any]]
    """The question: text, or Strands content blocks."""
    answer: Any = None
    """What a reward compares with: plain JSON data, never shown to the model."""
    data: dict[str, Any] = field(default_factory=dict)
    """Whatever else belongs to the task: plain JSON data, never shown to the model."""
    id: str = ""
    """Its name, without "/"; "" gets one from its content. Two tasks of a run must not have the same."""

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, (str, list)):
            raise ConfigurationError(f"the prompt of a task is text or content blocks, not {self.prompt!r:.100}")
        whole = [self.prompt, self.answer, self.data]
        try:
            content = orjson.dumps(whole, option=orjson.OPT_SORT_KEYS)
        except TypeError as error:
            raise ConfigurationError(f"a task is plain JSON data, so that it can be written down: {error}") from error
        if orjson.loads(content) != whole:
            raise ConfigurationError(
                "a task is plain JSON data, so that it can be written down: numbers, strings, lists and dicts with "
                f"string keys; something in {whole!r:.200} comes back as something else"
            )
        id = "" if self.id is None else str(self.id)
        id = id or hashlib.blake2b(content, digest_size=6).hexdigest()
        object.__setattr__(self, "id", id)
        if "/" in id or not id.isprintable() or len(id) > 200:
            raise ConfigurationError(f"the id of a task is up to 200 printable characters without '/', not {id!r:.250}")

    @classmethod
    def of(cls, value: Task | str | Mapping[str, Any]) -> Task:
        """Return a task from itself, from a question, or from a dict with the fields of a task.

        Keys of a dict that are no fields go into `data`.

        Raises:
            ConfigurationError: None of these, or a dict without a prompt.
        """
        if isinstance(value, Task):
            return value
        if isinstance(value, str):
            return cls(value)
        if isinstance(value, Mapping) and "prompt" in value:
            known = {name: value[name] for name in ("prompt", "answer", "id") if value.get(name) is not None}
            data = {**(value.get("data") or {}), **{k: v for k, v in value.items() if k not in _FIELDS}}
            return cls(**known, data=data)
        raise ConfigurationError(f"a task is a Task, a question, or a dict with a 'prompt', not {value!r:.200}")

    def copy(self) -> Task:
        """Return one that shares nothing with it that can be changed."""
        return Task(**orjson.loads(orjson.dumps(self.to_dict())))

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"prompt": self.prompt, "answer": self.answer, "data": self.data, "id": self.id}
