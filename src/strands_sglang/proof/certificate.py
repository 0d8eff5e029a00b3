"""What `verify` says of a ledger: `Certificate`.

Invariant: a certificate says what was looked at, what was found, and what it cannot know. The same ledger always gets
the same one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from strands_sglang.ledger.shown import counted, shown
from strands_sglang.proof.finding import Finding, FindingKind, Verdict, worst
from strands_sglang.proof.token_counts import TokenCounts

FINDINGS_KEPT = 1000
"""Findings of each kind that a certificate keeps; all are counted."""


class SealState(str, Enum):
    """Whether the run was sealed, and is still what was sealed."""

    NONE = "none"
    """There is no seal: what is missing as a whole cannot be known."""
    AGREES = "agrees"
    """Files and episodes are those that were sealed."""
    DIFFERS = "differs"
    """They are not."""
    UNCHECKED = "unchecked"
    """There is one; it was not looked at, because not all episodes were."""


@dataclass(frozen=True, slots=True)
class FileState:
    """One file of the ledger, as it was read."""

    name: str
    """Its name, within the run's directory."""
    bytes: int
    """Its size."""
    state: str
    """What became of it: "whole", "torn" or "damaged"."""
    digest: str
    """BLAKE2b-16 of its bytes, in hex."""


@dataclass(slots=True)
class ExportedState:
    """What was found out about an export."""

    name: str | None
    """Name of its file; None: it is no file."""
    rows: int
    """Trajectories it holds."""
    agreed: int
    """Of these, the same as on record, token by token."""
    left_out: int = 0
    """Finished episodes that are not in it, where that is allowed."""

    def text(self) -> str:
        """Return it for people to read."""
        left = f", {counted(self.left_out, 'episode is', 'episodes are')} left out" if self.left_out else ""
        return f"{self.agreed:,} of {counted(self.rows, 'trajectory agrees', 'trajectories agree')}{left}"


