"""A limit of staleness: what is trained is never older, the decision is on record, and `verify` holds exports to it."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strands import tool

from strands_sglang import SGLangClient
from strands_sglang.engine import Generation
from strands_sglang.engine.control import EngineControl
from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.reader import Ledger
from strands_sglang.proof.finding import FindingKind
from strands_sglang.proof.verify import verify
from strands_sglang.runs import EndReason, Episode, MaxStaleness, RunResult, Task, controller
from strands_sglang.runs.episode import EpisodeMetrics, StalenessDecision
from strands_sglang.runs.groups import GroupCollector, GroupFilters
from strands_sglang.runs.staleness import StalenessGate
from strands_sglang.runs.stop_criteria import StopCriteria
from strands_sglang.tokens import VersionSpan
from strands_sglang.trainers.exports import padded_batch
from strands_sglang.trainers.rows import branches_of, rows
from support.ledger.episodes import Recorder
from support.proof.in_memory import verify_events
from support.rollout.agent_kinds import build, plain
from support.rollout.finished import finished
from support.rollout.scripts import PromptEngine, asked, run, steps
from support.scripted_engine import Answer, EngineCall, Reply

ACTIONS = st.sampled_from(["drop", "retry", "mask"])
LAST = 12
"""The newest version of the property test."""


# --- the rule -----------------------------------------------------------------------------------------------------


def test_versions_are_ordered_as_numbers_and_never_as_text() -> None:
    rule = MaxStaleness(1)
    assert (rule.age("9", "10"), rule.age("10", "9"), rule.age("7", "7")) == (1, 0, 0)
    assert rule.age(None, "10") is None and rule.age("3", None) is None
    assert rule.stale(["9", "8"], "10") and not rule.stale(["9", None], "10")
    for name in ("step-3", "v7", "1.5", "-1", "", "٣"):
        with pytest.raises(ConfigurationError, match="is no decimal number: pass MaxStaleness"):
            rule.age(name, "10")


def test_weights_that_a_server_was_started_with_get_old() -> None:
    rule = MaxStaleness(1)
    assert rule.age("default", "5") == 5 and rule.stale(["default"], "5") and not rule.stale(["default"], "1")
    assert rule.age("default", "default") is None and rule.age("5", "default") is None  # no number is current
    for unknown in (MaxStaleness(9, order=["a", "b"]), MaxStaleness(9, order=lambda name: int(name[1:]))):
        current = "b" if unknown.order == ["a", "b"] else "v1"
        assert unknown.stale(["default"], current) and not unknown.stale(["default"], "default")
    assert MaxStaleness(1, order={"default": 3, "v1": 4}.__getitem__).age("default", "v1") == 1


def test_order_may_be_a_function_or_a_list_that_grows() -> None:
    by_function = MaxStaleness(1, order=lambda name: int(name.removeprefix("step-")))
    assert by_function.age("step-9", "step-10") == 1
    known = ["base", "a"]
    rule = MaxStaleness(1, order=known)
    with pytest.raises(ConfigurationError, match="got 'b': add it to order="):
        rule.age("base", "b")
    known.append("b")
    assert rule.age("base", "b") == 2
    assert MaxStaleness(1, order=["default", "1"]).age("default", "1") == 1


def test_adapters_have_an_age_only_by_an_order_of_the_user() -> None:
    with pytest.raises(ConfigurationError, match=r"is no decimal number.* and current=, because the engine does not"):
        MaxStaleness(1).age("7+lora:policy-v3", "7")
    rule = MaxStaleness(1, order=lambda name: int(name.rpartition("-v")[2]))
    assert rule.age("default+lora:policy-v9", "default+lora:policy-v11") == 2
    assert rule.age("default+lora:policy-v9", None) is None  # no worker answered yet
    with pytest.raises(ConfigurationError, match="must know the current adapter to tell the age of 'default"):
        rule.age("default+lora:policy-v9", "default")


@pytest.mark.parametrize("given_", [-1, 1.5, True, {"limit": 1, "action": "burn"}, {"limit": 1, "order": "abc"}])
def test_invalid_rules_are_refused(given_: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"max_staleness|MaxStaleness\.(action|order)"):
        MaxStaleness.of(given_)


async def test_rule_needs_to_know_the_current_version() -> None:
    with pytest.raises(ConfigurationError, match=r"a PromptEngine does not\s+report: pass MaxStaleness"):
        await run(build, [Task("one")], PromptEngine(steps(1)), max_staleness=1)


async def test_current_version_is_the_oldest_that_a_worker_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_sglang.runs.staleness._KNOWN_SECONDS", -1.0)
    reported: dict[str, str | None] = {}

    async def versions(control: Any) -> dict[str, str | None]:
        return reported

    monkeypatch.setattr(EngineControl, "weight_versions", versions)
    async with SGLangClient("http://127.0.0.1:9") as client:
        gate = StalenessGate(MaxStaleness(1), client)
        gate._waits_until = 0.0
        assert await gate.current() is None
        reported = {"one": "default", "two": None}
        assert await gate.current() == "default"
        reported = {"one": "10", "two": "9"}
        assert await gate.current() == "9"
        reported = {"one": "default", "two": "12", "three": None}  # two restarted with the weights of their start
        assert await gate.current() == "12"
        reported = {"one": "default"}
        assert await gate.current() == "12"
        reported = {}
        assert await gate.current() == "12"
        # What was sampled is not newer than the current weights, even in an outage, or if a worker has stayed behind.
        gate.sampled(["14", "11", None, "default"])
        assert await gate.current() == "14"
        reported = {"one": "13", "two": "16"}
        assert await gate.current() == "14"


async def test_worker_that_has_not_answered_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_sglang.runs.staleness._PAUSE", 0.001)
    answers: list[dict[str, str | None]] = [{}, {}, {"one": "3"}]

    async def versions(control: Any) -> dict[str, str | None]:
        return answers.pop(0)

    monkeypatch.setattr(EngineControl, "weight_versions", versions)
    async with SGLangClient("http://127.0.0.1:9") as client:
        gate = StalenessGate(MaxStaleness(1), client)
        gate.sampled(["1"])
        assert await gate.current() == "3" and not answers


async def test_group_is_as_old_as_its_own_tokens_show_although_no_worker_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("strands_sglang.runs.staleness._PATIENCE", -1.0)

    async def versions(control: Any) -> dict[str, str | None]:
        return {}

    monkeypatch.setattr(EngineControl, "weight_versions", versions)
    async with SGLangClient("http://127.0.0.1:9") as client:
        collector = GroupCollector(StopCriteria(), GroupFilters(), gate=StalenessGate(MaxStaleness(1), client))
        for task in tasks(2):
            collector.expect(task, 1)
        collector.sampled("t1", 0, ["7"])  # another task of the run
        await collector.add(finished(tasks(1)[0], 0, 1.0, version="3"))
        (group,) = collector.groups(False)
        (decided,) = [one.staleness for one in group.episodes]
        assert decided is not None and (decided.decision.value, decided.current, decided.age) == ("dropped", "7", 4)


# --- any versions -------------------------------------------------------------------------------------------------

SPANS = st.lists(
    st.tuples(st.sampled_from([None, "default", *map(str, range(LAST + 1))]), st.integers(1, 4)), max_size=4
)


class NoServer:
    """An engine that is never asked."""


def recorded_group(episodes: list[list[list[tuple[str | None, int]]]], events: list[bytes]) -> list[Episode]:
    """Record episodes, each given as its turns, each given as spans of a version and a number of tokens."""
    group = []
    for sample, turns in enumerate(episodes):
        recorder, last = Recorder(events.append, sample=sample), None
        for number, spans in enumerate(turns):
            ends = np.cumsum([0, *(count for _, count in spans)]).tolist()
            versions = [VersionSpan(name, ends[at], ends[at + 1]) for at, (name, _) in enumerate(spans)]
            last = recorder.call(last, context=[number], sampled=list(range(ends[-1])), versions=versions)
        recorder.reward(1.0)
        recorder.end()
        metrics = EpisodeMetrics()
        metrics.count(recorder.tree)
        made = Episode(recorder.id, Task("?", id="add"), sample, EndReason.ANSWERED, recorder.tree, metrics=metrics)
        made.chain_end = (0, recorder.chain.number, recorder.chain.head)
        group.append(made)
    return group


class InMemory:
    """Takes the place of the ledger's writer."""

    def __init__(self, events: list[bytes]) -> None:
        self.write = events.append


