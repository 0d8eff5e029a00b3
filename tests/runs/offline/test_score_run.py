"""score_run: failed and changed rewards are computed from the record; nothing is sampled and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strands_sglang import SGLangModel
from strands_sglang.errors import ConfigurationError, LedgerError
from strands_sglang.ledger.encoding import encoded, first_link
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.shard import OpenShard
from strands_sglang.proof.finding import Verdict
from strands_sglang.proof.verify import InMemoryEvents, prove_episodes
from strands_sglang.runs import EndReason, Limits, Task, score_run
from strands_sglang.runs.resume import restored
from support.rollout.agent_kinds import KINDS, Kind, build, plain
from support.rollout.scripts import PromptEngine, assert_proved, record_of, run, steps, summaries

TASKS = [Task("go", id="a"), Task("go on", id="b")]


def broken(episode: Any) -> float:
    raise NameError("name 'anwser' is not defined")


def for_the_second(episode: Any) -> float:
    if episode.task.id == "a":
        raise ValueError("not this one")
    return 0.25


def bare(messages: list[Any]) -> list[Any]:
    """Return messages without the keys that the framework adds."""
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def recorded_rewards(folder: Path, task: str) -> list[Any]:
    return [event.data["value"] for event in record_of(folder, f"{task}/0").events if event.kind is EventKind.REWARD]


async def test_resumed_run_retries_a_failed_reward(tmp_path: Path) -> None:
    first = await run(build, TASKS, PromptEngine(steps(2)), tmp_path, reward=for_the_second)
    assert [one.reward for one in first] == [None, 0.25] and "not this one" in str(first[0].reward_detail.error)
    engine, scored = PromptEngine(steps(2)), []

    def fixed(episode: Any) -> float:
        scored.append((episode.id, episode.restored, episode.text, episode.messages))
        return 1.0

    again = await run(build, TASKS, engine, tmp_path, reward=fixed, allow_changed="reward")
    assert [one.reward for one in again] == [1.0, 0.25] and not engine.calls
    assert scored == [("a/0", True, first[0].text, bare(first[0].messages))]
    assert again.metrics.restored == 2 and summaries(again) == summaries(first)
    assert recorded_rewards(tmp_path, "a") == [None, 1.0] and recorded_rewards(tmp_path, "b") == [0.25]
    assert_proved(tmp_path)
    # It is scored now.
    await run(build, TASKS, engine, tmp_path, reward=fixed, allow_changed="reward")
    assert len(scored) == 1


async def test_run_without_a_reward_is_scored_by_a_later_run(tmp_path: Path) -> None:
    await run(build, TASKS, PromptEngine(steps(1)), tmp_path)
    engine = PromptEngine(steps(1))
    scored = await run(build, TASKS, engine, tmp_path, reward=lambda episode: 0.5)
    assert [one.reward for one in scored] == [0.5, 0.5] and not engine.calls
    assert_proved(tmp_path)


async def test_reward_that_fails_again_changes_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        result = await run(build, TASKS, PromptEngine(steps(1)), tmp_path, reward=broken)
        assert [one.reward for one in result] == [None, None]
        assert "anwser" in str(result[0].reward_detail.error)
    assert_proved(tmp_path)


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_messages_are_restored(kind: Kind, tmp_path: Path) -> None:
    whole = await run(kind.build, [TASKS[0]], kind.engine(), tmp_path, **kind.options)
    again = await run(kind.build, [TASKS[0]], kind.engine(), tmp_path, **kind.options)
    assert again[0].restored and again[0].messages == bare(whole[0].messages)
    record = record_of(tmp_path, "a/0")
    assert restored(record).messages == bare(whole[0].messages) and record.end is not None
    if kind.name == "tools":  # the conversation of its branch is stored once
        kept = record.end.data["messages"]
        assert kept["branch"] is not None and len(json.loads(kept["rest"])) == 1


async def test_malformed_messages_are_left_out(tmp_path: Path) -> None:
    await run(build, [TASKS[0]], PromptEngine(steps(2)), tmp_path)
    record = record_of(tmp_path, "a/0")
    assert record.end is not None
    record.end.data |= {"conversations": "[{]", "messages": {"branch": 0, "rest": "["}}
    assert restored(record).messages == []
    record.end.data["messages"] = None
    assert restored(record).messages == []


async def test_run_is_scored_again(tmp_path: Path) -> None:
    tasks = [*TASKS, Task("fails", id="c")]

    def some(task: Task, model: SGLangModel) -> Any:
        if task.id == "c":
            raise RuntimeError("no agent for this")
        return plain(model)

    await run(some, tasks, PromptEngine(steps(1)), tmp_path, reward=lambda episode: 0.0)
    before = (tmp_path / "seal.json").read_bytes()
    scored = await score_run(lambda task, episode: float(task.id == "b"), tmp_path)
    assert [(one.id, one.before.value, one.now.value) for one in scored] == [("a/0", 0.0, 0.0), ("b/0", 0.0, 1.0)]
    assert recorded_rewards(tmp_path, "b") == [0.0, 1.0] and not recorded_rewards(tmp_path, "c")
    assert (tmp_path / "seal.json").read_bytes() != before
    assert_proved(tmp_path)
    again = await run(some, TASKS, PromptEngine(steps(1)), tmp_path)
    assert [one.reward for one in again] == [0.0, 1.0]

    assert not await score_run(lambda episode: 9.0, tmp_path, unscored_only=True)
    assert [one.now.value for one in await score_run(lambda episode: 3.0, tmp_path, episodes=["a/0"])] == [3.0]
    assert {id: restored(Ledger(tmp_path).episode(id)).reward for id in ("a/0", "b/0")} == {"a/0": 3.0, "b/0": 1.0}
    assert_proved(tmp_path)
    # The failed episode is resumed, next to the scored ones.
    changed = {"reward": lambda episode: 0.5, "allow_changed": ["agent", "reward"]}
    whole = await run(build, tasks, PromptEngine(steps(1)), tmp_path, **changed)
    assert [one.reward for one in whole] == [3.0, 1.0, 0.5] and whole[2].end_reason is EndReason.ANSWERED
    assert_proved(tmp_path)


async def test_what_cannot_be_scored_raises(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"no run\.json"):
        await score_run(broken, tmp_path)
    folder = tmp_path / "run"
    await run(build, TASKS, PromptEngine(steps(1)), folder, limits=Limits(max_turns=1))
    with pytest.raises(LedgerError, match="no episode 'x/0'"):
        await score_run(broken, folder, episodes=["x/0"])
    with pytest.raises(ConfigurationError, match="reward must be a function"):
        await score_run(None, folder)  # type: ignore[arg-type]
    events = len(record_of(folder, "a/0").events)
    (shard,) = (folder / "ledger").glob("*.ledger")
    whole = shard.read_bytes()
    shard.write_bytes(whole + b"more")
    with pytest.raises(LedgerError, match="does not match its seal"):
        await score_run(broken, folder)
    assert len(record_of(folder, "a/0").events) == events


async def test_only_rewards_may_follow_an_end(tmp_path: Path) -> None:
    """Any other event after the end breaks the proof."""
    await run(build, [TASKS[0]], PromptEngine(steps(1)), tmp_path / "run", reward=lambda episode: 0.5)
    await score_run(lambda episode: 1.0, tmp_path / "run")
    events = list(record_of(tmp_path / "run", "a/0").events)
    assert [event.kind for event in events[-3:]] == [EventKind.REWARD, EventKind.END, EventKind.REWARD]
    for kind, ended, verdict in (
        (EventKind.REWARD, "answered", Verdict.PROVED),
        (EventKind.REWARD, "engine_error", Verdict.BROKEN),  # a failed episode is resumed, not scored
        (EventKind.TOOL, "answered", Verdict.BROKEN),
        (EventKind.END, "answered", Verdict.BROKEN),
        (EventKind.RESUME, "answered", Verdict.BROKEN),
    ):
        events[-2].data["end_reason"], events[-1].kind = ended, kind
        head, written = first_link("a/0"), []
        for event in events:
            written.append(encoded(event, head))
            head = event.digest
        (proof,) = prove_episodes(InMemoryEvents(written), None, None, False)
        assert proof.verdict is verdict, (kind, ended, proof.findings)


async def test_files_added_after_the_seal(tmp_path: Path) -> None:
    """Files of a crashed score_run are sealed by the next one; files of a resumed run are sealed by that run."""
    folder = tmp_path / "run"
    await run(build, TASKS, PromptEngine(steps(1)), folder)
    sealed = (folder / "seal.json").read_bytes()
    await score_run(lambda episode: 0.5, folder)
    (folder / "seal.json").write_bytes(sealed)
    await score_run(lambda episode: 1.0, folder)
    assert_proved(folder)
    sealed = (folder / "seal.json").read_bytes()
    OpenShard(folder / "ledger" / "0-later.ledger", {"format": 1, "worker": "0"}).close()
    assert len(await score_run(lambda episode: 0.5, folder)) == 2
    assert (folder / "seal.json").read_bytes() == sealed
