"""Episodes of agents that others start, opened and closed on request: `SessionService`.

An episode begins when a session is opened and ends when it is closed; in between, an agent calls the session's address.
Everything else is as in `rollout`: the same workers, limits, ledger and resume. `session_api.py` offers it over HTTP.

Invariant: an episode has the reward that its closer gave, or none. An episode that is open when the service ends has no
end in the ledger, and is resumed when it is opened again; until then, nobody can call it.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aiohttp import web

from strands_sglang._checks import chosen
from strands_sglang.engine import TokenEngine
from strands_sglang.errors import AgentProcessError, ConfigurationError, SessionStateError, UnknownSessionError
from strands_sglang.gateway.process import RemoteAgent
from strands_sglang.gateway.server import Gateway
from strands_sglang.gateway.session import Session
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.ledger.seal import seal
from strands_sglang.model import SGLangModel
from strands_sglang.provider.config import RewritePolicy
from strands_sglang.runs.controller import open_run
from strands_sglang.runs.episode import Episode
from strands_sglang.runs.experiment import experiment_of, served_model
from strands_sglang.runs.limits import Limits
from strands_sglang.runs.preflight import preflight_run
from strands_sglang.runs.resume import check_task, directory_lock, is_over, read_previous_run, restored, task_of
from strands_sglang.runs.reward import Reward
from strands_sglang.runs.task import Task
from strands_sglang.runs.workers.local import LocalWorker
from strands_sglang.runs.workers.spec import EpisodeSpec, RunSpec

logger = logging.getLogger(__name__)


class _OpenedAgent(RemoteAgent):
    """Stands for an agent that somebody else runs: its episode ends when its session is closed."""

    def __init__(self, gateway: Gateway, name: str, on_changed_echo: RewritePolicy) -> None:
        self.gateway, self.name, self.on_changed_echo = gateway, name, on_changed_echo
        self.opened: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Its answer, or its error."""

    async def run(self, session: Session, base_url: str, socket: Path | None) -> str:
        self.opened.set_result(session)
        answer = await self.closed
        if session.error is not None and session.ended.is_set():
            raise session.error
        return answer


@dataclass(eq=False)
class OpenSession:
    """An episode that is open, or has ended."""

    spec: EpisodeSpec
    agent: _OpenedAgent = field(repr=False)
    work: asyncio.Task[Episode] = field(init=False, repr=False)
    reward: Any = None

    @property
    def id(self) -> str:
        """Id of the episode."""
        return self.spec.id

    @property
    def session(self) -> Session:
        """The session that the agent calls."""
        return self.agent.opened.result()


