"""The result of one episode (`Episode`) with its metrics (`EpisodeMetrics`). A run returns one for each sample.

Invariant: an episode has the data of its ledger; an episode read from the ledger equals the one that was written.
`EpisodeMetrics` and `TurnCounts` are plain numbers that can be written to the ledger and sent to another process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from strands_sglang.engine import RoutedExperts
from strands_sglang.ledger.event import StalenessData, data_of
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.recording.pausable_engine import PartialTurn
from strands_sglang.runs.reward import Reward
from strands_sglang.runs.task import Task
from strands_sglang.tokens import TokenTree, Trajectory, Turn


class TurnCounts(NamedTuple):
    """Token counts of one turn."""

    sampled: int
    cached: int | None
    """Number of prompt tokens served from the engine's prefix cache; None: the engine did not report it."""
    prompt: int
    versions: tuple[str | None, ...] = ()
    """Weight versions that sampled it."""

    @classmethod
    def of(cls, turn: Turn) -> TurnCounts:
        """Return the counts of a turn."""
        versions = tuple(dict.fromkeys(span.version for span in turn.versions))
        return cls(len(turn.sampled), turn.detail.get("cached_tokens"), turn.sampled_start, versions)


OnTurn: TypeAlias = Callable[[TurnCounts], None]


@dataclass(slots=True)
class EpisodeMetrics:
    """Counts and times of one episode, including sub-agents and rejected turns.

    Rows of the viewer's table take values of ended episodes from here by name (`ledger/summary.py`).
    """

    turns: int = 0
    branches: int = 0
    """Number of branches, which is the number of trajectories."""
    tokens: int = 0
    """Recorded tokens; a token that several branches share counts once."""
    sampled_tokens: int = 0
    """Sampled tokens; part of `tokens`."""
    prompt_tokens: int = 0
    """Tokens of all prompts together; a token counts each time it was sent."""
    cached_tokens: int = 0
    """The part of `prompt_tokens` served from the engine's prefix cache, as far as the engine reported it."""
    failed_calls: int = 0
    tool_calls: int = 0
    """Tool calls that were run or answered from the record."""
    tool_errors: int = 0
    """Tool calls with an error as their result, including timeouts."""
    tool_timeouts: int = 0
    audits: int = 0
    """Conversations that were compared with one rendering of the chat template."""
    audit_differences: int = 0
    """Audited conversations that differed from the rendering where the template was proved."""
    requests: int = 0
    """Requests to the engine, including retries and continuations."""
    replayed_turns: int = 0
    seconds: float = 0.0
    """Seconds from start to end in this process, without the time it waited to start."""
    engine_seconds: float = 0.0
    """Seconds spent waiting for the engine, summed over calls."""
    tool_seconds: float = 0.0
    """Seconds spent waiting for tools, summed over calls."""
    other_model_calls: int = 0
    """Questions to other models of the episode (a simulated user, a judge), those answered from the record included."""
    other_model_seconds: float = 0.0
    """Seconds spent waiting for other models, summed over calls."""
    versions: list[str | None] = field(default_factory=list)
    """Weight versions of the sampled tokens, in the order of first use; None: the engine did not report a version."""

    def count(self, tree: TokenTree) -> None:
        """Set the counts that follow from the tree of turns."""
        turns = tree.turns
        self.turns, self.branches = len(turns), len(tree.branches())
        self.tokens = sum(len(turn) for turn in turns)
        self.sampled_tokens = sum(len(turn.sampled) for turn in turns)
        self.prompt_tokens = sum(turn.sampled_start for turn in turns)
        self.cached_tokens = sum(turn.detail.get("cached_tokens") or 0 for turn in turns)
        self.failed_calls = sum(len(turn.detail.get("failed_calls", ())) for turn in turns)
        self.versions = list(dict.fromkeys(span.version for turn in turns for span in turn.versions))

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EpisodeMetrics:
        """Return the metrics described by plain data from `to_dict`; unknown names are ignored."""
        known = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})


@dataclass(frozen=True, slots=True)
class Failure:
    """The error that an episode failed with."""

    kind: str
    message: str
    where: str = ""
    """The traceback; "" if there is none."""


class StalenessDecision(str, Enum):
    """What was decided about an episode because of the age of its tokens."""

    KEPT = "kept"
    """It is trained."""
    MASKED = "masked"
    """It is trained, except for its tokens that are too old."""
    DROPPED = "dropped"
    """It is not trained, because a token of its group is too old."""
    RETRIED = "retried"
    """The same, and new episodes of its task are run."""


