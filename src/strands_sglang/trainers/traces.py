"""Recorded episodes in the trajectory formats of other tools: ATIF 1.8 (Harbor's), and OpenEnv's `TrainingTrace`.

Invariants: token ids, logprobs and what is trained are those of the ledger; nothing is trained of an episode that
failed or was dropped. Every sampled turn is in an export once: in ATIF, a later branch has the turns that it shares as
copied context, without tokens. What a format has no field for is in its `extra` or `metadata`.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from strands_sglang._files import replace_file
from strands_sglang._json import as_list
from strands_sglang._version import __version__
from strands_sglang.ledger.event import Event
from strands_sglang.ledger.messages import read_conversations
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.runs.end_reason import EndReason
from strands_sglang.tokens import TokenTree, Turn
from strands_sglang.tokens.turn import Origin
from strands_sglang.trainers.statuses import STATUS_BY_END
from strands_sglang.viewer.conversation import TurnItems
from strands_sglang.viewer.episode import items_of

_Step = dict[str, Any]


def write_atif(source: Ledger | Path | str, folder: Path | str, *, token_ids: bool = True) -> int:
    """Write every finished episode as an ATIF 1.8 trajectory, `TASK.SAMPLE.json`; return the number of files.

    The main branch is the trajectory; the other branches, such as those of sub-agents, are embedded in it. Images stay
    in the run; their paths are relative to the folder.

    Args:
        source: The run: its directory, or its ledger.
        folder: Where the files are written; created if it is missing.
        token_ids: Whether steps have the ids of their whole prompts, which makes a file quadratic in the turns.

    Example:
        >>> write_atif("runs/first", "trajectories")
        64
    """
    folder, count = Path(folder), 0
    folder.mkdir(parents=True, exist_ok=True)
    for record in _finished(source):
        if len(tree := record.tree()):
            task, _, sample = record.id.rpartition("/")
            document = _Document(record, tree, token_ids, folder).build()
            with replace_file(folder / f"{task}.{sample}.json") as temporary:
                temporary.write_bytes(orjson.dumps(document))
            count += 1
    return count


def write_training_traces(source: Ledger | Path | str, path: Path | str) -> int:
    """Write every finished episode as a line of JSON, in the form of OpenEnv's `TrainingTrace`; return the lines.

    The format has no place for rewards and accepts no logprob above 0. An engine may report one that is by rounding:
    it is written as 0.0, and the original is in `metadata["rounded_logprobs"]`.

    Example:
        >>> write_training_traces("runs/first", "traces.jsonl")
        64
    """
    lines = 0
    with replace_file(Path(path)) as temporary, temporary.open("wb") as file:
        for record in _finished(source):
            tree = record.tree()
            trained = loss_masks(record, tree)
            turns = [_training_turn(record, tree, turn, trained.get(turn.id)) for turn in tree.turns if turn.sampled]
            file.write(orjson.dumps({"schema_version": 1, "turns": turns}, option=orjson.OPT_APPEND_NEWLINE))
            lines += 1
    return lines


def loss_masks(record: EpisodeRecord, tree: TokenTree) -> dict[int, npt.NDArray[np.int8]]:
    """Return the loss mask of the sampled tokens of every turn in which something is trained, by turn id."""
    found: dict[int, npt.NDArray[np.int8]] = {}
    if record.dropped or not STATUS_BY_END[EndReason(_end(record)["end_reason"])].trained:
        return found
    tree.untrained_versions = record.too_old
    for one in tree.trajectories():
        sampled = one.origins == Origin.SAMPLED
        turns, mask = one.turns[sampled], one.loss_mask[sampled]
        found |= {one.turn_ids[number]: mask[turns == number] for number in set(turns[mask == 1].tolist())}
    return found


def _finished(source: Ledger | Path | str) -> Iterator[EpisodeRecord]:
    ledger = source if isinstance(source, Ledger) else Ledger(source)
    _ = ledger.run  # raises if there is no run
    return (record for record in ledger.episodes() if record.begin is not None and record.finished)


def _prompt_ids(tree: TokenTree, turn: Turn) -> list[int]:
    ids = array("i")
    for one in tree.path(turn):
        ids += one.closing + one.context + (one.sampled if one is not turn else array("i"))
    return ids.tolist()


def _end(record: EpisodeRecord) -> Mapping[str, Any]:
    return {} if record.end is None else record.end.data


def _outcome(record: EpisodeRecord) -> dict[str, Any]:
    reward = {"value": None, "parts": {}} if record.reward is None else record.reward.data
    return {"end_reason": _end(record).get("end_reason"), "reward": reward["value"], "parts": reward["parts"]}


def _about(turn: Turn, mask: npt.NDArray[np.int8] | None) -> dict[str, Any]:
    """Return what neither format has a field for; `mask` None: nothing of the turn is trained."""
    partly = {} if mask is None or mask.all() else {"loss_mask": mask.tolist()}
    return {
        "turn": turn.id,
        "parent": turn.parent,
        "agent": turn.agent,
        "purpose": turn.purpose.value,
        "rejected": turn.rejected,
        "finish_reason": turn.finish_reason,
        "join": turn.join.value,
        "weight_versions": [list(span) for span in turn.versions],
        "trained": mask is not None,
        **partly,
    }


def _training_turn(
    record: EpisodeRecord, tree: TokenTree, turn: Turn, mask: npt.NDArray[np.int8] | None
) -> dict[str, Any]:
    prompt, logprobs = _prompt_ids(tree, turn), turn.logprobs.tolist()
    above = [[at, value] for at, value in enumerate(logprobs) if value > 0.0]
    about = {**_about(turn, mask), **_outcome(record), "episode": record.id}
    loss = [0] * len(turn.sampled) if mask is None else mask.tolist()
    return {
        "node_id": f"{record.id}#{turn.id}",
        "prompt_token_ids": prompt,
        "completion_token_ids": turn.sampled.tolist(),
        "per_token_logps": [min(value, 0.0) for value in logprobs],
        "loss_mask": [0] * len(prompt) + loss,
        "response": {"choices": [{"finish_reason": turn.finish_reason}]},
        "metadata": {**about, "rounded_logprobs": above} if above else about,
    }


class _Document:
    """The ATIF document of one episode."""

    def __init__(self, record: EpisodeRecord, tree: TokenTree, token_ids: bool, folder: Path) -> None:
        self._record, self._tree, self._token_ids, self._folder = record, tree, token_ids, folder.resolve()
        self._items = items_of(record, tree)
        self._masks = loss_masks(record, tree)
        self._tools = {str(event.data.get("id")): event for event in record.tools}
        self._written: set[int] = set()
        self._specs = {one.get("branch"): as_list(one.get("tools")) for one in read_conversations(_end(record))}

    def build(self) -> dict[str, Any]:
        """Return the document: the main branch, with the others embedded."""
        tree, main = self._tree, self._tree.main_leaf()
        leaves = sorted(tree.leaves(), key=lambda leaf: (main is None or leaf.id != main.id, leaf.id))
        documents = [self._branch(leaf) for leaf in leaves]
        root, others = documents[0], documents[1:]
        by_call = {
            (caller[0], caller[1]): document["trajectory_id"]
            for leaf, document in zip(leaves[1:], others, strict=True)
            if (caller := tree.path(leaf)[0].caller) is not None
        }
        for document in documents:
            for step in document["steps"]:
                for result in step.get("observation", {}).get("results", ()):
                    key = step["extra"].get("turn"), result.get("source_call_id")
                    if key in by_call:
                        result["subagent_trajectory_ref"] = [{"trajectory_id": by_call[key]}]
        if others:
            root["subagent_trajectories"] = others
        root["extra"] |= {
            "task": self._record.id.rpartition("/")[0],
            **_outcome(self._record),
            "ended_at": _timestamp(_end(self._record).get("time")),
        }
        return root

    def _branch(self, leaf: Turn) -> dict[str, Any]:
        path, steps = self._tree.path(leaf), list[_Step]()
        for turn in path:
            items = self._items.get(turn.id, TurnItems())
            self._add_context(steps, items.context)
            steps.append(self._agent_step(turn, items.reply))
            self._written.add(turn.id)
        for number, step in enumerate(steps, 1):
            step["step_id"] = number
        own = [step["metrics"] for step in steps if "metrics" in step]
        names = ("prompt_tokens", "completion_tokens", "cached_tokens")
        begin = {} if self._record.begin is None else self._record.begin.data
        specs = [_openai_tool(spec) for spec in self._specs.get(leaf.id, ()) if isinstance(spec, Mapping)]
        agent = {"name": leaf.agent or "agent", "version": __version__}
        extra = {"branch": leaf.id, "caller": path[0].caller, "forked_from": path[0].forked_from}
        return {
            "schema_version": "ATIF-v1.8",
            "session_id": f"{begin.get('run')}/{self._record.id}",
            "trajectory_id": f"{self._record.id}#{leaf.id}",
            "agent": {**agent, "tool_definitions": specs} if specs else agent,
            "steps": steps,
            "final_metrics": {
                **{f"total_{name}": sum(metrics.get(name) or 0 for metrics in own) for name in names},
                "total_steps": len(steps),
            },
            "extra": extra,
        }

    def _add_context(self, steps: list[_Step], items: Sequence[Mapping[str, Any]]) -> None:
        """Add what a turn's prompt has beyond the turn before it."""
        fresh: _Step | None = None  # of the message that these items are of
        for item in items:
            kind, role = item["kind"], item["role"]
            if kind == "tools":
                continue
            if kind == "tool_result":
                self._add_result(steps, item)
                fresh = None
                continue
            source = {"assistant": "agent", "system": "system"}.get(role, "user")
            if fresh is None or fresh["source"] != source:
                fresh = {"source": source, "message": "", "extra": {}}
                if source == "agent":
                    fresh["is_copied_context"] = True
                steps.append(fresh)
            self._add_block(fresh, item)

    def _add_result(self, steps: list[_Step], item: Mapping[str, Any]) -> None:
        last = steps[-1] if steps and steps[-1]["source"] == "agent" else None
        if last is None:  # of a call that is not in the conversation
            last = {"source": "user", "message": "", "extra": {}}
            steps.append(last)
        results = last.setdefault("observation", {"results": []})["results"]
        event = self._tools.get(item["id"])
        result: dict[str, Any] = {"content": self._content(item), "extra": {"status": item["status"], **_timed(event)}}
        if item["id"] in {call["tool_call_id"] for call in last.get("tool_calls", ())}:
            result["source_call_id"] = item["id"]
        results.append(result)

    def _add_block(self, step: _Step, item: Mapping[str, Any]) -> None:
        kind = item["kind"]
        if kind == "tool_use":
            given = json.loads(item["arguments"])
            arguments = given if isinstance(given, dict) else {"value": given}
            call = {"tool_call_id": item["id"], "function_name": item["name"], "arguments": arguments}
            step.setdefault("tool_calls", []).append(call)
            return
        if kind == "failed_call":
            error = {name: item[name] for name in ("failure", "error", "name")}
            step["extra"].setdefault("failed_calls", []).append(error)
        if kind == "reasoning":
            step["reasoning_content"] = step.get("reasoning_content", "") + item["text"]
            return
        if item.get("images"):
            before = step["message"] if isinstance(step["message"], list) else _text_parts(step["message"])
            step["message"] = [*before, *self._content(item)]
        elif isinstance(step["message"], list):
            step["message"] += _text_parts(item["text"])
        else:
            step["message"] = "\n".join(filter(None, (step["message"], item["text"])))

    def _content(self, item: Mapping[str, Any]) -> Any:
        """Return text, or parts if there are images: with the paths of their files."""
        if not item.get("images"):
            return item["text"]
        parts = _text_parts(item["text"])
        for digest in item["images"]:
            path = None if self._record.files is None else self._record.files.find(digest)
            source = {"media_type": "image/png", "path": digest if path is None else self._relative(path)}
            parts.append({"type": "image", "source": source})
        return parts

    def _relative(self, path: Path) -> str:
        """Return the path of a file from where the document is."""
        return Path(os.path.relpath(path.resolve(), self._folder)).as_posix()

    def _agent_step(self, turn: Turn, reply: Sequence[Mapping[str, Any]]) -> _Step:
        step: _Step = {"source": "agent", "message": "", "llm_call_count": 1}
        step["extra"] = _about(turn, self._masks.get(turn.id))
        if (stamp := _timestamp(turn.detail.get("time"))) is not None:
            step["timestamp"] = stamp
        for item in reply:
            self._add_block(step, item)
        if turn.id in self._written:
            return {**step, "is_copied_context": True}
        metrics: dict[str, Any] = {
            "prompt_tokens": turn.sampled_start,
            "completion_tokens": len(turn.sampled),
            "completion_token_ids": turn.sampled.tolist(),
            "logprobs": turn.logprobs.tolist(),
            "extra": {"latency_ms": turn.detail.get("latency_ms")},
        }
        if (cached := turn.detail.get("cached_tokens")) is not None:
            metrics["cached_tokens"] = cached
        if self._token_ids:
            metrics["prompt_token_ids"] = _prompt_ids(self._tree, turn)
        return {**step, "metrics": metrics}


def _text_parts(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text else []


def _timed(event: Event | None) -> dict[str, Any]:
    """Return when a tool call ended and how long it took, if that is recorded."""
    if event is None:
        return {}
    stamp = _timestamp(event.data.get("time"))
    return {"seconds": event.data.get("seconds"), **({} if stamp is None else {"ended_at": stamp})}


def _timestamp(seconds: Any) -> str | None:
    """Return Unix seconds as ISO 8601; None if they are not recorded, or no time that a clock can show."""
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat() if isinstance(seconds, (int, float)) else None
    except (OverflowError, ValueError, OSError):
        return None


def _openai_tool(spec: Mapping[str, Any]) -> dict[str, Any]:
    schema = spec.get("inputSchema")
    parameters = schema.get("json", schema) if isinstance(schema, Mapping) else {}
    function = {"name": spec.get("name"), "description": spec.get("description", ""), "parameters": parameters}
    return {"type": "function", "function": function}
