"""Resume: a run that crashed anywhere gives the same result, and repeats nothing that is recorded."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strands_sglang import SGLangModel
from strands_sglang.errors import ConfigurationError, LedgerError
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.shard import OpenShard
from strands_sglang.proof import verify
from strands_sglang.proof.finding import FindingKind, Verdict
from strands_sglang.provider import commit
from strands_sglang.provider.stream_events import blocks_of
from strands_sglang.runs import EndReason, Limits, Task
from strands_sglang.runs.resume import PreviousRun, directory_lock, read_previous_run
from support.rollout.agent_kinds import KINDS, Kind, build, other_prompt, other_result, other_tools, plain
from support.rollout.scripts import (
    RAN,
    PromptEngine,
    assert_proved,
    assert_same,
    crashed,
    raw,
    record_of,
    run,
    steps,
    summaries,
    summary,
)
from support.scripted_engine import Answer, tool_call

TASK = Task("go", id="t")


def score(episode: Any) -> float:
    return 0.5


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_crash_after_any_event(kind: Kind, tmp_path: Path) -> None:
    await check_every_crash(kind, tmp_path)


@pytest.mark.soak
async def test_crash_of_helpers_whose_turns_overtake_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns of concurrent conversations get the same call ids again, however long each takes to be committed."""
    (kind,) = (kind for kind in KINDS if kind.name == "helpers")
    rng = random.Random(0)

    def delayed(*arguments: Any, **options: Any) -> Any:
        time.sleep(rng.choice((0.0, 0.0, 0.02)))
        return blocks_of(*arguments, **options)

    monkeypatch.setattr(commit, "blocks_of", delayed)
    await check_every_crash(kind, tmp_path)


async def check_every_crash(kind: Kind, tmp_path: Path) -> None:
    """Run an episode, then crash it after each of its events and resume it: nothing that is recorded is done again."""
    ordered = kind.name not in ("helpers", "graph")
    engine = kind.engine()
    RAN.taken()
    whole = await run(kind.build, [TASK], engine, tmp_path / "whole", reward=score, **kind.options)
    assert whole[0].end_reason is EndReason.ANSWERED, whole[0].failure
    assert_proved(tmp_path / "whole")
    events, ran = record_of(tmp_path / "whole").events, sum(RAN.taken().values())
    for kept in range(1, len(events)):
        folder = crashed(tmp_path / "whole", tmp_path / "crash", kept)
        again = kind.engine().follows(events[:kept])
        resumed = await run(kind.build, [TASK], again, folder, reward=score, **kind.options)

        episode = resumed[0]
        assert summaries(resumed, ordered=ordered) == summaries(whole, ordered=ordered), kept
        assert (episode.end_reason, episode.text, episode.reward) == (EndReason.ANSWERED, whole[0].text, 0.5)
        assert (episode.epoch, whole[0].epoch) == (1, 0)
        # Nothing that is recorded is sampled or run again; the rest is, once.
        recorded = [event for event in events[:kept] if event.kind is EventKind.CALL]
        prompts = Counter(event.data["prompt_digest"] for event in recorded)
        assert again.digests + prompts == engine.digests, kept
        assert episode.metrics.replayed_turns == len(recorded)
        answered = sum(event.kind is EventKind.TOOL and not event.data["calls"] for event in events[:kept])
        assert sum(RAN.taken().values()) == ran - answered, kept
        assert episode.metrics.tool_calls == whole[0].metrics.tool_calls
        assert_proved(folder)
        assert_same(folder, resumed)
        assert not [event for event in record_of(folder).events if event.kind is EventKind.ROLLBACK], kept


async def test_run_that_crashes_several_times(tmp_path: Path) -> None:
    """Three processes crash one after the other, each a few events later; a fourth finishes the run."""
    script = steps(6)
    whole = await run(build, [TASK], PromptEngine(script), tmp_path / "whole")
    last = tmp_path / "whole"
    for epoch, kept in enumerate((3, 6, 10), 1):
        folder = crashed(last, tmp_path / f"crash-{epoch}", kept)
        engine = PromptEngine(script).follows(record_of(folder).events)
        resumed = await run(build, [TASK], engine, folder)
        record = record_of(folder)
        assert resumed[0].epoch == record.epoch == epoch
        assert sum(event.kind is EventKind.RESUME for event in record.events) == epoch
        assert summaries(resumed) == summaries(whole)
        assert_proved(folder)
        last = folder


