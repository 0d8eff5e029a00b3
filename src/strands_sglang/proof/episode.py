"""Verification of one episode from its events: `prove_episode`.

Invariant: an episode is proved only if every prompt that was sent equals the branch recorded before it, every sampled
token has its logprob and weight version, and its last end event declares exactly the trajectories that follow from the
turns, with every sampled token trained once or excluded for a declared reason.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from strands_sglang._json import check_values
from strands_sglang.errors import LedgerError
from strands_sglang.ledger.event import AFTER_END, Event, EventKind
from strands_sglang.proof.call import CallFacts, PartialCalls, read_call
from strands_sglang.proof.chain import ChainEntry, EventChain
from strands_sglang.proof.finding import Finding, FindingKind, Verdict, worst
from strands_sglang.proof.staleness import StalenessFacts, read_staleness
from strands_sglang.proof.teacher import TeacherFacts, read_teacher
from strands_sglang.proof.trajectories import (
    SAMPLED,
    FlatTrajectory,
    TokenCounts,
    find_branches,
    flatten_branch,
    trainable_turns,
)

REOPENED = ("engine_error", "tool_unavailable", "other_model_error", "agent_error", "not_needed")
"""End reasons after which an episode may be resumed. The end event then no longer counts."""


@dataclass(slots=True)
class EpisodeProof:
    """Result of verifying one episode."""

    id: str
    head: bytes = b""
    last: EventKind | None = None
    """Kind of the last event that was checked, ignoring rewards after an end; None if there is no event."""
    finished: bool = False
    """Whether it has a well-formed end event."""
    reward: float | None = None
    turns: list[CallFacts] = field(default_factory=list)
    """Its turns, by id, without those that were rolled back."""
    trajectories: list[FlatTrajectory] = field(default_factory=list)
    """Trajectories that its end must declare, or would have to declare if it ended here."""
    findings: list[Finding] = field(default_factory=list)
    events: Counter[EventKind] = field(default_factory=Counter)
    orphans: int = 0
    """Number of events written by processes that lost the episode to another."""
    tokens: TokenCounts = field(default_factory=TokenCounts)
    versions: Counter[str | None] = field(default_factory=Counter)
    """Sampled tokens by weight version, including those that were rolled back."""
    files: set[str] = field(default_factory=set)
    """Digests of the files that its events refer to: images, and bytes in its task, tool calls and messages."""
    fingerprint: dict[str, list[str]] = field(default_factory=dict)
    """The experiment it was run as, each part with its values: of its begin or last resume and its newest score, and of
    earlier calls of which it still has turns."""
    teacher_tokens: int = 0
    staleness: StalenessFacts | None = None
    """What was decided because of the age of its tokens; None: nothing."""
    protocols: Counter[str] = field(default_factory=Counter)
    """Its turns that were requested over HTTP, by protocol."""
    echoes: Counter[str] = field(default_factory=Counter)
    """Of these, turns whose request had copies of earlier replies, by how the copies differed from the replies."""
    other_models: Counter[str] = field(default_factory=Counter)
    """Answers of other models than the policy, by the name of the model."""
    audits: int = 0
    """Conversations compared with a full rendering during the run, as declared in its end event."""
    audit_differences: int = 0
    """Number of these that differed."""

    @property
    def verdict(self) -> Verdict:
        """Worst verdict of its findings."""
        return worst(finding.kind.verdict for finding in self.findings)


def prove_episode(id: str, chain: EventChain, run: Mapping[str, Any] | None = None) -> EpisodeProof:
    """Verify one episode.

    Args:
        id: Id of the episode.
        chain: Its events in order.
        run: Content of run.json; None if it is unknown.
    """
    proof = EpisodeProof(id, findings=list(chain.findings), orphans=chain.orphans)
    checker = _EventChecker(proof)
    if chain.entries:
        proof.head = chain.entries[-1].event.digest
    for entry in chain.entries:
        proof.events[entry.event.kind] += 1
        if not checker.check(entry, run or {}):
            break  # later events cannot be checked, and the reason is reported
    else:
        checker.finish(checker.end or (chain.entries[-1] if chain.entries else None))
    proof.fingerprint = checker.experiments()
    return proof


class _EventChecker:
    """Checks the events of one episode in order and fills in its proof."""

    def __init__(self, proof: EpisodeProof) -> None:
        self.proof = proof
        self.last: Event | None = None
        self.end: ChainEntry | None = None  # the end event that counts; only rewards may follow it
        self.states: list[Any] = []  # for each turn, the hash state of its branch including its sampled tokens
        self.images: list[bytes] = []  # for each turn, the digests of all images of its branch
        self.stated: dict[str, str] = {}  # the experiment, as the last event states it that says something about it
        self.stated_for: list[dict[str, str]] = []  # for each turn, the experiment of the call of the run that made it
        self.partial_calls = PartialCalls()
        self.teacher: tuple[ChainEntry, set[int]] | None = None  # the scores that count, and the turns that have them
        self.after_wrong_prompt: set[int] = set()  # turns after a wrong prompt: their prompts are not reported again

    def check(self, entry: ChainEntry, run: Mapping[str, Any]) -> bool:
        """Check the next event; return False if later events cannot be checked."""
        event, proof = entry.event, self.proof
        order = _order_error(self.last, event.kind, self.end)
        if order is not None:
            proof.findings.append(entry.finding(FindingKind.ORDER, order))
            return False
        self.last = event
        if self.end is None or event.kind not in AFTER_END:
            proof.last, self.end = event.kind, entry if event.kind is EventKind.END else None
        try:
            proof.files.update(_files_of(event))
            if stated := _fingerprint_of(event):
                self.stated = {**self.stated, **stated}
            if event.kind is EventKind.BEGIN:
                proof.findings += [entry.finding(FindingKind.TASK, why) for why in _task_errors(event, run)]
            elif event.kind is EventKind.CALL:
                return self._check_call(entry, read_call(event))
            elif event.kind is EventKind.PARTIAL_CALL:
                if (wrong := self.partial_calls.add(event)) is not None:
                    proof.findings.append(entry.finding(FindingKind.SAMPLED, f"partial call: {wrong}"))
            elif event.kind is EventKind.ROLLBACK:
                self._roll_back(event)
            elif event.kind is EventKind.RESUME:
                proof.reward = self.teacher = proof.staleness = None  # a resumed episode is scored again
            elif event.kind is EventKind.TEACHER:
                self._check_teacher(entry, read_teacher(event))
            elif event.kind is EventKind.STALENESS:
                proof.staleness = read_staleness(event)
                used = {version for turn in proof.turns for version, _ in turn.spans}
                proof.findings += [entry.finding(FindingKind.STALENESS, why) for why in proof.staleness.problems(used)]
            elif event.kind is not EventKind.END:
                _check_fields(event)
                if event.kind is EventKind.REWARD:
                    proof.reward = event.data["value"]
                elif event.kind is EventKind.MODEL:
                    proof.other_models[event.data["name"]] += 1
        except LedgerError as error:
            proof.findings.append(entry.finding(FindingKind.FORM, f"{event.kind.value} event: {error}"))
            return False
        return True

    def finish(self, entry: ChainEntry | None) -> None:
        """Check the end event, or report that there is none."""
        proof, rejected = self.proof, set[int]()
        if entry is not None and entry.event.kind is EventKind.END:
            try:
                rejected = _rejected_turns(entry.event, len(proof.turns))
            except LedgerError as error:
                proof.findings.append(entry.finding(FindingKind.FORM, f"end event: {error}"))
                return
            proof.finished = True
            metrics = entry.event.data["metrics"]
            proof.audits, proof.audit_differences = (
                value if type(value := metrics.get(name)) is int and value >= 0 else 0
                for name in ("audits", "audit_differences")
            )
        elif entry is not None:
            proof.findings.append(entry.finding(FindingKind.NO_END, "the episode has no end event"))
        for turn in proof.turns:
            if isinstance(protocol := turn.detail.get("protocol"), str):
                proof.protocols[protocol] += 1
                echoes = turn.detail.get("echoes")
                proof.echoes.update(one for one in echoes if isinstance(one, str)) if isinstance(echoes, list) else None
        trained = trainable_turns(proof.turns, rejected)
        proof.trajectories = [
            flatten_branch(proof.id, path, here) for path, here in find_branches(proof.turns, trained)
        ]
        is_over = entry is not None and proof.finished and entry.event.data.get("end_reason") not in REOPENED
        proof.tokens.count(proof.turns, trained, proof.trajectories, finished=is_over, stale=proof.staleness)
        if entry is not None and proof.finished:
            proof.findings += [
                entry.finding(FindingKind.SAMPLED, why, turn=turn) for turn, why in self.partial_calls.errors()
            ]
            proof.findings += _check_end(entry, proof.turns, proof.trajectories)
            proof.findings += self._unscored_turns()

    def experiments(self) -> dict[str, list[str]]:
        """Return the values of each part of the experiment that the episode has results of, the last one first."""
        found = {part: [value] for part, value in self.stated.items()}
        for stated in {id(stated): stated for stated in self.stated_for}.values():
            for part in _OF_TURNS:
                if part in found and part in stated and stated[part] not in found[part]:
                    found[part].append(stated[part])
        return found

    def _check_call(self, entry: ChainEntry, facts: CallFacts) -> bool:
        proof, turns = self.proof, self.proof.turns
        proof.files.update(image.digest for image in facts.images)
        wrong = _place_error(facts, turns)
        if wrong is not None:
            proof.findings.append(entry.finding(FindingKind.PLACE, wrong, turn=facts.turn))
            return False
        self.partial_calls.continue_with(entry.event, facts)
        if (why := facts.adapter_error()) is not None:
            proof.findings.append(entry.finding(FindingKind.SAMPLED, why, turn=facts.turn))
        if (invalid := facts.invalid_token()) is not None:
            token, why = invalid
            proof.findings.append(entry.finding(FindingKind.SAMPLED, why, turn=facts.turn, token=token))
        state = hashlib.blake2b(digest_size=16) if facts.parent is None else self.states[facts.parent].copy()
        state.update(facts.closing.astype("<i4", copy=False).data)
        state.update(facts.context.astype("<i4", copy=False).data)
        digest = self._prompt_digest(state, facts)
        if facts.parent in self.after_wrong_prompt:
            self.after_wrong_prompt.add(facts.turn)
        elif digest != facts.prompt_digest:
            self.after_wrong_prompt.add(facts.turn)
            first = 0 if facts.parent is None else turns[facts.parent].first
            what = "closing or context" if facts.parent is None else "the parent's sampled tokens, closing or context"
            why = (
                f"the prompt that was sent differs from the recorded branch: a token in positions {first} to "
                f"{facts.first - 1} ({what}) was changed"
            )
            proof.findings.append(entry.finding(FindingKind.PROMPT, why, turn=facts.turn, token=first))
        counts = {"prompt_tokens": facts.prompt_tokens, "detail.prompt_tokens": facts.detail.get("prompt_tokens")}
        for name, count in counts.items():
            if count is not None and count != facts.first:
                why = f"the recorded prompt has {facts.first} tokens, but {name} is {count!r:.50}"
                proof.findings.append(entry.finding(FindingKind.PROMPT, why, turn=facts.turn))
        state.update(facts.sampled.astype("<i4", copy=False).data)
        self.states.append(state)
        self.stated_for.append(self.stated)
        turns.append(facts)
        for version, count in facts.spans:
            proof.versions[version] += count
        return True

    def _check_teacher(self, entry: ChainEntry, facts: TeacherFacts) -> None:
        problem = facts.problem(self.proof.turns)
        if problem is not None:
            self.proof.findings.append(entry.finding(FindingKind.TEACHER, problem[1], turn=problem[0]))
        else:
            self.proof.teacher_tokens = len(facts.logprobs)
            self.teacher = entry, {turn for turn, _ in facts.turns}

    def _unscored_turns(self) -> Iterator[Finding]:
        """Yield a finding for each turn of a trajectory that the teacher did not score although it scored others."""
        if self.teacher is None:
            return
        entry, scored = self.teacher
        for id in sorted({id for flat in self.proof.trajectories for id in flat.turn_ids} - scored):
            if len(self.proof.turns[id].sampled):
                yield entry.finding(FindingKind.TEACHER, "the teacher did not score this turn of a trajectory", turn=id)

    def _prompt_digest(self, state: Any, facts: CallFacts) -> str:
        """Return the digest of a prompt: its ids, then the digests of all images of its branch."""
        shown = (self.images[facts.parent] if facts.parent is not None else b"") + b"".join(
            bytes.fromhex(image.digest) for image in facts.images
        )
        self.images.append(shown)
        if shown:
            state = state.copy()
            state.update(shown)
        return str(state.hexdigest())

    def _roll_back(self, event: Event) -> None:
        left, turns = event.data.get("turns"), self.proof.turns
        if type(left) is not int or not 0 <= left <= len(turns):
            raise LedgerError(f"turns must be an int from 0 to {len(turns)}, got {left!r:.50}")
        if not isinstance(event.data.get("cause"), str):
            raise LedgerError(f"cause must be a string, got {event.data.get('cause')!r:.50}")
        self.proof.tokens.rolled_back += sum(len(turn.sampled) for turn in turns[left:])
        del turns[left:], self.states[left:], self.images[left:], self.stated_for[left:]
        self.partial_calls.clear()
        self.after_wrong_prompt = {turn for turn in self.after_wrong_prompt if turn < left}


def _files_of(event: Event) -> Iterator[str]:
    """Yield the digests of the files that an event refers to; images of calls are read with the call."""
    data = event.data
    if event.kind is EventKind.BEGIN:
        task = data.get("task")
        yield from _references(task.get("prompt") if isinstance(task, dict) else None)
    elif event.kind is EventKind.TOOL:
        yield from _references([data.get("arguments"), data.get("result")])
    elif event.kind in (EventKind.MODEL, EventKind.MODEL_ERROR):
        yield from _references([data.get("asked"), data.get("answer")])
    elif event.kind is EventKind.END:
        stored = data.get("messages")
        for text in (data.get("conversations"), stored.get("rest") if isinstance(stored, dict) else None):
            if isinstance(text, str) and "__file__" in text:
                for one in _list_in(text):
                    whole = one.get("messages") if isinstance(one, dict) else None
                    for message in whole if isinstance(whole, list) else [one]:
                        yield from _block_references(message.get("content") if isinstance(message, dict) else None)


def _list_in(text: str) -> list[Any]:
    """Return a list that an event has as JSON text; empty if it is something else."""
    try:
        check_values(text.encode(errors="surrogatepass"))
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _block_references(content: Any) -> Iterator[str]:
    """Yield the digests of the files that content blocks refer to as their source.

    Other data in messages comes from models and tools, and is no reference whatever it looks like.
    """
    for block in content if isinstance(content, list) else ():
        for kind, value in block.items() if isinstance(block, dict) else ():
            if kind == "toolResult" and isinstance(value, dict):
                yield from _block_references(value.get("content"))
            elif kind != "toolUse" and isinstance(value, dict) and isinstance(source := value.get("source"), dict):
                yield from _references(source.get("bytes"))


def _references(value: Any) -> Iterator[str]:
    """Yield the digests of the files that plain data refers to."""
    if isinstance(value, dict):
        if len(value) == 1 and isinstance(value.get("__file__"), str):
            yield value["__file__"]
        else:
            for item in value.values():
                yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


def _order_error(last: Event | None, kind: EventKind, end: ChainEntry | None) -> str | None:
    """Return why an event of this kind cannot follow, or None if it can. `end` is the end event before it, if any."""
    if (last is None) != (kind is EventKind.BEGIN):
        return "the first event is not a begin event" if last is None else "the episode begins a second time"
    if end is not None:
        end_reason = end.event.data.get("end_reason")
        resumes = end_reason in REOPENED and kind in (EventKind.RESUME, EventKind.STALENESS)
        if resumes or (end_reason not in REOPENED and kind in AFTER_END):
            return None  # the episode was resumed, scored again, or found to be too old
        return f"a {kind.value} event after the end of the episode ({end_reason!r:.50})"
    if kind in (EventKind.TEACHER, EventKind.STALENESS):
        return f"a {kind.value} event before the end of the episode"
    if last is not None and last.kind is EventKind.REWARD and kind not in (EventKind.END, EventKind.RESUME):
        return f"a {kind.value} event after the reward; only the end event may follow it"
    return None


def _place_error(facts: CallFacts, turns: Sequence[CallFacts]) -> str | None:
    """Return why a turn cannot follow the turns so far, or None if it can."""
    if facts.turn != len(turns):
        return f"turn {len(turns)} is next, got turn {facts.turn}"
    for id in (facts.parent, *facts.referenced_turns):
        if id is not None and id >= len(turns):
            return f"the turn refers to turn {id}, which is not recorded before it"
    start = 0 if facts.parent is None else turns[facts.parent].end
    if facts.start != start:
        return f"the turn starts at position {facts.start}, but its parent ends at {start}"
    return facts.join_error()


def _task_errors(event: Event, run: Mapping[str, Any]) -> list[str]:
    """Return how a begin event contradicts the episode's id or run.json."""
    task, sample = event.data.get("task"), event.data.get("sample")
    if not isinstance(task, dict) or not isinstance(task.get("id"), str) or type(sample) is not int:
        raise LedgerError(f"task must have an id and sample must be an int, got {task!r:.100} and {sample!r:.50}")
    found = []
    if f"{task['id']}/{sample}" != event.episode:
        found.append(f"the event records sample {sample} of task {task['id']}")
    if "run" in run and event.data.get("run") != run["run"]:
        found.append(f"the episode belongs to run {event.data.get('run')}, not to {run['run']}")
    ours, theirs = event.data.get("fingerprint"), run.get("fingerprint")
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found += [
            f"{name} of the episode is {ours[name]}, that of the run is {theirs[name]}"
            for name in ours
            if name in theirs and ours[name] != theirs[name] and name not in _MAY_DIFFER
        ]
    return found


