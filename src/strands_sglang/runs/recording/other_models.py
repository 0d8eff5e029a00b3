"""Other models in an episode than the policy, such as a simulated user or a judge: `OtherModels`, `RecordedModel`.

`build` and `reward` get the models of their episode as the argument `models`. Each is a Strands model of any provider,
which agents use like any other.

Invariant: an answer is recorded before anybody sees it, and a recorded answer is returned for the same content without
asking. What these models say is never part of the tree of turns, so it is never trained. A model that fails
permanently, or whose answer to an agent is truncated, ends the episode; nothing of that answer is used.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from socket import gaierror
from typing import Any, TypeVar

from pydantic import BaseModel
from strands.models import Model
from strands.types.content import Messages
from strands.types.exceptions import ContextWindowOverflowException, MaxTokensReachedException, ModelThrottledException
from strands.types.streaming import StreamEvent

from strands_sglang._strands_compat.agents import WrapperModel, calling_agent, cycle_of
from strands_sglang.engine.response import TransientFault, is_transient
from strands_sglang.engine.retry import Backoff, Retries, RetryPolicy
from strands_sglang.errors import (
    CallCancelledError,
    ConfigurationError,
    EngineError,
    OtherModelError,
    StrandsSGLangError,
)
from strands_sglang.ledger.event import Event, EventKind, ModelCallData, ModelData, ModelErrorData, data_of
from strands_sglang.ledger.files import Put
from strands_sglang.model import SGLangModel
from strands_sglang.provider.episode import EpisodeTokens
from strands_sglang.runs.episode import EpisodeMetrics
from strands_sglang.runs.recording.event_data import ToolArguments, arguments_digest, rebuildable_data, rebuilt
from strands_sglang.runs.recording.recorder import EpisodeRecorder, within
from strands_sglang.runs.recording.replay_log import OVERFLOW, ReplayLog
from strands_sglang.runs.recording.tool_recorder import record_tools
from strands_sglang.runs.reward import message_of

T = TypeVar("T", bound=BaseModel)
Ask = Callable[[], Coroutine[Any, Any, list[Any]]]
Write = Callable[[EventKind, Mapping[str, object]], object]

RETRIES = RetryPolicy(max_retries=60, backoff=Backoff(base=1.0, cap=30.0))
"""For a model that cannot be reached or is overloaded; a client of the provider may retry as well."""

_UNREACHABLE = ("APIConnectionError", "TransportError", "HTTPClientError", "ClientConnectionError")
"""Classes of errors of openai and anthropic, httpx, botocore and aiohttp for a request that got no answer."""
_APPENDED = ("text", "toolUse", "input", "reasoningContent", "signature")  # pieces that the SDK appends to each other


def takes_models(function: Callable[..., Any] | None) -> bool:
    """Return whether a `build` or reward function has a parameter `models`."""
    try:
        parameter = inspect.signature(function).parameters.get("models") if callable(function) else None
    except (TypeError, ValueError):  # a function written in C has no signature
        return False
    return parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


def checked_models(models: Any, *functions: Callable[..., Any] | None) -> dict[str, Any]:
    """Return the argument `models` of a run; ConfigurationError if it is invalid, or no function takes models."""
    if models is None:
        return {}
    if not isinstance(models, Mapping) or not all(isinstance(name, str) and name for name in models):
        raise ConfigurationError(f"models must be a dict of models by name, got {models!r:.200}")
    for name, model in models.items():
        if isinstance(model, type) or not (isinstance(model, Model) or callable(model)):
            raise ConfigurationError(
                f"models[{name!r}] must be a Strands model, or a function without arguments that makes one, got "
                f"{model!r:.100}"
            )
        if isinstance(model, Model) and model.stateful:
            raise ConfigurationError(
                f"models[{name!r}] must not be stateful: its server keeps the conversation, so its answers do not "
                "follow from what is recorded"
            )
    if models and not any(map(takes_models, functions)):
        raise ConfigurationError(
            "models is given, but neither build nor reward uses it: add a parameter to one of them, such as "
            "build(task, model, models) or reward(episode, models)"
        )
    return dict(models)


def made_models(models: Mapping[str, Any]) -> dict[str, Model]:
    """Return models as objects of this process; functions among them are called."""
    made = {name: model if isinstance(model, Model) else model() for name, model in models.items()}
    for name, model in made.items():
        if not isinstance(model, Model):
            raise ConfigurationError(f"models[{name!r}] must make a Strands model, got {model!r:.100}")
    return made


class OtherModels(Mapping[str, "RecordedModel"]):
    """The other models of one episode, or of its scoring."""

    def __init__(
        self,
        models: Mapping[str, Model] | None,
        episode: str,
        *,
        log: ReplayLog,
        write: Write,
        metrics: EpisodeMetrics,
        put: Put | None = None,
        arguments: ToolArguments = ToolArguments.RECORD,
        recorder: EpisodeRecorder | None = None,
    ) -> None:
        """Wrap the models; `of_episode` knows most arguments.

        Args:
            models: The models by name; None: there is one of every name, which has only its recorded answers.
            episode: Id of the episode.
            log: Has the recorded answers.
            write: Writes an event.
            metrics: Calls and seconds are added to these.
            put: Stores bytes in answers; None: they are part of the events.
            arguments: Whether what is asked is recorded, or only its digest.
            recorder: The episode that is running, which a failure stops; None: it is being scored.
        """
        self._models, self.episode, self._recorder = models, episode, recorder
        self._log, self._write, self._metrics, self._put, self._arguments = log, write, metrics, put, arguments
        self._recorded: dict[str, RecordedModel] = {}
        self._lock = threading.Lock()
        self._closed = False

    @classmethod
    def of_episode(
        cls, models: Mapping[str, Model] | None, episode: str, recorder: EpisodeRecorder, *, scoring: bool = False
    ) -> OtherModels:
        """Return the models of an episode that is running, or has ended and is scored for the first time."""
        return cls(
            models,
            episode,
            log=recorder.replay_log,
            write=partial(recorder.write, ends=scoring),
            metrics=recorder.metrics,
            put=recorder.put_data,
            arguments=recorder.tool_arguments,
            recorder=None if scoring else recorder,
        )

    def __getitem__(self, name: str) -> RecordedModel:
        with self._lock:
            if name not in self._recorded:
                if self._models is not None and name not in self._models:
                    raise KeyError(f"no model {name!r} was given: rollout(models={{{name!r}: ...}})")
                inner = None if self._models is None else self._models[name]
                self._recorded[name] = RecordedModel(name, inner, self)
            return self._recorded[name]

    def __contains__(self, name: object) -> bool:
        return self._models is None or name in self._models

    def __iter__(self) -> Iterator[str]:
        return iter(self._recorded if self._models is None else self._models)

    def __len__(self) -> int:
        return len(self._recorded if self._models is None else self._models)

    def close(self) -> None:
        """Refuse further questions, also of code that still runs."""
        self._closed = True

    async def answer(
        self, name: str, request: Sequence[Any], asked: Any, ask: Ask, *, by_agent: bool, cancelled: Any
    ) -> list[Any]:
        """Return the stream events of an answer: recorded ones, or those of `ask`, once they are recorded.

        Args:
            name: Name of the model.
            request: All that the answer depends on.
            asked: Content of the last message.
            ask: Asks the model; called again for each attempt.
            by_agent: Whether an agent asks: it fails if the answer is truncated.
            cancelled: Cancel signal of the agent; if it is set, the answer is incomplete and not recorded. None: none.

        Raises:
            OtherModelError: There is no usable answer.
        """
        self._check_open()
        data = rebuildable_data([name, *request])
        digest = arguments_digest([name, *request] if data is None else data, size=16)
        event = await self._from_record(digest, name)
        if event is None:
            if self._recorder is not None:
                await self._recorder.wait_while_paused()
            return await self._ask(name, digest, asked, ask, by_agent, cancelled)
        self._count(data_of(event, ModelCallData))
        if event.kind is EventKind.MODEL_ERROR:
            error = data_of(event, ModelErrorData)
            raise _error(name, error["error"], error["message"])
        if self._recorder is not None:
            await self._recorder.wait_for_slot()
        answer: list[Any] = rebuilt(data_of(event, ModelData)["answer"], self._log.files)
        return answer

    def _check_open(self) -> None:
        if self._closed:
            raise CallCancelledError(f"episode {self.episode} is scored; no model can be asked for it any more")
        if self._recorder is not None:
            self._recorder.check_open()

    async def _from_record(self, digest: str, name: str) -> Event | None:
        if self._recorder is not None:
            return await self._recorder.other_answer(digest, name)
        return self._log.other_answer(digest, within.get())

    async def _ask(self, name: str, digest: str, asked: Any, ask: Ask, by_agent: bool, cancelled: Any) -> list[Any]:
        """Ask a model until it answers, and record the answer, or why there is none."""
        began = time.monotonic()
        call: ModelCallData = {
            "name": name,
            "request_digest": digest,
            "asked": rebuildable_data(asked, self._put) if self._arguments is ToolArguments.RECORD else None,
            "within": list(within.get()),
            "attempts": 0,
            "seconds": 0.0,
        }
        failure: Exception | None = None
        answer: list[Any] = []
        with nullcontext() if self._recorder is None else self._recorder.reporting():
            try:
                answer = await self._attempts(name, ask, call)
                if cancelled is not None and cancelled.is_set():
                    return answer
                if by_agent and _stop_reason(answer) == "max_tokens":
                    failure = MaxTokensReachedException("its answer was truncated: give it a higher limit of tokens")
            except Exception as error:
                failure = error
        call["seconds"], call["time"] = round(time.monotonic() - began, 4), round(time.time(), 3)
        recorded = None if failure is not None else rebuildable_data(answer, self._put)
        if failure is None and recorded is None:
            failure = TypeError("its answer cannot be recorded: it is not plain data")
        self._check_open()
        self._count(call)
        if failure is None:
            data: ModelData = {**call, "answer": recorded or []}
            self._record(EventKind.MODEL, data)
            return answer
        kind = OVERFLOW if isinstance(failure, ContextWindowOverflowException) else type(failure).__name__
        why: ModelErrorData = {**call, "error": kind, "message": message_of(failure)}
        self._record(EventKind.MODEL_ERROR, why)
        unusable = _error(name, kind, why["message"])
        unusable.__cause__ = failure
        if self._recorder is not None and kind != OVERFLOW:
            await self._recorder.stop_on_outage(unusable)
        raise unusable

    async def _attempts(self, name: str, ask: Ask, call: ModelCallData) -> list[Any]:
        retries = Retries(RETRIES, f"the model {name!r}")
        while True:
            began = time.monotonic()
            call["attempts"] += 1
            try:
                # In its own task: the turn of another `SGLangModel` must not be the last turn of this context.
                answer = await asyncio.ensure_future(ask())
            except Exception as error:
                if not _may_pass(error):
                    raise
                try:
                    await retries.after(TransientFault(EngineError(f"{type(error).__name__}: {error}")), began)
                except EngineError as last:
                    raise OtherModelError(str(last), model=name) from error
                self._check_open()
            else:
                retries.progressed(began)
                return answer

    def _record(self, kind: EventKind, data: Mapping[str, object]) -> None:
        with self._lock:  # one event after the other, also if a reward asks from several threads
            self._write(kind, data)

    def _count(self, call: ModelCallData) -> None:
        with self._lock:
            self._metrics.other_model_calls += 1
            self._metrics.other_model_seconds += call["seconds"]


class RecordedModel(WrapperModel):
    """Another model of an episode: a Strands model whose answers are recorded and replayed, and never trained.

    Example:
        ```python
        def build(task, model, models):
            agent = Agent(model=model, tools=[calculator])
            user = Agent(model=models["user"], system_prompt="You are a customer.")
            ...
        ```
    """

    def __init__(self, name: str, model: Model | None, others: OtherModels) -> None:
        """Wrap a model; None: there are only its recorded answers."""
        super().__init__(model)
        self.name, self.model, self._others = name, model, others
        self._tokens = EpisodeTokens(f"{others.episode}/{name}")  # of another `SGLangModel`, whose turns it keeps apart

    @property
    def config(self) -> Any:
        """The settings of the model; the SDK reads its id from there."""
        return self.get_config()

    def update_config(self, **model_config: Any) -> None:
        """Change the settings of the model, which all episodes share."""
        if self.model is not None:
            self.model.update_config(**model_config)

    def get_config(self) -> Any:
        """Return the settings of the model."""
        return {} if self.model is None else self.model.get_config()

    async def stream(
        self,
        messages: Messages,
        tool_specs: Any = None,
        system_prompt: str | None = None,
        *,
        tool_choice: Any = None,
        system_prompt_content: Any = None,
        invocation_state: dict[str, Any] | None = None,
        cancel_signal: Any = None,
        structured_output_model: type[BaseModel] | None = None,
        **kwargs: Any,
    ) -> AsyncGenerator[StreamEvent, None]:
        """Return the answer to a conversation; see `Model.stream`. Its parts arrive together.

        Raises:
            OtherModelError: The model failed permanently, or its answer to an agent was truncated.
        """
        agent = calling_agent(invocation_state, cancel_signal)
        if agent is not None:
            record_tools(agent)
        schema = {} if structured_output_model is None else {"structured_output_model": structured_output_model}
        given = {
            "tool_choice": tool_choice,
            "system_prompt_content": system_prompt_content,
            "invocation_state": invocation_state,
            "cancel_signal": cancel_signal,
            **schema,
            **kwargs,
        }
        for event in await self._others.answer(
            self.name,
            [
                *_content(messages, system_prompt_content or system_prompt),
                tool_specs or None,
                tool_choice,
                _schema(structured_output_model),
            ],
            messages[-1]["content"] if messages else None,
            lambda: self._collect(lambda model: model.stream(messages, tool_specs, system_prompt, **given)),
            by_agent=cycle_of(invocation_state) is not None,
            cancelled=cancel_signal,
        ):
            yield event

    async def structured_output(
        self, output_model: type[T], prompt: Messages, system_prompt: str | None = None, **kwargs: Any
    ) -> AsyncGenerator[dict[str, T | Any], None]:
        """Return an answer that follows a schema; see `Model.structured_output`."""
        for event in await self._others.answer(
            self.name,
            [*_content(prompt, system_prompt), "structured_output", _schema(output_model)],
            prompt[-1]["content"] if prompt else None,
            lambda: self._collect(lambda model: model.structured_output(output_model, prompt, system_prompt, **kwargs)),
            by_agent=False,
            cancelled=None,
        ):
            yield {"output": output_model.model_validate(event["output"])} if "output" in event else event

    async def _collect(self, call: Callable[[Model], AsyncIterable[Any]]) -> list[Any]:
        """Return the whole answer of the model as plain events."""
        if self.model is None:
            raise ConfigurationError(f"the model {self.name!r} has only its recorded answers")
        with self.model.episode(self._tokens) if isinstance(self.model, SGLangModel) else nullcontext():
            return _joined([event async for event in call(self.model)])


def _content(messages: Messages, system: Any) -> list[Any]:
    """Return what is said in messages: without metadata, such as the time that a reply took."""
    return [[{"role": message["role"], "content": message["content"]} for message in messages], system]


def _schema(model: type[BaseModel] | None) -> Any:
    return None if model is None else model.model_json_schema()


def _joined(events: Sequence[Any]) -> list[Any]:
    """Return events with adjacent pieces of one text joined, and the output that follows a schema as plain data."""
    joined: list[Any] = []
    for event in events:
        piece, before = event.get("contentBlockDelta"), joined[-1].get("contentBlockDelta") if joined else None
        if isinstance(event.get("output"), BaseModel):
            joined.append({"output": event["output"].model_dump(mode="json")})
        elif piece and before and (delta := _appended(before.get("delta"), piece.get("delta"))) is not None:
            joined[-1] = {"contentBlockDelta": {**before, "delta": delta}}
        else:
            joined.append(event)
    return joined


def _appended(before: Any, piece: Any) -> Any:
    """Return two adjacent pieces of one text as one; None if they are something else."""
    if isinstance(before, str) and isinstance(piece, str):
        return before + piece
    if not isinstance(before, dict) or not isinstance(piece, dict) or len(piece) != 1 or before.keys() != piece.keys():
        return None
    [(name, inner)] = piece.items()
    whole = _appended(before[name], inner) if name in _APPENDED else None
    return None if whole is None else {name: whole}


def _stop_reason(events: Sequence[Any]) -> Any:
    return next((event["messageStop"].get("stopReason") for event in events if "messageStop" in event), None)


class _OverflowError(OtherModelError, ContextWindowOverflowException):
    """The conversation with another model is too long; its agent may handle this by sending less."""


def _error(name: str, kind: str, message: str) -> OtherModelError:
    text = message if kind == OtherModelError.__name__ else f"the model {name!r} failed: {kind}: {message}"
    return (_OverflowError if kind == OVERFLOW else OtherModelError)(text, model=name)


def _may_pass(error: BaseException | None) -> bool:
    """Return whether a model may answer when it is asked again; an `SGLangModel` has retried already."""
    if isinstance(error, StrandsSGLangError):
        return False
    if isinstance(status := getattr(error, "status_code", None), int):
        return is_transient(status)
    while error is not None:
        if isinstance(error, (ModelThrottledException, ConnectionError, TimeoutError, asyncio.TimeoutError, gaierror)):
            return True
        if any(kind.__name__ in _UNREACHABLE for kind in type(error).__mro__):
            return True
        error = error.__cause__
    return False