@given(
    episodes=st.lists(st.lists(SPANS.filter(bool), min_size=1, max_size=3), min_size=1, max_size=3),
    limit=st.integers(0, LAST),
    current=st.integers(0, LAST),
    action=ACTIONS,
    retry=st.booleans(),
)
@settings(max_examples=150)
def test_no_older_token_is_trained_or_passes_verify(
    episodes: list[list[list[tuple[str | None, int]]]], limit: int, current: int, action: str, retry: bool
) -> None:
    events: list[bytes] = []
    group = recorded_group(episodes, events)
    unmasked = [one.to_dict() for episode in group for one in episode.trajectories]
    engine: Any = NoServer()
    gate = StalenessGate(MaxStaleness(limit, action, current=lambda: str(current)), engine, Path("unused"))
    gate._writer = InMemory(events)  # type: ignore[assignment]
    decided = gate.decide(group, str(current), retry=retry)

    def age(name: str | None) -> int:
        return 0 if name is None else max(current - int(name.replace("default", "0")), 0)

    ages = [age(name) for turns in episodes for spans in turns for name, _ in spans]
    assert decided.dropped == (action != "mask" and max(ages) > limit)
    trained = 0
    for episode, turns in zip(group, episodes, strict=True):
        expected = [age(name) <= limit for spans in turns for name, count in spans for _ in range(count)]
        for flat in episode.trajectories:
            mask = flat.loss_mask[flat.origins == 1].astype(bool).tolist()
            assert mask == (expected if action == "mask" else [True] * len(expected))
        if decided.dropped:
            assert not list(branches_of([episode])) and episode.staleness is not None
        else:
            trained += sum(expected)
            assert sum(int(row.loss_mask.sum()) for row in rows(episode)) == sum(expected)
            assert sum(int(branch.trajectory.loss_mask.sum()) for branch in branches_of([episode])) == sum(expected)
    exported = [branch.trajectory.to_dict() for branch in branches_of(group)]
    certificate = verify_events(events, exported=exported)
    assert not certificate.findings or {one.kind for one in certificate.findings} == {FindingKind.NOTHING_TRAINED}
    assert certificate.tokens.trained == trained and certificate.tokens.stale == len(ages_of(episodes)) - trained
    if max(ages) > limit:  # the same tokens without regard for their age are found
        wrong = verify_events(events, exported=unmasked)
        assert wrong.found[FindingKind.EXPORTED], wrong.text()