def _fingerprint_of(event: Event) -> dict[str, str]:
    """Return what an event says about the experiment."""
    stated = {"reward": event.data.get("by")} if event.kind is EventKind.REWARD else event.data.get("fingerprint")
    if event.kind not in (EventKind.BEGIN, EventKind.RESUME, EventKind.REWARD) or not isinstance(stated, dict):
        return {}
    return {name: _cut(value) for name in _PARTS if isinstance(value := stated.get(name), str)}


def _cut(text: str) -> str:
    """Return a text, with a digest in place of its end if it is long: the certificate keeps all that differ."""
    if len(text) <= _MAX_TEXT:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{text[:_MAX_TEXT]}... ({len(text)} characters, {digest})"


_MAY_DIFFER = ("agent", "reward", "settings", "model", "packages")
"""Parts of the experiment that a later call may change if that is allowed; the certificate states the values."""
_PARTS = ("template", "parser", *_MAY_DIFFER)
_OF_TURNS = ("agent", "settings", "model", "packages")
"""Parts that turns and tool results depend on. A reward is for the whole episode, and a resumed one is scored again."""
_MAX_TEXT = 4096  # characters of a part

_FIELDS: dict[EventKind, dict[str, tuple[type, ...]]] = {
    EventKind.CALL_ERROR: {"error": (str,), "message": (str,), "prompt_digest": (str,), "prompt_tokens": (int,)},
    EventKind.TOOL: {"id": (str,), "name": (str,), "arguments_digest": (str,), "outcome": (str,), "calls": (int,)},
    EventKind.TOOL_LIST: {"name": (str,), "tools": (list,), "within": (list,)},
    EventKind.MODEL: {"name": (str,), "request_digest": (str,), "within": (list,), "answer": (list,)},
    EventKind.MODEL_ERROR: {"name": (str,), "request_digest": (str,), "error": (str,), "message": (str,)},
    EventKind.REWARD: {"value": (int, float, type(None)), "parts": (dict,), "error": (str, type(None))},
}


