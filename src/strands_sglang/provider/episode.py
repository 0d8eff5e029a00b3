"""An episode: the tree of turns of one task, and the index that finds the turn a conversation continues from.

Calls made inside `with model.episode() as episode:`, also in tasks and threads started from it, belong to that episode;
other calls to the model's own episode, until `reset()`.

Invariants: turns of different episodes never share a tree. An observer sees every engine call of its episode, and every
turn in the order of commits. Collecting the conversations never fails.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from strands_sglang.chat.conversation_index import ConversationIndex, IndexedTurn, ReplyStatus
from strands_sglang.chat.differences import SampledTurn, sampled_turn
from strands_sglang.chat.image_files import ImageFile
from strands_sglang.chat.tokenization import Encoder
from strands_sglang.engine import Generation, RoutedExperts, TokenIds
from strands_sglang.errors import ConfigurationError, CountMismatchError
from strands_sglang.provider.token_budget import Reservation, SharedLimit, tokens_left
from strands_sglang.tokens import TokenManager, TokenTree, Trajectory, Turn, TurnPurpose, compact
from strands_sglang.tool_parsers import ToolParser


class EpisodeEngine(Protocol):
    """The engine of an observed episode: a `TokenEngine` that also keeps to the limits of all agents together."""

    async def generate(
        self,
        input_ids: TokenIds,
        sampling_params: Mapping[str, Any] | None = None,
        *,
        hold: Reservation | None = None,
        **arguments: Any,
    ) -> Generation:
        """Return a turn; `TokenEngine.generate` explains the other arguments.

        `hold.tokens(...)` is awaited before sampling and returns how many tokens the turn may sample; None: no limit.
        """
        ...


class EpisodeObserver(Protocol):
    """Observes one episode, and is called between the episode and the engine."""

    @property
    def engine(self) -> EpisodeEngine:
        """The engine that the episode's calls use instead of the model's own."""
        ...

    @property
    def routing_key(self) -> str | None:
        """Routing key for session affinity; None: the episode's id."""
        ...

    @property
    def adapter(self) -> str | None:
        """LoRA adapter that samples the episode; None: that of the settings."""
        ...

    @property
    def session(self) -> str:
        """Name of the episode's session of the engine's prefix cache."""
        ...

    def committed(self, turn: Turn, generation: Generation) -> None:
        """Called with a committed turn before the agent receives it; an exception propagates to the agent's loop."""
        ...

    def episode_reset(self) -> None:
        """Called when the episode is reset: its earlier turns no longer belong to it."""
        ...

    def observe_agent(self, agent: Any) -> None:
        """Called at every turn with the agent that made it, before its tools are run."""
        ...

    def observe_results(self, count: int) -> None:
        """Called with the number of tool results that an agent outside this process sends for the first time."""
        ...


_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

scopes: ContextVar[tuple[tuple[str, EpisodeTokens], ...]] = ContextVar("strands_sglang_episodes", default=())
"""Innermost last, each with the key of its model."""


class LastTurn(NamedTuple):
    """The last turn made in a context, and the task that made it."""

    tree: str
    turn: int
    task: weakref.ref[asyncio.Task[Any]] | None
    """None if the turn was made outside of asyncio."""


last_turn: ContextVar[LastTurn | None] = ContextVar("strands_sglang_last_turn", default=None)
"""The last turn made in this context. An agent started inside a tool inherits it."""


