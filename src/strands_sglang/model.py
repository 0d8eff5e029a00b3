"""`SGLangModel`: the Strands model provider that records every token.

It combines the layers below: `chat` finds the branch that a conversation continues and renders new messages, `engine`
samples, `tokens` records, and `tool_parsers` extracts the reply that the agent receives.

Invariants: for every call, the ids sent are the branch so far. A turn is committed completely, after all of it was
validated, or not at all. The agent receives only committed turns.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from types import MappingProxyType
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError
from strands.types.content import Messages, SystemContentBlock
from strands.types.exceptions import StructuredOutputException
from strands.types.streaming import StreamEvent
from strands.types.tools import ToolChoice, ToolSpec
from typing_extensions import override

from strands_sglang._strands_compat.agents import (
    StructuredOutputModel,
    calling_agent,
    cycle_of,
    without_output_tools,
)
from strands_sglang.chat.conversation import Conversation
from strands_sglang.chat.messages import template_system
from strands_sglang.chat.parser_detection import resolve_tool_parser
from strands_sglang.chat.soundness import Soundness, sound_bridge
from strands_sglang.chat.tokenization import load_tokenizer
from strands_sglang.engine import SGLangClient, TokenEngine, is_server
from strands_sglang.errors import CallCancelledError, ConfigurationError
from strands_sglang.provider.config import Settings, checked_config, template_arguments
from strands_sglang.provider.episode import EpisodeTokens, check_not_observed, scopes
from strands_sglang.provider.images import ImageSupport
from strands_sglang.provider.planning import Planner
from strands_sglang.provider.turn import TurnRequest, schema_of
from strands_sglang.provider.turn_runner import TurnRunner
from strands_sglang.published.rollout_record import Rollout, RolloutViews
from strands_sglang.tokens import TokenManager
from strands_sglang.tool_parsers import ToolParser
from strands_sglang.tool_parsers.base import PlainTextParser

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=BaseModel)


class SGLangModel(StructuredOutputModel):
    """A Strands model on SGLang's native `/generate`: token ids in, sampled ids and logprobs out.

    Example:
        model = SGLangModel(tokenizer=tokenizer, client=SGLangClient("http://localhost:30000"))
        agent = Agent(model=model, tools=[calculator])
        with model.episode() as episode:
            await agent.invoke_async("What is 12 * 7?")
        trajectories = episode.trajectories()
    """

    def __init__(
        self,
        *,
        tokenizer: Any,
        client: TokenEngine | None = None,
        base_url: str | None = None,
        tool_parser: ToolParser | str | None = "auto",
        chat_template: str | None = None,
        image_processor: Any = None,
        **config: Any,
    ) -> None:
        """Create a model. The chat template is checked here, once for each tokenizer (about a second).

        Args:
            tokenizer: The model's tokenizer or processor from `transformers`, or the name or path to load it from.
            client: The engine: an `SGLangClient`, or any other `TokenEngine`.
            base_url: Address of the server or router, if no client is passed.
            tool_parser: Parses tool calls: a parser, the name of one, or "auto" (also None) for the parser that reads
                the calls that the chat template itself writes.
            chat_template: Text of a template to use instead of the tokenizer's own.
            image_processor: The model's image processor from `transformers`, its settings, or the name or path to load
                them from; None: where the tokenizer comes from. It is read when the first image arrives.
            **config: Settings, see `SGLangConfig`; and arguments of the chat template: `enable_thinking`,
                `chat_template_kwargs`, or any name that the template reads.

        Raises:
            ConfigurationError: An argument cannot work; the message says what would.
        """
        if (client is None) == (base_url is None):
            raise ConfigurationError("pass either client=SGLangClient(...) or base_url='http://...', and not both")
        # Not isinstance: a check against a protocol is slow, and programs create a model for every episode.
        if client is not None and not callable(getattr(client, "generate", None)):
            raise ConfigurationError(
                f"client must be an SGLangClient or another TokenEngine, got {client!r}; pass an address as base_url"
            )
        if not (tool_parser is None or isinstance(tool_parser, (str, ToolParser))):
            raise ConfigurationError(
                f"tool_parser must be 'auto', a name such as 'hermes', or a ToolParser, got {tool_parser!r}"
            )
        if hasattr(tokenizer, "image_processor"):  # a processor of transformers, which has both
            image_processor = image_processor or tokenizer.image_processor
            tokenizer = tokenizer.tokenizer
        tokenizer = load_tokenizer(tokenizer)
        source = chat_template if chat_template is not None else getattr(tokenizer, "chat_template", None)
        arguments = template_arguments(source if isinstance(source, str) else "", config)
        self._configure(checked_config(config))
        engine: TokenEngine = client if client is not None else SGLangClient(cast(str, base_url))
        _check_sampling(engine, self._settings)
        self.tokenizer = tokenizer
        bridge, sound = sound_bridge(tokenizer, chat_template=chat_template, arguments=arguments)
        detected = resolve_tool_parser(tool_parser, bridge)
        parser = detected.parser or PlainTextParser()
        images = ImageSupport(bridge.encoder, image_processor or getattr(tokenizer, "name_or_path", ""))
        self._runner = TurnRunner(engine, Planner(bridge, sound, parser), images, detected.problem)
        self._key = uuid.uuid4().hex
        self._own = EpisodeTokens()
        self._rollouts = RolloutViews()

    @property
    def client(self) -> TokenEngine:
        """The engine that samples tokens."""
        return self._runner.sampler.engine

    @property
    def tool_parser(self) -> ToolParser:
        """The parser of tool calls."""
        return self._runner.planner.parser

    @property
    def soundness(self) -> Soundness:
        """For which steps new messages can be appended exactly with this model's chat template."""
        return self._runner.planner.soundness

    @property
    def runner(self) -> TurnRunner:
        """Runs turns."""
        return self._runner

    @property
    def settings(self) -> Settings:
        """The settings of its turns, with every default."""
        return self._settings

    @property
    def planner(self) -> Planner:
        """Finds branches and builds prompts."""
        return self._runner.planner

    @property
    def current_episode(self) -> EpisodeTokens:
        """The episode that a call in this context belongs to."""
        for key, episode in reversed(scopes.get()):
            if key == self._key:
                return episode
        return self._own

    @property
    def token_manager(self) -> TokenManager:
        """Token ids, loss mask and logprobs of the latest branch of the current episode."""
        return self.current_episode.token_manager

    @property
    def rollout(self) -> Rollout:
        """The latest branch as one record, updated with every turn until the episode is reset."""
        return self._rollouts.get(self.current_episode)

    def reset(self) -> None:
        """Start a new episode in place of the current one."""
        self._rollouts.detach(self.current_episode)
        self.current_episode.reset()

    @contextmanager
    def episode(self, id: str | EpisodeTokens | None = None) -> Iterator[EpisodeTokens]:
        """Open an episode for every call made in this context, and in tasks and threads started from it.

        Args:
            id: Id of the episode; None: a random one. Episodes with the same id get the same tool-call ids. A
                `EpisodeTokens` is opened unchanged.

        Raises:
            ConfigurationError: The current episode is being recorded.
        """
        check_not_observed(self.current_episode)
        episode = id if isinstance(id, EpisodeTokens) else EpisodeTokens(id)
        token = scopes.set((*scopes.get(), (self._key, episode)))
        try:
            yield episode
        finally:
            scopes.reset(token)

    @property
    @override
    def context_window_limit(self) -> int | None:
        """Tokens of prompt and turn together: the setting, else the limit that the engine reported; None if unknown."""
        return self._settings.context_window_limit or self._runner.sampler.context_limit

    @override
    def update_config(self, **model_config: Any) -> None:
        """Change settings; see `SGLangConfig`. Arguments of the chat template cannot be changed."""
        changed = checked_config(model_config)
        _check_sampling(self.client, Settings.of(changed))
        self._configure({**self.config, **changed})

    def _configure(self, config: Mapping[str, Any]) -> None:
        self.config = MappingProxyType(config)  # read-only: a change of it would have no effect
        self._settings = Settings.of(config)

    @override
    def get_config(self) -> dict[str, Any]:
        """Return the settings."""
        return dict(self.config)

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
            TurnAbortedError: The engine aborted the turn and `on_abort` is "return".
            FailedCallError: A turn had malformed calls, `on_failed_call` is "end", and the agent could not be stopped.
            EngineError: The engine failed; it was retried where that could help, so nothing else should retry it.
        """
        if tool_choice is not None and structured_output_model is None and "auto" not in tool_choice:
            logger.warning("tool_choice=<%s> | a chat template cannot force a tool call; ignored", tool_choice)
        agent = calling_agent(invocation_state, cancel_signal)
        if self._runner.problem:  # no call can be read: the SDK asks again, with the schema instead of a tool
            tool_specs = without_output_tools(agent, tool_specs)
        conversation = Conversation.of(
            messages,
            system=template_system(system_prompt, system_prompt_content),
            tool_specs=tool_specs,
            transient_blocks=int(kwargs.get("dynamic_trailing_blocks") or 0),
        )
        request = TurnRequest(
            conversation,
            self.current_episode,
            self._settings,
            agent,
            cancel_signal,
            model_state,
            cycle=cycle_of(invocation_state),
            schema=schema_of(structured_output_model),
        )
        try:
            async with aclosing(cast(AsyncGenerator[StreamEvent, None], self._runner.stream(request))) as events:
                async for event in events:
                    yield event
        except CallCancelledError:
            # The stream ends without a message, and the agent's loop reports that the agent was cancelled.
            logger.debug("episode=<%s> | turn cancelled", request.episode.id)
        self._rollouts.refresh(request.episode)

    @override
    async def structured_output(
        self, output_model: type[T], prompt: Messages, system_prompt: str | None = None, **kwargs: Any
    ) -> AsyncGenerator[dict[str, T | Any], None]:
        """Sample a reply that follows a schema, by constrained decoding; see `Model.structured_output`.

        It is recorded as a side turn and not trained, because a grammar restricted the choices of the policy.

        Raises:
            StructuredOutputException: The reply was truncated before it was complete.
        """
        request = TurnRequest(
            Conversation.of(prompt, system=system_prompt),
            self.current_episode,
            self._settings,
            schema=schema_of(output_model),
            side=True,
        )
        text = ""
        async with aclosing(self._runner.stream(request)) as events:
            async for event in events:
                text += event.get("contentBlockDelta", {}).get("delta", {}).get("text", "")
                yield event
        try:
            yield {"output": output_model.model_validate_json(text)}
        except ValidationError as error:
            raise StructuredOutputException(
                f"the reply is not a complete {output_model.__name__}; max_new_tokens may be too small: {error}"
            ) from error

    @override
    async def count_tokens(
        self,
        messages: Messages,
        tool_specs: list[ToolSpec] | None = None,
        system_prompt: str | None = None,
        system_prompt_content: list[SystemContentBlock] | None = None,
    ) -> int:
        """Estimate the tokens of a conversation: exact for the recorded part, by length for the rest."""
        episode = self.current_episode
        with episode.lock:
            called = episode.index.last_caller(messages)
        # The reply is at another index than when it was sampled: messages before it were dropped or summarised.
        if called is None or called[0].count != called[1]:
            return await super().count_tokens(messages, tool_specs, system_prompt, system_prompt_content)
        entry, after = called
        return entry.end + await super().count_tokens(messages[after:])


def _check_sampling(engine: TokenEngine, settings: Settings) -> None:
    """Reject sampling parameters that an SGLang server does not know; other engines define their own."""
    if is_server(engine):
        engine.check_sampling(settings.sampling_params)
