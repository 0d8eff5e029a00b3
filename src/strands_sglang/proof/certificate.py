"""Result of verifying a run: `Certificate`.

Invariant: a certificate states what was checked, what was found, and what cannot be known. The same ledger always gets
the same certificate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from strands_sglang._terminal import counted, escape_for_terminal
from strands_sglang.proof.call import adapter_in
from strands_sglang.proof.finding import SEVERITY, Finding, FindingKind, Verdict, worst
from strands_sglang.proof.trajectories import TokenCounts

FINDINGS_KEPT = 1000
"""Maximum number of findings of each kind that a certificate lists. All findings are counted."""


class SealState(str, Enum):
    """Whether the run is sealed and still matches its seal."""

    NONE = "none"
    """There is no seal, so missing episodes are undetectable."""
    AGREES = "agrees"
    DIFFERS = "differs"
    UNCHECKED = "unchecked"
    """There is a seal; it was not checked because only some episodes were verified."""


class SignatureState(str, Enum):
    """Whether the run is signed, and by the given key."""

    NONE = "none"
    VALID = "valid"
    INVALID = "invalid"
    """It is missing although a key was given, or does not match the run and the key."""
    UNCHECKED = "unchecked"
    """There is a signature; no key was given."""


@dataclass(frozen=True, slots=True)
class FileState:
    """One file of the ledger, as it was read."""

    name: str
    """File name within the run's directory."""
    bytes: int
    state: str
    """State of its bytes: "whole", "torn" (ends within a block) or "damaged"."""
    digest: str
    """BLAKE2b-16 digest of its bytes, in hex; "" if too much of it cannot be read."""


@dataclass(slots=True)
class ExportedState:
    """Result of comparing an export with the ledger."""

    name: str | None
    """File name; None if the export was given in memory."""
    rows: int
    """Number of trajectories in the export."""
    agreed: int
    """Number of these that equal the recorded trajectory, token by token."""
    left_out: int = 0
    """Finished episodes missing from the export, if that is allowed."""

    def text(self) -> str:
        """Return a line of text for people."""
        left = f", {counted(self.left_out, 'episode is', 'episodes are')} left out" if self.left_out else ""
        return f"{self.agreed:,} of {counted(self.rows, 'trajectory agrees', 'trajectories agree')}{left}"


