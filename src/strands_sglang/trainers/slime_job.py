"""A sample of slime's as an episode to be run: `SlimeJobs`.

Invariant: a sample that comes back is the same episode: its task, its id and its record are those of the first time.
Budgets are over all turns; whatever slime passes in is copied, and never changed.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.carried import Carried, carried
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.rollout.bounds import Limits
from strands_sglang.rollout.job import Job
from strands_sglang.rollout.resume import task_of
from strands_sglang.rollout.task import Task
from strands_sglang.trainers.chat_task import chat_task
from strands_sglang.trainers.row import Branches
from strands_sglang.trainers.slime_fields import SlimeSample
from strands_sglang.trainers.slime_sample import METADATA_KEY

RECORD_KEY = "record"
"""Where the metadata of a sample that was set aside keeps its record, under `METADATA_KEY`."""


class SlimeJobs:
    """Makes jobs of samples."""

    def __init__(self, limits: Limits, task: Callable[[Any], Any] | None = None) -> None:
        """Begin.

        Args:
            limits: How far any episode may go; slime's own budgets come on top.
            task: Makes a task of a sample; None: its prompt is the question, its label the answer.
        """
        self._limits, self._task = limits, task
        self._begun = itertools.count()

    def job(self, args: Any, sample: SlimeSample, sampling: Mapping[str, Any], *, evaluation: bool) -> Job:
        """Return the job of a sample.

        Raises:
            ConfigurationError: Its prompt is not one an agent can be asked.
            LedgerError: It comes back with a record in which something was changed.
        """
        session = _session(sample)
        record = record_of(sample)
        limits = self.limits(args, sampling, evaluation=evaluation)
        common: dict[str, Any] = {"sampling_params": dict(sampling), "limits": limits, "session": session}
        if record is not None:
            begin = record.begin
            assert begin is not None
            return Job(task_of(record), int(begin.data["sample"]), record=record, **common)
        return Job(*self._asked(sample, evaluation), **common)

    def _asked(self, sample: SlimeSample, evaluation: bool) -> tuple[Task, int]:
        # Whatever begins has a name of its own: slime may run a sample again that failed, or that it threw away.
        id = f"{'eval' if evaluation else f'g{sample.group_index}'}.{next(self._begun)}"
        number = sample.index if sample.index is not None else 0
        if self._task is not None:
            return replace(Task.of(self._task(sample)), id=id), number
        data = {name: value for name, value in (sample.metadata or {}).items() if name != METADATA_KEY}
        return chat_task(sample.prompt, answer=sample.label, data=data, id=id), number

    def limits(self, args: Any, sampling: Mapping[str, Any], *, evaluation: bool) -> Limits:
        """Return how far an episode may go: its response, all turns together, and its context."""
        budget = sampling.get("max_new_tokens")
        name = "eval_max_context_len" if evaluation else "rollout_max_context_len"
        return replace(
            self._limits,
            response=_least(self._limits.response, budget),
            context=_least(self._limits.context, getattr(args, name, None)),
        )


def check_args(args: Any, branches: Branches, *, evaluation: bool) -> None:
    """Raise ConfigurationError where slime's arguments cannot work with agents."""
    if getattr(args, "apply_chat_template", False):
        raise ConfigurationError(
            "take --apply-chat-template away: the agent renders its conversation itself, and would take the rendered "
            "prompt for a question full of control tokens"
        )
    if not evaluation and getattr(args, "rollout_top_p", 1.0) != 1.0:
        raise ConfigurationError(
            f"--rollout-top-p is {args.rollout_top_p}, but must be 1.0: below it slime wants to know which top-p "
            "kept at every sampled token, and SGLang does not tell"
        )
    stops = getattr(args, "partial_rollout", False) or "fully_async" in str(getattr(args, "rollout_function_path", ""))
    if branches is Branches.ALL and stops and getattr(args, "rollout_sample_hook_path", None):
        raise ConfigurationError(
            "branches='all' does not go with --rollout-sample-hook-path in partial or fully asynchronous rollouts: "
            "behind the hook slime no longer sees that an episode was stopped"
        )


def _session(sample: Any) -> str:
    """Return what the router keeps together; made, and kept with the sample, where slime gives none."""
    name = "session_id" if hasattr(sample, "session_id") else "routing_key"  # as Miles calls it
    session: str | None = getattr(sample, name, None)
    if session is None:
        session = uuid.uuid4().hex
        setattr(sample, name, session)
    return session


def record_of(sample: SlimeSample) -> EpisodeRecord | None:
    """Return what a sample goes on from; None: it begins."""
    about = (sample.metadata or {}).get(METADATA_KEY)
    data = about.get(RECORD_KEY) if isinstance(about, Mapping) else None
    if data is None:
        return None
    return data.record if isinstance(data, Carried) else carried(data)


def _least(*numbers: int | None) -> int | None:
    return min((number for number in numbers if number), default=None)
