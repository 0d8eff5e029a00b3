"""Trees made up at random as recorded episodes, with conversations that fit them: text, reasoning, calls, images."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from strands_sglang.engine import FinishReason, Generation
from strands_sglang.ledger.encoding import HashChain, trajectory_summary
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.run_dir import write_run
from strands_sglang.ledger.seal import seal
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.runs.recording.event_data import PendingAnswer, call_event
from strands_sglang.tokens import TokenTree, Turn
from support.ledger.episodes import FINGERPRINT, RUN
from support.trainers.grown_episodes import FILES, grown

TOOL = {"name": "look", "description": "Look.", "inputSchema": {"json": {"type": "object", "properties": {}}}}


def record_trees(
    directory: Path, count: int, seed: int = 0, *, end_reason: str = "answered", staleness: Any = None
) -> dict[str, TokenTree]:
    """Write a run of random episodes; return their trees. `staleness`: what is decided about each; None: nothing."""
    rng, trees = random.Random(seed), dict[str, TokenTree]()
    write_run(directory, {"run": RUN})
    with LedgerWriter(directory) as writer:
        for file in FILES.values():
            writer.put_file(file)
        for number in range(count):
            tree = grown(rng, images=number % 2 > 0)
            id = f"t{number // 2}/{number % 2}"
            trees[id] = tree
            chain = HashChain(writer.write, id)
            _write(chain, id, tree, rng, end_reason)
            if staleness is not None:
                chain.append(EventKind.STALENESS, staleness)
    seal(directory)
    return trees


def _write(chain: HashChain, id: str, tree: TokenTree, rng: random.Random, end_reason: str) -> None:
    task, _, sample = id.partition("/")
    content: dict[str, Any] = {"prompt": "question", "answer": None, "data": {}, "id": task}
    chain.append(
        EventKind.BEGIN, {"task": content, "sample": int(sample), "run": RUN, "fingerprint": dict(FINGERPRINT)}
    )
    replies: dict[int, list[dict[str, Any]]] = {}
    callers = {turn.caller[0] for turn in tree.turns if turn.caller is not None}
    for turn in tree.turns:
        reason = rng.choice(["stop", "length"])
        turn.finish_reason = reason
        turn.detail["time"], turn.detail["latency_ms"] = 1_800_000_000.0 + turn.id, 3
        generation = Generation(
            turn.sampled, turn.logprobs, FinishReason(reason), None, turn.versions, turn.sampled_start
        )
        chain.append(EventKind.CALL, *call_event(turn, PendingAnswer(generation, "", turn.sampled_start, None, ())))
        replies[turn.id] = _reply(turn, rng, calls=turn.id in callers)
        for block in replies[turn.id]:
            if (use := block.get("toolUse")) is not None:
                _write_tool(chain, use)
    chain.append(EventKind.REWARD, {"value": rng.random(), "parts": {"length": 0.5}, "steps": [], "error": None})
    conversations = [_conversation(tree, leaf, replies) for leaf in tree.branches()]
    chain.append(
        EventKind.END,
        {
            "end_reason": end_reason,
            "time": 1_800_000_100.0,
            "failure": None,
            "metrics": {},
            "text": "",
            "conversations": json.dumps(conversations),
            "messages": {"branch": None, "rest": "[]"},
            "rejected": [turn.id for turn in tree.turns if turn.rejected],
            "trajectories": [trajectory_summary(one) for one in tree.trajectories()],
            **({} if tree.main is None else {"main": tree.main}),
        },
    )


def _reply(turn: Turn, rng: random.Random, *, calls: bool) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if rng.random() < 0.4:
        blocks.append({"reasoningContent": {"reasoningText": {"text": f"thought {turn.id}"}}})
    if rng.random() < 0.8:
        blocks.append({"text": f"reply {turn.id}"})
    # "call" is what the callers of sub-agents in these trees name.
    for name in sorted({*rng.sample(["call", "other"], rng.randrange(3)), *(["call"] if calls else [])}):
        given: Any = {"x": turn.id} if rng.random() < 0.8 else "no object"
        blocks.append({"toolUse": {"toolUseId": name, "name": "look", "input": given}})
    return blocks or [{"text": ""}]


def _write_tool(chain: HashChain, use: dict[str, Any]) -> None:
    result = {"status": "success", "content": [{"text": "seen"}]}
    data = {"id": use["toolUseId"], "name": use["name"], "arguments_digest": "0" * 16, "arguments": use["input"]}
    rest: dict[str, Any] = {
        "outcome": "result",
        "raised": None,
        "raised_at": None,
        "seconds": 0.1,
        "calls": 0,
        "within": [],
    }
    chain.append(EventKind.TOOL, {**data, "result": result, **rest, "time": 1_800_000_050.5})


def _conversation(tree: TokenTree, leaf: Turn, replies: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    counts = []
    for turn in tree.path(leaf):
        pictures = [{"image": {"format": "png", "source": {"bytes": {"__file__": one.digest}}}} for one in turn.images]
        called = []
        if turn.parent is not None:
            called = [one["toolUse"]["toolUseId"] for one in replies[turn.parent] if "toolUse" in one]
        results = [
            {"toolResult": {"toolUseId": id, "status": "success", "content": [{"text": "seen"}]}} for id in called
        ]
        messages.append({"role": "user", "content": [*results, *pictures, {"text": f"question {turn.id}"}]})
        counts.append(len(messages))
        messages.append({"role": "assistant", "content": replies[turn.id]})
    return {
        "branch": leaf.id,
        "system": "Be brief.",
        "tools": [TOOL],
        "messages": messages[:-1],
        "counts": counts,
        "call_ids": {},
    }