def _check_fields(event: Event) -> None:
    for name, types in _FIELDS.get(event.kind, {}).items():
        if name not in event.data:
            raise LedgerError(f"{name} is missing")
        if not isinstance(event.data[name], types):
            expected = " or ".join("null" if kind is type(None) else kind.__name__ for kind in types)
            raise LedgerError(f"{name} must be of type {expected}, got {event.data[name]!r:.50}")


def _rejected_turns(event: Event, count: int) -> set[int]:
    """Return the ids of the turns that an end event declares as rejected.

    Args:
        event: The end event.
        count: Number of turns of the episode.

    Raises:
        LedgerError: The event does not have the format of an end event.
    """
    rejected = event.data.get("rejected")
    if not isinstance(rejected, list) or not all(type(id) is int and 0 <= id < count for id in rejected):
        raise LedgerError(f"rejected must be a list of turn ids below {count}, got {rejected!r:.100}")
    if len(set(rejected)) != len(rejected):
        raise LedgerError(f"rejected must name each turn once, got {rejected!r:.100}")
    if not isinstance(event.data.get("end_reason"), str) or not isinstance(event.data.get("metrics"), dict):
        raise LedgerError("end_reason or metrics is missing")
    declared = event.data.get("trajectories")
    if not isinstance(declared, list) or not all(isinstance(one, dict) for one in declared):
        raise LedgerError(f"trajectories must be a list of objects, got {declared!r:.100}")
    return set(rejected)


