"""One episode as plain data: `episode_view`, which the page and `strands-sglang show` render.

Every token is sent once, in the order of turns, as an index into the distinct ids of the episode; arrays are base64 of
little-endian numbers. An episode of 100,000 tokens is about a megabyte, and the page needs no parsing per token. What
is not needed for the first look comes later: the verdict (`verdict.py`) and drift (`drift.py`).

Invariants: the ids, logprobs, versions and origins are those of the ledger, unchanged. A damaged record is shown as far
as it can be read, with its problems. Text from the ledger is data: the page shows it and never interprets it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from strands_sglang._json import as_dict, as_list, dump_text, jsonable
from strands_sglang.errors import StrandsSGLangError
from strands_sglang.ledger.event import OF_OTHER_MODELS, EndData, Event, EventKind, data_of
from strands_sglang.ledger.messages import messages_of, read_conversations
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.tokens import TokenTree, Turn
from strands_sglang.viewer.conversation import TurnItems, TurnText, answer_text, items_by_turn
from strands_sglang.viewer.token_text import TokenTexts

FORMAT = 2  # version of the JSON, which the page checks
_MAX_DEPTH = 8  # of the time line: tools inside of tools
_MOST_SECONDS = 1e11  # no clock shows more
_MAX_RESULT = 200_000  # characters of a tool result that are sent to the page

_CALL_FIELDS = ("turn", "parent", "join", "finish_reason", "finish_detail", "prompt_tokens", "within", "versions")
_END_FIELDS = ("end_reason", "time", "failure", "text", "output", "error_output")


def episode_view(
    record: EpisodeRecord, texts: TokenTexts | None = None, *, max_result: int = _MAX_RESULT
) -> dict[str, Any]:
    """Return what the page shows of one episode; texts None: ids. A tool result has `max_result` characters."""
    end: Mapping[str, Any] = {} if record.end is None else record.end.data
    used = as_dict(end.get("metrics"))
    begin: Mapping[str, Any] = {} if record.begin is None else record.begin.data
    problems = [str(problem) for problem in record.problems]
    calls: dict[int, Event] = {}
    rolled_back: list[Event] = []
    loose: list[Event] = []
    try:
        tree = record.tree()
        calls = {event.data["turn"]: event for event in record.calls}
        kept = {event.number for event in calls.values()}
        rolled_back = [event for event in record.events if event.kind is EventKind.CALL and event.number not in kept]
    except StrandsSGLangError as error:
        problems.append(f"the turns cannot be read: {error}")
        tree = TokenTree(record.id)
        loose = [event for event in record.events if event.kind is EventKind.CALL]
    store = _TokenStore(tree, texts)
    items = items_of(record, tree)
    view: dict[str, Any] = {
        "format": FORMAT,
        "id": record.id,
        "task": begin.get("task"),
        "sample": begin.get("sample"),
        "fingerprint": record.fingerprint,
        "earlier_fingerprints": record.earlier_fingerprints,
        "epoch": record.epoch,
        "orphans": record.orphans,
        "problems": problems,
        "decoded": texts is not None,
        **store.arrays(),
        "vocabulary": store.vocabulary(),
        "turns": [_turn(turn, calls.get(turn.id), items.get(turn.id), store) for turn in tree],
        "branches": _branches(tree),
        "rolled_back": [_plain(event, *_CALL_FIELDS) for event in rolled_back],
        "loose": [_plain(event, *_CALL_FIELDS) for event in loose],  # turns that do not form a tree
        "tools": [_tool(event, max_result) for event in record.tools],
        "other_models": [_other_model(event, max_result) for event in record.other_models],
        "call_errors": [_plain(event, "error", "message", "prompt_tokens", "within") for event in record.call_errors],
        "others": _other_events(record.events, texts),
        "rewards": [
            _plain(event, "value", "parts", "steps", "error", "time")
            for event in record.events
            if event.kind is EventKind.REWARD
        ],
        "reward": None if record.reward is None else _plain(record.reward, "value", "parts", "steps", "error"),
        "end": None if record.end is None else _plain(record.end, *_END_FIELDS),
        "metrics": used,
        "timeline": timeline(record.events, used),
        "events": [[event.number, event.epoch, event.kind.value, event.data.get("turn")] for event in record.events],
    }
    plain: dict[str, Any] = jsonable(view)
    return plain


class _TokenStore:
    def __init__(self, tree: TokenTree, texts: TokenTexts | None) -> None:
        self.texts = texts
        self.offsets: dict[int, int] = {}
        flat: list[npt.NDArray[np.int32]] = []
        logprobs: list[npt.NDArray[np.float64]] = []
        at = 0
        for turn in tree:
            self.offsets[turn.id] = at
            flat += [np.asarray(part, np.int32) for part in (turn.closing, turn.context, turn.sampled)]
            logprobs.append(np.asarray(turn.logprobs, np.float64))
            at += len(turn)
        ids = np.concatenate(flat) if flat else np.zeros(0, np.int32)
        unique, index = np.unique(ids, return_inverse=True)
        self._index = index.reshape(-1).astype("<u4")
        self._unique: list[int] = unique.tolist()
        self._logprobs = np.concatenate(logprobs) if logprobs else np.zeros(0)

    def arrays(self) -> dict[str, Any]:
        return {"tokens": _base64(self._index), "logprobs": _base64(self._logprobs.astype("<f8"))}

    def vocabulary(self) -> dict[str, Any]:
        """Return the distinct ids with their text; bytes as hex where they are not whole characters."""
        pieces: list[str | None] = []
        partial: dict[str, str] = {}
        special: list[int] = []
        for number, id in enumerate(self._unique):
            piece = None if self.texts is None else self.texts.text_of(id)
            pieces.append(piece)
            if self.texts is not None and piece is None:
                partial[str(number)] = self.texts.bytes_of(id).hex()
            if self.texts is not None and self.texts.is_special(id):
                special.append(number)
        return {
            "ids": _base64(np.asarray(self._unique, "<i4")),
            "pieces": pieces,
            "partial": partial,
            "special": special,
        }


def items_of(record: EpisodeRecord, tree: TokenTree) -> dict[int, TurnItems]:
    """Return the items of every turn; empty if the record has no conversations that can be read."""
    if record.end is None or not len(tree):
        return {}
    try:
        end = data_of(record.end, EndData)
        stored = end.get("messages")
        branch = stored.get("branch") if isinstance(stored, dict) else None
        return items_by_turn(tree, read_conversations(end), (branch, messages_of(end)))
    except (AttributeError, TypeError, ValueError, StrandsSGLangError):
        return {}  # conversations of another form: the tokens alone are shown


def _turn(turn: Turn, event: Event | None, items: TurnItems | None, store: _TokenStore) -> dict[str, Any]:
    data: Mapping[str, Any] = {} if event is None else event.data
    texts = store.texts
    spelled = items or TurnItems()
    if texts is not None and (spelled.context or spelled.reply):
        rows, reply = TurnText(turn, texts).place(spelled)
    else:
        prompt = len(turn.closing) + len(turn.context)
        rows, reply = [{"span": [0, prompt], "items": spelled.context}] if prompt else [], spelled.reply
    return {
        "id": turn.id,
        "parent": turn.parent,
        "start": turn.start,
        "at": store.offsets[turn.id],
        "closing": len(turn.closing),
        "context": len(turn.context),
        "sampled": len(turn.sampled),
        "finish_reason": turn.finish_reason,
        "finish_detail": data.get("finish_detail"),
        "purpose": turn.purpose.value,
        "join": turn.join.value,
        "forked_from": turn.forked_from,
        "caller": turn.caller,
        "rejected": turn.rejected,
        "versions": [list(span) for span in turn.versions],
        "detail": turn.detail if isinstance(turn.detail, dict) else {},
        "requests": data.get("requests"),
        "prompt_tokens": turn.sampled_start,
        "within": data.get("within", []),
        "event": None if event is None else event.number,
        "routed_experts": event is not None and "routed_experts" in event.arrays,
        "known": items is not None,
        "rows": rows,
        "reply": reply,
    }


def _branches(tree: TokenTree) -> list[dict[str, Any]]:
    """Return the branches that are trained, then those that end with a turn that is not."""
    branches: list[dict[str, Any]] = []
    covered: set[int] = set()
    for trajectory in tree.trajectories():
        trained = np.unique(trajectory.turns[trajectory.loss_mask == 1])
        path = list(trajectory.turn_ids)
        covered.update(path)
        branches.append(
            {
                "id": trajectory.branch,
                "path": path,
                "trained": [path[number] for number in trained],
                "tokens": len(trajectory),
                "trained_tokens": int(trajectory.loss_mask.sum()),
                "caller": tree[path[0]].caller,
                "forked_from": next((one for id in reversed(path) if (one := tree[id].forked_from) is not None), None),
                "main": trajectory.main,
                "agent": trajectory.agent,
                "exported": True,
            }
        )
    for leaf in tree.leaves():
        if leaf.id not in covered:
            path = [turn.id for turn in tree.path(leaf)]
            tokens = sum(len(tree[id]) for id in path)
            branches.append(
                {
                    **{"id": leaf.id, "path": path, "trained": [], "tokens": tokens, "trained_tokens": 0},
                    **{"main": False, "agent": leaf.agent, "exported": False},
                }
            )
    return branches


def _tool(event: Event, max_result: int) -> dict[str, Any]:
    tool = _plain(event, "id", "name", "arguments", "outcome", "raised", "raised_at", "seconds", "calls", "within")
    result = event.data.get("result")
    if isinstance(result, dict):
        blocks = as_list(result.get("content"))
        tool |= {"status": result.get("status"), "text": "\n".join(map(_block_text, blocks))[:max_result]}
    else:
        tool |= {"status": None, "text": None}
    return tool


def _other_model(event: Event, max_result: int) -> dict[str, Any]:
    """Return what another model was asked and what it said; `text` None: it gave no usable answer."""
    asked, answer = event.data.get("asked"), event.data.get("answer")
    return {
        **_plain(event, "name", "error", "message", "attempts", "seconds", "within"),
        "asked": None if asked is None else "\n".join(map(_block_text, as_list(asked)))[:max_result],
        "text": None if event.kind is EventKind.MODEL_ERROR else answer_text(answer)[:max_result],
    }


def _block_text(block: Any) -> str:
    text = block.get("text") if isinstance(block, dict) else None
    return text if isinstance(text, str) else dump_text(jsonable(block))


def _other_events(events: Sequence[Event], texts: TokenTexts | None) -> list[dict[str, Any]]:
    """Return what else happened: takeovers, rollbacks, scores of a teacher, interrupted turns, staleness."""
    found = []
    for event in events:
        if event.kind is EventKind.ROLLBACK:
            about = _plain(event, "turns", "cause", "reason")
        elif event.kind is EventKind.RESUME:
            about = {**_plain(event, "from_event", "pid", "worker"), "epoch": event.epoch}
        elif event.kind is EventKind.TEACHER:
            about = _plain(event, "model", "turns")
        elif event.kind is EventKind.STALENESS:
            about = _plain(event, "decision", "limit", "action", "current", "ages", "age")
        elif event.kind is EventKind.PARTIAL_CALL:
            sampled = event.arrays.get("sampled")
            text = None
            if texts is not None and sampled is not None:
                with suppress(OverflowError, TypeError, ValueError):
                    text = texts.decode(sampled)
            count = 0 if sampled is None else len(sampled)
            about = _plain(event, "finish_reason", "finish_detail", "versions", "prompt_tokens", "within")
            about |= {"count": count, "text": text}
        else:
            continue
        found.append({**about, "kind": event.kind.value})
    return found


def timeline(events: Sequence[Event], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return where the seconds of an episode went.

    Events state when a call ended and how long it took, so each is where it was. A process that took the episode over
    goes on where the one before it ended: the time between them belongs to nobody. In a ledger of an older version some
    calls have no time. Then all are stacked: calls of one conversation follow each other; tools of one turn run beside
    each other, after the call; calls of a sub-agent are inside their tool.

    Returns:
        `spans`: lists of kind ("engine", "tool", "model" or "error"), start and duration in seconds, depth (0: the
        agent itself, 1: inside a tool), a label, and the id of the turn or of the tool call, or the number of the
        event; start 0 is that of the first one. `placed`: where the last one ends.
        `total`: seconds of the whole episode; None if it has not ended. `rest`: seconds that no span covers
        (scheduling, hooks, the agent's own code).
    """
    bars: list[_Bar] = []
    ended = False
    for event in events:
        if event.kind in (EventKind.END, EventKind.RESUME):
            ended = event.kind is EventKind.END
        elif event.kind in _TIMED and not ended:  # a judge that was asked after the end is no part of the episode
            bars.append(_bar(event))
    spans = _by_clock(bars)
    if spans is None:
        by_within: dict[tuple[str, ...], list[_Bar]] = {}
        for bar in bars:
            by_within.setdefault(bar.within, []).append(bar)
        _stack((), 0.0, by_within, spans := [])
    covered = placed = 0.0
    for start, seconds in sorted((span[1], span[2]) for span in spans):
        covered += max(0.0, start + seconds - max(start, placed))
        placed = max(placed, start + seconds)
    total = _seconds(metrics.get("seconds")) or None
    rest = None if total is None else max(0.0, round(total - covered, 4))
    return {"spans": spans, "placed": round(placed, 4), "total": total, "rest": rest}