class EpisodeTokens:
    """The turns of one agent on one task, as tokens (`tree`) and by conversation (`index`).

    Example:
        with model.episode("task-1") as episode:
            await agent.invoke_async("What is 12 * 7?")
        for trajectory in episode.trajectories():
            print(trajectory.token_ids, trajectory.loss_mask, trajectory.logprobs)
    """

    def __init__(
        self, id: str | None = None, observer: EpisodeObserver | None = None, *, time: datetime | None = None
    ) -> None:
        """Start an episode; `time` is that of its record, which is kept also if it is reset. None: now."""
        self._recorded_time = time
        self.token_manager = TokenManager(TokenTree(id))
        self.observer = observer
        self.lock = threading.Lock()
        """Held while the index is read or changed; never across an await."""
        self._commit_lock = threading.RLock()
        self._token_limit = SharedLimit()
        self._clear()

    def _clear(self) -> None:
        self.time = self._recorded_time or datetime.now()
        """The local time that the chat template writes in all renderings, if it writes the time."""
        self._indexed_tree = self.token_manager.tree
        self._index = ConversationIndex()
        self._routed_experts: dict[int, RoutedExperts] = {}
        self.images: dict[str, ImageFile] = {}
        """By digest; every turn sends those of its branch again."""
        self._called_from: dict[int, LastTurn] = {}
        self._call_number = 0
        self.replaced: dict[int, int] = {}
        """Turns that appear discarded because the agent repeated the call, each with the turn that replaced it."""
        self.tracked: set[int] = set()
        """Turns whose replies are tracked (`reply_tracking`): whether these are discarded is known, not inferred."""
        self.stop_after: set[int] = set()
        self.sampled_tokens = 0
        """Tokens sampled so far, including rejected and side turns."""
        self.audit: bool | None = None
        """Whether its conversations are audited; None: not decided yet."""
        self.audited_tokens = 0
        self.audits = 0
        self.audit_differences = 0
        """Audited conversations that differ from one rendering although they were called proved."""
        self.last_audit: Future[None] | None = None

    def reset(self) -> None:
        """Discard all turns and continue with an empty tree. The old tree object is not changed."""
        self.token_manager.reset()
        self._clear()
        if self.observer is not None:
            self.observer.episode_reset()

    @property
    def index(self) -> ConversationIndex:
        """Finds the turn that a conversation continues from."""
        if self._indexed_tree is not self.token_manager.tree:
            # The token manager itself was reset.
            self._clear()
        return self._index

    @property
    def id(self) -> str:
        """Its id, also the default routing key: the router keeps an episode on one worker by it."""
        return self.tree.id

    @property
    def tree(self) -> TokenTree:
        """The tree of all its turns."""
        return self.token_manager.tree

    def trajectories(self) -> list[Trajectory]:
        """Return every branch as flat arrays. Each sampled token is trained in at most one of them."""
        return self.tree.trajectories()

    def reply_status(self, turn: int) -> ReplyStatus:
        """Return whether the reply of a turn is part of some conversation."""
        if not self.tree[turn].rejected:
            return ReplyStatus.PRESENT
        return ReplyStatus.UNCERTAIN if turn in self.replaced else ReplyStatus.DISCARDED

    def reserve(self, limit: int | None) -> Reservation:
        """Return a reservation, which holds nothing yet; `limit` is for the whole episode."""
        return (
            Reservation()
            if limit is None
            else Reservation(self._token_limit, lambda: tokens_left(self.sampled_tokens, limit))
        )

    @contextmanager
    def minting(self, count: int, taken: Iterable[str] = ()) -> Iterator[list[str]]:
        """Mint ids for the tool calls of one turn, and hold back other turns until it is committed.

        The ids are numbered in the order in which turns are committed. A resumed episode commits its turns in the
        recorded order, so concurrent conversations get their recorded ids again. A turn that is not committed, because
        of an exception, uses no numbers.

        `taken` are ids in new messages, which may come from an earlier episode with the same id; they are not minted.
        """
        with self._commit_lock:
            number = self._call_number
            try:
                yield self._mint(count, taken)
            except BaseException:
                self._call_number = number
                raise

    def _mint(self, count: int, taken: Iterable[str]) -> list[str]:
        """Nine letters and digits: every chat template accepts them."""
        ids: list[str] = []
        if not count:
            return ids
        taken = set(taken)
        with self.lock:
            while len(ids) < count:
                self._call_number += 1
                digest = hashlib.blake2b(f"{self.id}/{self._call_number}".encode(), digest_size=8).digest()
                number, letters = int.from_bytes(digest, "big"), ""
                for _ in range(9):
                    number, rest = divmod(number, len(_LETTERS))
                    letters += _LETTERS[rest]
                if letters not in taken and not self.index.has_call_id(letters):
                    ids.append(letters)
        return ids

    def keep_experts(self, turn: Turn, experts: RoutedExperts | None) -> None:
        """Store the routed experts of a turn; None: nothing to store."""
        if experts is not None:
            self._routed_experts[turn.id] = experts

    def routed_experts(self, leaf: Turn) -> RoutedExperts | None:
        """Return one row for each token of a branch except the last; None if some turn has none."""
        joined: RoutedExperts | None = None
        for turn in self.tree.path(leaf):
            part = self._routed_experts.get(turn.id)
            if part is None:
                return None
            joined = part if joined is None else joined.joined(part)
        if joined is not None and len(joined) != leaf.end - 1:
            raise CountMismatchError(f"{len(joined)} rows of routed experts for a branch of {leaf.end} tokens")
        return joined

    def expert_parts(self, leaf: Turn | None) -> Iterator[str]:
        """Yield the routed experts of the turns of a branch as the engine sent them; turns without any are skipped."""
        for turn in self.tree.path(leaf) if leaf is not None else ():
            part = self._routed_experts.get(turn.id)
            yield from part.parts if part is not None else ()

    def set_last_turn(self, turn: Turn) -> None:
        """Store a turn as the last one of this context. Side turns are ignored, because they call no tools."""
        if turn.purpose is TurnPurpose.SIDE:
            return
        if turn.caller is not None:
            for last, _ in self._enclosing_turns():
                if last.turn == turn.caller[0]:
                    self._called_from[turn.id] = last
        task = _current_task()
        last_turn.set(LastTurn(self.id, turn.id, None if task is None else weakref.ref(task)))

    def caller(
        self, question: str, own: IndexedTurn | None = None, *, side: bool = False
    ) -> tuple[int, str | None] | None:
        """Return the turn and the call inside which a new conversation was started; None if not inside a tool call.

        `question`, its first text, identifies the call if the turn has several; the call is None if ambiguous. `own` is
        the last turn of the agent that starts the conversation, which cannot be the caller. The framework makes `side`
        turns between turns, not inside tools.
        """
        last, entry = next(
            ((last, entry) for last, entry in self._enclosing_turns() if _has_open_calls(entry)), (None, None)
        )
        if last is None or entry is None or entry is own:
            return None
        calls = [block for block in entry.reply[1:] if block[0] == "toolUse"]
        matching = [call for call in calls if _mentions(call[3], question)]
        # Tools usually run in their own tasks and threads. In the task of the turn itself, a conversation may also
        # start after the agent has stopped; then only the text of the question shows that it belongs to a call.
        within = not side and (last.task is None or last.task() is not _current_task())
        if within and len(calls) == 1:
            matching = calls
        if not within and not matching:
            return None
        return entry.turn, str(matching[0][1]) if len(matching) == 1 else None

    def _enclosing_turns(self) -> Iterator[tuple[LastTurn, IndexedTurn]]:
        """Yield the last turn of this context, then the turn inside which its conversation was started, and so on.

        Agents that run one after the other inside a tool see each other's turns as the last one of the context.
        """
        last = last_turn.get()
        while last is not None and last.tree == self.id:
            entry = self.index.get(last.turn)
            if entry is None:
                return
            yield last, entry
            while entry.parent is not None:
                entry = entry.parent
            last = self._called_from.get(entry.turn)