async def test_events_of_a_process_believed_dead_are_orphans(tmp_path: Path) -> None:
    """Its late events change nothing, whenever they are read."""
    script = steps(5)
    whole = await run(build, [TASK], PromptEngine(script), tmp_path / "whole")
    events = record_of(tmp_path / "whole").events
    folder = crashed(tmp_path / "whole", tmp_path / "crash", 6)

    def zombie(name: str, upto: int) -> None:
        shard = OpenShard(folder / "ledger" / f"{name}.ledger", {"format": 1, "worker": name})
        late = raw(events)[6:upto]
        shard.append(b"".join(late), len(late))
        shard.close()

    zombie("before", 7)
    engine = PromptEngine(script)
    engine.follows(record_of(folder).events)
    # Events written before the episode is resumed count; later ones do not.
    resumed = await run(build, [TASK], engine, folder)
    assert engine.digests.total() == 6 - 3
    shutil.rmtree(folder / "ledger" / "zombie", ignore_errors=True)
    shard = OpenShard(folder / "ledger" / "late.ledger", {"format": 1, "worker": "late"})
    shard.append(b"".join(raw(events)[7:]), len(events) - 7)
    shard.close()
    (folder / "seal.json").unlink()
    record = record_of(folder)
    assert record.orphans == len(events) - 7 and not record.problems
    assert summary(record.tree()) == summaries(resumed)["t/0"] == summaries(whole)["t/0"]
    again = await run(build, [TASK], PromptEngine(script), folder)
    assert summaries(again) == summaries(whole)
    assert_proved(folder)


async def test_two_processes_resume_an_episode_and_the_longer_record_counts(tmp_path: Path) -> None:
    """Without a lock two processes may resume the same episode; every reader gets the same record."""
    script = steps(5)
    await run(build, [TASK], PromptEngine(script), tmp_path / "whole")
    first = crashed(tmp_path / "whole", tmp_path / "first", 4)
    second = crashed(tmp_path / "whole", tmp_path / "second", 4)
    engines = [PromptEngine(script).follows(record_of(folder).events) for folder in (first, second)]
    await asyncio.gather(run(build, [TASK], engines[0], first), run(build, [TASK], engines[1], second))
    for path in (second / "ledger").glob("0-2*.ledger"):
        shutil.copy(path, first / "ledger" / f"other-{path.name}")
    (first / "seal.json").unlink()
    record = record_of(first)
    assert record.finished and not record.problems and record.orphans == len(record.events) - 4
    again = await run(build, [TASK], PromptEngine(script), first)
    assert len(again) == 1 and again.metrics.restored == 1
    assert_proved(first)


@given(data=st.data())
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_run_of_several_episodes_crashes_anywhere(data: st.DataObject, tmp_path_factory: Any) -> None:
    """Some episodes had ended, some were running, some had not started."""
    folder = tmp_path_factory.mktemp("run")
    tasks = [Task(f"question {number}", id=f"t{number}") for number in range(3)]
    script = steps(3)
    whole = await run(build, tasks, PromptEngine(script), folder / "whole", samples_per_task=2, reward=score)
    records = {record.id: record for record in Ledger(folder / "whole").episodes()}
    kept = {id: data.draw(st.integers(0, len(record.events)), label=id) for id, record in records.items()}
    crashed(folder / "whole", folder / "crash", kept)
    engine = PromptEngine(script)
    known = [event for id, record in records.items() for event in record.events[: kept[id]]]
    engine.follows(sorted(known, key=lambda event: event.kind is EventKind.CALL_ERROR))
    reported: list[tuple[str, bool]] = []
    resumed = await run(
        build, tasks, engine, folder / "crash", samples_per_task=2, reward=score,
        on_episode=lambda episode: reported.append((episode.id, episode.restored)),
    )  # fmt: skip
    assert {id: len(one) for id, one in summaries(resumed).items()} == {id: 1 for id in records}
    finished = {id for id, record in records.items() if kept[id] == len(record.events)}
    assert sorted(reported) == sorted((id, id in finished) for id in records)
    assert resumed.metrics.restored == len(finished)
    calls = sum(event.kind is EventKind.CALL for record in records.values() for event in record.events)
    recorded = sum(event.kind is EventKind.CALL for event in known)
    assert len(engine.calls) == calls - recorded
    assert [episode.reward for episode in resumed] == [0.5] * 6
    assert_proved(folder / "crash")
    assert_same(folder / "crash", resumed)
    assert len(whole) == 6


