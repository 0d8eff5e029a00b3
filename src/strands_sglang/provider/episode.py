"""An episode: the tree of one task's turns, and where its conversations go on.

`with model.episode() as episode:` makes every call of the model in that context, and in tasks and threads started from
it, belong to that episode. Without one, calls belong to the model's own episode, until `reset()`.

Invariant: turns of different episodes never share a tree.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, NamedTuple

from strands_sglang.chat.lineage import Entry, Lineage, Stands, call_ids_in
from strands_sglang.engine.routed_experts import RoutedExperts
from strands_sglang.errors import ConfigurationError, CountMismatchError
from strands_sglang.provider.budget import tokens_left
from strands_sglang.provider.reserve import Hold, Reserve
from strands_sglang.provider.witness import Witness
from strands_sglang.tokens import TokenManager, TokenTree, Trajectory, Turn, TurnPurpose

_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

scopes: ContextVar[tuple[tuple[str, Episode], ...]] = ContextVar("strands_sglang_episodes", default=())
"""Episodes that are open in this context, innermost last, each with the key of its model."""


class LastTurn(NamedTuple):
    """The last turn of a context, and the task that made it."""

    tree: str
    """Id of its tree."""
    turn: int
    """Its id."""
    task: weakref.ref[asyncio.Task[Any]] | None
    """The task it was made in."""


last_turn: ContextVar[LastTurn | None] = ContextVar("strands_sglang_last_turn", default=None)
"""The last turn made in this context: whoever starts an agent from within a tool inherits it."""


class Episode:
    """One agent on one task: its turns, by content and by token."""

    def __init__(self, id: str | None = None, witness: Witness | None = None) -> None:
        self.token_manager = TokenManager(TokenTree(id))
        """The published view of its latest branch."""
        self.witness = witness
        """Who watches it; None: nobody."""
        self.lock = threading.Lock()
        """Held while the lineage is read or changed; never while waiting."""
        self._reserve = Reserve()
        self._begin()

    def _begin(self) -> None:
        self._begun = self.token_manager.tree
        self._lineage = Lineage()
        self._routed_experts: dict[int, RoutedExperts] = {}
        self._called_from: dict[int, LastTurn] = {}
        self._serial = 0
        self.replaced: dict[int, int] = {}
        """Turns that seem rejected because the agent asked again, each with the turn it got instead."""
        self.told: set[int] = set()
        """Turns whose agents tell whether their replies stand in a conversation: nothing is guessed of these."""
        self.ends_behind: set[int] = set()
        """Turns with failed calls that no conversation is to go on from."""
        self.sampled_tokens = 0
        """Tokens sampled so far, rejected and side turns included."""
        self.audit: bool | None = None
        """Whether its conversations are audited; None: not decided yet."""
        self.audited = 0
        """Tokens of the longest conversation that was audited, or is."""
        self.audits = 0
        """Conversations that were audited."""
        self.audit_differences = 0
        """Those that were not one rendering, though they were called proved."""
        self.under_audit: Future[None] | None = None
        """The last audit that was begun; None: there was none."""

    def reset(self) -> None:
        """Begin anew, with an empty tree. The old tree stays as it is for whoever holds it."""
        self.token_manager.reset()
        self._begin()
        if self.witness is not None:
            self.witness.began_anew()

    @property
    def lineage(self) -> Lineage:
        """Which turn a conversation goes on from."""
        if self._begun is not self.token_manager.tree:
            # Someone reset the token manager itself.
            self._begin()
        return self._lineage

    @property
    def id(self) -> str:
        """Its name; the engine's router keeps an episode on one worker by it."""
        return self.tree.id

    @property
    def tree(self) -> TokenTree:
        """All its turns."""
        return self.token_manager.tree

    def trajectories(self) -> list[Trajectory]:
        """Return every branch an agent took, laid flat; each sampled token is trained in one of them only."""
        return self.tree.trajectories()

    def stands(self, turn: int) -> Stands:
        """Return whether the reply of a turn stands in some conversation."""
        if not self.tree[turn].rejected:
            return Stands.SURELY
        return Stands.PERHAPS if turn in self.replaced else Stands.NOWHERE

    def hold(self, limit: int | None) -> Hold:
        """Return what a call of this episode holds of its bounds; nothing yet.

        Args:
            limit: Tokens the episode may sample in all; None: any number.
        """
        return Hold() if limit is None else Hold(self._reserve, lambda: tokens_left(self.sampled_tokens, limit))

    def mint(self, count: int, messages: Sequence[Mapping[str, Any]] = ()) -> list[str]:
        """Return ids for the calls of one turn: the same in a repeated run of an episode with the same name.

        Nine letters and digits, which every chat template takes.

        Args:
            count: How many.
            messages: New messages of the conversation, which may have been restored from an episode of the same name;
                none of their ids is given out again, nor any of a conversation on record.
        """
        ids: list[str] = []
        if not count:
            return ids
        taken = set(call_ids_in(messages))
        with self.lock:
            while len(ids) < count:
                self._serial += 1
                digest = hashlib.blake2b(f"{self.id}/{self._serial}".encode(), digest_size=8).digest()
                number, letters = int.from_bytes(digest, "big"), ""
                for _ in range(9):
                    number, rest = divmod(number, len(_LETTERS))
                    letters += _LETTERS[rest]
                if letters not in taken and not self.lineage.knows_call(letters):
                    ids.append(letters)
        return ids

    def keep_experts(self, turn: Turn, experts: RoutedExperts | None) -> None:
        """Keep the routed experts that came with a turn."""
        if experts is not None:
            self._routed_experts[turn.id] = experts

    def routed_experts(self, leaf: Turn) -> RoutedExperts | None:
        """Return the experts of every token of a branch but the last, joined over its turns.

        Returns:
            One row a token but the last; None when some turn has none.

        Raises:
            CountMismatchError: The rows of some turn do not fit between those of its neighbours.
        """
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
        """Yield the routed experts of a branch as they were sent, as far as there are any."""
        for turn in self.tree.path(leaf) if leaf is not None else ():
            part = self._routed_experts.get(turn.id)
            yield from part.parts if part is not None else ()

    def made(self, turn: Turn) -> None:
        """Note that a turn was made in this context. Side turns call nobody and are passed over."""
        if turn.purpose is TurnPurpose.SIDE:
            return
        if turn.caller is not None:
            for last, _ in self._inherited():
                if last.turn == turn.caller[0]:
                    self._called_from[turn.id] = last
        task = _current_task()
        last_turn.set(LastTurn(self.id, turn.id, None if task is None else weakref.ref(task)))

    def caller(self, question: str, own: Entry | None = None, *, side: bool = False) -> tuple[int, str | None] | None:
        """Return the turn, and its call, from within which a new conversation was started; None when from none.

        Args:
            question: What the new conversation begins with; of several calls, it tells which.
            own: The last turn of the agent that starts it, which calls nobody; None when it has none.
            side: Whether it is no agent that starts it. The framework's own calls come between turns, not from within.
        """
        last, entry = next(((last, entry) for last, entry in self._inherited() if _awaits(entry)), (None, None))
        if last is None or entry is None or entry is own:
            return None
        calls = [block for block in entry.reply[1:] if block[0] == "toolUse"]
        asked = [call for call in calls if _mentions(call[3], question)]
        # Tools usually run in tasks and threads of their own. In the task of the turn itself, a conversation may as
        # well begin after the agent has stopped: then only its words can say that a call asked for it.
        within = not side and (last.task is None or last.task() is not _current_task())
        if within and len(calls) == 1:
            asked = calls
        if not within and not asked:
            return None
        return entry.turn, str(asked[0][1]) if len(asked) == 1 else None

    def _inherited(self) -> Iterator[tuple[LastTurn, Entry]]:
        """Yield the last turn of this context, then the one from within which its conversation was started, and so on.

        Agents that run one after the other inside a tool leave their turns to each other.
        """
        last = last_turn.get()
        while last is not None and last.tree == self.id:
            entry = self.lineage.entry(last.turn)
            if entry is None:
                return
            yield last, entry
            while entry.parent is not None:
                entry = entry.parent
            last = self._called_from.get(entry.turn)


def check_not_watched(outer: Episode) -> None:
    """Raise ConfigurationError if an episode opened here would hide its turns from who watches the outer one."""
    if outer.witness is not None:
        raise ConfigurationError(
            f"episode {outer.id} is being recorded: turns of another one opened inside it would be part of neither. "
            "What is not to be recorded takes another SGLangModel"
        )


def _awaits(entry: Entry) -> bool:
    """Return whether a turn has calls and nothing goes on from it yet."""
    return bool(entry.shape.calls) and not entry.children


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _mentions(value: object, text: str) -> bool:
    """Return whether a canonical value holds a text."""
    if isinstance(value, tuple):
        return any(_mentions(item, text) for item in value)
    return value == text