_TIMED = (EventKind.CALL, EventKind.TOOL, EventKind.CALL_ERROR, *OF_OTHER_MODELS)


@dataclass(frozen=True, slots=True)
class _Bar:
    """What a span shows."""

    kind: str
    seconds: float
    label: str
    target: Any
    within: tuple[str, ...]
    epoch: int
    ended: float | None
    """Unix time in seconds; None: not recorded."""

    def at(self, start: float) -> list[Any]:
        """Return the span that starts at a time."""
        return [self.kind, round(start, 4), self.seconds, min(len(self.within), _MAX_DEPTH), self.label, self.target]


def _bar(event: Event) -> _Bar:
    data, ended = event.data, event.data.get("time")
    seconds = _seconds(data.get("seconds"))
    if event.kind is EventKind.CALL:
        detail = as_dict(data.get("detail"))
        seconds, ended = _seconds(detail.get("latency_ms")) / 1000, detail.get("time")
        about: tuple[str, str, Any] = "engine", f"turn {data.get('turn')}", data.get("turn")
    elif event.kind is EventKind.TOOL:
        about = "tool", str(data.get("name")), str(data.get("id"))
    elif event.kind is EventKind.CALL_ERROR:
        about, seconds, ended = ("error", str(data.get("error")), event.number), 0.0, None
    else:
        about = "model", str(data.get("name")), event.number
    kind, label, target = about
    within = tuple(map(str, as_list(data.get("within"))))
    return _Bar(kind, seconds, label, target, within, event.epoch, _seconds(ended) or None)


