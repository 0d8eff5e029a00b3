"""Ledgers in which only the meaning is wrong: every digest of a changed record is computed again.

A recorded run with images, kept sets, another model and a teacher's scores is changed in one place at a time. `FoundBy`
says for each kind of change how much a forger may recompute and still be found.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np

from strands_sglang import SGLangModel
from strands_sglang.engine import Capability
from strands_sglang.engine.protocol import Prefill, PromptImage, TokenIds
from strands_sglang.ledger.encoding import decoded
from strands_sglang.ledger.event import Event, EventKind
from strands_sglang.ledger.run_dir import read_run, shard_paths, write_run
from strands_sglang.ledger.seal import seal
from strands_sglang.ledger.shard import ShardReader
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.proof.finding import Verdict
from strands_sglang.proof.rescore import RescoreVerdict, rescore
from strands_sglang.proof.verify import verify
from strands_sglang.runs import Task, teacher_logprobs
from support.proof.in_memory import verify_events
from support.proof.tampering import LedgerEditor
from support.rollout.looking import CALL, OPTIONS, TASKS, ImageEngine, build
from support.rollout.other_models import Speaker, quiet
from support.rollout.scripts import run
from support.scripted_engine import Answer

TOP = 3
"""Likeliest ids of the teacher."""


class FoundBy(Enum):
    """What gives a change away, whatever else of the ledger is recomputed."""

    CONTENT = "content"
    """The event itself, or the prompt that was sent: every other digest may be recomputed."""
    TRAJECTORY = "trajectory"
    """The trajectories that the end declares: their digests must be left alone."""
    ROOT = "root"
    """A root digest that was kept elsewhere, and nothing else."""


class Teacher:
    """An engine that scores tokens: those with an even id are the likeliest, the others are not among the likeliest."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.SCORING})

    async def score(
        self, input_ids: TokenIds, start: int, *, images: Sequence[PromptImage] = (), top: int = 0
    ) -> Prefill:
        ids = np.asarray(input_ids[start:], np.int32)
        even = ids % 2 == 0
        likeliest = ids[:, None] + np.arange(top) + np.where(even, 0, 1)[:, None]
        rows = np.tile(np.array([-0.2, -2.0, -4.0][:top]), (len(ids), 1))
        return Prefill(np.where(even, -0.2, -5.0), likeliest.astype(np.int32), rows)


def _looks(prompt: str, before: int) -> Answer:
    done = prompt.count("</tool_response>")
    return {0: f"{CALL.format(1)}\n{CALL.format(2)}", 2: CALL.format(3)}.get(done, "I have seen it.")


async def _build(task: Task, model: SGLangModel, models: Any) -> Any:
    await quiet(models["judge"]).invoke_async("Is it hard?")
    return build(task, model)


async def record(directory: Path) -> None:
    """Record a run with two images in one turn, kept sets, another model that fails once, and a teacher's scores."""
    settings: dict[str, Any] = {**OPTIONS, "sampling_params": {"top_p": 0.8, "temperature": 1.0}}
    settings["models"] = {"judge": Speaker(lambda messages, before: "It is." if before else ValueError("it is gone"))}
    for _ in range(2):
        await run(_build, TASKS, ImageEngine(_looks, "qwen3.5"), directory, samples_per_task=2, **settings)
    await teacher_logprobs(directory, Teacher(), top=TOP)  # type: ignore[arg-type]


def events_of(directory: Path) -> list[bytes]:
    """Return the events of all shards, each after the one it follows: names of files do not tell their order."""
    raws = [raw for path in shard_paths(directory) for block in ShardReader(path) for raw in block.events]
    return sorted(raws, key=lambda raw: decoded(raw)[0].number)


# Changes: each changes an event, and returns False if there is nothing to change.


def _image(change: Callable[[list[Any], random.Random], bool]) -> Callable[[Event, random.Random], bool]:
    return lambda event, rng: "images" in event.data and change(event.data["images"], rng)


def _field(at: int, new: Callable[[Any], Any]) -> Callable[[list[Any], random.Random], bool]:
    def change(images: list[Any], rng: random.Random) -> bool:
        image = rng.choice(images)
        before, image[at] = image[at], new(image[at])
        return bool(image[at] != before)

    return change


