"""One episode proved from its events: `prove`.

Invariant: an episode is proved only when every prompt that was sent is the record before it, every sampled token has
its logprob and weight version, and the trajectories that its last end declares are exactly those that follow.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.event import Event, EventKind
from strands_sglang.proof.calls import CallFacts, read_call
from strands_sglang.proof.ending import check_end, rejected_turns
from strands_sglang.proof.finding import Finding, FindingKind, Verdict, worst
from strands_sglang.proof.flat import FlatTrajectory, branches, counted, laid
from strands_sglang.proof.links import Entry, Links
from strands_sglang.proof.parts import Parts
from strands_sglang.proof.token_counts import TokenCounts

REOPENED = ("engine", "agent", "cut_short")
"""Why an episode may have ended that was taken up again later. Such an end no longer counts."""


@dataclass(slots=True)
class EpisodeProof:
    """What was found out about one episode."""

    id: str
    """Id of the episode."""
    head: bytes = b""
    """Digest of its last event."""
    last: EventKind | None = None
    """What the last event is that was looked at, scores behind an end passed over; None: there is none."""
    finished: bool = False
    """Whether it has an end, of the form that ends have."""
    reward: float | None = None
    """What it was scored with; None: nothing."""
    turns: list[CallFacts] = field(default_factory=list)
    """Its turns, by id; those cut away left out."""
    trajectories: list[FlatTrajectory] = field(default_factory=list)
    """What its end must declare; without an end, what it would."""
    findings: list[Finding] = field(default_factory=list)
    """What is wrong."""
    events: Counter[EventKind] = field(default_factory=Counter)
    """Events on the winning chain, by kind."""
    orphans: int = 0
    """Events of processes that lost the episode to another."""
    tokens: TokenCounts = field(default_factory=TokenCounts)
    """Its tokens, by what becomes of them."""
    versions: Counter[str | None] = field(default_factory=Counter)
    """Sampled tokens by weight version, those cut away included."""

    audits: int = 0
    """Conversations that were held against one rendering while it ran, by its end's own word."""
    audit_differences: int = 0
    """Of these, that differed."""

    @property
    def verdict(self) -> Verdict:
        """What can be said of it."""
        return worst(finding.kind.verdict for finding in self.findings)


def prove(id: str, links: Links, run: Mapping[str, Any] | None = None) -> EpisodeProof:
    """Prove one episode.

    Args:
        id: Its id.
        links: Its events in order.
        run: What run.json says; None: nothing is known of the run.
    """
    proof = EpisodeProof(id, findings=list(links.findings), orphans=links.orphans)
    walk = _Walk(proof)
    if links.chain:
        proof.head = links.chain[-1].event.digest
    for entry in links.chain:
        proof.events[entry.event.kind] += 1
        if not walk.takes(entry, run or {}):
            break  # what comes behind can no longer be judged, and what is wrong is said
    else:
        walk.ends(walk.end or (links.chain[-1] if links.chain else None))
    return proof


