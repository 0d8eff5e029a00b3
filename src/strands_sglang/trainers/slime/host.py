"""Runs the episodes of a slime training, in slime's own process or on Ray workers: `SlimeHost`.

`AbortFlag` reads slime's abort flag, and `AbortMonitor` pauses episodes when it is set. Two words, used throughout this
package:

- *abort*: slime's request that all running episodes return. At the end of a batch slime sets `state.aborted`, aborts
  the requests of its engines, and waits without a limit for every episode.
- *pause*: our response to it. A paused episode makes no further request and no further tool call, and returns a record
  from which it can continue later.

Invariants: slime is never imported; without slime nothing is ever aborted. Workers and monitors belong to the event
loop that they were made on: slime has one loop for rollouts, and its fully asynchronous rollouts have another. One task
per event loop polls the flags of all episodes, and it ends when there are no episodes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from strands_sglang._slime_args import settings_from_slime_args
from strands_sglang._version import __version__
from strands_sglang.chat.tokenization import load_tokenizer
from strands_sglang.engine import SGLangClient, TokenEngine
from strands_sglang.errors import ConfigurationError, EngineError
from strands_sglang.ledger.run_dir import write_run
from strands_sglang.runs.episode import Episode
from strands_sglang.runs.experiment import experiment_of, origin
from strands_sglang.runs.limits import Limits
from strands_sglang.runs.preflight import preflight_run
from strands_sglang.runs.recording.other_models import checked_models
from strands_sglang.runs.staleness import MaxStaleness, StalenessGate
from strands_sglang.runs.workers.local import LocalWorker
from strands_sglang.runs.workers.process_tuning import ToolThreads
from strands_sglang.runs.workers.ray_pool import RayPool
from strands_sglang.runs.workers.spec import EpisodeSpec, RunSpec, fingerprint
from strands_sglang.trainers.images import ImageFeatures
from strands_sglang.trainers.worker_pool import PerLoop, run_fresh

logger = logging.getLogger(__name__)

_RUNS = itertools.count()  # of this process

_STATE_MODULE = "slime.rollout.sglang_rollout"
_POLL_SECONDS = 0.02


class AbortFlag:
    """Whether the trainer has requested that its episodes return."""

    def __init__(self, state: Any) -> None:
        """Wrap an object whose attribute `aborted` is the flag; None: it is never set."""
        self._state = state

    @classmethod
    def of_slime(cls, args: Any) -> AbortFlag:
        """Return the flag of the running slime."""
        kind = getattr(sys.modules.get(_STATE_MODULE), "GenerateState", None)
        if kind is None:
            return cls(None)
        # slime has made its state before it calls us. If something else calls us, there is none, and making one would
        # load a tokenizer.
        known = getattr(kind, "_instances", None)
        return cls(known.get(kind) if isinstance(known, dict) else kind(args))

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return bool(getattr(self._state, "aborted", False))


class AbortMonitor:
    """Polls the abort flags of running episodes, on one event loop."""

    def __init__(self) -> None:
        self._watched: dict[object, tuple[AbortFlag, Callable[[], object]]] = {}
        self._task: asyncio.Task[None] | None = None

    def watch(self, flag: AbortFlag, pause: Callable[[], object]) -> object:
        """Call `pause` when the flag is set, and at every poll until `unwatch` gets the returned key."""
        key = object()
        self._watched[key] = (flag, pause)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._poll())
        return key

    def unwatch(self, key: object) -> None:
        """Stop watching."""
        self._watched.pop(key, None)

    async def _poll(self) -> None:
        while self._watched:
            for flag, pause in list(self._watched.values()):
                if flag.is_set():
                    try:
                        pause()
                    except Exception:
                        logger.exception("poll_seconds=<%s> | episode could not be paused", _POLL_SECONDS)
            await asyncio.sleep(_POLL_SECONDS)


_TOOL_THREADS = 1024


class SlimeHost:
    """Runs episodes for slime."""

    def __init__(
        self,
        build: Callable[..., Any],
        limits: Limits,
        *,
        reward: Callable[..., Any] | None = None,
        directory: str | Path | None = None,
        workers: int = 0,
        rerun_tools: Iterable[str] = (),
        reward_timeout: float | None = None,
        models: Mapping[str, Any] | None = None,
        tokenizer: Any = None,
        client: TokenEngine | None = None,
        preflight: bool = True,
        max_staleness: MaxStaleness | int | None = None,
        **model_options: Any,
    ) -> None:
        """Keep the settings, which `slime_rollout` documents; nothing is started before the first sample."""
        self._build, self._reward, self._limits, self._workers = build, reward, limits, workers
        self._directory = None if directory is None else Path(directory)
        self._rerun = frozenset([rerun_tools] if isinstance(rerun_tools, str) else rerun_tools)
        self._reward_timeout, self._options = reward_timeout, model_options
        self._models = checked_models(models, build, reward)
        self._tokenizer, self._client = tokenizer, client
        self._preflight = preflight
        self._rule = MaxStaleness.of(max_staleness)
        self._gates: PerLoop[StalenessGate] = PerLoop()
        self._names = itertools.count()
        self._run_spec: RunSpec | None = None
        self._preflights: PerLoop[asyncio.Future[None]] = PerLoop()
        self._by_loop: PerLoop[tuple[LocalWorker | RayPool, AbortMonitor]] = PerLoop()
        self._image_features: ImageFeatures | None = None
        self.needs_kept_sets = False
        self.has_run = False
        """Whether a sample was run: from then on a failure is that of a sample, not of the arguments."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        assert self._run_spec is not None
        text: str = self._run_spec.tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def image_features(self, args: Any) -> ImageFeatures:
        """Return what computes the tensors of images: the image processor of the model, or of --hf-checkpoint."""
        if self._image_features is None:
            given = self._options.get("image_processor")
            known = given is not None and not isinstance(given, Mapping)
            self._image_features = ImageFeatures(given if known else getattr(args, "hf_checkpoint", ""))
        return self._image_features

    async def run(self, args: Any, spec: EpisodeSpec, flag: AbortFlag, *, evaluation: bool = False) -> Episode:
        """Run an episode until it ends, or until slime sets its abort flag; one that is too old may be run again."""
        gate = self._gate(args) if self._rule is not None and not evaluation else None
        return await run_fresh(gate, spec, lambda one: self._run(args, one, flag))

    def _gate(self, args: Any) -> StalenessGate:
        rule, run_spec = self._rule, self._make_setup(args)
        assert rule is not None

        def make() -> StalenessGate:
            name = f"staleness{os.getpid()}.{next(self._names)}"
            return StalenessGate(rule, run_spec.client, run_spec.directory, name)

        return self._gates.get(make)

    async def _run(self, args: Any, spec: EpisodeSpec, flag: AbortFlag) -> Episode:
        worker, monitor = self._by_loop.get(lambda: (self._make_worker(self._make_setup(args), args), AbortMonitor()))
        await self._check_engine(spec)
        watched = monitor.watch(flag, lambda: worker.pause(spec.id))
        try:
            if isinstance(worker, LocalWorker):
                return await worker.run(spec, pause=flag)
            episode = await worker.run(spec)
            # Its turns are in Ray's object store: fetching them may take a while, or fail.
            await asyncio.get_running_loop().run_in_executor(None, lambda: episode.tree)
            return episode
        finally:
            monitor.unwatch(watched)

    async def _check_engine(self, spec: EpisodeSpec) -> None:
        """All samples of the first batch wait for one check."""
        run_spec = self._run_spec
        if not self._preflight or self.has_run or run_spec is None:
            return
        made = partial(preflight_run, run_spec, spec.sampling_params, spec.limits, needs_kept_sets=self.needs_kept_sets)
        check = self._preflights.get(lambda: asyncio.ensure_future(made()))
        try:
            await asyncio.shield(check)
        except (ConfigurationError, EngineError) as error:
            self._preflights.discard()
            raise ConfigurationError(str(error)) from error

    def _make_worker(self, run_spec: RunSpec, args: Any) -> LocalWorker | RayPool:
        if self._workers:
            return RayPool(run_spec, self._workers, _concurrency(args))
        asyncio.get_running_loop().set_default_executor(ToolThreads(_TOOL_THREADS))
        return LocalWorker(run_spec, f"slime{os.getpid()}.{next(self._names)}")

    def _make_setup(self, args: Any) -> RunSpec:
        if self._run_spec is not None:
            return self._run_spec
        options = dict(self._options)
        if getattr(args, "use_rollout_routing_replay", False):
            options.setdefault("routed_experts", True)
        number = next(_RUNS)  # another function for samples may begin a run in the same second
        run = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}" + (f".{number}" if number else "")
        directory = None if self._directory is None else self._directory / run
        tokenizer = self._tokenizer if self._tokenizer is not None else args.hf_checkpoint
        try:
            tokenizer = load_tokenizer(tokenizer)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{error}; give --hf-checkpoint a folder with one, or pass slime_rollout(tokenizer=...)"
            ) from error
        self._run_spec = run_spec = RunSpec(
            build=self._build,
            reward=self._reward,
            tokenizer=tokenizer,
            client=self._client if self._client is not None else SGLangClient.from_slime_args(args),
            limits=self._limits,
            model_options=options,
            directory=directory,
            run=run,
            rerun_tools=self._rerun,
            pausable=True,
            reward_timeout=self._reward_timeout,
            models=self._models,
        )
        if directory is not None:
            self._run_spec = run_spec = replace(run_spec, experiment=experiment_of(run_spec))
            about = {"run": run, "created": time.time(), "package": __version__, "origin": origin(run_spec.client)}
            about |= {"fingerprint": fingerprint(run_spec.model(), run_spec), "settings": run_spec.settings()}
            write_run(directory, about)
        return run_spec


def _concurrency(args: Any) -> int:
    try:
        return int(settings_from_slime_args(args)["max_connections"])
    except ConfigurationError:
        return 1000