async def test_finished_run_is_read_back(tmp_path: Path) -> None:
    tasks = [Task(f"question {number}", answer=number, data={"n": [number]}) for number in range(3)]
    first = await run(build, tasks, PromptEngine(steps(2)), tmp_path, samples_per_task=2, reward=score)
    engine = PromptEngine(steps(2))
    second = await run(
        build, tasks, engine, tmp_path, samples_per_task=2, reward=lambda episode: 1 / 0, allow_changed="reward"
    )
    assert not engine.calls
    for one, other in zip(first, second, strict=True):
        assert (one.id, one.task, one.sample, one.end_reason, one.reward_detail) == (
            other.id, other.task, other.sample, other.end_reason, other.reward_detail,
        )  # fmt: skip
        assert (one.text, one.failure, one.epoch) == (other.text, other.failure, other.epoch)
        assert one.metrics.to_dict() == other.metrics.to_dict()
        assert summary(one.tree) == summary(other.tree)
        assert [turn.detail for turn in one.tree] == [turn.detail for turn in other.tree]
    assert [episode.restored for episode in second] == [True] * 6
    assert_proved(tmp_path)


async def test_more_tasks_and_samples_later(tmp_path: Path) -> None:
    tasks = [Task(f"question {number}") for number in range(2)]
    await run(build, tasks[:1], PromptEngine(steps(1)), tmp_path)
    engine = PromptEngine(steps(1))
    more = await run(build, tasks, engine, tmp_path)
    assert len(more) == 2 and len(engine.calls) == 2
    assert_proved(tmp_path)
    engine = PromptEngine(steps(1))
    both = await run(build, tasks, engine, tmp_path, samples_per_task=2)
    assert [episode.id for episode in both] == [f"{task.id}/{sample}" for task in tasks for sample in range(2)]
    assert len(engine.calls) == 4
    assert_proved(tmp_path)
    fewer = await run(build, tasks, PromptEngine(steps(1)), tmp_path, samples_per_task=1)
    assert [episode.id for episode in fewer] == [f"{task.id}/0" for task in tasks]
    assert_proved(tmp_path)


async def test_resume_with_another_template_or_task_raises(tmp_path: Path) -> None:
    await run(build, [TASK], PromptEngine(steps(1)), tmp_path)
    with pytest.raises(ConfigurationError, match="template must be the one of the recorded run"):
        await run(build, [TASK], PromptEngine(steps(1), "smollm3"), tmp_path)
    with pytest.raises(ConfigurationError, match="another prompt"):
        await run(build, [Task("something else", id="t")], PromptEngine(steps(1)), tmp_path)
    # Neither changed anything.
    assert_proved(tmp_path)
    previous = read_previous_run(tmp_path)
    assert list(previous.finished) == ["t/0"] and not previous.unfinished
    assert read_previous_run(tmp_path / "nothing") == PreviousRun({})


async def test_crash_between_reward_and_end(tmp_path: Path) -> None:
    """The episode is scored again, and the last reward counts."""
    await run(build, [TASK], PromptEngine(steps(1)), tmp_path / "whole", reward=score)
    events = record_of(tmp_path / "whole").events
    assert events[-2].kind is EventKind.REWARD
    folder = crashed(tmp_path / "whole", tmp_path / "crash", len(events) - 1)
    resumed = await run(build, [TASK], PromptEngine(steps(1)), folder, reward=lambda episode: 0.75)
    assert resumed[0].reward == 0.75
    again = await run(build, [TASK], PromptEngine(steps(1)), folder)
    assert again[0].reward == 0.75
    assert_proved(folder)