def _check_end(
    entry: ChainEntry, turns: Sequence[CallFacts], trajectories: Sequence[FlatTrajectory]
) -> Iterator[Finding]:
    """Yield a finding for each difference between an end event and what follows from the turns."""
    event = entry.event
    declared = event.data["trajectories"]
    branches, stated = [flat.branch for flat in trajectories], [one.get("branch") for one in declared]
    if branches != stated:
        message = f"the turns give trajectories that end with turns {branches}, but {stated!r:.200} are declared"
        yield entry.finding(FindingKind.TRAJECTORY, message)
    else:
        for flat, one in zip(trajectories, declared, strict=True):
            for message in _trajectory_errors(flat, one):
                yield entry.finding(FindingKind.TRAJECTORY, message, turn=flat.branch)
    main = event.data.get("main", -1)
    if type(main) is not int or main not in (-1, *branches):
        message = f"main must be the last turn of one of the trajectories ({branches}) or -1, got {main!r:.50}"
        yield entry.finding(FindingKind.TRAJECTORY, message)
    for turn, times in _trained_twice(trajectories):
        message = f"the sampled tokens of this turn are trained {times} times"
        yield entry.finding(FindingKind.TRAJECTORY, message, turn=turn)
    for name, value in _recomputed_metrics(turns, trajectories).items():
        if name in event.data["metrics"] and event.data["metrics"][name] != value:
            message = f"metric {name} is {event.data['metrics'][name]!r:.100}, but the turns give {value!r:.100}"
            yield entry.finding(FindingKind.METRICS, message)


