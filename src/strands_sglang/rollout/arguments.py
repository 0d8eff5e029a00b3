"""What `rollout` was asked for, looked over before anything runs.

Invariant: what cannot work is refused here, with words that say what would; not in the middle of a run.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, get_type_hints

from strands_sglang.errors import ConfigurationError
from strands_sglang.provider.config import ModelOptions
from strands_sglang.rollout.bounds import check_above_zero
from strands_sglang.rollout.task import Task


def checked_tasks(tasks: Any) -> list[Task] | Iterable[Any]:
    """Return the tasks of a sequence, each looked at; any other iterable as it is.

    Raises:
        ConfigurationError: Not tasks, or two of them have the same id.
    """
    if isinstance(tasks, (str, Mapping, Task)):
        raise ConfigurationError("tasks is a list of tasks; for a single one: [task]")
    if not isinstance(tasks, Iterable):
        raise ConfigurationError(f"tasks is a list of tasks, or anything that can be iterated over, not {tasks!r:.200}")
    if not isinstance(tasks, Sequence):
        return tasks
    checked = [Task.of(task) for task in tasks]
    seen: dict[str, int] = {}
    for number, task in enumerate(checked):
        check_new(task, seen)
        seen[task.id] = number
    return checked


def check_new(task: Task, seen: Collection[str]) -> None:
    """Raise ConfigurationError if a task of the same id was there before."""
    if task.id in seen:
        raise ConfigurationError(
            f"two tasks have the id {task.id!r} ({task.prompt!r:.80}): ids come from the content unless given. "
            "Leave one out, or give them different ids; for more episodes of one task there is samples_per_task"
        )


def check_numbers(*, whole: Mapping[str, Any], seconds: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for a number that cannot be; None is always allowed where it is the default.

    Args:
        whole: Whole numbers above 0, by name.
        seconds: Numbers above 0, by name.
    """
    for name, value in whole.items():
        check_above_zero(name, value, "whole number above 0", whole=True)
    for name, value in seconds.items():
        check_above_zero(name, value, "number of seconds above 0", whole=False)


def check_names(options: Collection[str], known: Collection[str]) -> None:
    """Raise ConfigurationError for an option that looks like a misspelt argument of `rollout`.

    Args:
        options: Names that go to the model.
        known: Arguments of `rollout`.
    """
    for name in set(options) - set(get_type_hints(ModelOptions)):
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
        if close:
            raise ConfigurationError(f"unknown argument {name!r}; did you mean {close[0]!r}?")