@pytest.mark.parametrize(("changed", "turns"), [(other_prompt, 0), (other_tools, 0), (other_result, 2)])
async def test_changed_agent_continues_on_the_engine_after_a_rollback(changed: Any, turns: int, tmp_path: Path) -> None:
    script = steps(4)
    await run(build, [TASK], PromptEngine(script), tmp_path / "whole")
    events = record_of(tmp_path / "whole").events
    for kept in (1, 2, 3, 7, len(events) - 1):
        recorded = sum(event.kind is EventKind.CALL for event in events[:kept])
        folder = crashed(tmp_path / "whole", tmp_path / "crash", kept)
        engine = PromptEngine(script)
        resumed = await run(changed, [TASK], engine, folder)
        cuts = [event for event in record_of(folder).events if event.kind is EventKind.ROLLBACK]
        if recorded > turns:
            assert [event.data["turns"] for event in cuts] == [turns]
            assert "another prompt" in cuts[0].data["reason"]
            assert cuts[0].data["event"] == [event.number for event in events if event.kind is EventKind.CALL][turns]
        else:
            assert not cuts
        kept_turns = min(recorded, turns)
        assert resumed[0].metrics.replayed_turns == kept_turns
        assert len(engine.calls) == 5 - kept_turns
        fresh = await run(changed, [TASK], PromptEngine(script))
        assert summary(resumed[0].tree) == summary(fresh[0].tree)
        assert_proved(folder)
        assert_same(folder, resumed)
        # The new turns count for every later reader.
        again = PromptEngine(script)
        assert summaries(await run(changed, [TASK], again, folder)) == summaries(resumed) and not again.calls


async def test_rolled_back_episode_is_resumed_after_the_rollback(tmp_path: Path) -> None:
    script = steps(4)
    await run(build, [TASK], PromptEngine(script), tmp_path / "whole")
    folder = crashed(tmp_path / "whole", tmp_path / "first", 8)
    changed = await run(other_result, [TASK], PromptEngine(script), folder)
    events = record_of(folder).events
    place = next(event.number for event in events if event.kind is EventKind.ROLLBACK)
    for kept in range(place, len(events)):
        second = crashed(folder, tmp_path / "second", kept)
        engine = PromptEngine(script)
        resumed = await run(other_result, [TASK], engine, second)
        assert summaries(resumed) == summaries(changed), kept
        assert_proved(second)
        remaining = len(record_of(second).calls)
        assert resumed[0].metrics.replayed_turns + len(engine.calls) == remaining == 5


async def test_agent_that_diverges_at_an_error_diverges_once(tmp_path: Path) -> None:
    """A rollback names the errors it removes, so that a further resume does not diverge again."""
    kind = next(kind for kind in KINDS if kind.name == "retry")
    await run(kind.build, [TASK], kind.engine(), tmp_path / "whole")
    events = record_of(tmp_path / "whole").events
    fault = next(event.number for event in events if event.kind is EventKind.CALL_ERROR)
    assert events[fault + 2].kind is EventKind.CALL

    def shouting(task: Task, model: SGLangModel) -> Any:
        from strands.hooks import AfterToolCallEvent

        agent = kind.build(task, model)

        def shout(event: AfterToolCallEvent) -> None:
            event.result = {**event.result, "content": [{"text": f"{event.result['content'][0]['text']} or so"}]}

        agent.hooks.add_callback(AfterToolCallEvent, shout)
        return agent

    folder = crashed(tmp_path / "whole", tmp_path / "first", fault + 3)
    first = await run(shouting, [TASK], kind.engine(), folder)
    assert first[0].end_reason is EndReason.ANSWERED
    events = record_of(folder).events
    second = crashed(folder, tmp_path / "second", len(events) - 1)
    engine = kind.engine()
    resumed = await run(shouting, [TASK], engine, second)
    assert not engine.calls
    assert summaries(resumed) == summaries(first)
    assert sum(event.kind is EventKind.ROLLBACK for event in record_of(second).events) == 1
    assert_proved(second)