def _by_clock(bars: Sequence[_Bar]) -> list[list[Any]] | None:
    """Return the spans where they were; None if that of a call is not recorded. Errors follow what ended before."""
    spans: list[list[Any]] = []
    end = 0.0
    for _, group in groupby(bars, key=lambda bar: bar.epoch):
        of_process = list(group)
        began = [None if bar.ended is None else bar.ended - bar.seconds for bar in of_process]
        known = [start for start in began if start is not None]
        if len(known) < sum(bar.kind != "error" for bar in of_process):
            return None
        zero = min(known, default=0.0) - end
        for bar, start in zip(of_process, began, strict=True):
            spans.append(bar.at(end if start is None else start - zero))
            end = max(end, spans[-1][1] + bar.seconds)
    return spans


def _stack(
    within: tuple[str, ...], start: float, bars: Mapping[tuple[str, ...], list[_Bar]], spans: list[list[Any]]
) -> None:
    """Add the spans of what is inside a tool call, or of the agent itself, one after the other."""
    cursor = after_call = start
    for bar in bars.get(within, ()):
        if bar.kind == "tool":
            spans.append(bar.at(after_call))
            cursor = max(cursor, after_call + bar.seconds)
            if len(within) < _MAX_DEPTH:
                _stack((*within, bar.target), after_call, bars, spans)
        else:
            spans.append(bar.at(cursor))
            if bar.kind != "error":
                cursor = after_call = cursor + bar.seconds


def _seconds(value: Any) -> float:
    return float(value) if type(value) in (int, float) and 0 < value < _MOST_SECONDS else 0.0


def _plain(event: Event, *names: str) -> dict[str, Any]:
    return {"event": event.number, **{name: event.data.get(name) for name in names}}


def _base64(values: npt.NDArray[Any]) -> str:
    return base64.b64encode(values.tobytes()).decode()