@dataclass(slots=True)
class Certificate:
    """What can be said of a run. `text` is for people, `to_dict` for programs."""

    source: str = ""
    """The run's directory; "" when the events came from memory."""
    run: str | None = None
    """Id of the run; None: unknown."""
    episodes: Counter[Verdict] = field(default_factory=Counter)
    """Episodes by what can be said of each."""
    turns: int = 0
    """Turns on record; those cut away left out."""
    trajectories: int = 0
    """Trajectories of finished episodes."""
    events: Counter[str] = field(default_factory=Counter)
    """Events on winning chains, by kind."""
    orphans: int = 0
    """Events of processes that lost an episode to another; they count for nothing."""
    tokens: TokenCounts = field(default_factory=TokenCounts)
    """Tokens, by what becomes of them."""
    audits: int = 0
    """Conversations that were held against one rendering of the chat template while the run went on."""
    audit_differences: int = 0
    """Of these, that were another text in a place that was called proved."""
    versions: Counter[str | None] = field(default_factory=Counter)
    """Sampled tokens by weight version; None: the engine did not tell."""
    root: str = ""
    """Root digest: one number that stands for every event of every episode. Kept elsewhere, it can be held against
    the ledger at any later time."""
    files: list[FileState] = field(default_factory=list)
    """The files of the ledger; empty when the events came from memory."""
    seal: SealState = SealState.NONE
    """Whether the run was sealed."""
    exported: ExportedState | None = None
    """What was found out about an export; None: none was given."""
    findings: list[Finding] = field(default_factory=list)
    """What is wrong, in the order it was found, not more than `FINDINGS_KEPT` of a kind."""
    found: Counter[FindingKind] = field(default_factory=Counter)
    """How many of each kind were found."""

    @property
    def verdict(self) -> Verdict:
        """What can be said of the run: the worst that was found."""
        return worst(kind.verdict for kind in self.found)

    @property
    def proved(self) -> bool:
        """Whether everything is there and proved."""
        return self.verdict is Verdict.PROVED

    def add(self, finding: Finding) -> None:
        """Note something that is wrong."""
        self.found[finding.kind] += 1
        if self.found[finding.kind] <= FINDINGS_KEPT:
            self.findings.append(finding)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "verdict": self.verdict.value,
            "source": self.source,
            "run": self.run,
            "root": self.root,
            "seal": self.seal.value,
            "episodes": {verdict.value: self.episodes[verdict] for verdict in Verdict},
            "turns": self.turns,
            "trajectories": self.trajectories,
            "events": dict(self.events),
            "orphans": self.orphans,
            "tokens": self.tokens.to_dict(),
            "audits": self.audits,
            "audit_differences": self.audit_differences,
            "versions": [[version, count] for version, count in self.versions.items()],
            "files": [_plain(file) for file in self.files],
            "exported": None if self.exported is None else _plain(self.exported),
            "found": {kind.value: count for kind, count in self.found.items()},
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def text(self, findings: int = 20) -> str:
        """Return it for people to read: no line of it is one that the ledger wrote.

        Args:
            findings: How many findings are shown.
        """
        tokens = self.tokens
        total = sum(self.episodes.values())
        differ, orphans = counted(self.audit_differences, "differs", "differ"), counted(self.orphans, "event")
        masked = _list((name, getattr(tokens, name)) for name in _MASKED)
        rows = [
            ("run", self.run or "unknown"),
            ("episodes", f"{total:,}: {_list((v.value, self.episodes[v]) for v in Verdict) or 'none'}"),
            ("turns", f"{self.turns:,} in {counted(self.trajectories, 'trajectory', 'trajectories')}"),
            ("sampled", f"{counted(tokens.sampled, 'token')}: {_list([('trained', tokens.trained)]) or '0 trained'}"),
            ("not trained", masked or "none"),
            ("repeated", f"{tokens.shared:,} of the trained in later branches, masked there" if tokens.shared else ""),
            ("not sampled", f"{tokens.context:,} context, {tokens.closing:,} closing"),
            ("weights", ", ".join(f"{version or 'unknown'}: {n:,}" for version, n in self._most()) or "none"),
            ("audited", f"{counted(self.audits, 'conversation')}, {differ}" if self.audits else ""),
            ("files", f"{len(self.files)}, {sum(file.bytes for file in self.files):,} bytes" if self.files else ""),
            ("seal", _SEALS[self.seal]),
            ("exported", "" if self.exported is None else self.exported.text()),
            ("orphans", f"{orphans} of processes that lost their episode" if self.orphans else ""),
            ("root", self.root or "none"),
        ]
        lines = [f"{self.verdict.value.upper()}  {self.source}".rstrip(), f"  {_MEANING[self.verdict]}"]
        lines += [f"  {name:<12} {value}" for name, value in rows if value]
        listed = sorted(self.findings, key=lambda one: -_WEIGHT.index(one.kind.verdict))[:findings]
        if listed:
            lines.append(
                f"  findings     {sum(self.found.values()):,}: {_list((k.value, n) for k, n in self.found.items())}"
            )
            lines += [f"    {finding}" for finding in listed]
            left = sum(self.found.values()) - len(listed)
            lines += [f"    and {left:,} more"] if left else []
        return "\n".join(map(shown, lines))

    def _most(self) -> list[tuple[str | None, int]]:
        return self.versions.most_common(8)


_WEIGHT = list(Verdict)
_MASKED = ("rejected", "side", "constrained", "cut", "unfinished")
_MEANING = {
    Verdict.PROVED: "every prompt is the record before it, and every trained token was sampled where it stands",
    Verdict.UNFINISHED: "what is there is good; something is still to come",
    Verdict.TRUNCATED: "something is missing; nothing that is there contradicts anything else",
    Verdict.BROKEN: "something contradicts something else: it was changed, or written wrong",
}
_SEALS = {
    SealState.NONE: "none: episodes that are missing as a whole cannot be noticed",
    SealState.AGREES: "agrees",
    SealState.DIFFERS: "DIFFERS",
    SealState.UNCHECKED: "not looked at: not all episodes were",
}


def _list(counts: Any) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts if count)


def _plain(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}