def ages_of(episodes: list[list[list[tuple[str | None, int]]]]) -> list[str | None]:
    return [name for turns in episodes for spans in turns for name, count in spans for _ in range(count)]


# --- runs ---------------------------------------------------------------------------------------------------------


class TrainedEngine(PromptEngine):
    """An engine whose weights are updated every so many calls."""

    version = 1
    every = 0
    last = 99

    def _generation(self, call: EngineCall, reply: Reply) -> Generation:
        made = super()._generation(call, Reply(reply.text, version=str(self.version)))
        if self.every and len(self.calls) % self.every == 0 and self.version < self.last:
            self.version += 1
        return made


def rule(engine: TrainedEngine, limit: int, **fields: Any) -> MaxStaleness:
    return MaxStaleness(limit, current=lambda: str(engine.version), **fields)


def one_point(episode: Episode) -> float:
    return 1.0


def tasks(count: int) -> list[Task]:
    return [Task(f"question {number}", id=f"t{number}") for number in range(count)]


def short_or_long(prompt: str, before: int) -> Answer:
    """Answer the first questions after one step, and the others after six, which takes several updates."""
    return steps(6 if int(asked(prompt).split()[1]) >= 3 else 1)(prompt, before)


async def trained_run(directory: Path, limit: int, *, last: int = 99, **fields: Any) -> RunResult:
    engine = TrainedEngine(short_or_long)
    engine.every, engine.last = 12, last
    made = await run(
        build, tasks(6), engine, directory, reward=one_point, samples_per_task=2,
        concurrency=6, prefix_warmup=None, max_staleness=rule(engine, limit, stop_running=False, **fields),
    )  # fmt: skip
    assert engine.version > 3  # updates while the run was running
    return made


