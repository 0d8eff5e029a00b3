"""Episodes as a run writes them, made without an engine: `Recorder` and a few made with it.

    events: list[bytes] = []
    recorder = Recorder(events.append, task="add", sample=3)
    turn = recorder.call(None, context=[1, 2, 3], sampled=[4, 5])
    recorder.tool("call-1", "calculator", {"text": "7"})
    recorder.call(turn, context=[6], sampled=[7])
    recorder.reward(1.0)
    recorder.end()

Trees, trajectories and digests are those of a real `TokenTree`.
"""

from __future__ import annotations

import hashlib
import random
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from strands_sglang.ledger.encoding import HashChain, ids_digest, trajectory_summary
from strands_sglang.ledger.event import Event, EventKind
from strands_sglang.ledger.run_dir import write_run
from strands_sglang.ledger.seal import seal
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.tokens import Join, KeptSets, TokenTree, Turn, TurnPurpose, VersionSpan

RUN = "5f2a" * 8
"""Id of the run that all these episodes say they are of."""
FINGERPRINT = {"tokenizer": "1a" * 16, "template": "2b" * 16, "parser": "HermesToolParser"}
"""What they say of the model."""
END_OF_TURN = 151645

Sink = Callable[[bytes], None]


class Recorder:
    """One episode that is being recorded. `begin` is written at once."""

    def __init__(
        self,
        sink: Sink,
        *,
        task: str = "add",
        sample: int = 0,
        run: str = RUN,
        fingerprint: Mapping[str, str] = FINGERPRINT,
        prompt: str = "What is 3 + 4?",
        answer: Any = 7,
    ) -> None:
        self.id = f"{task}/{sample}"
        self.sink = sink
        self.tree = TokenTree(self.id)
        self.chain = HashChain(sink, self.id)
        self.events: list[Event] = []
        """Those of the winning chain."""
        self._turns_after: list[dict[str, Any]] = []  # the tree behind each event
        content = {"prompt": prompt, "answer": answer, "data": {}, "id": task}
        self.append(EventKind.BEGIN, {"task": content, "sample": sample, "run": run, "fingerprint": dict(fingerprint)})

    def append(self, kind: EventKind, data: dict[str, Any], arrays: Mapping[str, array[Any]] | None = None) -> Event:
        event = self.chain.append(kind, data, arrays)
        self.events.append(event)
        self._turns_after.append(self.tree.to_dict())
        return event

    def call(
        self,
        parent: Turn | None,
        *,
        context: Iterable[int],
        sampled: Sequence[int],
        closing: Iterable[int] = (),
        logprobs: Sequence[float] | None = None,
        versions: Iterable[VersionSpan | tuple[str | None, int, int]] = (),
        purpose: TurnPurpose = TurnPurpose.EPISODE,
        join: Join | None = None,
        forked_from: int | None = None,
        caller: tuple[int, str | None] | None = None,
        finish_reason: str = "stop",
        finish_detail: Any = END_OF_TURN,
        within: Sequence[str] = (),
        detail: Mapping[str, Any] | None = None,
        experts: Sequence[bytes] | None = None,
        requests: int = 1,
        kept: KeptSets | None = None,
    ) -> Turn:
        """Sample a turn. By default the logprob of each token is its own of a float32."""
        if join is None:
            join = Join.PROVED if parent is not None else Join.ROOT if forked_from is None else Join.FORKED
        prepared = self.tree.prepare(
            parent, context=context, closing=closing, purpose=purpose, join=join, forked_from=forked_from, caller=caller
        )
        if logprobs is None:
            logprobs = (-np.sqrt(np.arange(1, len(sampled) + 1), dtype=np.float32) / 7).astype(np.float64).tolist()
        sent = len(prepared)
        details: dict[str, Any] = {
            "rid": hashlib.blake2b(f"{self.id}{len(self.tree)}".encode(), digest_size=16).hexdigest()
        }
        details |= {"prompt_tokens": sent, "cached_tokens": 0 if parent is None else parent.end, "latency_ms": 12.5}
        turn = self.tree.commit(
            prepared,
            sampled,
            logprobs,
            [VersionSpan(*span) for span in versions],
            finish_reason=finish_reason,
            prompt_tokens=sent,
            detail=details | dict(detail or {}),
            kept=kept,
        )
        data: dict[str, Any] = {
            "turn": turn.id,
            "parent": turn.parent,
            "start": turn.start,
            "finish_reason": turn.finish_reason,
            "purpose": turn.purpose.value,
            "join": turn.join.value,
            "forked_from": turn.forked_from,
            "caller": None if turn.caller is None else list(turn.caller),
            "versions": [list(span) for span in turn.versions],
            "detail": turn.detail,
            "prompt_digest": ids_digest(prepared.ids),
            "prompt_tokens": sent,
            "within": list(within),
            "finish_detail": finish_detail,
            "requests": requests,
        }
        arrays: dict[str, array[Any]] = {
            "closing": turn.closing,
            "context": turn.context,
            "sampled": turn.sampled,
            "logprobs": turn.logprobs,
        }
        if kept is not None:
            arrays |= {"kept": kept.token_ids, "kept_offsets": kept.offsets, "kept_logprobs": kept.logprobs}
        if experts is not None:  # rows of 2 layers x 2 experts
            data["routed_experts"] = {"rows": [len(part) // 16 for part in experts], "start": 0}
            arrays["routed_experts"] = array("B", b"".join(experts))
        self.append(EventKind.CALL, data, arrays)
        return turn

    def call_error(self, error: str = "ContextOverflowError", *, sent: Sequence[int] = (1, 2), **fields: Any) -> Event:
        data = {"error": error, "message": "the prompt is too long", "fields": fields}
        return self.append(
            EventKind.CALL_ERROR, data | {"prompt_digest": ids_digest(sent), "prompt_tokens": len(sent), "within": []}
        )

    def tool(
        self,
        id: str,
        name: str,
        arguments: Any = None,
        *,
        content: Any = "7",
        outcome: str = "result",
        calls: int = 0,
        within: Sequence[str] = (),
        seconds: float = 0.01,
    ) -> Event:
        asked = orjson.dumps({} if arguments is None else arguments, option=orjson.OPT_SORT_KEYS)
        result = {"status": "success" if outcome == "result" else "error", "content": [{"text": content}]}
        data: dict[str, Any] = {
            "id": id,
            "name": name,
            "arguments_digest": hashlib.blake2b(asked, digest_size=16).hexdigest(),
            "arguments": arguments,
            "result": result,
            "raised": None,
            "raised_at": None,
        }
        data |= {"outcome": outcome, "seconds": seconds, "calls": calls, "within": list(within)}
        return self.append(EventKind.TOOL, data)

    def model(self, name: str, said: str | None, *, asked: str = "What now?", within: Sequence[str] = ()) -> Event:
        """Record what another model said; None: it failed."""
        data: dict[str, Any] = {
            "name": name,
            "request_digest": hashlib.blake2b(f"{name} {asked}".encode(), digest_size=16).hexdigest(),
            "asked": [{"text": asked}],
            "within": list(within),
            "attempts": 1 if said is not None else 3,
            "seconds": 0.5,
        }
        if said is None:
            return self.append(EventKind.MODEL_ERROR, data | {"error": "OtherModelError", "message": "it is gone"})
        answer = [{"contentBlockDelta": {"delta": {"text": said}}}, {"messageStop": {"stopReason": "end_turn"}}]
        return self.append(EventKind.MODEL, data | {"answer": answer})

    def reject(self, turn: Turn) -> None:
        self.tree.reject(turn)

    def resume(
        self, sink: Sink | None = None, *, kept: int | None = None, worker: str = "1", agent: str | None = None
    ) -> HashChain:
        """Take the episode over in a new epoch.

        Args:
            sink: Where the new process writes; None: the same.
            kept: Number of the last event kept; None: all.
            worker: Name of the new process.
            agent: The agent of the new process; None: it is not stated.

        Returns:
            The chain of the old process, with which orphans are written.
        """
        old = self.chain
        kept = len(self.events) - 1 if kept is None else kept
        del self.events[kept + 1 :], self._turns_after[kept + 1 :]
        self.tree = TokenTree.from_dict(self._turns_after[kept])
        head = self.events[kept].digest
        self.sink = sink or self.sink
        self.chain = HashChain(self.sink, self.id, epoch=old.epoch + 1, number=kept + 1, head=head)
        data: dict[str, Any] = {"from_event": kept, "head": head.hex(), "pid": 4242, "worker": worker, "mark": "00"}
        self.append(EventKind.RESUME, data if agent is None else {**data, "fingerprint": {"agent": agent}})
        return old

    def keep(self) -> None:
        """Take back that turns were thrown away, as an agent that runs once more may."""
        record = self.tree.to_dict()
        self.tree = TokenTree.from_dict({**record, "turns": [{**turn, "status": "kept"} for turn in record["turns"]]})

    def rollback(
        self,
        turns: int,
        cause: str = "diverged",
        *,
        event: int | None = None,
        reason: str = "the agent went another way",
    ) -> Event:
        """Take turns from this id on out of the episode."""
        record = self.tree.to_dict()
        self.tree = TokenTree.from_dict({**record, "turns": record["turns"][:turns]})
        return self.append(EventKind.ROLLBACK, {"turns": turns, "cause": cause, "event": event, "reason": reason})

    def reward(self, value: float | None = 1.0, *, error: str | None = None) -> Event:
        parts = {} if value is None else {"exact": value}
        return self.append(EventKind.REWARD, {"value": value, "parts": parts, "steps": [], "error": error})

    def end(
        self,
        end_reason: str = "answered",
        *,
        text: str = "It is 7.",
        failure: Any = None,
        time: float = 1_800_000_000.0,
        metrics: Mapping[str, Any] | None = None,
    ) -> Event:
        turns = self.tree.turns
        measured = {
            "turns": len(turns),
            "branches": len(self.tree.branches()),
            "tokens": sum(len(turn) for turn in turns),
            "sampled_tokens": sum(len(turn.sampled) for turn in turns),
            "versions": list(dict.fromkeys(span.version for turn in turns for span in turn.versions)),
        }
        self.tree.main = -1 if (main := self.tree.main_leaf()) is None else main.id
        data = {
            "end_reason": end_reason,
            "time": time,
            "failure": failure,
            "metrics": {**measured, **(metrics or {})},
            "text": text,
            "conversations": "[]",
            "messages": {"branch": None, "rest": "[]"},
            "rejected": [turn.id for turn in turns if turn.rejected],
            "trajectories": [trajectory_summary(trajectory) for trajectory in self.tree.trajectories()],
            "main": self.tree.main,
        }
        return self.append(EventKind.END, data)


def made_by(make: Callable[..., Recorder], *arguments: Any, **options: Any) -> tuple[list[bytes], Recorder]:
    """Return the events of an episode, and the recorder that wrote them."""
    events: list[bytes] = []
    return events, make(events.append, *arguments, **options)


@contextmanager
def written_run(directory: Path, *, sealed: bool = True, **about: Any) -> Iterator[LedgerWriter]:
    """Write run.json, yield a writer of events, and seal the run."""
    write_run(directory, {"run": RUN, **about})
    with LedgerWriter(directory) as writer:
        yield writer
    if sealed:
        seal(directory)


def plain_episode(sink: Sink, *, task: str = "add", sample: int = 0, turns: int = 3, end: bool = True) -> Recorder:
    """Record an episode of some turns, with a tool call between each two."""
    recorder = Recorder(sink, task=task, sample=sample)
    turn: Turn | None = None
    for number in range(turns):
        context = [151644, *range(100 * number, 100 * number + 8)] if turn else list(range(1000, 1030))
        sampled = [9 + sample, 70000 + number, 140000, END_OF_TURN]
        turn = recorder.call(turn, context=context, sampled=sampled, versions=[("step-1", 0, 4)])
        if number < turns - 1:
            recorder.tool(f"call-{number}", "calculator", {"expression": f"{number}+4"}, content=f"{number + 4}")
    recorder.reward(1.0 if sample % 2 == 0 else 0.0)
    if end:
        recorder.end()
    return recorder


def rich_episode(sink: Sink, *, task: str = "rich", sample: int = 0) -> Recorder:
    """Record an episode with one of everything: see the comments."""
    recorder = Recorder(sink, task=task, sample=sample)
    first = recorder.call(None, context=range(50, 90), sampled=[1, 2, 3], versions=[("v1", 0, 3)])
    recorder.tool("call-a", "search", {"q": "é"}, content="naïve – ✓")
    # weights changed while the turn was sampled
    second = recorder.call(first, context=[7, 8], sampled=[4, 5, 6], versions=[("v1", 0, 1), ("v2", 1, 3)], requests=2)
    # thrown away and sampled again
    recorder.reject(
        recorder.call(second, context=[9], sampled=[10, 11], versions=[("v2", 0, 2)], finish_reason="abort")
    )
    # cut by the budget, so that the next turn closes it
    long = recorder.call(
        second, context=[9], sampled=[12, 13], versions=[("v2", 0, 2)], finish_reason="length", finish_detail=2
    )
    recorder.call_error("EngineUnavailableError", sent=[1, 2, 3], status=503)
    # a sub-agent, within a tool
    sub = recorder.call(
        None, context=[200, 201], sampled=[202], caller=(long.id, "call-b"), within=["call-b"], versions=[(None, 0, 1)]
    )
    recorder.tool("call-sub", "calculator", {"x": 1}, within=["call-b"])
    recorder.call(sub, context=[203], sampled=[204, 205], within=["call-b"])
    recorder.tool("call-b", "ask_another", {"question": "?"}, calls=2)
    recorder.tool("call-c", "slow", {"x": 2}, outcome="timeout", content="timed out")
    closed = recorder.call(
        long,
        closing=[END_OF_TURN, 198],
        context=[14],
        sampled=[15, 16],
        join=Join.KEPT,
        logprobs=[-0.0, -1e-300],
        experts=[bytes(range(64)), bytes(range(64, 128))],
    )
    # a summary of the framework's, then history is rewritten: a fork from the first turn, and one from nothing
    recorder.call(closed, context=[300], sampled=[301, 302], purpose=TurnPurpose.SIDE)
    recorder.call(first, context=[17, 18], sampled=[19, 20, 21], join=Join.FORKED, forked_from=closed.id)
    fresh = recorder.call(None, context=[50, 400, 401], sampled=[402], forked_from=closed.id)
    # decoded under a grammar: in the branch, not trained
    recorder.call(fresh, context=[403], sampled=[404, 405], purpose=TurnPurpose.CONSTRAINED)
    recorder.tree.main = first.id
    recorder.call(fresh, context=[406], sampled=[], finish_reason="abort", finish_detail="aborted")
    recorder.reward(0.25)
    recorder.end("stopped")
    return recorder


def spoken_episode(sink: Sink, *, task: str = "spoken", sample: int = 0) -> Recorder:
    """A simulated user fails once and speaks twice; a judge is asked before the reward, and again after the end."""
    recorder = Recorder(sink, task=task, sample=sample)
    turn = recorder.call(None, context=[1, 2, 3], sampled=[4, 5])
    recorder.model("user", None)
    recorder.model("user", "I need a flat.")
    turn = recorder.call(turn, context=[6], sampled=[7])
    recorder.model("user", "Thanks.")
    recorder.call(turn, context=[8], sampled=[9])
    recorder.model("judge", "0.5")
    recorder.reward(0.5)
    recorder.end()
    recorder.model("judge", None)
    recorder.model("judge", "0.75")
    recorder.reward(0.75)
    return recorder


def resumed_episode(sink: Sink, later: Sink | None = None, *, task: str = "resumed", sample: int = 0) -> Recorder:
    """Record an episode that was taken over, went another way, and whose first process wrote on: 3 orphans."""
    later = later or sink
    recorder = Recorder(sink, task=task, sample=sample)
    first = recorder.call(None, context=range(20), sampled=[30, 31], versions=[("v1", 0, 2)])
    recorder.tool("call-a", "calculator", {"x": 1})
    second = recorder.call(first, context=[32], sampled=[33, 34], versions=[("v1", 0, 2)])
    third = recorder.call(second, context=[35], sampled=[36], versions=[("v1", 0, 1)])
    recorder.tool("call-b", "calculator", {"x": 2})  # not kept: an orphan
    old = recorder.resume(later, kept=4)
    assert len(recorder.tree) == 3 and third.id == 2
    recorder.rollback(2)
    old.append(
        EventKind.CALL_ERROR,
        {"error": "E", "message": "", "fields": {}, "prompt_digest": "", "prompt_tokens": 0, "within": []},
    )
    again = recorder.call(recorder.tree[1], context=[37], sampled=[38, 39], versions=[("v2", 0, 2)])
    old.append(EventKind.END, {"end_reason": "timeout"})
    recorder.call(again, context=[40], sampled=[41], versions=[("v2", 0, 1)])
    recorder.reward(1.0)
    recorder.end()
    return recorder


def adapted_episode(sink: Sink, *, task: str = "adapted", sample: int = 0) -> Recorder:
    """Record an episode of a LoRA adapter, whose group was dropped because it became too old."""
    recorder = Recorder(sink, task=task, sample=sample)
    version = "default+lora:policy-v7"
    recorder.call(
        None, context=[1, 2], sampled=[3, 4], versions=[(version, 0, 2)], detail={"adapter": "policy-v7", "time": 1.0}
    )
    recorder.reward(1.0)
    recorder.end()
    decided = {"limit": 1, "action": "drop", "order": "given", "current": "default+lora:policy-v10", "age": 3}
    recorder.append(EventKind.STALENESS, {**decided, "ages": [[version, 3]], "decision": "dropped", "time": 2.0})
    return recorder


def corrected_episode(sink: Sink, *, task: str = "corrected", sample: int = 0, kept: int = 2) -> Recorder:
    """Record an episode that another agent continued, which repeated `kept` of three turns."""
    recorder = Recorder(sink, task=task, sample=sample, fingerprint={**FINGERPRINT, "agent": "agents:first"})
    turn: Turn | None = None
    for number in range(3):
        turn = recorder.call(turn, context=range(20 * number, 20 * number + 9), sampled=[30, 31])
    recorder.resume(agent="agents:second")
    if kept < 3:
        recorder.rollback(kept)
    recorder.call(recorder.tree[kept - 1] if kept else None, context=[37], sampled=[38, 39])
    recorder.reward(1.0)
    recorder.end()
    return recorder


def reopened_episode(sink: Sink, later: Sink | None = None, *, task: str = "reopened", sample: int = 0) -> Recorder:
    """Record an episode that ended twice, was taken up again each time, and came to its own end: 2 scores count not."""
    later = later or sink
    recorder = Recorder(sink, task=task, sample=sample)
    first = recorder.call(None, context=range(20), sampled=[30, 31], versions=[("v1", 0, 2)])
    recorder.tool("call-a", "calculator", {"x": 1})
    second = recorder.call(first, context=[32], sampled=[33, 34], versions=[("v1", 0, 2)])
    recorder.reject(second)
    recorder.call_error("EngineUnavailableError", sent=[1, 2, 3], status=503)
    recorder.reward(0.25)
    recorder.end("engine_error", failure={"kind": "EngineUnavailableError", "message": "gone", "where": ""})
    recorder.resume(later)
    recorder.keep()
    recorder.rollback(1)
    recorder.call(recorder.tree[0], context=[35], sampled=[36, 37], versions=[("v2", 0, 2)])
    recorder.reward(0.5)
    recorder.end("not_needed")
    recorder.resume(later)
    recorder.call(recorder.tree[1], context=[40], sampled=[41], versions=[("v2", 0, 1)])
    recorder.reward(1.0)
    recorder.end()
    return recorder


def random_episode(
    sink: Sink,
    rng: random.Random,
    *,
    task: str = "random",
    sample: int = 0,
    steps: int = 12,
    vocabulary: int = 151_000,
    end: bool = True,
) -> Recorder:
    """Record an episode of random steps: calls anywhere in the tree, tools, errors, rejections, rollbacks, resumes."""
    recorder = Recorder(sink, task=task, sample=sample)

    def ids(most: int) -> list[int]:
        return [rng.randrange(vocabulary) for _ in range(rng.randrange(most + 1))]

    for step in range(steps):
        turns = recorder.tree.turns
        kind = rng.choices(["call", "tool", "call_error", "reject", "rollback", "resume"], [12, 5, 1, 2, 1, 1])[0]
        if kind == "call":
            parent = rng.choice([None, *turns, *turns[-1:] * 4])
            sampled = ids(30)
            count = len(sampled)
            middle = rng.randrange(count + 1)
            spans = [s for s in (("v1", 0, middle), ("v2", middle, count)) if s[2] > s[1]] if rng.random() < 0.7 else []
            recorder.call(
                parent,
                context=ids(40),
                sampled=sampled,
                closing=ids(2) if parent is not None else (),
                logprobs=np.array([-rng.expovariate(2.0) for _ in sampled], np.float32).astype(np.float64).tolist(),
                versions=spans,
                purpose=rng.choices(list(TurnPurpose), [8, 1, 1])[0],
                forked_from=rng.choice([None, None, *(turn.id for turn in turns)]) if parent is None else None,
                caller=(rng.choice(turns).id, f"call-{step}") if turns and rng.random() < 0.1 else None,
            )
        elif kind == "tool":
            recorder.tool(f"call-{step}", "tool", {"step": step}, content="x" * rng.randrange(50))
        elif kind == "call_error":
            recorder.call_error(sent=ids(10))
        elif kind == "reject" and turns:
            recorder.reject(rng.choice(turns))
        elif kind == "rollback" and turns:
            recorder.rollback(rng.randrange(len(turns) + 1))
        elif kind == "resume":
            last = len(recorder.events) - 1
            recorder.resume(kept=rng.randrange(max(0, last - 3), last + 1))
    recorder.reward(rng.random())
    if end:
        recorder.end()
    return recorder
