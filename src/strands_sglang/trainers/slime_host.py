"""Where the episodes of a slime run live: `SlimeHost`. In slime's own process, or on Ray workers beside it.

Invariant: workers belong to the event loop they were made on; slime has one for rollouts, and fully asynchronous
rollouts have another.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from strands_sglang._version import __version__
from strands_sglang.engine import SGLangClient, TokenEngine
from strands_sglang.engine.slime_args import settings_of
from strands_sglang.errors import ConfigurationError, EngineError
from strands_sglang.ledger.run_file import write_run
from strands_sglang.rollout.bounds import Limits
from strands_sglang.rollout.episode import Episode
from strands_sglang.rollout.job import Job, Setup, fingerprint, loaded_tokenizer
from strands_sglang.rollout.local import LocalWorker
from strands_sglang.rollout.preflight import Asked, preflight
from strands_sglang.rollout.ray_pool import RayPool
from strands_sglang.rollout.threads import ToolThreads
from strands_sglang.trainers.slime_halt import AbortFlag, Watch

_TOOL_THREADS = 1024


class SlimeHost:
    """Runs episodes for slime."""

    def __init__(
        self,
        build: Callable[..., Any],
        reward: Callable[..., Any] | None,
        limits: Limits,
        directory: str | Path | None,
        workers: int,
        rerun_tools: Iterable[str],
        reward_seconds: float | None,
        tokenizer: Any,
        client: TokenEngine | None,
        model_options: dict[str, Any],
        preflight: bool = True,
    ) -> None:
        """Keep what is needed; nothing is made before the first sample comes. See `slime_rollout`."""
        self._build, self._reward, self._limits, self._workers = build, reward, limits, workers
        self._directory = None if directory is None else Path(directory)
        self._rerun = frozenset([rerun_tools] if isinstance(rerun_tools, str) else rerun_tools)
        self._reward_seconds, self._options = reward_seconds, model_options
        self._tokenizer, self._client = tokenizer, client
        self._setup: Setup | None = None
        self._looks: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}
        self._preflight = preflight
        self._names = itertools.count()
        self.worked = False
        """Whether some sample was run: its arguments cannot be wrong altogether."""
        self._by_loop: dict[asyncio.AbstractEventLoop, tuple[LocalWorker | RayPool, Watch]] = {}

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        assert self._setup is not None
        text: str = self._setup.tokenizer.decode(ids, skip_special_tokens=False)
        return text

    async def run(self, args: Any, job: Job, flag: AbortFlag) -> Episode:
        """Run an episode to its end, or until slime wants to stop.

        Args:
            args: slime's arguments.
            job: Which.
            flag: slime's wish to stop.
        """
        worker, watch = self._worker(args)
        await self._look(job)
        watched = watch.begin(flag, lambda: worker.suspend(job.id))
        try:
            if isinstance(worker, LocalWorker):
                return await worker.run(job, halt=flag)
            episode = await worker.run(job)
            # Its turns are in the object store: fetching them may take a while, or fail.
            await asyncio.get_running_loop().run_in_executor(None, lambda: episode.tree)
            return episode
        finally:
            watch.end(watched)

    async def _look(self, job: Job) -> None:
        """See, before the first sample, that the engine fits.

        Raises:
            ConfigurationError: It does not, or cannot be reached.
        """
        setup = self._setup
        if not self._preflight or self.worked or setup is None:
            return
        loop = asyncio.get_running_loop()
        if loop not in self._looks:  # all samples of the first batch wait for one look
            asked = Asked.of(setup, job.sampling_params, job.limits)
            self._looks[loop] = asyncio.ensure_future(preflight(setup.client, asked))
        try:
            await asyncio.shield(self._looks[loop])
        except (ConfigurationError, EngineError) as error:
            self._looks.pop(loop, None)
            raise ConfigurationError(str(error)) from error

    def _worker(self, args: Any) -> tuple[LocalWorker | RayPool, Watch]:
        """Return the running loop's worker."""
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            for closed in [known for known in self._by_loop if known.is_closed()]:
                del self._by_loop[closed]
            self._by_loop[loop] = (self._begun(loop, self._made(args), args), Watch())
        return self._by_loop[loop]

    def _begun(self, loop: asyncio.AbstractEventLoop, setup: Setup, args: Any) -> LocalWorker | RayPool:
        if self._workers:
            return RayPool(setup, self._workers, _concurrency(args))
        loop.set_default_executor(ToolThreads(_TOOL_THREADS))
        return LocalWorker(setup, f"slime{os.getpid()}.{next(self._names)}", guest=True)

    def _made(self, args: Any) -> Setup:
        """Return what the episodes have in common; made once."""
        if self._setup is not None:
            return self._setup
        options = dict(self._options)
        if getattr(args, "use_rollout_routing_replay", False):
            options.setdefault("routed_experts", True)
        run = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        directory = None if self._directory is None else self._directory / run
        tokenizer = self._tokenizer if self._tokenizer is not None else args.hf_checkpoint
        try:
            tokenizer = loaded_tokenizer(tokenizer)
        except Exception as error:
            raise ConfigurationError(
                f"the tokenizer of {tokenizer!r} cannot be loaded ({error}): give --hf-checkpoint a folder with "
                "one, or slime_rollout(tokenizer=...)"
            ) from error
        self._setup = setup = Setup(
            build=self._build,
            reward=self._reward,
            tokenizer=tokenizer,
            client=self._client if self._client is not None else SGLangClient.from_slime_args(args),
            limits=self._limits,
            model_options=options,
            directory=directory,
            run=run,
            rerun_tools=self._rerun,
            suspendable=True,
            reward_seconds=self._reward_seconds,
        )
        if directory is not None:
            about = {"run": run, "created": time.time(), "package": __version__}
            write_run(directory, {**about, "fingerprint": fingerprint(setup.model()), "settings": setup.settings()})
        return setup


def _concurrency(args: Any) -> int:
    """Return how many episodes slime has at once: what it allows an engine, times the engines."""
    try:
        return int(settings_of(args)["max_connections"])
    except ConfigurationError:
        return 1000
