"""The ways in which the same episodes are run: by the SDK alone, by this package, and by others.

| way | what runs the episode |
|---|---|
| `bare` | the SDK's `Agent` on a model that yields ready-made events: no tokens, no engine |
| `sdk` | the same as `rollout` drives it: in `fast_agents`, with an infrequent collector |
| `inside`, `plain_inside` | this package in `rollout`, and in a plain `Agent`, on an engine within the process |
| `rollout`, `plain` | this package in `rollout`, and in a plain `Agent`, over HTTP |
| `fast` | `plain` within `fast_agents` |
| `published` | the published package in a plain `Agent`, over HTTP |
| `openai` | the SDK's own `OpenAIModel` in a plain `Agent`, over HTTP; the server tokenises |

Every way uses one HTTP client for all episodes and one model object for each. Each module is imported by the way that
needs it, so that a process without this package can run the others.

Invariant: a way that does not make exactly the expected turns fails; it is never measured.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strands import tool

from agent_script import TOOL, Script, script, tokenizer_from
from scripted_agent import ScriptedModel, build, questions, text_of

SAMPLING = {"max_new_tokens": 1024, "temperature": 1.0}


@dataclass(frozen=True)
class Job:
    """Episodes to run in one way."""

    way: str
    url: str = ""
    """Address of the server; unused within the process."""
    turns: int = 8
    """Engine calls of an episode; 0: as many as the model makes."""
    episodes: int = 32
    """Number of episodes, unless `asked` is given."""
    at_once: int = 32
    """Number of concurrent episodes."""
    context: int = 0
    """Tokens in front of the question."""
    tokens: int = 64
    """Sampled tokens per turn of a script."""
    asked: tuple[tuple[str, ...], ...] = ()
    """For a real model: the questions of each task, asked one after the other."""
    samples: int = 1
    """Episodes of each task in `asked`."""
    question_turns: int = 3
    """Most turns for one question in `asked`."""
    system: str = ""
    """System prompt."""
    sampling: dict[str, Any] = field(default_factory=lambda: dict(SAMPLING))
    directory: str = ""
    """Where `rollout` writes its ledger; empty: nowhere."""

    @property
    def total(self) -> int:
        """Number of episodes."""
        return len(self.asked) * self.samples if self.asked else self.episodes


@dataclass
class Done:
    """What the episodes of a job have made."""

    turns: int
    """Number of engine calls."""
    tokens: int = 0
    """Number of sampled tokens, if the way counts them."""
    cached_tokens: int = 0
    """Number of prompt tokens from the engine's cache, if the way counts them."""


def lab_calculator() -> Any:
    """Return the tool that the tool policy was trained with: it really calculates."""
    sys.path.append(str(Path(__file__).resolve().parents[2] / "lab" / "tool_policy"))
    import task

    @tool(name=TOOL)
    async def calculator(expression: str) -> str:
        """Work out one operation on two whole numbers.

        Args:
            expression: Such as `615 * 17`.
        """
        return task.calculate(expression)

    return calculator


async def gathered(run: Callable[[Any], Awaitable[Done]], tasks: list[Any], at_once: int) -> Done:
    """Run tasks, a number of them at a time; return what they made together."""
    left, total = iter(tasks), Done(0)

    async def worker() -> None:
        for task in left:
            # An asyncio task for each, so that no context variable passes from one episode to the next.
            done = await asyncio.ensure_future(run(task))
            total.turns += done.turns
            total.tokens += done.tokens
            total.cached_tokens += done.cached_tokens

    await asyncio.gather(*(worker() for _ in range(min(at_once, len(tasks)))))
    return total


