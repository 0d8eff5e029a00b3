"""The result of measuring drift: `DriftReport`, as text, as plain data, and added up over processes.

Invariant: counts of two parts of a source add up to the counts of the whole; a turn is counted once per method.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from strands_sglang._json import plain_data
from strands_sglang._terminal import counted, escape_for_terminal
from strands_sglang.drift.compare import Cause

DEPTHS = 32  # turn numbers that are counted one by one; later turns are counted together as the last one


class Method(str, Enum):
    """A way to get tokens for training other than recording them."""

    DECODE = "decode"
    """The sampled tokens are decoded to text, and the text is encoded again, turn by turn."""
    RENDER = "render"
    """Messages are kept, and each turn is rendered again through the chat template right after it."""
    HISTORY = "history"
    """Messages are kept, and the whole conversation is rendered once at its end."""

    @property
    def label(self) -> str:
        """Name for people."""
        return {
            Method.DECODE: "decode and encode",
            Method.RENDER: "render each turn",
            Method.HISTORY: "render the whole conversation",
        }[self]


@dataclass(slots=True)
class CauseCount:
    """How often a cause was found."""

    turns: int = 0
    """Turns with a difference of this cause; a turn may have several causes."""
    tokens: int = 0
    places: int = 0


@dataclass(slots=True)
class MethodDrift:
    """What one method does to the turns."""

    turns: int = 0
    tokens: int = 0
    drifted: int = 0
    """Turns of which at least one token would be another one."""
    tokens_changed: int = 0
    """Sampled tokens that would be replaced or lost."""
    refused: int = 0
    """Turns that could not be compared because the chat template refuses their messages."""
    causes: dict[Cause, CauseCount] = field(default_factory=lambda: {cause: CauseCount() for cause in Cause})
    depth_turns: list[int] = field(default_factory=lambda: [0] * DEPTHS)
    """Turns that were compared by their number in the conversation, from 0; the last entry has all later ones."""
    depth_drifted: list[int] = field(default_factory=lambda: [0] * DEPTHS)
    """Turns that differ, in the same way."""

    @property
    def share(self) -> float:
        """Share of the turns that differ, 0 to 1."""
        return self.drifted / self.turns if self.turns else 0.0

    @property
    def token_share(self) -> float:
        """Share of the sampled tokens that would be replaced or lost, 0 to 1."""
        return self.tokens_changed / self.tokens if self.tokens else 0.0

    def add(self, other: MethodDrift) -> None:
        """Add the counts of another part of the same source."""
        for name in ("turns", "tokens", "drifted", "tokens_changed", "refused"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for cause, count in other.causes.items():
            own = self.causes[cause]
            own.turns += count.turns
            own.tokens += count.tokens
            own.places += count.places
        self.depth_turns = [a + b for a, b in zip(self.depth_turns, other.depth_turns, strict=True)]
        self.depth_drifted = [a + b for a, b in zip(self.depth_drifted, other.depth_drifted, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        shares = {"share": round(self.share, 6), "token_share": round(self.token_share, 6)}
        return {**plain_data(self), **shares}


@dataclass(frozen=True, slots=True)
class Example:
    """One place where tokens would differ."""

    method: Method
    cause: Cause
    conversation: str
    """Id of the episode, or line of the file."""
    turn: int
    before: str
    sampled: tuple[tuple[int, str], ...]
    became: tuple[tuple[int, str], ...]
    """What they would have become: id and text."""
    after: str


@dataclass(slots=True)
class DriftReport:
    """How recorded turns would differ. `text` is for people, `to_dict` for programs, `html_page` for a browser."""

    source: str = ""
    tokenizer: str = ""
    conversations: int = 0
    """Number of conversations: branches of episodes, or lines of a file."""
    turns: int = 0
    tokens: int = 0
    estimated: bool = False
    """Whether some turns have no recorded tokens, so that those of the template's own rendering were used."""
    problems: list[str] = field(default_factory=list)
    """Episodes and lines that could not be read, at most 20."""
    methods: dict[Method, MethodDrift] = field(default_factory=lambda: {method: MethodDrift() for method in Method})
    """Counts by method. A method with 0 turns could not be measured."""
    examples: list[Example] = field(default_factory=list)

    @property
    def size(self) -> str:
        """How much was measured, as text."""
        conversations, turns = counted(self.conversations, "conversation"), counted(self.turns, "turn")
        return f"{conversations}, {turns}, {counted(self.tokens, 'sampled token')}"

    def add(self, other: DriftReport, examples: int = 3) -> None:
        """Add the report of another part of the same source, with at most `examples` for each method and cause."""
        self.conversations += other.conversations
        self.turns += other.turns
        self.tokens += other.tokens
        self.estimated |= other.estimated
        self.problems = (self.problems + other.problems)[:20]
        for method, drift in other.methods.items():
            self.methods[method].add(drift)
        for example in other.examples:
            if self.wants(example.method, example.cause, examples):
                self.examples.append(example)

    def wants(self, method: Method, cause: Cause, most: int) -> bool:
        """Return whether there are fewer than `most` examples of a kind."""
        return sum(one.method is method and one.cause is cause for one in self.examples) < most

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        methods = {method.value: drift.to_dict() for method, drift in self.methods.items()}
        return {**plain_data(self), "methods": methods}

    def text(self, examples: int = 1) -> str:
        """Return the report as text, with at most `examples` for each method and cause."""
        lines = [
            f"{self.source}  ({self.tokenizer})",
            f"  {self.size}",
        ]
        if self.estimated:
            lines.append("  some turns have no recorded tokens: the template's own rendering stands for them")
        for method, drift in self.methods.items():
            lines.append("")
            if not drift.turns:
                lines.append(f"  {method.label}: not measured, because there are no recorded tokens or messages")
                continue
            lines.append(
                f"  {method.label}: {drift.drifted:,} of {counted(drift.turns, 'turn')} differ ({drift.share:.2%}), "
                f"{drift.tokens_changed:,} of {counted(drift.tokens, 'token')} ({drift.token_share:.2%})"
            )
            if drift.refused:
                lines.append(f"    {counted(drift.refused, 'turn')} not compared: the chat template refuses them")
            for cause, count in sorted(drift.causes.items(), key=lambda item: -item[1].turns):
                if count.places:
                    lines.append(
                        f"    {cause.label:<26} {counted(count.turns, 'turn'):>14} {counted(count.tokens, 'token'):>16}"
                    )
                    shown = [one for one in self.examples if one.method is method and one.cause is cause]
                    lines += [f"      {_example_line(one)}" for one in shown[:examples]]
        lines += [f"  not read: {problem}" for problem in self.problems]
        return "\n".join(map(escape_for_terminal, lines))


def _example_line(example: Example) -> str:
    old, new = ("|".join(text for _, text in tokens) or "(nothing)" for tokens in (example.sampled, example.became))
    change = f"{example.before[-24:]}⟦{old[:60]}⟧→⟦{new[:60]}⟧{example.after[:16]}"
    return f"{example.conversation} turn {example.turn}: {change}".replace("\n", "⏎")
