"""An episode: the tree of one task's turns, and where its conversations go on.

`with model.episode() as episode:` makes every call of the model in that context, and in tasks and threads started from
it, belong to that episode. Without one, calls belong to the model's own episode, until `reset()`.

Invariant: turns of different episodes never share a tree.
"""

from __future__ import annotations

import hashlib
import threading
from contextvars import ContextVar

from strands_sglang.chat.lineage import Lineage
from strands_sglang.engine.routed_experts import RoutedExperts
from strands_sglang.errors import CountMismatchError
from strands_sglang.tokens import TokenManager, TokenTree, Trajectory, Turn

_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

scopes: ContextVar[tuple[tuple[str, Episode], ...]] = ContextVar("strands_sglang_episodes", default=())
"""Episodes that are open in this context, innermost last, each with the key of its model."""

last_turn: ContextVar[tuple[str, int] | None] = ContextVar("strands_sglang_last_turn", default=None)
"""Tree and turn of the last call made in this context: whoever starts an agent from within a tool inherits it."""


class Episode:
    """One agent on one task: its turns, by content and by token."""

    def __init__(self, id: str | None = None) -> None:
        self.token_manager = TokenManager(TokenTree(id))
        """The published view of its latest branch."""
        self.lock = threading.Lock()
        """Held while the lineage is read or changed; never while waiting."""
        self._begin()

    def _begin(self) -> None:
        self._begun = self.token_manager.tree
        self._lineage = Lineage()
        self._routed_experts: dict[int, RoutedExperts] = {}
        self._serial = 0
        self.has_agent = False
        """Whether an agent has called: calls without an agent's state are side calls from then on."""
        self.sampled_tokens = 0
        """Tokens sampled so far, rejected and side turns included."""

    def reset(self) -> None:
        """Begin anew, with an empty tree. The old tree stays as it is for whoever holds it."""
        self.token_manager.reset()
        self._begin()

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

    def mint(self, count: int) -> list[str]:
        """Return ids for the calls of one turn: the same in a repeated run of an episode with the same name.

        Nine letters and digits, which every chat template takes.
        """
        ids: list[str] = []
        with self.lock:
            while len(ids) < count:
                self._serial += 1
                digest = hashlib.blake2b(f"{self.id}/{self._serial}".encode(), digest_size=8).digest()
                number, letters = int.from_bytes(digest, "big"), ""
                for _ in range(9):
                    number, rest = divmod(number, len(_LETTERS))
                    letters += _LETTERS[rest]
                if not self.lineage.knows_call(letters):
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

    def caller(self, question: str) -> tuple[int, str | None] | None:
        """Return the turn, and its call, from within which a new conversation was started; None when from none.

        Args:
            question: What the new conversation begins with; of several calls, it tells which.
        """
        last = last_turn.get()
        if last is None or last[0] != self.id:
            return None
        entry = self.lineage.entry(last[1])
        if entry is None or not entry.shape.calls or entry.children:
            return None
        calls = [block for block in entry.reply[1:] if block[0] == "toolUse"]
        asked = calls if len(calls) == 1 else [call for call in calls if _mentions(call[3], question)]
        return entry.turn, str(asked[0][1]) if len(asked) == 1 else None


def _mentions(value: object, text: str) -> bool:
    """Return whether a canonical value holds a text."""
    if isinstance(value, tuple):
        return any(_mentions(item, text) for item in value)
    return value == text