@dataclass(slots=True)
class Certificate:
    """Result of verifying a run. `text` is for people, `to_dict` for programs."""

    source: str = ""
    """Directory of the run; empty if the events were given in memory."""
    run: str | None = None
    """Id of the run; None if it is unknown."""
    episodes: Counter[Verdict] = field(default_factory=Counter)
    turns: int = 0
    """Recorded turns, without those that were rolled back."""
    trajectories: int = 0
    """Trajectories of finished episodes."""
    events: Counter[str] = field(default_factory=Counter)
    """Events on winning chains, by kind."""
    orphans: int = 0
    """Events written by processes that lost an episode to another; they are ignored."""
    tokens: TokenCounts = field(default_factory=TokenCounts)
    experiment: dict[str, Counter[str]] = field(default_factory=dict)
    """Parts of the experiment (agent, reward, settings, ...), each value with its number of episodes."""
    audits: int = 0
    """Conversations compared with a full rendering of the chat template during the run."""
    audit_differences: int = 0
    """Number of these that differed although the template's bridge was proved for them."""
    versions: Counter[str | None] = field(default_factory=Counter)
    """Sampled tokens by weight version; None if the engine did not report one."""
    root: str = ""
    """Root digest, which covers every event of every episode. A copy kept elsewhere can be compared with the ledger at
    any later time."""
    files: list[FileState] = field(default_factory=list)
    """Files of the ledger; empty if the events were given in memory."""
    content_files: int = 0
    """Images and other files that events refer to, each compared with its digest."""
    teacher_tokens: int = 0
    trainer_values: int = 0
    """A trainer's values for sampled tokens, each compared with its place in the ledger."""
    protocols: Counter[str] = field(default_factory=Counter)
    """Turns that agents outside the run's processes requested over HTTP, by protocol."""
    echoes: Counter[str] = field(default_factory=Counter)
    """Of these, turns whose request had copies of earlier replies, by how the copies differed from the replies."""
    other_models: Counter[str] = field(default_factory=Counter)
    """Answers of other models than the policy, such as a simulated user, by the name of the model. None is trained."""
    seal: SealState = SealState.NONE
    signature: SignatureState = SignatureState.NONE
    staleness: Counter[str] = field(default_factory=Counter)
    """Episodes by what was decided because of the age of their tokens: kept, masked, dropped or retried."""
    exported: ExportedState | None = None
    """Result of comparing an export; None if none was given."""
    findings: list[Finding] = field(default_factory=list)
    """Problems in the order they were found, at most `FINDINGS_KEPT` of each kind."""
    found: Counter[FindingKind] = field(default_factory=Counter)

    @property
    def verdict(self) -> Verdict:
        """Worst verdict of all findings."""
        return worst(kind.verdict for kind in self.found)

    @property
    def proved(self) -> bool:
        """Whether the run is complete and proved."""
        return self.verdict is Verdict.PROVED

    @property
    def mixed(self) -> dict[str, dict[str, int]]:
        """The parts of the experiment of which episodes have several values; empty: the run is one experiment."""
        return {name: dict(values.most_common()) for name, values in self.experiment.items() if len(values) > 1}

    def add(self, finding: Finding) -> None:
        """Add a finding."""
        self.found[finding.kind] += 1
        if self.found[finding.kind] <= FINDINGS_KEPT:
            self.findings.append(finding)

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate as plain data."""
        return {
            "verdict": self.verdict.value,
            "source": self.source,
            "run": self.run,
            "root": self.root,
            "seal": self.seal.value,
            "signature": self.signature.value,
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
            "content_files": self.content_files,
            "experiment": {name: dict(values.most_common()) for name, values in self.experiment.items()},
            "teacher_tokens": self.teacher_tokens,
            "trainer_values": self.trainer_values,
            "protocols": dict(self.protocols.most_common()),
            "echoes": dict(self.echoes.most_common()),
            "other_models": dict(self.other_models.most_common()),
            "staleness": dict(self.staleness.most_common()),
            "exported": None if self.exported is None else _plain(self.exported),
            "found": {kind.value: count for kind, count in self.found.items()},
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def text(self, findings: int = 20) -> str:
        """Return the certificate as text for people; text quoted from the ledger cannot add lines to it.

        Args:
            findings: Maximum number of findings to list; those that differ only in their location are one line.
        """
        tokens = self.tokens
        total = sum(self.episodes.values())
        differ, orphans = counted(self.audit_differences, "differs", "differ"), counted(self.orphans, "event")
        masked = _list((name.replace("_", " "), getattr(tokens, name)) for name in _NOT_TRAINED)
        weights = ", ".join(f"{version or 'unknown'}: {count:,}" for version, count in self.versions.most_common(8))
        rows = [
            ("run", self.run or "unknown"),
            ("episodes", f"{total:,}: {_list((v.value, self.episodes[v]) for v in Verdict) or 'none'}"),
            ("turns", f"{self.turns:,} in {counted(self.trajectories, 'trajectory', 'trajectories')}"),
            ("sampled", f"{counted(tokens.sampled, 'token')}: {_list([('trained', tokens.trained)]) or '0 trained'}"),
            ("not trained", masked or "none"),
            ("repeated", f"{tokens.shared:,} trained tokens, masked in later branches" if tokens.shared else ""),
            ("not sampled", f"{tokens.context:,} context, {tokens.closing:,} closing"),
            ("weights", weights or "none"),
            ("adapters", _AS_ASKED if any(map(adapter_in, self.versions)) else ""),
            ("audited", f"{counted(self.audits, 'conversation')}, {differ}" if self.audits else ""),
            ("files", f"{len(self.files)}, {sum(file.bytes for file in self.files):,} bytes" if self.files else ""),
            ("images", f"{counted(self.content_files, 'file')}" if self.content_files else ""),
            ("teacher", f"{counted(self.teacher_tokens, 'sampled token')} scored" if self.teacher_tokens else ""),
            ("trainer", f"{counted(self.trainer_values, 'value')} for sampled tokens" if self.trainer_values else ""),
            ("over HTTP", f"{_counts(self.protocols)} turns" if self.protocols else ""),
            ("copies", f"of earlier replies, by turn: {_counts(self.echoes)}" if self.echoes else ""),
            ("other models", f"{_counts(self.other_models)} answers, none trained" if self.other_models else ""),
            ("staleness", f"{_counts(self.staleness)} episodes" if self.staleness else ""),
            ("not covered", _NOT_COVERED if self.protocols else ""),
            *(("MIXED", f"{part}: {_values(values)}") for part, values in self.mixed.items()),
            ("seal", _SEALS[self.seal]),
            ("signature", _SIGNATURES[self.signature]),
            ("exported", "" if self.exported is None else self.exported.text()),
            ("orphans", f"{orphans} from processes that lost their episode to another" if self.orphans else ""),
            ("root", self.root or "none"),
        ]
        lines = [f"{self.verdict.value.upper()}  {self.source}".rstrip(), f"  {_MEANING[self.verdict]}"]
        lines += [f"  {name:<12} {value}" for name, value in rows if value]
        if self.findings:
            lines.append(
                f"  findings     {sum(self.found.values()):,}: {_list((k.value, n) for k, n in self.found.items())}"
            )
            alike: dict[tuple[FindingKind, str], list[Finding]] = {}
            for one in sorted(self.findings, key=lambda one: -SEVERITY.index(one.kind.verdict)):
                alike.setdefault((one.kind, one.message), []).append(one)
            listed = list(alike.values())[:findings]
            lines += [f"    {first.text(others=len(others))}" for first, *others in listed]
            left = sum(self.found.values()) - sum(map(len, listed))
            lines += [f"    and {left:,} more"] if left else []
        return "\n".join(map(escape_for_terminal, lines))


_MAX_VALUES, _MAX_TEXT = 8, 400  # values of a part of the experiment that are shown, and characters of each
_NOT_COVERED = "that tool results are real, and that these agents made no model calls elsewhere"
_AS_ASKED = "as they were asked for: an engine's answer does not name its adapter, --rescore recomputes it"
_NOT_TRAINED = ("rejected", "side", "constrained", "rolled_back", "stale", "unfinished")
_MEANING = {
    Verdict.PROVED: "every prompt equals the recorded branch; every trained token was sampled at its position",
    Verdict.EMPTY: "the record is complete and consistent, and has no token to train",
    Verdict.UNFINISHED: "the record is consistent so far; an end event or the seal is not written yet",
    Verdict.DATA_LOST: "a file or the end of a file is missing; the rest is consistent",
    Verdict.BROKEN: "the record contradicts itself: it was changed, or written incorrectly",
}
_SEALS = {
    SealState.NONE: "none: without a seal, missing episodes are undetectable",
    SealState.AGREES: "agrees",
    SealState.DIFFERS: "DIFFERS",
    SealState.UNCHECKED: "not checked: only some episodes were verified",
}

_SIGNATURES = {
    SignatureState.NONE: "none",
    SignatureState.VALID: "valid",
    SignatureState.INVALID: "INVALID",
    SignatureState.UNCHECKED: "not checked: no public key was given",
}


def _list(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts if count)


def _counts(counts: Counter[str]) -> str:
    """Return the most frequent names with their numbers."""
    return _list((name.replace("_", " "), count) for name, count in counts.most_common(_MAX_VALUES))


def _values(counts: Mapping[str, int]) -> str:
    """Return the values of a part of the experiment, each with its number of episodes."""
    first = list(counts.items())[:_MAX_VALUES]
    shown = [f"{value:.{_MAX_TEXT}} ({counted(count, 'episode')})" for value, count in first]
    return "; ".join([*shown, *(["..."] if len(counts) > _MAX_VALUES else [])])


def _plain(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}
