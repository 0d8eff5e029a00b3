"""`rollout` on a real engine.

The ledger contains exactly the requests and responses of the wire; a replay without an engine reproduces it byte for
byte; an interrupted and resumed run has the same result as an uninterrupted one.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from strands.hooks import AfterToolCallEvent, BeforeModelCallEvent, BeforeToolCallEvent
from transformers import AutoTokenizer

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.ledger.encoding import ids_digest
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.proof.finding import Verdict
from strands_sglang.proof.verify import verify
from strands_sglang.runs import EndReason, Limits, ReplayVerdict, RunResult, Task, replay, rollout
from support import rollout_agent
from support.examples import size
from support.lab_servers import LabProcess, task
from support.rollout_agent import SAMPLING, TOKENIZER, TURNS, WAYS, agent_for, build, calculator, score, tasks
from support.wire_tap import Passed, Tap

pytestmark = [pytest.mark.engine, pytest.mark.own_servers]

EPISODES = size(120, 500)
GREEDY = {**SAMPLING, "temperature": 0.0}
RUNNER = [sys.executable, rollout_agent.__file__]


@dataclass
class RecordedRun:
    """A run recorded once for the tests of this file, and the requests and responses captured during it."""

    directory: Path
    run: RunResult
    wire: dict[str, Passed]


async def run_tasks(url: str, given: list[Task], directory: Path | None = None, **settings: Any) -> RunResult:
    defaults: dict[str, Any] = {
        "tokenizer": TOKENIZER,
        "reward": score,
        "concurrency": 64,
        "limits": Limits(max_turns=TURNS * len(given[0].data["questions"])),
        "sampling_params": SAMPLING,
    }
    async with SGLangClient(url, retry_delay=0.1) as client:
        chosen = {**defaults, **settings}
        return await rollout(chosen.pop("build", build), given, client=client, directory=directory, **chosen)


def proved(directory: Path, episodes: int, verdict: Verdict = Verdict.PROVED) -> None:
    """Assert that the ledger of a run is proved (`EMPTY`: or would be, if a token were trained) and complete."""
    certificate = verify(directory)
    assert certificate.verdict in (Verdict.PROVED, verdict), certificate.text()
    assert sum(certificate.episodes.values()) == episodes


def records(directory: Path) -> dict[str, EpisodeRecord]:
    return {record.id: record for record in Ledger(directory).episodes()}


async def idle(client: SGLangClient, seconds: float = 3.0) -> None:
    """Assert that the engine becomes idle: aborted requests end with the next step of the engine."""
    until = time.monotonic() + seconds
    while any((left := await client.control.open_requests()).values()):
        assert time.monotonic() < until, left
        await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def recorded(tool_policy: LabProcess, tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    """Five hundred episodes, two of each task."""
    directory = tmp_path_factory.mktemp("recorded")
    with Tap(tool_policy.url) as tap:
        run = asyncio.run(run_tasks(tap.url, tasks(EPISODES // 2, seed=9_000), directory, samples_per_task=2))
    return RecordedRun(directory, run, tap.calls)


def test_every_recorded_event_matches_the_wire(recorded: RecordedRun) -> None:
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    seen = set()
    keys: dict[str, set[str | None]] = {}
    on_record = records(recorded.directory)
    for id, record in on_record.items():
        sampled: list[str] = []
        for event in record.calls:
            rid = event.data["detail"]["rid"]
            passed = recorded.wire[rid]
            assert ids_digest(passed.input_ids) == event.data["prompt_digest"]
            assert len(passed.input_ids) == event.data["prompt_tokens"]
            assert passed.output_ids == event.arrays["sampled"].tolist()
            assert passed.logprobs == event.arrays["logprobs"].tolist()
            keys.setdefault(id.partition("/")[0], set()).add(passed.routing_key)
            seen.add(rid)
            sampled.append(str(tokenizer.decode(passed.output_ids, skip_special_tokens=True)))
        # A turn may have several calls: each is parsed separately.
        called = (task.parse_call(part + "</tool_call>") for text in sampled for part in text.split("</tool_call>"))
        results = [event.data["result"] for event in record.tools]
        returned = Counter(result["content"][0]["text"] for result in results if result["status"] == "success")
        assert not returned - Counter(task.calculate(expression) for expression in called if expression is not None)
        assert record.begin is not None and record.end is not None and record.reward is not None
        right = sampled[-1] == f"The answer is {record.begin.data['task']['answer']}."
        assert record.reward.data["value"] == float(right)
    assert seen == set(recorded.wire)
    # All samples of a task have one routing key, and every task has its own.
    assert {len(of_task) for of_task in keys.values()} == {1}
    assert len(set().union(*keys.values())) == len(keys)
    assert len(on_record) == EPISODES
    proved(recorded.directory, EPISODES)


def test_returned_episodes_match_the_ledger(recorded: RecordedRun) -> None:
    on_record = records(recorded.directory)
    assert [episode.id for episode in recorded.run] == [f"t{9_000 + n // 2}/{n % 2}" for n in range(EPISODES)]
    for episode in recorded.run:
        assert episode.trajectories == on_record[episode.id].trajectories()
        assert all(trajectory.loss_mask.any() for trajectory in episode.trajectories)
    # About half of the answers are correct if every prompt is as in training; wrong prompts would lower this.
    assert sum(episode.reward or 0.0 for episode in recorded.run) > 0.4 * EPISODES
    print(recorded.run.metrics)


async def replayed(directory: Path, made: Any = build, count: int | None = None, **settings: Any) -> dict[str, Any]:
    """Replay episodes and return the results by id."""
    chosen = None if count is None else sorted(records(directory))[:count]
    defaults: dict[str, Any] = {"tokenizer": TOKENIZER, "limits": Limits(max_turns=TURNS), "sampling_params": SAMPLING}
    return {one.id: one for one in await replay(made, directory, episodes=chosen, **{**defaults, **settings})}


async def test_replay_without_engine_is_identical(recorded: RecordedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a replay opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    before, began = WAYS.calls, time.monotonic()
    results = await replayed(recorded.directory)
    print(f"{len(results)} episodes replayed in {time.monotonic() - began:.1f} s")
    assert Counter(one.verdict for one in results.values()) == {ReplayVerdict.IDENTICAL: EPISODES}
    for episode in recorded.run:
        assert list(results[episode.id].trajectories) == episode.trajectories
    assert WAYS.calls == before, "a replay ran a tool"


async def test_other_system_prompt_diverges_at_first_call(recorded: RecordedRun) -> None:
    def changed(given: Task, model: SGLangModel) -> Any:
        return agent_for(model, system_prompt="Think first.")

    results = await replayed(recorded.directory, changed, 50)
    assert {(one.verdict, one.event) for one in results.values()} == {(ReplayVerdict.DIVERGED, 1)}


@pytest.mark.parametrize("edited", [1, 2])
async def test_hook_that_edits_result_diverges_at_next_call(recorded: RecordedRun, edited: int) -> None:
    def changed(given: Task, model: SGLangModel) -> Any:
        agent, results = agent_for(model), 0

        def edit(event: AfterToolCallEvent) -> None:
            nonlocal results
            results += event.result["status"] == "success"
            if results == edited and event.result["status"] == "success":
                event.result = {**event.result, "content": [{"text": "0"}]}

        agent.hooks.add_callback(AfterToolCallEvent, edit)
        return agent

    results, on_record = await replayed(recorded.directory, changed, 100), records(recorded.directory)
    diverged = 0
    for one in results.values():
        tools = [event for event in on_record[one.id].tools if event.data["result"]["status"] == "success"]
        edited_results = [event.number for event in tools][edited - 1 : edited]
        later_calls = [
            event.number for event in on_record[one.id].calls if edited_results and event.number > edited_results[0]
        ]
        diverged += bool(later_calls)
        expected = (ReplayVerdict.DIVERGED, later_calls[0]) if later_calls else (ReplayVerdict.IDENTICAL, None)
        assert (one.verdict, one.event) == expected, one.message
    assert diverged > 80


async def test_other_tool_description_diverges_if_template_renders_tools(
    tool_policy: LabProcess, recorded: RecordedRun, tmp_path: Path
) -> None:
    def changed(given: Task, model: SGLangModel) -> Any:
        agent = agent_for(model)
        for one in agent.tool_registry.registry.values():
            one.tool_spec = {**one.tool_spec, "description": "Work out anything."}  # type: ignore[misc]
        return agent

    async def outcome(directory: Path, made: Any, **settings: Any) -> set[Any]:
        results = await replayed(directory, made, 8, **settings)
        return {(one.verdict, one.event) for one in results.values()}

    original = calculator.tool_spec
    try:
        # The policy's own template renders no tools: the prompt has not changed.
        assert await outcome(recorded.directory, changed) == {(ReplayVerdict.IDENTICAL, None)}
        calculator.tool_spec = original
        shows = AutoTokenizer.from_pretrained(TOKENIZER)
        listed = "<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n"
        shows.chat_template = "{% if tools %}" + listed + "{% endif %}" + shows.chat_template
        await run_tasks(tool_policy.url, tasks(8), tmp_path, tokenizer=shows)
        proved(tmp_path, 8)
        assert await outcome(tmp_path, build, tokenizer=shows) == {(ReplayVerdict.IDENTICAL, None)}
        assert await outcome(tmp_path, changed, tokenizer=shows) == {(ReplayVerdict.DIVERGED, 1)}
    finally:
        calculator.tool_spec = original


def same(resumed: RunResult, whole: RunResult) -> None:
    """Assert that two runs at temperature 0 are equal; logprobs may differ in the last digits because of batching."""
    assert [episode.id for episode in resumed] == [episode.id for episode in whole]
    for one, other in zip(resumed, whole, strict=True):
        assert (one.end_reason, one.reward, one.text) == (other.end_reason, other.reward, other.text)
        for a, b in zip(one.trajectories, other.trajectories, strict=True):
            b.logprobs[abs(a.logprobs - b.logprobs) < 1e-4] = a.logprobs[abs(a.logprobs - b.logprobs) < 1e-4]
            assert a == b


def start(url: str, directory: Path, *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*RUNNER, url, str(directory), *options], stdout=subprocess.PIPE)


async def test_episode_of_killed_process_resumes_to_same_result(tool_policy: LabProcess, tmp_path: Path) -> None:
    given = tasks(1, seed=40, questions=2)
    whole = await run_tasks(tool_policy.url, given, sampling_params=GREEDY)
    turns = len(whole[0].tree)
    assert turns >= 4
    # With a slow tool, the turn before it is on disk when the process is killed; with a fast one it may be lost.
    ways = [("1", "0.3"), ("2", "0.3"), ("2", "0"), ("score", "0")]
    options = ["--tasks", "1", "--seed", "40", "--questions", "2", "--temperature", "0"]
    killed = {
        (die_in, seconds): start(
            tool_policy.url, tmp_path / f"{die_in}-{seconds}", *options, "--die-in", die_in, "--tool-seconds", seconds
        )
        for die_in, seconds in ways
    }
    for (die_in, seconds), process in killed.items():
        output = process.communicate(timeout=120)[0]
        assert process.returncode == -signal.SIGKILL, output
        directory = tmp_path / f"{die_in}-{seconds}"
        left = records(directory) if (directory / "run.json").exists() else {}
        calls = sum(len(record.calls) for record in left.values())
        expected = turns if die_in == "score" else int(die_in)
        assert calls <= expected and (seconds == "0" or calls == expected)
        resumed = await run_tasks(tool_policy.url, given, directory, sampling_params=GREEDY)
        same(resumed, whole)
        assert resumed[0].epoch == (1 if left else 0) and resumed[0].metrics.replayed_turns == calls
        proved(directory, 1)
        print(f"killed in {die_in} with tools of {seconds} s: {calls} of {turns} turns were on disk")


async def test_killed_run_resumes_to_same_result(tool_policy: LabProcess, tmp_path: Path) -> None:
    given = tasks(40, seed=60, questions=2)
    options = ["--tasks", "40", "--seed", "60", "--questions", "2", "--temperature", "0"]
    dice = random.Random(5)
    on_disk = []
    for _ in range(3):
        process = start(tool_policy.url, tmp_path, *options, "--concurrency", "8", "--tool-seconds", "0.3")
        assert process.stdout is not None
        process.stdout.readline()  # the run has started
        await asyncio.sleep(dice.uniform(0.0, 0.8))
        process.kill()
        process.communicate()
        on_disk.append(sum(record.finished for record in records(tmp_path).values()))
    assert on_disk[-1] < 40, "nothing was interrupted"
    resumed = await run_tasks(tool_policy.url, given, tmp_path, sampling_params=GREEDY)
    whole = await run_tasks(tool_policy.url, given, sampling_params=GREEDY)
    same(resumed, whole)
    proved(tmp_path, 40)
    assert max(episode.epoch for episode in resumed) >= 1
    print(f"finished when killed: {on_disk}; resumed {Counter(episode.epoch for episode in resumed)}")


@pytest.mark.parametrize(
    ("where", "turns"), [("before call 1", 0), ("in call 2", 1), ("before tool 1", 1), ("before tool 2", 2)]
)
async def test_cancelled_run_can_be_resumed(tool_policy: LabProcess, tmp_path: Path, where: str, turns: int) -> None:
    given, there, all_there = tasks(4, seed=80, questions=2), Counter[str](), asyncio.Event()

    def stopping(asked: Task, model: SGLangModel) -> Any:
        agent, count = agent_for(model), Counter[str]()

        async def stop(event: BeforeModelCallEvent | BeforeToolCallEvent) -> None:
            kind = "call" if isinstance(event, BeforeModelCallEvent) else "tool"
            count[kind] += 1
            if not where.endswith(f"{kind} {count[kind]}"):
                return
            there[asked.id] += 1
            if len(there) == len(given):
                all_there.set()
            await (asyncio.Event() if where.startswith("before") else all_there).wait()

        agent.hooks.add_callback(BeforeModelCallEvent, stop)
        agent.hooks.add_callback(BeforeToolCallEvent, stop)
        return rollout_agent.asking(agent, asked)

    async with SGLangClient(tool_policy.url) as client:
        running = run_tasks(tool_policy.url, given, tmp_path, build=stopping, sampling_params=GREEDY)
        work, waiting = asyncio.ensure_future(running), asyncio.ensure_future(all_there.wait())
        await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
        assert waiting.done(), await work
        await asyncio.sleep(0.02)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        await idle(client)
    left = records(tmp_path)
    assert not any(record.finished for record in left.values())
    assert {len(record.calls) for record in left.values()} == {turns}
    resumed = await run_tasks(tool_policy.url, given, tmp_path, sampling_params=GREEDY)
    same(resumed, await run_tasks(tool_policy.url, given, sampling_params=GREEDY))
    assert [episode.epoch for episode in resumed] == [1] * len(given)
    proved(tmp_path, len(given))


async def test_siblings_hit_the_prefix_cache(tool_policy: LabProcess) -> None:
    fresh = 100_000 + 12 * os.getpid()  # tasks that no test has sent to this server before
    run = await run_tasks(tool_policy.url, tasks(12, seed=fresh), samples_per_task=8)
    assert [len(group.episodes) for group in run.groups] == [8] * 12
    found = []
    for group in run.groups:
        first, *siblings = sorted(group.episodes, key=lambda one: one.tree[0].detail["cached_tokens"])
        prompt = first.tree[0].sampled_start
        assert first.tree[0].detail["cached_tokens"] < prompt // 2, "another task left this prompt in the cache"
        found += [prompt - sibling.tree[0].detail["cached_tokens"] for sibling in siblings]
    print(f"tokens of a prompt that siblings computed again: {Counter(found)}")
    assert set(found) == {1}  # the engine always computes the last token: the next one is sampled from it


async def test_run_with_enough_groups_stops_and_engine_is_idle(tool_policy: LabProcess, tmp_path: Path) -> None:
    given, enough = tasks(40, seed=400), {"stop_after_groups": 8, "min_samples_per_task": 3}
    async with SGLangClient(tool_policy.url) as client:
        run = await run_tasks(tool_policy.url, given, tmp_path, samples_per_task=4, **enough, concurrency=64)
        await idle(client)
    assert len(run.groups) >= 8 and {len(group.episodes) for group in run.groups} == {3}
    stopped = [episode for episode in run.left_over if episode.end_reason is EndReason.NOT_NEEDED]
    assert stopped, "no episode was running"
    on_record = records(tmp_path)
    ends = Counter(record.end.data["end_reason"] for record in on_record.values() if record.end is not None)
    assert ends["not_needed"] == len(stopped) and ends.total() == len(on_record) < 160
    proved(tmp_path, len(on_record))
    print(f"{len(on_record)} of 160 episodes started, {len(run)} kept, {len(stopped)} stopped")
    results = await replayed(tmp_path)
    assert Counter(one.verdict for one in results.values()) == {ReplayVerdict.IDENTICAL: len(on_record)}
    # The repeated run has enough groups at once.
    again = await run_tasks(tool_policy.url, given, tmp_path, samples_per_task=4, **enough)
    assert [group.task.id for group in again.groups][:8] == [group.task.id for group in run.groups][:8]


@pytest.mark.parametrize(
    ("limits", "ended"),
    [
        (Limits(max_turns=2), EndReason.TURN_LIMIT), (Limits(max_tool_calls=1), EndReason.TOOL_LIMIT),
        (Limits(max_new_tokens=5), EndReason.TURN_TRUNCATED), (Limits(max_episode_tokens=25), EndReason.TOKEN_LIMIT),
        (Limits(max_context_tokens=50), EndReason.CONTEXT_LENGTH), (Limits(episode_timeout=1.5), EndReason.TIMEOUT),
    ],
    ids=lambda value: value.value if isinstance(value, EndReason) else "",
)  # fmt: skip
async def test_limit_stops_every_episode_with_its_reason(
    tool_policy: LabProcess, tmp_path: Path, limits: Limits, ended: EndReason
) -> None:
    sampling = GREEDY
    if ended is EndReason.TIMEOUT:
        sampling = {"max_new_tokens": 900, "temperature": 1.0, "ignore_eos": True}
    async with SGLangClient(tool_policy.url) as client:
        run = await run_tasks(tool_policy.url, tasks(8, seed=500), tmp_path, limits=limits, sampling_params=sampling)
        await idle(client)
    assert {episode.end_reason for episode in run} == {ended}
    assert not any(episode.failure for episode in run)
    proved(tmp_path, 8, Verdict.EMPTY if ended is EndReason.TIMEOUT else Verdict.PROVED)
    for episode in run:
        turns = episode.tree.turns
        calls = episode.metrics.tool_calls
        if ended is EndReason.TURN_LIMIT:
            assert len(turns) == 2
        elif ended is EndReason.TOOL_LIMIT:
            assert calls == 1
        elif ended is EndReason.TURN_TRUNCATED:
            assert [len(turn.sampled) for turn in turns] == [5]
        elif ended is EndReason.TOKEN_LIMIT:
            assert sum(len(turn.sampled) for turn in turns) <= 25
        elif ended is EndReason.CONTEXT_LENGTH:
            assert turns[-1].end <= 50
    results = await replayed(tmp_path, limits=limits, sampling_params=sampling)
    assert Counter(one.verdict for one in results.values()) == {ReplayVerdict.IDENTICAL: 8}


async def test_tool_timeout_is_sent_to_model(tool_policy: LabProcess, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    WAYS.hold = hold
    try:
        limits = Limits(max_turns=4, tool_timeout=0.2)
        run = await run_tasks(tool_policy.url, tasks(8, seed=520), tmp_path, limits=limits)
    finally:
        WAYS.hold = None
    assert all(episode.metrics.tool_timeouts for episode in run)
    assert not any(episode.end_reason.failed for episode in run)
    proved(tmp_path, 8)
    results = await replayed(tmp_path, limits=limits)
    assert Counter(one.verdict for one in results.values()) == {ReplayVerdict.IDENTICAL: 8}
