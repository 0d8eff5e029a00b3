"""From the prompts a trainer hands over to tasks, and back: `TaskFinder`, `Plan`.

TRL gives a rollout function the prompts of this process alone, each as often as it wants completions of it (the
sampler repeats them), and no other column. What else a task has is looked up in the trainer's dataset.

Invariant: every prompt gets one place in the plan, and a place is one sample of the prompt's task.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from strands_sglang.errors import ConfigurationError
from strands_sglang.rollout import Task
from strands_sglang.trainers.chat_task import chat_task, plain

logger = logging.getLogger(__name__)

_HOW = "give tasks=lambda prompt: Task(...), which makes the task of a prompt"


@dataclass(frozen=True, slots=True)
class Plan:
    """Which tasks to run, how often, and which prompt each sample is for."""

    tasks: list[Task]
    """Tasks with different ids; one that is wanted more often than `samples` stands here several times."""
    samples: int
    """Episodes of each."""
    places: list[tuple[str, int]]
    """For each prompt, the id of a task and the number of the sample."""

    @classmethod
    def of(cls, wanted: Sequence[Task]) -> Plan:
        """Return the plan for tasks that repeat, in any order and any number."""
        counts: dict[str, int] = {}
        known: dict[str, Task] = {}
        for task in wanted:
            if known.setdefault(task.id, task) != task:
                raise ConfigurationError(f"two different tasks have the id {task.id!r}: give them different ids")
            counts[task.id] = counts.get(task.id, 0) + 1
        # The samples of a prompt may be spread over processes, so a process may have 8 of one task and 4 of another.
        samples = math.gcd(*counts.values()) if counts else 1
        tasks: list[Task] = []
        slots: dict[str, list[tuple[str, int]]] = {}
        for id, task in known.items():
            for number in range(counts[id] // samples):
                name = id if number == 0 else f"{id}+{number}"
                tasks.append(task if number == 0 else Task(task.prompt, task.answer, task.data, name))
                slots.setdefault(id, []).extend((name, sample) for sample in range(samples))
        taken = {id: iter(mine) for id, mine in slots.items()}
        return cls(tasks, samples, [next(taken[task.id]) for task in wanted])


class TaskFinder:
    """Makes the task of a prompt."""

    def __init__(self, tasks: Callable[[Any], Task] | None = None) -> None:
        """Begin.

        Args:
            tasks: Makes the task of a prompt as the trainer's dataset has it; None: the row of the dataset with this
                prompt is the task.
        """
        self._own = tasks
        self._rows: dict[int, _Rows] = {}
        self._warned = False

    def find(self, prompts: Sequence[Any], datasets: Any) -> list[Task]:
        """Return the task of each prompt.

        Args:
            prompts: As the trainer gave them: texts, or conversations.
            datasets: The trainer's dataset, which they came from, or a dict of several; None, or one without a length,
                is not looked into.

        Raises:
            ConfigurationError: A prompt cannot be a task as it is.
        """
        if self._own is not None:
            return [Task.of(self._own(prompt)) for prompt in prompts]
        several = list(datasets.values()) if isinstance(datasets, Mapping) else [datasets]
        for dataset in several:
            if id(dataset) not in self._rows:
                self._rows[id(dataset)] = _Rows(dataset)
        rows = [self._rows[id(dataset)] for dataset in several]
        return [self._task(prompt, rows) for prompt in prompts]

    def _task(self, prompt: Any, rows: Sequence[_Rows]) -> Task:
        key = _key(prompt)
        for one in rows:
            if (task := one.task(key)) is not None:
                return task
        if not self._warned:
            logger.warning(
                "prompt=<%.80r> | not in the trainer's dataset, so its task has no answer: see tasks=", prompt
            )
            self._warned = True
        return _task_of({"prompt": prompt})


class _Rows:
    """The rows of a dataset by their prompts."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset  # kept, so that its id stays its own
        self._places: dict[bytes, int] = {}
        self._made: dict[bytes, Task] = {}
        self._twice: set[bytes] = set()
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            return
        column = getattr(dataset, "column_names", None)
        prompts = dataset["prompt"] if column else (row["prompt"] for row in dataset)
        for place, prompt in enumerate(prompts):
            if self._places.setdefault(_key(prompt), place) != place:
                self._twice.add(_key(prompt))

    def task(self, key: bytes) -> Task | None:
        """Return the task of the row with a prompt; None: there is no such row."""
        if key not in self._places:
            return None
        if key not in self._made:
            task = _task_of(self._dataset[self._places[key]])
            if key in self._twice:
                self._check_twins(key, task)
            self._made[key] = task
        return self._made[key]

    def _check_twins(self, key: bytes, task: Task) -> None:
        """Rows with one prompt may differ in nothing: which of them is meant cannot be known."""
        for row in self._dataset:
            if _key(row["prompt"]) == key and _task_of(row) != task:
                raise ConfigurationError(
                    f"two rows of the dataset have the prompt {task.prompt!r:.80}, and differ otherwise: a trainer "
                    f"hands over the prompt alone. Make the prompts different, or {_HOW}"
                )


def _key(prompt: Any) -> bytes:
    return orjson.dumps(prompt, option=orjson.OPT_SORT_KEYS, default=repr)


def _task_of(row: Mapping[str, Any]) -> Task:
    """Return a row of a dataset as a task; columns that are no fields of one go into its data.

    Raises:
        ConfigurationError: Its prompt asks nothing.
    """
    prompt = row["prompt"]
    rest = {name: value for name, value in row.items() if name not in ("prompt", "answer", "id")}
    data = rest.pop("data") if isinstance(rest.get("data"), dict) else {}
    id = "" if row.get("id") is None else str(row["id"])
    if isinstance(prompt, str):
        return Task(prompt, plain(row.get("answer")), plain({**data, **rest}), id)
    try:
        return chat_task(prompt, answer=row.get("answer"), data={**data, **rest}, id=id)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}; {_HOW}") from error
