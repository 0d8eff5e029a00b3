"""The models of a worker's episodes: `Models`. One for all, and one for each other way of sampling.

Invariant: jobs that ask for the same share a model.
"""

from __future__ import annotations

from dataclasses import asdict, replace

import orjson

from strands_sglang.model import SGLangModel
from strands_sglang.rollout.job import Job, Setup

_MOST = 256  # models kept; a trainer has one for training, one for evaluation, and one for each seed


class Models:
    """Makes models, and keeps them."""

    def __init__(self, setup: Setup) -> None:
        """Take what the episodes have in common; its tokenizer is one, not a name."""
        self._setup = setup
        self.usual = setup.model()
        """The model of jobs that ask for nothing else."""
        self._others: dict[bytes, SGLangModel] = {}

    def of(self, job: Job) -> SGLangModel:
        """Return the model for a job."""
        if job.sampling_params is None and job.limits is None:
            return self.usual
        limits = job.limits or self._setup.limits
        asked = [job.sampling_params, asdict(limits)]
        key = orjson.dumps(asked, default=repr, option=orjson.OPT_SORT_KEYS)
        if key not in self._others:
            options = dict(self._setup.model_options)
            if job.sampling_params is not None:
                options.pop("params", None)
                options["sampling_params"] = dict(job.sampling_params)
            if len(self._others) >= _MOST:
                self._others.clear()
            self._others[key] = replace(self._setup, limits=limits, model_options=options).model()
        return self._others[key]
