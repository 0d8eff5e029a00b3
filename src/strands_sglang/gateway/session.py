"""One agent's connection to one episode: `Session`. It answers calls, recognises echoes, and knows what was delivered.

Invariants: every turn of a session belongs to its episode, in the context in which the session was opened. A turn
counts as rejected until its answer was delivered or came back in a later call. It is rejected again if a later call of
the same agent replies to the same messages with something else: then it is not in the history that the agent continued.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import secrets
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from strands.models import Model
from strands.types.exceptions import ContextWindowOverflowException

from strands_sglang._async import LoopThrottle, in_thread
from strands_sglang._strands_compat.streams import whole_answer
from strands_sglang.chat.conversation import Conversation
from strands_sglang.chat.conversation_index import IndexedTurn
from strands_sglang.errors import (
    BridgeRefusedError,
    CallCancelledError,
    ClientClosedError,
    ConfigurationError,
    ContextOverflowError,
    EngineError,
    FailedCallError,
    MalformedResponseError,
    RequestRejectedError,
    StrandsSGLangError,
    TemplateRefusedError,
    TokenBudgetError,
    TurnAbortedError,
    UnsupportedContentError,
)
from strands_sglang.gateway.call import Answer, Block, Call, Fault, Protocol, Refusal
from strands_sglang.gateway.echoes import Echo, restored
from strands_sglang.model import SGLangModel
from strands_sglang.provider.config import DEFAULT_MAX_NEW_TOKENS, RewritePolicy, Settings
from strands_sglang.provider.episode import EpisodeTokens
from strands_sglang.provider.turn import TurnReply, TurnRequest
from strands_sglang.tokens import TokenTree, Turn

logger = logging.getLogger(__name__)

_MOST_IGNORED = 256  # things that a session does not get and that are recorded

IsSide = Callable[[Call], bool]
"""Returns whether a call is not the agent's own work, such as a title: its turn is recorded and not trained."""

_FAULTS: dict[type[BaseException], Fault] = {
    ContextWindowOverflowException: Fault.CONTEXT_LENGTH,
    ContextOverflowError: Fault.CONTEXT_LENGTH,
    CallCancelledError: Fault.ENDED,
    TokenBudgetError: Fault.ENDED,
    FailedCallError: Fault.ENDED,
    TurnAbortedError: Fault.UNAVAILABLE,
    RequestRejectedError: Fault.INVALID,
    ClientClosedError: Fault.ENDED,
    MalformedResponseError: Fault.ENDED,
    EngineError: Fault.UNAVAILABLE,
    UnsupportedContentError: Fault.INVALID,
    TemplateRefusedError: Fault.INVALID,
    BridgeRefusedError: Fault.INVALID,
    ConfigurationError: Fault.INVALID,
    StrandsSGLangError: Fault.ENDED,
}
"""By the first class that an error is an instance of; any other error: `Fault.FAILED`."""


def refusal_of(error: BaseException) -> Refusal:
    """Return the refusal that stands for an error of a turn."""
    if isinstance(error, Refusal):
        return error
    fault = next((fault for kind, fault in _FAULTS.items() if isinstance(error, kind)), Fault.FAILED)
    if fault is Fault.FAILED:
        logger.error(
            "error=<%s: %s> | the gateway failed to answer a call", type(error).__name__, error, exc_info=error
        )
        return Refusal(fault, f"the gateway failed: {type(error).__name__}")
    made = Refusal(fault, str(error))
    made.__cause__ = error
    return made