class Ways:
    """All ways of one process, with the clients that they keep between jobs."""

    def __init__(self, tokenizer: str) -> None:
        self.tokenizer = tokenizer_from(tokenizer)
        self._scripts: dict[int, Script] = {}
        self._clients: dict[tuple[str, str], Any] = {}
        self._contexts: dict[int, str] = {}
        self._runs = 0

    def script(self, tokens: int) -> Script:
        """Return the script of so many tokens per turn."""
        if tokens not in self._scripts:
            self._scripts[tokens] = script(self.tokenizer, tokens)
        return self._scripts[tokens]

    def prepare(self, job: Job) -> None:
        """Make what a job needs and what is no part of its cost: the script and the text of the context."""
        self.script(job.tokens)
        if job.context not in self._contexts:
            self._contexts[job.context] = text_of(self.tokenizer, job.context)

    def _questions(self, job: Job) -> list[dict[str, str]]:
        """Return the tasks of a job: no two jobs have a text in common, so that nothing can be reused."""
        self._runs += 1
        return questions(job.episodes, f"Run {self._runs}. {self._contexts[job.context]}")

    def _client(self, kind: str, url: str, make: Callable[[], Any]) -> Any:
        if (kind, url) not in self._clients:
            self._clients[kind, url] = make()
        return self._clients[kind, url]

    def _engine(self, job: Job) -> Any:
        """Return an engine within the process, which is made once."""
        from played_agent import ScriptedEngine

        made = f"{job.tokens} tokens, {job.turns} turns"
        return self._client("inside", made, lambda: ScriptedEngine(self.script(job.tokens), job.turns - 1)).alone()

    async def run(self, job: Job) -> Done:
        """Run a job.

        Raises:
            RuntimeError: The episodes did not make the expected number of turns.
        """
        if job.way in ("rollout", "inside"):
            done = await self._rollout(job)
        elif job.way == "sdk":
            done = await self._driven(job)
        elif job.way == "fast":
            from strands_sglang import fast_agents

            with fast_agents():
                done = await self._plain(job)
        else:
            done = await self._plain(job)
        if job.turns and done.turns != job.turns * job.total:
            raise RuntimeError(f"{job.way}: {job.total} episodes made {done.turns} turns, not {job.turns} each")
        return done

    @staticmethod
    def _settings(job: Job) -> dict[str, Any]:
        """Return the settings of an agent besides its model."""
        settings: dict[str, Any] = {"system_prompt": job.system} if job.system else {}
        return {**settings, "tools": [lab_calculator()]} if job.asked else settings

    async def _plain(self, job: Job) -> Done:
        make, settings = self._model(job), self._settings(job)

        async def episode(prompts: tuple[str, ...]) -> Done:
            agent = build(None, make(), **settings)
            for prompt in prompts:
                await agent.invoke_async(prompt, limits={"turns": job.question_turns} if job.asked else None)
            usage = agent.event_loop_metrics.accumulated_usage
            turns = sum(message["role"] == "assistant" for message in agent.messages)
            return Done(turns, usage["outputTokens"], usage.get("cacheReadInputTokens", 0))

        asked = [asked for asked in job.asked for _ in range(job.samples)]
        return await gathered(episode, asked or [(task["prompt"],) for task in self._questions(job)], job.at_once)

    def _model(self, job: Job) -> Callable[[], Any]:
        """Return a function that makes the model of an episode."""
        url, tokenizer = job.url, self.tokenizer
        if job.way == "bare":
            return lambda: ScriptedModel(self.script(job.tokens), job.turns - 1)
        if job.way == "openai":
            from openai import AsyncOpenAI  # type: ignore[import-not-found,unused-ignore]
            from strands.models.openai import OpenAIModel

            shared = self._client("openai", url, lambda: AsyncOpenAI(base_url=f"{url}/v1", api_key="none"))
            params = {
                {"max_new_tokens": "max_tokens"}.get(name, name): value
                for name, value in job.sampling.items()
                if name in ("max_new_tokens", "temperature")
            }
            return lambda: OpenAIModel(client=shared, model_id="default", params=params)
        import strands_sglang

        package: Any = strands_sglang
        if job.way == "published":
            theirs = self._client("published", url, lambda: package.SGLangClient(url, max_connections=1024))
            parser = package.get_tool_parser("hermes")
            settings = {"tool_parser": parser, "sampling_params": job.sampling, "return_logprob": True}
            return lambda: package.SGLangModel(client=theirs, tokenizer=tokenizer, **settings)
        if job.way in ("plain", "fast"):
            ours = self._client("ours", url, lambda: package.SGLangClient(url, max_connections=1024))
            return lambda: package.SGLangModel(client=ours, tokenizer=tokenizer, sampling_params=job.sampling)
        if job.way == "plain_inside":
            engine = self._engine(job)
            return lambda: package.SGLangModel(client=engine.alone(), tokenizer=tokenizer, sampling_params=job.sampling)
        raise ValueError(f"way must be one of the table above, got {job.way}")

    async def _rollout(self, job: Job) -> Done:
        from strands_sglang import SGLangClient
        from strands_sglang.runs import Task, rollout

        source: dict[str, Any] = {}
        if job.way == "inside":
            source["client"] = self._engine(job)
        else:
            source["client"] = self._client("ours", job.url, lambda: SGLangClient(job.url, max_connections=1024))
        if job.directory:
            source["directory"] = job.directory
        settings = self._settings(job)

        def make(task: Any, model: Any) -> Any:
            agent = build(task, model, **settings)
            if not job.asked:
                return agent

            async def ask() -> str:
                text = ""
                for question in task.data["questions"]:
                    text = str(await agent.invoke_async(question, limits={"turns": job.question_turns}))
                return text

            return ask

        tasks: list[Any] = self._questions(job)
        if job.asked:
            tasks = [
                Task(asked[0], data={"questions": list(asked)}, id=f"t{number}")
                for number, asked in enumerate(job.asked)
            ]
        run = await rollout(
            make,
            tasks,
            tokenizer=self.tokenizer,
            samples_per_task=job.samples,
            concurrency=job.at_once,
            sampling_params=job.sampling,
            **source,
        )
        if run.metrics.failures:
            raise RuntimeError(f"{run.metrics.failures} episodes failed")
        cached = sum(episode.metrics.cached_tokens or 0 for episode in run)
        return Done(run.metrics.turns, sum(episode.metrics.sampled_tokens for episode in run), cached)

    async def _driven(self, job: Job) -> Done:
        # Internal names: where a version of the sources has others, this way is left out.
        from strands_sglang import fast_agents
        from strands_sglang.runs.agent_runner import run_agent
        from strands_sglang.runs.limits import Limits
        from strands_sglang.runs.task import Task
        from strands_sglang.runs.workers.process_tuning import infrequent_gc

        limits = Limits()

        async def episode(task: Any) -> Done:
            agent = build(task, ScriptedModel(self.script(job.tokens), job.turns - 1))
            await run_agent(agent, Task.of(task), limits, None)  # type: ignore[arg-type]
            return Done(sum(message["role"] == "assistant" for message in agent.messages))

        quiet: list[AbstractContextManager[Any]] = [fast_agents(), infrequent_gc()]
        with ExitStack() as stack:
            for manager in quiet:
                stack.enter_context(manager)
            return await gathered(episode, self._questions(job), job.at_once)