def check_record(directory: Path, run: RunResult) -> Counter[str]:
    """Check the decisions on record, and what is exported of the run and of its ledger; return the decisions."""
    decisions: Counter[str] = Counter()
    for record in Ledger(directory).episodes():
        if (event := record.staleness) is not None:
            decisions[event.data["decision"]] += 1
    exported = [one.trajectory for one in branches_of(run)]
    certificate = verify(directory, exported=exported, exported_part=True)
    assert certificate.proved, certificate.text()
    assert certificate.staleness == decisions
    everything = [one.trajectory for one in branches_of(directory)]
    assert verify(directory, exported=everything).proved
    assert len(everything) >= len(exported) > 0
    for episode in run:
        assert episode.staleness is not None and not episode.staleness.dropped
        for row in rows(episode):
            used = {row.version_names[number] for number in row.versions[row.loss_mask == 1]}
            assert all(int(str(episode.staleness.current)) - int(str(name)) <= episode.staleness.limit for name in used)
    return decisions


async def test_groups_that_are_too_old_are_dropped(tmp_path: Path) -> None:
    made = await trained_run(tmp_path, 1)
    decisions = check_record(tmp_path, made)
    assert set(decisions) == {"kept", "dropped"}, decisions
    assert len(made.groups) + len(made.dropped) == 6 and made.metrics.groups_stale == len(made.dropped) > 0
    assert made.metrics.to_dict()["rollout/groups_stale"] == len(made.dropped)
    # One that was dropped is found in an export, and is not trained in a batch.
    old = made.dropped[0].episodes[0]
    rowsets = [*branches_of(made), *(flat for flat in old.trajectories)]
    flats = [getattr(one, "trajectory", one) for one in rowsets]
    certificate = verify(tmp_path, exported=flats, exported_part=True)
    assert certificate.found == {FindingKind.EXPORTED: 1} and "was dropped" in certificate.findings[0].message
    assert not padded_batch([old], pad_token_id=0)["loss_mask"].any()
    # Every fresh group is kept with a limit that no group reaches.
    fresh = await trained_run(tmp_path / "fresh", 1000)
    assert len(fresh.groups) == 6 and set(check_record(tmp_path / "fresh", fresh)) == {"kept"}


async def test_old_tokens_are_masked(tmp_path: Path) -> None:
    made = await trained_run(tmp_path, 1, action="mask")
    decisions = check_record(tmp_path, made)
    assert decisions["masked"] > 0 and not decisions["dropped"] and len(made.groups) == 6
    masked = [one for one in made if one.staleness and one.staleness.decision is StalenessDecision.MASKED]
    some = next(one for one in masked if any(row.loss_mask.any() for row in rows(one)))
    row = rows(some)[0]
    old = {
        name for name in row.version_names if int(str(name)) < int(str(some.staleness and some.staleness.current)) - 1
    }
    sampled = row.trajectory.origins[len(row.prompt_ids) : len(row.token_ids)] == 1
    left = [row.version_names[number] not in old for number in row.versions[sampled]]
    assert row.loss_mask[sampled].astype(bool).tolist() == left and not all(left)
    certificate = verify(tmp_path)
    assert certificate.tokens.stale > 0 and "stale" in certificate.text()