class SessionService:
    """Opens, scores and closes sessions, and records them as the episodes of one run.

    Example:
        async with SessionService(tokenizer="Qwen/Qwen3-8B", client=client, directory="runs/served") as service:
            opened = await service.open("Fix the bug.")
            print(service.gateway.base_url(opened.session))  # give it to an agent, and wait for the agent
            episode = await service.close(opened.id, reward=1.0)
    """

    def __init__(
        self,
        *,
        tokenizer: Any,
        client: TokenEngine,
        directory: str | Path | None = None,
        limits: Limits | None = None,
        max_sessions: int = 1024,
        preflight: bool = True,
        gateway: Mapping[str, Any] | None = None,
        admin: Callable[[SessionService], web.Application] | None = None,
        **model_options: Any,
    ) -> None:
        """Create a service; it runs inside its `async with` block.

        Args:
            max_sessions: Number of sessions that may be open at the same time.
            gateway: Arguments of `Gateway`.
            admin: Makes what answers requests below /sessions; None: sessions are opened by calling this object.
            **model_options: Further arguments of `SGLangModel`. The others are those of `rollout`.
        """
        self.gateway = Gateway(**(gateway or {}), admin=None if admin is None else lambda: admin(self))
        self._max_sessions, self._preflight = max_sessions, preflight
        self._run_spec = RunSpec(
            build=self._build,
            reward=self._reward,
            tokenizer=tokenizer,
            client=client,
            limits=limits or Limits(),
            model_options=model_options,
            directory=None if directory is None else Path(directory),
            run=uuid.uuid4().hex,
        )
        self._stack = AsyncExitStack()
        self.open_sessions: dict[str, OpenSession] = {}
        self.ended: dict[str, dict[str, Any]] = {}
        """What `summary` returned for the episodes that ended here, by id."""
        self._rewards: dict[str, Any] = {}
        self._recorded: set[str] = set()
        self._over: set[str] = set()

    async def __aenter__(self) -> SessionService:
        run_spec, loop = self._run_spec, asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            if run_spec.directory is not None:
                stack.enter_context(directory_lock(run_spec.directory))
                previous = await loop.run_in_executor(None, read_previous_run, run_spec.directory)
                self._recorded |= {*previous.finished, *previous.unfinished}
                self._over |= previous.finished.keys() - previous.unfinished.keys()
                model = await served_model(run_spec.client)
                run_spec = replace(
                    run_spec,
                    experiment=experiment_of(run_spec, model),
                    run=previous.run.get("run", run_spec.run),
                )
            if self._preflight:
                await preflight_run(run_spec)
            self._worker = LocalWorker(run_spec)
            stack.push_async_callback(self._worker.close)
            if run_spec.directory is not None:
                open_run(run_spec, previous, self._worker.fingerprint, None)
            await stack.enter_async_context(self.gateway)
            self._run_spec, self._stack = run_spec, stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        """End the service; sessions that are open are left unfinished, and the run is then not sealed."""
        left = list(self.open_sessions.values())
        for opened in left:
            opened.work.cancel()
        if left:
            await asyncio.wait({opened.work for opened in left})
            logger.warning("sessions=<%d> | left unfinished; open them again to resume their episodes", len(left))
        await self._stack.aclose()
        if self._run_spec.directory is not None and not left and self.ended:
            await asyncio.get_running_loop().run_in_executor(None, seal, self._run_spec.directory)

    async def open(
        self,
        task: Task | str | Mapping[str, Any],
        sample: int | None = None,
        *,
        name: str = "policy",
        on_changed_echo: RewritePolicy | str = RewritePolicy.KEEP,
    ) -> OpenSession:
        """Open a session, or resume the recorded episode if it has not ended.

        Args:
            sample: Number of the episode among those of its task; None: the first that is neither open nor over.
            name: Name of the model that the agent asks for; see `Gateway.session`, also for `on_changed_echo`.

        Raises:
            SessionStateError: The episode is open or over, or too many sessions are open.
            ConfigurationError: An argument is invalid.
        """
        if len(self.open_sessions) >= self._max_sessions:
            raise SessionStateError(f"{self._max_sessions} sessions are open, which is the limit; close some")
        task = Task.of(task)
        if sample is None:
            taken = {*self.open_sessions, *self._over}
            sample = next(one for one in range(len(taken) + 1) if f"{task.id}/{one}" not in taken)
        spec = EpisodeSpec(task, sample)
        if spec.id in self.open_sessions:
            raise SessionStateError(f"session {spec.id} is open; close it, or open another sample of the task")
        agent = _OpenedAgent(self.gateway, name, chosen("on_changed_echo", on_changed_echo, RewritePolicy))
        if spec.id in self._over:
            raise SessionStateError(f"session {spec.id} has ended; open another sample of the task")
        opened = self.open_sessions[spec.id] = OpenSession(spec, agent)
        try:
            if spec.id in self._recorded:
                await self._resume(spec)
            self.ended.pop(spec.id, None)
            opened.work = asyncio.ensure_future(self._worker.run(spec))
            opened.work.add_done_callback(lambda work: self._ended(opened, work))
            waiting: set[asyncio.Future[Any]] = {opened.work, agent.opened}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not agent.opened.done():
                episode = opened.work.result()
                raise ConfigurationError(f"session {spec.id} could not be opened: {episode.failure}")
        except BaseException:
            self.open_sessions.pop(spec.id, None)
            if hasattr(opened, "work"):
                opened.work.cancel()
            raise
        return opened

    async def close(self, id: str, *, reward: Any = None, text: str = "", error: str | None = None) -> dict[str, Any]:
        """End an episode; return its summary. One that has ended already is scored if it has no reward.

        Args:
            reward: As a reward function returns it; None: it is not scored.
            text: What the agent answered.
            error: What the agent failed with; the episode is then not trained. None: it did not fail.
        """
        opened = self.open_sessions.get(id)
        if opened is None:
            known = await self.known(id)
            return known if reward is None or known["reward"] is not None else await self.score(id, reward)
        _checked(reward)
        self._rewards[id] = reward
        if not opened.agent.closed.done():
            if error is None:
                opened.agent.closed.set_result(text)
            else:
                opened.agent.closed.set_exception(AgentProcessError(error))
        await asyncio.wait({opened.work})
        return await self.known(id)

    async def score(self, id: str, reward: Any) -> dict[str, Any]:
        """Give an episode that has ended a reward, in place of an earlier one; return its summary."""
        if id in self.open_sessions:
            raise SessionStateError(f"session {id} is open: close it with its reward")
        known, directory = await self.known(id), self._run_spec.directory
        if directory is None:
            raise SessionStateError("a session is scored after its end in the ledger only; give a directory")
        _checked(reward)
        record = await self._read(id)
        if not is_over(record):
            raise SessionStateError(f"session {id} failed ({known['end_reason']}) and is not scored; open it again")
        self._rewards[id] = reward
        sample = int(id.rpartition("/")[2])
        spec = EpisodeSpec(Task("", id=id.rpartition("/")[0]), sample, record=record, unscored=True)
        self.ended[id] = self.summary(await self._worker.run(spec))
        return self.ended[id]

    def summary(self, episode: Episode) -> dict[str, Any]:
        """Return what a caller is told of an episode that has ended."""
        turns = Counter(turn.purpose.value if not turn.rejected else "rejected" for turn in episode.tree)
        return {
            "id": episode.id,
            "state": "ended",
            "end_reason": episode.end_reason.value,
            "reward": episode.reward,
            "turns": len(episode.tree),
            "trained_turns": turns["episode"],
            "failure": None if episode.failure is None else episode.failure.message,
        }

    async def known(self, id: str) -> dict[str, Any]:
        """Return the summary of an episode that has ended, here or before the service was started."""
        if id in self.ended:
            return self.ended[id]
        if id in self._recorded and (record := await self._read(id)).finished:
            return self.summary(restored(record))
        raise UnknownSessionError(f"there is no session {id!r:.250} that is open or has ended; open it")

    async def _read(self, id: str) -> EpisodeRecord:
        directory = self._run_spec.directory
        assert directory is not None
        return await asyncio.get_running_loop().run_in_executor(None, lambda: Ledger(directory).episode(id))

    async def _resume(self, spec: EpisodeSpec) -> None:
        spec.record = await self._read(spec.id)
        check_task(spec, task_of(spec.record))

    def _ended(self, opened: OpenSession, work: asyncio.Task[Episode]) -> None:
        self.open_sessions.pop(opened.id, None)
        if work.cancelled():
            return
        if (error := work.exception()) is not None:
            logger.error("session=<%s> | the episode could not be recorded: %s", opened.id, error)
            return
        self.ended[opened.id] = self.summary(work.result())
        if not work.result().end_reason.resumable:
            self._over.add(opened.id)
        if self._run_spec.directory is not None:
            self._recorded.add(opened.id)

    def _build(self, task: Task, model: SGLangModel) -> RemoteAgent:
        return self.open_sessions[model.current_episode.id].agent

    def _reward(self, episode: Episode) -> Any:
        return self._rewards.pop(episode.id, None)


def _checked(reward: Any) -> None:
    made = Reward.of(reward)
    if made.error is not None:
        raise ConfigurationError(f"reward must be a number, an object with 'reward', or null: {made.error}")