def check_not_observed(outer: EpisodeTokens) -> None:
    """Raise ConfigurationError if an episode opened here would hide its turns from the observer of the outer one."""
    if outer.observer is not None:
        raise ConfigurationError(
            f"cannot open an episode inside episode {outer.id}, which is being recorded: its turns would be missing in "
            "the record. Use another SGLangModel for calls that are not recorded"
        )


def _has_open_calls(entry: IndexedTurn) -> bool:
    return bool(entry.shape.calls) and not entry.children


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _mentions(value: object, text: str) -> bool:
    if isinstance(value, tuple):
        return any(_mentions(item, text) for item in value)
    return value == text


def conversations(index: ConversationIndex, tree: TokenTree) -> list[dict[str, Any]]:
    """Return the conversation of each branch: system prompt, tools, messages, and the message count of each turn.

    The count is None for a turn whose prompt is not known to equal one rendering of its conversation.
    """
    found = []
    for leaf in tree.branches():
        if (entry := index.get(leaf.id)) is None:
            continue
        path = [index.get(turn.id) for turn in tree.path(leaf)]
        conversation = {
            "branch": leaf.id,
            "system": entry.preamble.system,
            "tools": entry.preamble.tools,
            "messages": entry.history[: entry.prompt_count],
            "counts": [turn.prompt_count if turn is not None and turn.exact else None for turn in path],
            "call_ids": dict(index.call_ids),
        }
        found.append(conversation)
    return found


def decode_branch(turns: Sequence[Turn], encoder: Encoder, parser: ToolParser) -> list[SampledTurn]:
    """Return the turns of a branch as text, decoded from their tokens."""
    decoded = []
    for turn in turns:
        prompt = turn.closing + compact(turn.context, turn.images)
        sampled = sampled_turn(encoder, parser, encoder.decode(prompt), turn.sampled)
        well_formed = "failed_calls" not in turn.detail and turn.purpose is TurnPurpose.EPISODE
        decoded.append(replace(sampled, whole=sampled.ended and well_formed))
    return decoded