async def test_tasks_of_old_groups_are_run_again_and_the_run_resumes(tmp_path: Path) -> None:
    made = await trained_run(tmp_path, 1, last=5, action="retry", retries=2)
    decisions = check_record(tmp_path, made)
    assert decisions["retried"] > 0
    again = {episode.task.id for episode in made if episode.sample >= 2}
    assert again and all(episode.sample < 6 for episode in made)
    tried = Counter(group.task.id for group in made.dropped)
    assert all(tried[group.task.id] == group.episodes[0].sample // 2 for group in made.groups)
    assert made.metrics.total == 12 + 2 * sum(
        one.staleness is not None and one.staleness.decision is StalenessDecision.RETRIED
        for group in made.dropped
        for one in group.episodes[:1]
    )
    # The same call decides nothing anew and samples nothing.
    engine = TrainedEngine(steps(3))
    engine.version = 10_000
    restored = await run(
        build, tasks(6), engine, tmp_path, reward=one_point, samples_per_task=2,
        max_staleness=rule(engine, 1, action="retry", retries=2),
    )  # fmt: skip
    assert not engine.calls and [one.id for one in restored] == [one.id for one in made]
    assert {one.id: one.staleness for one in restored} == {one.id: one.staleness for one in made}


async def test_running_episodes_that_are_too_old_are_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "_VERSION_SECONDS", 0.02)
    engine, waiting = TrainedEngine(steps(2)), asyncio.Event()

    @tool(name="step")
    async def slow_step(number: int) -> str:
        """Take a step that takes until the weights were updated, the first time."""
        if engine.version == 1:
            waiting.set()
            await asyncio.sleep(600)
        return f"step {number}"

    async def update() -> None:
        await waiting.wait()
        engine.version = 4

    updating = asyncio.ensure_future(update())
    made = await run(
        lambda task, model: plain(model, tools=[slow_step]), tasks(2), engine, tmp_path, reward=one_point,
        samples_per_task=2, prefix_warmup=None, max_staleness=rule(engine, 1, action="retry"),
    )  # fmt: skip
    await updating
    stopped = [one for one in made.left_over if one.end_reason is EndReason.NOT_NEEDED]
    assert stopped and all(one.staleness is not None and one.staleness.dropped for one in stopped)
    assert len(made) == 4 and all(one.sample >= 2 and one.metrics.versions == ["4"] for one in made)
    check_record(tmp_path, made)
    for one in stopped:
        kinds = [event.kind for event in Ledger(tmp_path).episode(one.id).events]
        assert kinds[-2:] == [EventKind.END, EventKind.STALENESS]


async def test_late_episodes_that_are_not_needed_do_not_make_a_group_too_old() -> None:
    engine: Any = NoServer()
    gate = StalenessGate(MaxStaleness(1, current=lambda: "9"), engine)
    stopped: list[str] = []
    collector = GroupCollector(StopCriteria(samples=2), GroupFilters(), lambda task: stopped.append(task.id), gate)
    for task in tasks(2):
        collector.expect(task, 4)
        collector.sampled(task.id, 3, ["2"])  # still running
        collector.sampled(task.id, 2, ["2", "9"])
        collector.discard_lost("9")
        assert stopped == []  # the other two may still complete the group
    for sample in range(2):
        await collector.add(finished(tasks(1)[0], sample, 1.0, version="9"))
    (group,) = collector.groups(True)
    assert [one.staleness and (one.staleness.decision.value, one.staleness.age) for one in group.episodes] == [
        ("kept", 0)
    ] * 2
    collector.sampled("t1", 0, ["7"])
    collector.discard_lost("9")
    assert (collector.kept, collector.stale, stopped) == (1, 1, ["t0", "t1"])


async def test_error_of_the_order_ends_the_run() -> None:
    engine = TrainedEngine(steps(1))
    strange = MaxStaleness(1, current=lambda: "step-7")
    with pytest.raises(ConfigurationError, match="'step-7' is no decimal number"):
        await run(build, tasks(1), engine, max_staleness=strange)