def _trajectory_errors(flat: FlatTrajectory, declared: Mapping[str, Any]) -> Iterator[str]:
    for name, value in (
        ("tokens", len(flat.token_ids)),
        ("trained_tokens", int(flat.loss_mask.sum(dtype=np.int64))),
        ("trained_turns", _trained_turns(flat)),
    ):
        if declared.get(name) != value:
            yield f"{name} of the trajectory is {value}, but {declared.get(name)!r:.100} is declared"
            return
    if bool(np.any((flat.loss_mask == 1) & (flat.origins != SAMPLED))):
        yield "loss mask 1 on a token that was not sampled"
    digest = flat.digest()
    if declared.get("digest") != digest:
        yield (
            f"the trajectory recomputed from turns {list(flat.turn_ids)} has digest {digest}, but "
            f"{declared.get('digest')!r:.50} is declared: a token, logprob or weight version of these turns was changed"
        )


def _trained_twice(trajectories: Sequence[FlatTrajectory]) -> Iterator[tuple[int, int]]:
    """Return each turn that is trained in several trajectories, and in how many."""
    times = Counter(id for flat in trajectories for id in _trained_turns(flat))
    return ((id, count) for id, count in times.items() if count > 1)


def _trained_turns(flat: FlatTrajectory) -> list[int]:
    return [flat.turn_ids[number] for number in np.unique(flat.turns[flat.loss_mask == 1])]


def _recomputed_metrics(turns: Sequence[CallFacts], trajectories: Sequence[FlatTrajectory]) -> dict[str, Any]:
    """Return the metrics that can be recomputed from the turns."""
    cached = (turn.detail.get("cached_tokens") for turn in turns)
    failed = (turn.detail.get("failed_calls") for turn in turns)
    return {
        "turns": len(turns),
        "branches": len(trajectories),
        "tokens": sum(turn.end - turn.start for turn in turns),
        "sampled_tokens": sum(len(turn.sampled) for turn in turns),
        "prompt_tokens": sum(turn.first for turn in turns),
        "cached_tokens": sum(count for count in cached if type(count) is int),
        "failed_calls": sum(len(calls) for calls in failed if isinstance(calls, list)),
        "versions": list(dict.fromkeys(version for turn in turns for version, _ in turn.spans)),
    }