def _exchanged(images: list[Any], rng: random.Random) -> bool:
    first, last = images[0], images[-1]
    first[2], last[2] = last[2], first[2]
    return bool(first[2] != last[2])


def _set(change: Callable[[list[list[int]], int, int], None]) -> Callable[[Event, random.Random], bool]:
    """Return a change of the kept set of one token, given the sets, its place and its id."""

    def changed(event: Event, rng: random.Random) -> bool:
        arrays = event.arrays
        offsets, ids = arrays["kept_offsets"], arrays["kept"]
        sets = [list(ids[offsets[at] : offsets[at + 1]]) for at in range(len(offsets) - 1)]
        if not (several := [at for at, one in enumerate(sets) if len(one) > 1]):
            return False
        at = rng.choice(several)
        change(sets, at, arrays["sampled"][at])
        arrays["kept"] = array("i", [id for one in sets for id in one])
        arrays["kept_offsets"] = array("i", [0, *np.cumsum([len(one) for one in sets]).tolist()])
        return True

    return changed


def _value(name: str, new: Callable[[float, Event, int], Any]) -> Callable[[Event, random.Random], bool]:
    """Return a change of one value of an array."""

    def changed(event: Event, rng: random.Random) -> bool:
        values = event.arrays[name]
        at = rng.randrange(len(values))
        before, values[at] = values[at], new(values[at], event, at)
        return bool(values[at] != before)

    return changed


def _below_everything(value: float, event: Event, at: int) -> float:
    return float(event.arrays["logprobs"][at] - 0.5)


def _all_sets(event: Event, rng: random.Random) -> bool:
    for name in ("kept", "kept_offsets", "kept_logprobs"):
        del event.arrays[name]
    return True


def _data(name: str, *values: Any, within: str | None = None) -> Callable[[Event, random.Random], bool]:
    def changed(event: Event, rng: random.Random) -> bool:
        data: Any = event.data if within is None else event.data[within]
        if (value := rng.choice(values)) == data[name] and type(value) is type(data[name]):
            return False
        data[name] = value
        return True

    return changed


def _scores_lost(event: Event, rng: random.Random) -> bool:
    """Lose the scores of the last turn, with no trace in the event."""
    _, count = event.data["turns"].pop()
    for name, width in (("logprobs", 1), ("top_ids", TOP), ("top_logprobs", TOP)):
        del event.arrays[name][-count * width :]
    return True


def _rows_exchanged(event: Event, rng: random.Random) -> bool:
    """Exchange the scores of a token that is the likeliest with those of one that is not."""
    logprobs, arrays = event.arrays["logprobs"], event.arrays
    first, last = logprobs.index(-0.2), logprobs.index(-5.0)
    for name, width in (("logprobs", 1), ("top_ids", TOP), ("top_logprobs", TOP)):
        one, other = (slice(at * width, (at + 1) * width) for at in (first, last))
        arrays[name][one], arrays[name][other] = arrays[name][other], arrays[name][one]
    return True


def _branch(at: int) -> Callable[[Event, random.Random], bool]:
    def changed(event: Event, rng: random.Random) -> bool:
        one = rng.choice(event.data["branches"])
        one[at] = one[at][::-1] if isinstance(one[at], str) else one[at] + rng.choice([-1, 1])
        return True

    return changed


def _order(event: Event, rng: random.Random) -> bool:
    values, at = event.arrays["top_logprobs"], rng.randrange(len(event.arrays["logprobs"])) * TOP
    values[at], values[at + 1] = values[at + 1], values[at]
    return True


