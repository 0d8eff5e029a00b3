"""What a turn and an episode used: `TurnCounts` and `EpisodeMetrics`, plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, TypeAlias

from strands_sglang.tokens import TokenTree, Turn


class TurnCounts(NamedTuple):
    """The tokens of one turn."""

    sampled: int
    """Sampled in it."""
    cached: int | None
    """Of its prompt, served from the engine's cache; None: the engine did not tell."""
    prompt: int
    """Of its prompt, as it was sent."""

    @classmethod
    def of(cls, turn: Turn) -> TurnCounts:
        """Return the counts of a turn."""
        return cls(len(turn.sampled), turn.detail.get("cached_tokens"), turn.sampled_start)


OnTurn: TypeAlias = Callable[[TurnCounts], None]
"""Is told of every turn that is sampled."""


@dataclass(slots=True)
class EpisodeMetrics:
    """Counts and times of one episode, sub-agents and rejected turns included."""

    turns: int = 0
    """Engine calls that were recorded."""
    branches: int = 0
    """Trajectories it has."""
    tokens: int = 0
    """Tokens on record, each once however many branches share it."""
    sampled_tokens: int = 0
    """Of these, sampled."""
    prompt_tokens: int = 0
    """Tokens of all prompts together, each as often as it was sent."""
    cached_tokens: int = 0
    """Of these, served from the engine's prefix cache, as far as it told."""
    failed_calls: int = 0
    """Malformed tool calls."""
    tool_calls: int = 0
    """Tools that were run, or answered from the record."""
    tool_errors: int = 0
    """Of these, with an error as their result; timeouts included."""
    tool_timeouts: int = 0
    """Of these, that took too long."""
    audits: int = 0
    """Conversations that were held against one rendering of the chat template."""
    audit_differences: int = 0
    """Of these, that were another text in a place that was called proved."""
    requests: int = 0
    """Requests to the engine, retries and continuations included."""
    replayed_turns: int = 0
    """Turns that were answered from the record."""
    seconds: float = 0.0
    """From the beginning to the end, in this process; waiting to begin not included."""
    engine_seconds: float = 0.0
    """Waiting for the engine, summed over calls."""
    tool_seconds: float = 0.0
    """Waiting for tools, summed over calls."""
    versions: list[str | None] = field(default_factory=list)
    """Weight versions its tokens were sampled with, in order of first use."""

    def count(self, tree: TokenTree) -> None:
        """Set what can be read off the tree."""
        turns = tree.turns
        self.turns, self.branches = len(turns), len(tree.branches())
        self.tokens = sum(len(turn) for turn in turns)
        self.sampled_tokens = sum(len(turn.sampled) for turn in turns)
        self.prompt_tokens = sum(turn.sampled_start for turn in turns)
        self.cached_tokens = sum(turn.detail.get("cached_tokens") or 0 for turn in turns)
        self.failed_calls = sum(len(turn.detail.get("failed_calls", ())) for turn in turns)
        self.versions = list(dict.fromkeys(span.version for turn in turns for span in turn.versions))

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EpisodeMetrics:
        """Return what `to_dict` wrote; a number that this version does not know is passed over."""
        known = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})