async def test_episodes_of_a_model_that_learned_its_context_length_are_resumed(tmp_path: Path) -> None:
    """Each had one overflow because its budget was too large; the resuming model has only the first."""
    kind = next(kind for kind in KINDS if kind.name == "learning")
    tasks = [Task(f"question {number}") for number in range(4)]
    engine = kind.engine()
    engine.delay = 0.05
    whole = await run(kind.build, tasks, engine, tmp_path / "whole", **kind.options)
    assert all(episode.end_reason is EndReason.ANSWERED for episode in whole)
    assert sum(len(record.call_errors) for record in Ledger(tmp_path / "whole").episodes()) > 1
    folder = crashed(tmp_path / "whole", tmp_path / "crash", 6)
    engine = kind.engine()
    resumed = await run(kind.build, tasks, engine, folder, **kind.options)
    assert [episode.end_reason for episode in resumed] == [EndReason.ANSWERED] * 4
    assert summaries(resumed) == summaries(whole)
    assert_proved(folder)


async def test_limits_count_recorded_turns(tmp_path: Path) -> None:
    def script(prompt: str, before: int) -> Answer:
        return tool_call("step", number=1)

    for limits, ended in (
        (Limits(max_turns=11), EndReason.TURN_LIMIT),
        (Limits(max_tool_calls=5), EndReason.TOOL_LIMIT),
        (Limits(max_episode_tokens=100), EndReason.TOKEN_LIMIT),
    ):
        folder = tmp_path / ended.value
        whole = await run(build, [TASK], PromptEngine(script), folder / "whole", limits=limits)
        events = record_of(folder / "whole").events
        for kept in (2, 5, len(events) - 1):
            crashed(folder / "whole", folder / "crash", kept)
            resumed = await run(build, [TASK], PromptEngine(script), folder / "crash", limits=limits)
            assert resumed[0].end_reason is whole[0].end_reason is ended
            assert summaries(resumed) == summaries(whole), (ended, kept)
            assert_proved(folder / "crash")


@pytest.mark.parametrize("new_steps", [0, 1, 3, 6])
@pytest.mark.parametrize("kept", [1, 3, 4, 7])
async def test_run_that_lost_its_first_file_is_proved_again(kept: int, new_steps: int, tmp_path: Path) -> None:
    """A process crashed and another resumed; then the first file is lost, and the episode starts from scratch."""
    await run(build, [TASK], PromptEngine(steps(3)), tmp_path / "whole")
    folder = crashed(tmp_path / "whole", tmp_path / "crash", kept)
    await run(build, [TASK], PromptEngine(steps(3)), folder)
    (folder / "ledger" / "0-dead.ledger").unlink()
    (folder / "seal.json").unlink()
    (resumed,) = await run(build, [TASK], PromptEngine(steps(new_steps)), folder)
    assert (resumed.end_reason, resumed.epoch) == (EndReason.ANSWERED, 2)
    assert record_of(folder).orphans and not record_of(folder).problems
    assert_proved(folder)


@pytest.mark.parametrize("new_steps", [0, 2, 6])
@pytest.mark.parametrize("kept", [1, 4, 6])
async def test_events_without_their_first_file_are_ignored(kept: int, new_steps: int, tmp_path: Path) -> None:
    """The episode starts from scratch."""
    await run(build, [TASK], PromptEngine(steps(3)), tmp_path / "whole")
    events = raw(record_of(tmp_path / "whole").events)
    folder = crashed(tmp_path / "whole", tmp_path / "crash", 0)
    shard = OpenShard(folder / "ledger" / "0-second.ledger", {"format": 1, "worker": "0"})
    shard.append(b"".join(events[kept:]), len(events) - kept)
    shard.close()
    engine = PromptEngine(steps(new_steps))
    resumed = await run(build, [TASK], engine, folder)
    assert (resumed[0].end_reason, resumed[0].epoch, len(engine.calls)) == (EndReason.ANSWERED, 1, new_steps + 1)
    record = record_of(folder)
    assert record.finished and record.orphans == len(events) - kept and not record.problems and record.epoch == 1
    assert_proved(folder)
    # It is finished now and not run again.
    again = PromptEngine(steps(3))
    assert summaries(await run(build, [TASK], again, folder)) == summaries(resumed) and not again.calls


