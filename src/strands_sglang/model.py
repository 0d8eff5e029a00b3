"""`SGLangModel`: the Strands model provider that keeps every token.

It joins the floors below: which branch a conversation goes on from (chat), what is appended to it (chat), what is
sampled (engine), how that is recorded (tokens) and what the agent sees of it (tool_parsers).

Invariants: for every call, the ids sent are the branch so far; a turn is recorded whole, after all of it is known to
be good, or not at all; the agent sees only turns that are recorded.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError
from strands.models.model import Model
from strands.types.content import Messages, SystemContentBlock
from strands.types.exceptions import StructuredOutputException
from strands.types.streaming import StreamEvent
from strands.types.tools import ToolChoice, ToolSpec
from typing_extensions import override

from strands_sglang.chat.content import template_system
from strands_sglang.chat.detect import chosen_tool_parser
from strands_sglang.chat.proved import sound_bridge
from strands_sglang.chat.verdict import Soundness
from strands_sglang.engine import SGLangClient, TokenEngine
from strands_sglang.errors import CallCancelledError, ConfigurationError
from strands_sglang.provider.answer import calling_agent
from strands_sglang.provider.config import checked_config, template_arguments
from strands_sglang.provider.episode import Episode, check_not_watched, scopes
from strands_sglang.provider.plan import Planner
from strands_sglang.provider.published import Rollout, Rollouts
from strands_sglang.provider.run import TurnRunner
from strands_sglang.provider.turn import Request, schema_of
from strands_sglang.tokens import TokenManager
from strands_sglang.tool_parsers import ToolParser
from strands_sglang.tool_parsers.plain import PlainTextParser

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=BaseModel)


class SGLangModel(Model):
    """A Strands model on SGLang's native `/generate`: token ids in, sampled ids and logprobs out."""

    _supports_structured_output = True

    def __init__(
        self,
        *,
        tokenizer: Any,
        client: TokenEngine | None = None,
        base_url: str | None = None,
        tool_parser: ToolParser | str | None = "auto",
        chat_template: str | None = None,
        **config: Any,
    ) -> None:
        """Make a model. The chat template is tried out here, once for each tokenizer (about a second).

        Args:
            tokenizer: The model's tokenizer, from `transformers`.
            client: Where tokens come from: an `SGLangClient`, or anything that is a `TokenEngine`.
            base_url: Address of the server or router, when no client is given.
            tool_parser: Takes tool calls out of what is sampled: a parser, the name of one, or "auto": the one that
                reads what the chat template itself writes for a call.
            chat_template: A template to use instead of the tokenizer's own, as text.
            **config: See `SGLangConfig`; and arguments of the chat template: `enable_thinking`,
                `chat_template_kwargs`, or any name that the template reads.

        Raises:
            ConfigurationError: Something given cannot work; the message says what would.
        """
        if (client is None) == (base_url is None):
            raise ConfigurationError("give either client=SGLangClient(...) or base_url='http://...', and not both")
        if client is not None and not isinstance(client, TokenEngine):
            raise ConfigurationError(
                f"client must be an SGLangClient or another TokenEngine, not {client!r}; base_url= takes an address"
            )
        if not (tool_parser is None or isinstance(tool_parser, (str, ToolParser))):
            raise ConfigurationError(
                f"tool_parser must be 'auto', a name such as 'hermes', or a ToolParser, not {tool_parser!r}"
            )
        source = chat_template if chat_template is not None else getattr(tokenizer, "chat_template", None)
        arguments = template_arguments(source if isinstance(source, str) else "", config)
        self.config: dict[str, Any] = checked_config(config)
        engine: TokenEngine = client if client is not None else SGLangClient(cast(str, base_url))
        _check_sampling(engine, self.config)
        self.tokenizer = tokenizer
        """The model's tokenizer."""
        bridge, sound = sound_bridge(tokenizer, chat_template=chat_template, arguments=arguments)
        detected = chosen_tool_parser(tool_parser, bridge)
        parser = detected.parser or PlainTextParser()
        self._runner = TurnRunner(engine, Planner(bridge, sound, parser), parser, detected.problem)
        self._key = uuid.uuid4().hex
        self._own = Episode()
        self._rollouts = Rollouts()

    @property
    def client(self) -> TokenEngine:
        """Where tokens come from."""
        return self._runner.engine

    @property
    def tool_parser(self) -> ToolParser:
        """What takes tool calls out of sampled turns."""
        return self._runner.parser

    @property
    def soundness(self) -> Soundness:
        """Where this model's chat template lets a conversation go on exactly."""
        return self._runner.planner.soundness

    @property
    def planner(self) -> Planner:
        """What finds branches and makes prompts."""
        return self._runner.planner

    @property
    def current_episode(self) -> Episode:
        """The episode that a call made here would belong to."""
        return next((episode for key, episode in reversed(scopes.get()) if key == self._key), self._own)

    @property
    def token_manager(self) -> TokenManager:
        """Ids, loss mask and logprobs of the current episode's latest branch."""
        return self.current_episode.token_manager

    @property
    def rollout(self) -> Rollout:
        """The same as one record; whoever holds it sees the turns that follow, until the episode is reset."""
        return self._rollouts.of(self.current_episode)

    def reset(self) -> None:
        """Begin a new episode in place of the current one."""
        self._rollouts.leave(self.current_episode)
        self.current_episode.reset()

    @contextmanager
    def episode(self, id: str | Episode | None = None) -> Iterator[Episode]:
        """Open an episode of its own for every call made in this context, and in tasks and threads started from it.

        Args:
            id: A name for it; None: a random one. Runs with the same names mint the same tool-call ids. An `Episode`
                that was made before is opened as it is.
        """
        check_not_watched(self.current_episode)
        episode = id if isinstance(id, Episode) else Episode(id)
        token = scopes.set((*scopes.get(), (self._key, episode)))
        try:
            yield episode
        finally:
            scopes.reset(token)

    @property
    @override
    def context_window_limit(self) -> int | None:
        """Tokens of prompt and turn together: what was set, else what the engine told; None when neither."""
        limit: int | None = self.config.get("context_window_limit")
        return limit or self._runner.context_limit

    @override
    def update_config(self, **model_config: Any) -> None:
        """Change settings; see `SGLangConfig`. What concerns the chat template is fixed when the model is made."""
        changed = checked_config(model_config)
        _check_sampling(self.client, changed)
        self.config = {**self.config, **changed}

    @override
    def get_config(self) -> dict[str, Any]:
        """Return the settings."""
        return self.config

    @override
    async def stream(
        self,
        messages: Messages,
        tool_specs: list[ToolSpec] | None = None,
        system_prompt: str | None = None,
        *,
        tool_choice: ToolChoice | None = None,
        system_prompt_content: list[SystemContentBlock] | None = None,
        cancel_signal: Any = None,
        structured_output_model: type[BaseModel] | None = None,
        invocation_state: dict[str, Any] | None = None,
        model_state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> AsyncGenerator[StreamEvent, None]:
        """Sample the next turn of a conversation; see `Model.stream`.

        Raises:
            ContextWindowOverflowException: The conversation does not fit the engine's context.
            TokenBudgetError: The episode may sample no more tokens.
            TurnAbortedError: The engine cut the turn and `on_abort` is to return.
            FailedCallError: A turn had malformed calls, `on_failed_call` is "end", and the agent could not be stopped.
            EngineError: The engine failed; it was retried where that could help, so nothing else should retry it.
        """
        if tool_choice is not None and structured_output_model is None and "auto" not in tool_choice:
            logger.warning("tool_choice=<%s> | a chat template cannot force a tool call; ignored", tool_choice)
        cycle = (invocation_state or {}).get("event_loop_cycle_id")
        request = Request(
            messages,
            template_system(system_prompt, system_prompt_content),
            tool_specs,
            model_state,
            cycle=None if cycle is None else str(cycle),
            schema=schema_of(structured_output_model),
            passing=int(kwargs.get("dynamic_trailing_blocks") or 0),
        )
        agent = calling_agent(invocation_state, cancel_signal)
        events = self._runner.run(self.current_episode, request, self.config, cancel_signal, agent)
        try:
            async with aclosing(events):
                async for event in events:
                    yield cast(StreamEvent, event)
        except CallCancelledError:
            # The loop sees that the stream ended without a message and reports that the agent was cancelled.
            logger.debug("episode=<%s> | turn cancelled", self.current_episode.id)
        self._rollouts.refresh(self.current_episode)

    @override
    async def structured_output(
        self, output_model: type[T], prompt: Messages, system_prompt: str | None = None, **kwargs: Any
    ) -> AsyncGenerator[dict[str, T | Any], None]:
        """Sample a reply that follows a schema, by constrained decoding; see `Model.structured_output`.

        It is recorded as a side turn: what a grammar allowed is not what the policy chose, so it is not trained.

        Raises:
            StructuredOutputException: The reply was cut before it was whole.
        """
        request = Request(prompt, system_prompt, None, None, schema=schema_of(output_model), side=True)
        text = ""
        async with aclosing(self._runner.run(self.current_episode, request, self.config, None)) as events:
            async for event in events:
                text += event.get("contentBlockDelta", {}).get("delta", {}).get("text", "")
                yield event
        try:
            yield {"output": output_model.model_validate_json(text)}
        except ValidationError as error:
            raise StructuredOutputException(
                f"the reply is not a whole {output_model.__name__}; max_new_tokens may be too small: {error}"
            ) from error

    @override
    async def count_tokens(
        self,
        messages: Messages,
        tool_specs: list[ToolSpec] | None = None,
        system_prompt: str | None = None,
        system_prompt_content: list[SystemContentBlock] | None = None,
    ) -> int:
        """Estimate the tokens of a conversation: what is recorded of it exactly, the rest by its length."""
        episode = self.current_episode
        with episode.lock:
            called = episode.lineage.called(messages)
        # A reply at another place than where it was sampled: messages were dropped or summarised before it.
        if called is None or called[0].count != called[1]:
            return await super().count_tokens(messages, tool_specs, system_prompt, system_prompt_content)
        entry, behind = called
        return entry.end + await super().count_tokens(messages[behind:])


def _check_sampling(engine: TokenEngine, config: dict[str, Any]) -> None:
    """Refuse sampling parameters that an SGLang server does not know; another engine has words of its own."""
    if isinstance(engine, SGLangClient):
        engine.check_sampling(config.get("sampling_params"))