_CALL, _TEACHER = EventKind.CALL, EventKind.TEACHER
_MODEL, _MODEL_ERROR = EventKind.MODEL, EventKind.MODEL_ERROR
_OTHER_FILE = "ab" * 32
_NO_TEMPERATURES = ("hot", -1.0, True, [1.0])
CHANGES: dict[str, tuple[EventKind, FoundBy, Callable[[Event, random.Random], bool]]] = {
    "image: another file": (_CALL, FoundBy.CONTENT, _image(_field(2, lambda _: _OTHER_FILE))),
    "image: exchanged with another": (_CALL, FoundBy.CONTENT, _image(_exchanged)),
    "image: moved back": (_CALL, FoundBy.CONTENT, _image(_field(0, lambda start: start - 1))),
    "image: moved": (_CALL, FoundBy.CONTENT, _image(_field(0, lambda start: start + 1))),
    "image: half its positions": (_CALL, FoundBy.CONTENT, _image(_field(1, lambda positions: positions // 2))),
    "image: lost": (_CALL, FoundBy.CONTENT, _image(lambda images, rng: bool(images.pop()))),
    "image: grid turned": (_CALL, FoundBy.TRAJECTORY, _image(_field(3, lambda grid: [grid[0], grid[2], grid[1]]))),
    "set: without its token": (_CALL, FoundBy.CONTENT, _set(lambda sets, at, own: sets[at].remove(own))),
    "set: its token twice": (_CALL, FoundBy.CONTENT, _set(lambda sets, at, own: sets[at].append(own))),
    "set: no id": (_CALL, FoundBy.CONTENT, _set(lambda sets, at, own: sets[at].append(-7))),
    "set: empty": (_CALL, FoundBy.CONTENT, _set(lambda sets, at, own: sets[at].clear())),
    "set: lost": (_CALL, FoundBy.CONTENT, _set(lambda sets, at, own: sets.__delitem__(at))),
    "set: one id more": (_CALL, FoundBy.TRAJECTORY, _set(lambda sets, at, own: sets[at].append(own + 9))),
    "set: alone": (_CALL, FoundBy.CONTENT, _set(lambda sets, at, own: sets.__setitem__(at, [own]))),
    "set: less likely than without": (_CALL, FoundBy.CONTENT, _value("kept_logprobs", _below_everything)),
    "set: logprob above 0": (_CALL, FoundBy.CONTENT, _value("kept_logprobs", lambda *_: 0.5)),
    "set: logprob is no number": (_CALL, FoundBy.CONTENT, _value("kept_logprobs", lambda *_: math.nan)),
    "sets: all of a turn lost": (_CALL, FoundBy.TRAJECTORY, _all_sets),
    "logprob: another": (_CALL, FoundBy.TRAJECTORY, _value("logprobs", lambda value, *_: value - 0.25)),
    "logprob: no number": (_CALL, FoundBy.CONTENT, _value("logprobs", lambda *_: math.nan)),
    "temperature: no temperature": (_CALL, FoundBy.CONTENT, _data("temperature", *_NO_TEMPERATURES, within="detail")),
    "temperature: another": (_CALL, FoundBy.ROOT, _data("temperature", 0.7, 1.5, within="detail")),
    "model: another answer": (_MODEL, FoundBy.ROOT, _data("answer", [], [{"output": "It is not."}])),
    "model: no answer": (_MODEL, FoundBy.CONTENT, _data("answer", None, "It is.")),
    "model: another one": (_MODEL, FoundBy.ROOT, _data("name", "user")),
    "model: no name": (_MODEL, FoundBy.CONTENT, _data("name", None, 7)),
    "model: another question": (_MODEL, FoundBy.ROOT, _data("request_digest", "ab" * 16)),
    "model: nowhere": (_MODEL, FoundBy.CONTENT, _data("within", None, "call")),
    "model error: another": (_MODEL_ERROR, FoundBy.ROOT, _data("message", "it was there")),
    "model error: none": (_MODEL_ERROR, FoundBy.CONTENT, _data("error", None, 7)),
    "teacher: temperature": (_TEACHER, FoundBy.CONTENT, _data("temperature", 0.7, None, "1.0")),
    "teacher: model": (_TEACHER, FoundBy.ROOT, _data("model", "another")),
    "teacher: no model": (_TEACHER, FoundBy.CONTENT, _data("model", None)),
    "teacher: more likeliest ids": (_TEACHER, FoundBy.CONTENT, _data("top", TOP + 1, 0)),
    "teacher: branches lost": (_TEACHER, FoundBy.CONTENT, _data("branches", [])),
    "teacher: another branch": (_TEACHER, FoundBy.CONTENT, _branch(0)),
    "teacher: longer branch": (_TEACHER, FoundBy.CONTENT, _branch(1)),
    "teacher: digest of a branch": (_TEACHER, FoundBy.CONTENT, _branch(2)),
    "teacher: scores of a turn lost": (_TEACHER, FoundBy.CONTENT, _scores_lost),
    "teacher: rows exchanged": (_TEACHER, FoundBy.CONTENT, _rows_exchanged),
    "teacher: likeliest not first": (_TEACHER, FoundBy.CONTENT, _order),
    "teacher: logprob above the likeliest": (_TEACHER, FoundBy.CONTENT, _value("logprobs", lambda *_: -0.01)),
    "teacher: logprob is no number": (_TEACHER, FoundBy.CONTENT, _value("logprobs", lambda *_: -math.inf)),
    "teacher: no id": (_TEACHER, FoundBy.CONTENT, _value("top_ids", lambda *_: -1)),
    "teacher: probabilities above 1": (_TEACHER, FoundBy.CONTENT, _value("top_logprobs", lambda *_: 0.0)),
}


def attack_records(changes: int, seed: int = 0) -> dict[str, Any]:
    """Change a recorded run.

    Args:
        changes: How many changes of each kind.
        seed: Decides where.

    Returns:
        `changes`: how many were made; `changes_missed`: how many `verify` did not find; `missed`: their kinds.
    """
    counts, missed, rng = Counter(changes=0, changes_missed=0), Counter[str](), random.Random(seed)
    with TemporaryDirectory() as folder:
        directory = Path(folder) / "run"
        asyncio.run(record(directory))
        editor, about, root = LedgerEditor(events_of(directory)), read_run(directory), verify(directory).root
        assert verify(directory, root=root).proved, verify(directory).text()
        in_memory = verify_events(editor.forged(), run=about)
        assert in_memory.proved, in_memory.text()
        for name, (kind, found_by, change) in CHANGES.items():
            for _ in range(changes):
                changed = editor.copy()
                while not change(rng.choice(changed.of(kind)).event, rng):
                    pass
                raws = changed.rewritten() if found_by is FoundBy.CONTENT else changed.forged()
                certificate = verify_events(raws, run=about)
                broken = certificate.verdict is Verdict.BROKEN
                found = certificate.root != in_memory.root and (found_by is FoundBy.ROOT or broken)
                counts.update(changes=1, changes_missed=not found)
                missed.update([name] * (not found))
        for path in sorted(one for one in (directory / "files").rglob("*") if one.is_file()):
            before = path.read_bytes()
            path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
            counts.update(changes=1, changes_missed=verify(directory).verdict is not Verdict.BROKEN)
            path.write_bytes(before)
        text = (directory / "run.json").read_text()
        (directory / "run.json").write_text(json.dumps({**json.loads(text), "settings": {}}))
        counts.update(changes=1, changes_missed=verify(directory, root=root).verdict is not Verdict.BROKEN)
    return {**counts, "missed": dict(missed)}


async def attack_logprobs(directory: Path, target: Path, url: str, seed: int = 0) -> bool:
    """Change logprobs of a recorded run with every digest computed again; return whether `verify --rescore` finds them.

    Args:
        directory: A run whose sampled tokens all have the logprobs of the engine.
        target: Directory to write the changed run to.
        url: The engine.
        seed: Decides which are changed, and by how much.
    """
    rng, editor, changed = random.Random(seed), LedgerEditor(events_of(directory)), set[tuple[str, int]]()
    trained = {
        (end.event.episode, turn)
        for end in editor.of(EventKind.END)
        for one in end.event.data["trajectories"]
        for turn in one["trained_turns"]
    }
    calls = [entry for entry in editor.of(EventKind.CALL) if (entry.event.episode, entry.event.data["turn"]) in trained]
    for entry in rng.sample(calls, 3):
        values = entry.event.arrays["logprobs"]
        at = rng.randrange(len(values))
        values[at] -= rng.choice([0.01, 0.1, 3.0])
        changed.add((entry.event.episode, entry.event.data["turn"]))
    about = read_run(directory)
    assert about is not None
    write_run(target, about)
    with LedgerWriter(target) as writer:
        for raw in editor.rewritten():
            writer.write(raw)
    seal(target)
    assert verify(target).proved, verify(target).text()
    report = await rescore(target, url, all_versions=True)
    found = {(score.episode, score.turn) for score in report.turns if score.beyond}
    return report.verdict is RescoreVerdict.DIFFERS and found == changed
