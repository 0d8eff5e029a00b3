"""Tasks of the prompts that TRL passes to a rollout function: `TaskFinder`, `Plan`.

TRL passes prompts, each repeated once per completion, without the other columns: they are looked up in the dataset.

Invariant: every prompt has one slot in the plan, and a slot is one sample of the prompt's task.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from strands_sglang.errors import ConfigurationError
from strands_sglang.runs import Task
from strands_sglang.trainers.chat_tasks import chat_task, plain

logger = logging.getLogger(__name__)

_HINT = "pass tasks=lambda prompt: Task(...) to make the task of a prompt yourself"


@dataclass(frozen=True, slots=True)
class Plan:
    """The tasks to run, the number of samples of each, and the sample that each prompt gets."""

    tasks: list[Task]
    """Ids differ; a task that is needed more often than `samples` occurs several times."""
    samples: int
    slots: list[tuple[str, int]]

    @classmethod
    def of(cls, prompt_tasks: Sequence[Task]) -> Plan:
        """Return the plan for the tasks of all prompts, which may repeat in any order."""
        counts: dict[str, int] = {}
        known: dict[str, Task] = {}
        for task in prompt_tasks:
            if known.setdefault(task.id, task) != task:
                raise ConfigurationError(f"different tasks must have different ids, got two with the id {task.id!r}")
            counts[task.id] = counts.get(task.id, 0) + 1
        # Samples of a prompt may be spread over processes, so a process may have 8 of one task and 4 of another.
        samples = math.gcd(*counts.values()) if counts else 1
        tasks: list[Task] = []
        free: dict[str, list[tuple[str, int]]] = {}
        for id, task in known.items():
            for number in range(counts[id] // samples):
                name = id if number == 0 else f"{id}+{number}"
                tasks.append(task if number == 0 else Task(task.prompt, task.answer, task.data, name))
                free.setdefault(id, []).extend((name, sample) for sample in range(samples))
        next_free = {id: iter(mine) for id, mine in free.items()}
        return cls(tasks, samples, [next(next_free[task.id]) for task in prompt_tasks])


class TaskFinder:
    """Finds or makes the task of a prompt."""

    def __init__(self, tasks: Callable[[Any], Task] | None = None) -> None:
        """Keep the maker of a prompt's task; None: the row of the trainer's dataset with this prompt."""
        self._own = tasks
        self._rows: dict[int, _Rows] = {}
        self._warned = False

    def find(self, prompts: Sequence[Any], datasets: Any) -> list[Task]:
        """Return the task of each prompt; a dataset that is None or has no length is not searched."""
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
                "prompt=<%.80r> | not in the trainer's dataset, so its task has no answer; pass tasks= (logged once)",
                prompt,
            )
            self._warned = True
        return _task_of({"prompt": prompt})


class _Rows:
    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset  # kept, so that its id() is not reused
        self._places: dict[bytes, list[int]] = {}
        self._made: dict[bytes, Task] = {}
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            return
        column = getattr(dataset, "column_names", None)
        prompts = dataset["prompt"] if column else (row["prompt"] for row in dataset)
        for place, prompt in enumerate(prompts):
            self._places.setdefault(_key(prompt), []).append(place)

    def task(self, key: bytes) -> Task | None:
        if key not in self._places:
            return None
        if key not in self._made:
            task, *others = (_task_of(self._dataset[place]) for place in self._places[key])
            if any(other != task for other in others):  # TRL does not report which row it passes
                raise ConfigurationError(
                    f"rows with the same prompt must be equal, got two different rows with {task.prompt!r:.80}: TRL "
                    f"passes only the prompt. Make the prompts different, or {_HINT}"
                )
            self._made[key] = task
        return self._made[key]


def _key(prompt: Any) -> bytes:
    return orjson.dumps(prompt, option=orjson.OPT_SORT_KEYS, default=repr)


def _task_of(row: Mapping[str, Any]) -> Task:
    """Columns that are not fields of a task go into its data."""
    prompt = row["prompt"]
    rest = {name: value for name, value in row.items() if name not in ("prompt", "answer", "id")}
    data = rest.pop("data") if isinstance(rest.get("data"), dict) else {}
    id = "" if row.get("id") is None else str(row["id"])
    if isinstance(prompt, str):
        return Task(prompt, plain(row.get("answer")), plain({**data, **rest}), id)
    try:
        return chat_task(prompt, answer=row.get("answer"), data={**data, **rest}, id=id)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}; {_HINT}") from error