class _Walk:
    """Goes through the events of one episode."""

    def __init__(self, proof: EpisodeProof) -> None:
        self.proof = proof
        self.last: Event | None = None
        self.end: Entry | None = None  # the end that counts; only scores may stand behind it
        self.states: list[Any] = []  # for each turn, the digest of its whole branch as far as it is worked out
        self.parts = Parts()
        self.tainted: set[int] = set()  # turns on branches with a wrong prompt: what follows from it is not told again

    def takes(self, entry: Entry, run: Mapping[str, Any]) -> bool:
        """Look at the next event; return False when nothing can be said of those behind it."""
        event, proof = entry.event, self.proof
        order = _misordered(self.last, event.kind, self.end)
        if order is not None:
            proof.findings.append(entry.finding(FindingKind.ORDER, order))
            return False
        self.last = event
        if self.end is None or event.kind is not EventKind.REWARD:
            proof.last, self.end = event.kind, entry if event.kind is EventKind.END else None
        try:
            if event.kind is EventKind.BEGIN:
                proof.findings += [entry.finding(FindingKind.TASK, why) for why in _strange(event, run)]
            elif event.kind is EventKind.CALL:
                return self._turn(entry, read_call(event))
            elif event.kind is EventKind.PART:
                if (wrong := self.parts.take(event)) is not None:
                    proof.findings.append(entry.finding(FindingKind.SAMPLED, f"part of a turn: {wrong}"))
            elif event.kind is EventKind.CUT:
                self._cut(event)
            elif event.kind is EventKind.RESUME:
                proof.reward = None  # whoever goes on scores it anew
            elif event.kind is not EventKind.END:
                _check_form(event)
                if event.kind is EventKind.REWARD:
                    proof.reward = event.data["value"]
        except LedgerError as error:
            proof.findings.append(entry.finding(FindingKind.FORM, f"a {event.kind.value} event: {error}"))
            return False
        return True

    def ends(self, entry: Entry | None) -> None:
        """Look at the end of the episode, or say that there is none."""
        proof, rejected = self.proof, set[int]()
        if entry is not None and entry.event.kind is EventKind.END:
            try:
                rejected = rejected_turns(entry.event, len(proof.turns))
            except LedgerError as error:
                proof.findings.append(entry.finding(FindingKind.FORM, f"an end event: {error}"))
                return
            proof.finished = True
            used = entry.event.data["metrics"]
            proof.audits, proof.audit_differences = (
                value if type(value := used.get(name)) is int and value >= 0 else 0
                for name in ("audits", "audit_differences")
            )
        elif entry is not None:
            proof.findings.append(entry.finding(FindingKind.NO_END, "it has not come to its end"))
        trained = counted(proof.turns, rejected)
        proof.trajectories = [laid(proof.id, path, here) for path, here in branches(proof.turns, trained)]
        proof.tokens.count(proof.turns, trained, proof.trajectories, finished=proof.finished)
        if entry is not None and proof.finished:
            proof.findings += [
                entry.finding(FindingKind.SAMPLED, why, turn=turn) for turn, why in self.parts.left_out()
            ]
            proof.findings += check_end(entry, proof.turns, proof.trajectories)

    def _turn(self, entry: Entry, facts: CallFacts) -> bool:
        proof, turns = self.proof, self.proof.turns
        wrong = _misplaced(facts, turns)
        if wrong is not None:
            proof.findings.append(entry.finding(FindingKind.PLACE, wrong, turn=facts.turn))
            return False
        impossible = facts.impossible()
        self.parts.gone_on(entry.event, facts)
        if impossible is not None:
            token, why = impossible
            proof.findings.append(entry.finding(FindingKind.SAMPLED, why, turn=facts.turn, token=token))
        state = hashlib.blake2b(digest_size=16) if facts.parent is None else self.states[facts.parent].copy()
        state.update(facts.closing.astype("<i4", copy=False).data)
        state.update(facts.context.astype("<i4", copy=False).data)
        if facts.parent in self.tainted:
            self.tainted.add(facts.turn)
        elif state.hexdigest() != facts.prompt:
            self.tainted.add(facts.turn)
            first = 0 if facts.parent is None else turns[facts.parent].first
            where = f"tokens {first} to {facts.first - 1} of the branch"
            what = "its closing and context" if facts.parent is None else "those sampled before, its closing or context"
            why = f"the prompt that was sent is not the one on record: among {where} ({what}) something was changed"
            proof.findings.append(entry.finding(FindingKind.PROMPT, why, turn=facts.turn, token=first))
        counts = {"sent": facts.sent, "detail.prompt_tokens": facts.detail.get("prompt_tokens")}
        for name, count in counts.items():
            if count is not None and count != facts.first:
                why = f"{facts.first} tokens are on record of the prompt, but {name} says {count!r:.50}"
                proof.findings.append(entry.finding(FindingKind.PROMPT, why, turn=facts.turn))
        state.update(facts.sampled.astype("<i4", copy=False).data)
        self.states.append(state)
        turns.append(facts)
        for version, count in facts.spans:
            proof.versions[version] += count
        return True

    def _cut(self, event: Event) -> None:
        left, turns = event.data.get("turns"), self.proof.turns
        if type(left) is not int or not 0 <= left <= len(turns):
            raise LedgerError(f"turns from {left!r:.50} on are cut away, but there are {len(turns)}")
        if not isinstance(event.data.get("kind", ""), str):
            raise LedgerError(f"its kind is {event.data['kind']!r:.50}")
        self.proof.tokens.cut += sum(len(turn.sampled) for turn in turns[left:])
        del turns[left:], self.states[left:]
        self.parts.cut()
        self.tainted = {turn for turn in self.tainted if turn < left}