@dataclass(slots=True, eq=False)
class Exchange:
    """An answer on its way: the work that makes it, and the requests that wait for it."""

    work: asyncio.Task[tuple[Answer, _Turn | None]]
    """The answer, and its turn; None: another model answered."""
    waiting: int = 0
    delivered: bool = False

    async def answer(self, seconds: float | None = None) -> Answer | None:
        """Return the answer; None if it takes longer than `seconds`. `Refusal` if there is none."""
        done, _ = await asyncio.wait({self.work}, timeout=seconds)
        if not done:
            return None
        try:
            return self.work.result()[0]
        except asyncio.CancelledError:
            raise Refusal(Fault.ENDED, "the session was closed before the answer was complete") from None
        except Exception as error:
            raise refusal_of(error) from error

    @property
    def failed(self) -> bool:
        """Whether there is no answer, and there will be none."""
        return self.work.done() and (self.work.cancelled() or self.work.exception() is not None)


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn of the session, without the request that it answers: each request repeats the whole conversation."""

    answer: Answer
    tree: TokenTree
    turn: Turn
    entry: IndexedTurn
    agent: str
    side: bool
    truncated: bool
    """Whether a limit of the run cut it off, and not one of the agent."""


@dataclass(eq=False)
class Session:
    """Answers the calls of one agent, and of its sub-agents, as turns of one episode."""

    model: SGLangModel
    episode: EpisodeTokens
    name: str = "policy"
    """Name of the model to ask for. Calls of unknown models are side turns, and refused if they have tools."""
    models: Mapping[str, Model] = field(default_factory=dict)
    """Other models that the agent may ask, by name: they answer with their own settings, and nothing is trained."""
    is_side: IsSide | None = None
    on_changed_echo: RewritePolicy = RewritePolicy.KEEP
    """What to do with an echo that is not exact: continue after the recorded reply, fork, or refuse the call."""
    throttle: LoopThrottle = field(default_factory=LoopThrottle, repr=False)
    """Lets one call of all sessions compute in an iteration of the event loop."""
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    """The address of the session, and the only thing that protects it."""
    error: StrandsSGLangError | Exception | None = None
    """Why the latest call was not answered; None: it was."""
    output: str = ""
    """The end of what the agent wrote to its standard output; "": nothing, or unknown. Recorded with the episode's end
    unless it is the episode's text."""
    error_output: str = ""
    """The end of what the agent wrote to its error output; "": nothing, or unknown. Recorded with the episode's end."""

    def __post_init__(self) -> None:
        if self.name in self.models:
            raise ConfigurationError(f"models must not have the name of the policy, {self.name!r}; pass another name=")
        self.closed = False
        self.ended = asyncio.Event()
        """Set when the episode has reached a limit, or the like: no call is answered any more."""
        self.items: dict[str, Block] = {}
        """What later requests may refer to by id."""
        self.ignored: set[str] = set()
        """What requests asked for and did not get, each recorded with the first turn that it concerns."""
        self.requests = 0
        """Requests that are being read or answered."""
        self.bytes = 0
        """Size of their bodies."""
        self._exchanges: dict[Hashable, Exchange] = {}
        self._working = set[asyncio.Task[Any]]()
        self._turns: dict[int, _Turn] = {}
        self._unanswered = set[str]()
        """Ids of recorded calls whose results no request had yet."""
        self._others = 0  # answers of other models
        self._open: dict[int, _Turn] = {}
        """Answered turns that no later call continues from or contradicts."""
        self._context = contextvars.copy_context()

    @contextmanager
    def ask(self, protocol: Protocol, call: Call, key: Hashable) -> Iterator[Exchange]:
        """Ask for the answer to a call; `key` is equal for requests that are the same.

        A request that is the same as one under way waits for its answer. One that is the same as an earlier one gets
        its answer if that was not delivered, else a new one. Leaving the block before the answer is there, with no
        other request waiting for it, aborts it.
        """
        if self.closed or self.ended.is_set():
            raise Refusal(Fault.ENDED, f"the session has ended: {self.error or 'it is closed'}")
        exchange = self._exchanges.get(key)
        if exchange is None or exchange.delivered or exchange.failed:
            # A context of its own: a turn is remembered in its context as the caller of sub-agents.
            work = self._context.copy().run(asyncio.ensure_future, self._run(protocol, call))
            self._working.add(work)
            work.add_done_callback(self._working.discard)
            exchange = self._exchanges[key] = Exchange(work)
        exchange.waiting += 1
        try:
            yield exchange
        finally:
            exchange.waiting -= 1
            if not exchange.waiting and (exchange.failed or not exchange.work.done()):
                exchange.work.cancel()
                if self._exchanges.get(key) is exchange:
                    del self._exchanges[key]  # the same request is no longer answered by this one

    def delivered(self, exchange: Exchange) -> None:
        """Register that an answer was sent completely."""
        exchange.delivered = True
        turn = exchange.work.result()[1]
        if turn is not None and (turn.side or turn.turn.id in self._open):
            self._keep(turn)

    @property
    def messages(self) -> list[Any]:
        """The conversation of the main agent's latest turn that it received, with its reply."""
        if (turn := self._latest()) is None:
            return []
        return [*turn.entry.history[: turn.entry.prompt_count], {"role": "assistant", "content": [*turn.answer.blocks]}]

    @property
    def truncated(self) -> bool:
        """Whether the reply of that turn was cut off by a limit of the run."""
        return (turn := self._latest()) is not None and turn.truncated

    def _latest(self) -> _Turn | None:
        for turn in reversed(self._turns.values()):
            if not (turn.side or turn.agent or turn.turn.rejected or turn.tree.path(turn.turn)[0].caller):
                return turn
        return None

    async def count_tokens(self, call: Call) -> int:
        """Return the number of tokens of a conversation, rendered as a whole."""
        conversation, _ = self._conversation(call)
        bridge = self.model.planner.bridge.at(self.episode.time)
        prompt = bridge.open(conversation.rendered({}), conversation.preamble.template_tools)
        return len((await in_thread(bridge.encode, prompt)).context)

    async def close(self) -> None:
        """Answer no more calls, and end those that are under way."""
        self.closed = True
        for work in self._working:
            work.cancel()
        if self._working:
            await asyncio.wait(set(self._working))
        self._exchanges.clear()

    async def _run(self, protocol: Protocol, call: Call) -> tuple[Answer, _Turn | None]:
        try:
            await self.throttle.wait()
            if (other := self.models.get(call.model)) is not None:
                answer, turn = await self._ask_other(other, call), None
            else:
                turn = await self._sample(protocol, call)
                answer = turn.answer
        except Exception as error:
            self.error = error
            if refusal_of(error).fault is Fault.ENDED:
                self.ended.set()
            raise
        self.error = None
        self.items.update(protocol.items_of(answer))
        return answer, turn

    async def _sample(self, protocol: Protocol, call: Call) -> _Turn:
        side = self._check_side(call)
        conversation, echoes = self._conversation(call)
        for number in echoes:  # the agent has received what it sends back
            self._keep(self._turns[number])
        self._count_results(conversation)
        request = TurnRequest(
            conversation,
            self.episode,
            self._settings(call),
            state={},
            schema=call.schema,
            side=side,
            detail=self._detail(protocol, call, echoes),
            caller=self._caller(conversation, call),
        )
        reply = await self.model.runner.reply(request)
        committed = reply.committed
        truncated = reply.stop_reason == "max_tokens" and len(committed.turn.sampled) != call.max_tokens
        answer = self._answer(call, reply)
        turn = _Turn(
            answer, committed.call.tree, committed.turn, committed.entry, call.agent, side=side, truncated=truncated
        )
        self.episode.tracked.add(committed.turn.id)
        self._turns[committed.turn.id] = turn
        self._unanswered.update(use["toolUseId"] for use in turn.answer.calls)
        self._settle(turn, conversation, echoes)
        return turn

    async def _ask_other(self, model: Model, call: Call) -> Answer:
        if call.schema is not None:
            raise Refusal(Fault.INVALID, f"the model {call.model!r} cannot be asked for JSON of a schema; ask for text")
        messages: list[Any] = call.messages
        tools: list[Any] = call.tools
        stop_reason, blocks, usage = await whole_answer(model.stream(messages, tools or None, call.system))
        self._others += 1
        return Answer(
            id=f"other-{self._others}",
            model=call.model,
            blocks=blocks,
            stop_reason=stop_reason,
            prompt_tokens=usage["inputTokens"],
            cached_tokens=usage.get("cacheReadInputTokens", 0),
            sampled_tokens=usage["outputTokens"],
            created=int(time.time()),
        )

    def _count_results(self, conversation: Conversation) -> None:
        """Report the results of recorded calls that the agent sends for the first time: its tools are not seen here."""
        if not self._unanswered:
            return
        blocks = (block for message in conversation.messages for block in message.get("content") or ())
        found = {block["toolResult"]["toolUseId"] for block in blocks if "toolResult" in block} & self._unanswered
        self._unanswered -= found
        if found and self.episode.observer is not None:
            self.episode.observer.observe_results(len(found))

    def _check_side(self, call: Call) -> bool:
        """Return whether a call is a side call; `Refusal` if it seems to be the agent's own, and asks another model."""
        if self.is_side is not None and self.is_side(call):
            return True
        other = call.model not in ("", self.name)
        if other and call.tools:
            # A title, for example, has no tools. If this were a side turn, nothing of the agent would be trained.
            raise Refusal(
                Fault.INVALID,
                f"model must be {self.name!r}, got {call.model!r}: set it in the agent, or pass name={call.model!r}; "
                "calls that are not to be trained are chosen with is_side=",
            )
        return other

    def _conversation(self, call: Call) -> tuple[Conversation, dict[int, frozenset[Echo]]]:
        """Return the conversation of a call with recorded replies in place of their echoes, and the echoes by turn."""
        made = Conversation.of(call.messages, system=call.system, tool_specs=call.tools)
        with self.episode.lock:
            messages, echoes = restored(
                self.episode.index, made.preamble, made.messages, self._blocks_of, self._accepts
            )
        return replace(made, messages=messages), echoes

    def _blocks_of(self, turn: int) -> Sequence[Block] | None:
        known = self._turns.get(turn)
        return None if known is None else known.answer.blocks

    def _accepts(self, echo: frozenset[Echo]) -> bool:
        if self.on_changed_echo is RewritePolicy.REFUSE:
            how = ", ".join(sorted(one.value for one in echo))
            raise BridgeRefusedError(
                f"the agent's copy of a reply differs from it ({how}), and on_changed_echo is 'refuse': 'keep' "
                "continues after the recorded reply, 'fork' renders the copy as a new branch",
                step="echo",
            )
        return self.on_changed_echo is RewritePolicy.KEEP

    def _settings(self, call: Call) -> Settings:
        """Return the settings of the run, with what a call may change: a lower budget, and texts that end the turn."""
        settings = self.model.settings
        sampling: dict[str, Any] = dict(settings.sampling_params)
        if call.max_tokens is not None:
            sampling["max_new_tokens"] = min(call.max_tokens, sampling.get("max_new_tokens") or DEFAULT_MAX_NEW_TOKENS)
        if call.stop:
            own = sampling.get("stop") or []
            sampling["stop"] = [*([own] if isinstance(own, str) else own), *call.stop]
        return replace(settings, sampling_params=sampling, streaming=False)

    def _detail(self, protocol: Protocol, call: Call, echoes: dict[int, frozenset[Echo]]) -> dict[str, Any]:
        detail: dict[str, Any] = {"protocol": protocol.name}
        if echoes:
            found = frozenset[Echo]().union(*echoes.values())
            detail["echoes"] = sorted(echo.value for echo in found if echo is not Echo.EXACT or len(found) == 1)
        if new := sorted(set(call.ignored) - self.ignored)[: _MOST_IGNORED - len(self.ignored)]:
            self.ignored.update(new)
            detail["ignored"] = new
        if call.agent:
            detail["agent"] = call.agent
        return detail

    def _answer(self, call: Call, reply: TurnReply) -> Answer:
        usage = reply.usage
        return Answer(
            id=str(reply.committed.turn.id),
            model=call.model or self.name,
            blocks=reply.blocks,
            stop_reason=reply.stop_reason,
            prompt_tokens=usage["inputTokens"],
            cached_tokens=usage.get("cacheReadInputTokens", 0),
            sampled_tokens=usage["outputTokens"],
            created=int(time.time()),
        )

    def _settle(self, new: _Turn, conversation: Conversation, echoes: dict[int, frozenset[Echo]]) -> None:
        """Reject the earlier turns that a conversation has something else in place of."""
        for number in echoes:
            self._open.pop(number, None)
        for number, turn in list(self._open.items()):
            # The conversation begins with the messages that this turn replied to.
            if turn.agent == new.agent and turn.entry.answers_part_of(conversation):
                turn.tree.reject(turn.turn)
                del self._open[number]
        if not new.side:
            self._open[new.turn.id] = new

    def _keep(self, turn: _Turn) -> None:
        turn.tree.restore(turn.turn)

    def _caller(self, conversation: Conversation, call: Call) -> tuple[int, str | None] | None:
        """Return the turn and the call that started a sub-agent; None if unknown, or if it is none.

        A call is recognised by its arguments, which hold a text of the sub-agent's first message; where the protocol
        names the sub-agent, the only open turn with a call is taken without that.
        """
        texts = {block["text"] for block in conversation.messages[0].get("content") or () if block.get("text")}
        calling = [turn for turn in reversed(self._open.values()) if turn.answer.calls]
        for turn in calling:
            for use in turn.answer.calls:
                if any(isinstance(value, str) and value in texts for value in _values(use["input"])):
                    if turn.agent != call.agent or not turn.entry.answers_part_of(conversation):  # not its own call
                        return turn.turn.id, use["toolUseId"]
        calling = [turn for turn in calling if turn.agent != call.agent]
        if call.agent and len(calling) == 1:
            uses = calling[0].answer.calls
            return calling[0].turn.id, uses[0]["toolUseId"] if len(uses) == 1 else None
        return None


def _values(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _values(item)
    elif isinstance(value, list):
        for item in value:
            yield from _values(item)
    else:
        yield value