@dataclass(frozen=True, slots=True)
class Staleness:
    """The age of an episode's tokens when its group was handed over, and what was decided (`runs/staleness.py`)."""

    decision: StalenessDecision
    limit: int
    """Largest age that is trained, in weight updates."""
    action: str
    current: str | None
    """The weight version at that time; None: unknown."""
    ages: dict[str | None, int | None]
    """Age by weight version of the tokens that may be trained; None: the version has no place in the order."""
    age: int | None
    """The largest age of a token of its group; None: none is known."""

    @property
    def dropped(self) -> bool:
        """Whether the episode is not trained."""
        return self.decision in (StalenessDecision.DROPPED, StalenessDecision.RETRIED)

    @property
    def too_old(self) -> frozenset[str | None]:
        """The weight versions whose tokens are too old."""
        return frozenset(version for version, age in self.ages.items() if age is not None and age > self.limit)

    @classmethod
    def of(cls, record: EpisodeRecord) -> Staleness | None:
        """Return what is recorded about an episode; None: nothing was decided."""
        if record.staleness is None:
            return None
        data = data_of(record.staleness, StalenessData)
        ages: Any = data["ages"]
        decision = StalenessDecision(data["decision"])
        return cls(decision, data["limit"], data["action"], data["current"], dict(ages), data["age"])


@dataclass(slots=True)
class Episode:
    """One run of an agent on a task.

    Example:
        >>> for episode in run:
        ...     print(episode.id, episode.end_reason.value, episode.reward, episode.text, len(episode.trajectories))
    """

    id: str
    """`<task id>/<sample>`."""
    task: Task
    sample: int
    """Number among the samples of the task, from 0."""
    end_reason: EndReason
    source: TokenTree | Callable[[], TokenTree] = field(repr=False)
    """The tree of turns, or a function that returns it (it may still be on another machine); see `tree`."""
    reward_detail: Reward = field(default_factory=Reward)
    metrics: EpisodeMetrics = field(default_factory=EpisodeMetrics)
    failure: Failure | None = None
    """The error it failed with; None if it did not fail."""
    text: str = ""
    conversation: list[dict[str, Any]] | Callable[[], list[dict[str, Any]]] = field(default_factory=list, repr=False)
    """The messages, or a function that returns them; see `messages`."""
    epoch: int = 0
    """How often the episode was resumed."""
    time: float = 0.0
    """When it ended, in seconds since 1970."""
    record: EpisodeRecord | None = field(default=None, repr=False)
    """The state a paused episode (`EndReason.PAUSED`) is resumed from; None for any other episode."""
    partial_turns: list[PartialTurn] = field(default_factory=list, repr=False)
    """Turns that were interrupted because the episode was paused. They are in none of its trajectories."""
    earlier: dict[int, int] = field(default_factory=dict, repr=False)
    """By turn id: the number of the turn's tokens that were sampled before the episode was last resumed."""
    routed_experts: dict[int, RoutedExperts] = field(default_factory=dict, repr=False)
    """By the id of a branch's last turn: the branch's routed experts, if they were requested."""
    images: dict[str, bytes] | Callable[[], dict[str, bytes]] = field(default_factory=dict, repr=False)
    """The images of its turns, or a function that returns them; see `image_files`."""
    fingerprint: dict[str, str] = field(default_factory=dict, repr=False)
    """The experiment it was run as: `agent`, `reward`, `settings`, ...; without a ledger, only template and parser."""
    earlier_fingerprints: list[dict[str, str]] = field(default_factory=list, repr=False)
    """In what earlier calls of the run, of which it still has turns, differ from the one that ran it last."""
    restored: bool = False
    """Whether a previous run ended it and this run read it from the ledger."""
    staleness: Staleness | None = None
    """Whether its tokens are too old to be trained; None: that was not decided."""
    chain_end: tuple[int, int, bytes] | None = field(default=None, repr=False)
    """Where its ledger continues: epoch, number and previous digest of a next event; None: it is not written."""

    @property
    def reward(self) -> float | None:
        """The reward as one number; None if it was not scored or scoring failed (see `reward_detail.error`)."""
        return self.reward_detail.value

    @property
    def tree(self) -> TokenTree:
        """The tree of all turns; fetched at the first access if it is on another machine."""
        if not isinstance(self.source, TokenTree):
            self.source = self.source()
        masked = self.staleness is not None and self.staleness.decision is StalenessDecision.MASKED
        self.source.untrained_versions = self.staleness.too_old if masked and self.staleness else frozenset()
        return self.source

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of the agent, or of all its agents one after the other; from a ledger, as plain data."""
        if not isinstance(self.conversation, list):
            self.conversation = self.conversation()
        return self.conversation

    @property
    def image_files(self) -> dict[str, bytes]:
        """The images of its turns as PNG files, by their digest; LedgerError if a file is missing or changed."""
        if not isinstance(self.images, dict):
            self.images = self.images()
        return self.images

    @property
    def trajectories(self) -> list[Trajectory]:
        """One trajectory per branch; each sampled token is trained in exactly one of them."""
        return self.tree.trajectories()