def _misordered(last: Event | None, kind: EventKind, end: Entry | None) -> str | None:
    """Return why an event of a kind cannot come behind another; None when it can. `end`: the end before it, if any."""
    if (last is None) != (kind is EventKind.BEGIN):
        return "the episode does not begin with it" if last is None else "the episode begins a second time"
    if end is not None:
        ended = end.event.data.get("ended")
        if kind is (EventKind.RESUME if ended in REOPENED else EventKind.REWARD):
            return None  # it was taken up again, or scored anew
        return f"a {kind.value} event behind the end of the episode ({ended!r:.50})"
    if last is not None and last.kind is EventKind.REWARD and kind not in (EventKind.END, EventKind.RESUME):
        return f"a {kind.value} event behind the reward, which comes just before the end"
    return None


def _misplaced(facts: CallFacts, turns: Sequence[CallFacts]) -> str | None:
    """Return why a turn cannot come behind the turns so far; None when it can."""
    if facts.turn != len(turns):
        return f"turn {len(turns)} is next, not turn {facts.turn}"
    for id in (facts.parent, *facts.named):
        if id is not None and id >= len(turns):
            return f"it comes from turn {id}, which is not on record before it"
    start = 0 if facts.parent is None else turns[facts.parent].end
    if facts.start != start:
        return f"it starts at {facts.start}, but its parent ends at {start}"
    return facts.misjoined()


def _strange(event: Event, run: Mapping[str, Any]) -> list[str]:
    """Return why an episode cannot be the one it says it is."""
    task, sample = event.data.get("task"), event.data.get("sample")
    if not isinstance(task, dict) or not isinstance(task.get("id"), str) or type(sample) is not int:
        raise LedgerError(f"its task is {task!r:.100}, its sample {sample!r:.50}")
    found = []
    if f"{task['id']}/{sample}" != event.episode:
        found.append(f"it is sample {sample} of task {task['id']}")
    if "run" in run and event.data.get("run") != run["run"]:
        found.append(f"it is of run {event.data.get('run')}, not of {run['run']}")
    ours, theirs = event.data.get("fingerprint"), run.get("fingerprint")
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found += [
            f"its {name} is {ours[name]}, that of the run {theirs[name]}"
            for name in ours
            if name in theirs and ours[name] != theirs[name]
        ]
    return found


_FORMS: dict[EventKind, dict[str, tuple[type, ...]]] = {
    EventKind.FAULT: {"error": (str,), "message": (str,), "prompt": (str,), "sent": (int,)},
    EventKind.TOOL: {"id": (str,), "name": (str,), "input": (str,), "outcome": (str,), "calls": (int,)},
    EventKind.REWARD: {"value": (int, float, type(None)), "parts": (dict,), "error": (str, type(None))},
}


def _check_form(event: Event) -> None:
    for name, types in _FORMS.get(event.kind, {}).items():
        if name not in event.data or not isinstance(event.data[name], types):
            raise LedgerError(f"its {name} is {event.data.get(name)!r:.50}")