async def test_episode_with_two_begin_events_is_found(tmp_path: Path) -> None:
    await run(build, [TASK], PromptEngine(steps(3)), tmp_path / "whole")
    folder = crashed(tmp_path / "whole", tmp_path / "crash", 3)
    lost = (folder / "ledger" / "0-dead.ledger").rename(tmp_path / "lost")
    shard = OpenShard(folder / "ledger" / "0-tail.ledger", {"format": 1, "worker": "0"})
    shard.append(raw(record_of(tmp_path / "whole").events)[3], 1)
    shard.close()
    await run(build, [TASK], PromptEngine(steps(3)), folder)
    lost.rename(folder / "ledger" / "0-dead.ledger")
    certificate = verify(folder)
    assert certificate.verdict is Verdict.BROKEN
    assert [finding.message for finding in certificate.findings if finding.kind is FindingKind.DUPLICATE] == [
        "the episode begins twice"
    ]


HOLDS = """
import sys, time
from pathlib import Path
from strands_sglang.runs.resume import directory_lock
with directory_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


async def test_lock_of_another_process(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        engine = PromptEngine(steps(1))
        with pytest.raises(ConfigurationError, match="another run is active"):
            await run(lambda task, model: plain(model), ["question"], engine, tmp_path)
        assert not engine.calls and not (tmp_path / "run.json").exists()
        # The lock is released when the process ends, even if it is killed.
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(20)
        assert len(await run(lambda task, model: plain(model), ["question"], engine, tmp_path)) == 1
    finally:
        holder.kill()
        holder.wait(20)
        assert holder.stdout is not None
        holder.stdout.close()


FORKS = """
import os, sys, time
from pathlib import Path
from strands_sglang.errors import ConfigurationError
from strands_sglang.runs.resume import directory_lock
ready, done = os.pipe()
with directory_lock(Path(sys.argv[1])):
    if not os.fork():
        os.close(ready)
        try:
            with directory_lock(Path(sys.argv[1])):
                outcome = b"locked twice"
        except ConfigurationError:
            outcome = b"refused"
        os.write(done, outcome)
        time.sleep(60)
    os.close(done)
    print(os.read(ready, 100).decode(), flush=True)
    os.kill(os.getpid(), 9)
"""


def test_a_forked_child_does_not_hold_the_lock(tmp_path: Path) -> None:
    """The lock ends with the process that took it, though a tool of the run left a child behind."""
    command = [sys.executable, "-c", FORKS, str(tmp_path)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "refused\n"
        holder.wait(20)
        with directory_lock(tmp_path):
            pass
    finally:
        os.killpg(holder.pid, signal.SIGKILL)  # the child
        assert holder.stdout is not None
        holder.stdout.close()


async def test_a_ledger_without_its_run_file_is_not_continued(tmp_path: Path) -> None:
    await run(build, [TASK], PromptEngine(steps(3)), tmp_path)
    (tmp_path / "run.json").unlink()
    before = contents(tmp_path)
    with pytest.raises(ConfigurationError, match=r"has a ledger but no run\.json.*restore run\.json"):
        await run(build, [TASK], PromptEngine(steps(3)), tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
async def test_a_run_that_does_not_match_its_seal_is_not_continued(tmp_path: Path, damage: str) -> None:
    await run(build, [TASK], PromptEngine(steps(3)), tmp_path)
    [shard] = (tmp_path / "ledger").iterdir()
    content = shard.read_bytes()
    if damage == "gone":
        shard.unlink()
    else:
        shard.write_bytes(content[: len(content) // 2] + (b"" if damage == "cut" else b"x" * (len(content) // 2)))
    before = contents(tmp_path)
    with pytest.raises(LedgerError, match=r"neither continued nor sealed again.*restore the file from a copy"):
        await run(build, [TASK], PromptEngine(steps(3)), tmp_path)
    assert contents(tmp_path) == before


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_two_runs_of_one_process(tmp_path: Path) -> None:
    with directory_lock(tmp_path / "a" / "b"):
        with pytest.raises(ConfigurationError, match="another directory"), directory_lock(tmp_path / "a" / "b"):
            pass
        with directory_lock(tmp_path / "a"):
            pass
    with directory_lock(tmp_path / "a" / "b"):
        pass


def test_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is locked there, and no run is rejected."""
    import fcntl

    def refuse(*_: Any) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with directory_lock(tmp_path), directory_lock(tmp_path):
        pass
