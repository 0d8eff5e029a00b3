"""Other models in an episode on a real engine: a user on a second `SGLangModel`, and on the SDK's `OpenAIModel`."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from strands import Agent

from strands_sglang import SGLangClient
from strands_sglang.chat.tokenization import load_tokenizer
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.seal import seal
from strands_sglang.proof.verify import verify
from strands_sglang.runs import EndReason, ReplayVerdict, RunOptions, Task, replay, rollout
from strands_sglang.runs.offline.score_run import score_run
from strands_sglang.trainers.slime import slime_rollout
from strands_sglang.trainers.trl import trl_rollout
from support import user_simulation
from support.examples import size
from support.lab_servers import LabProcess
from support.rollout_agent import TOKENIZER, agent_for
from support.trainers.slime_mirror import Sample, Status
from support.trainers.slime_validation import validate_sample
from support.trainers.trl_doubles import Trainer, arguments
from support.user_simulation import ROUNDS, SETTINGS, TASKS, build, converse, user_on
from support.wire_tap import Tap

pytestmark = [pytest.mark.engine, pytest.mark.own_servers]

PROGRAM = [sys.executable, user_simulation.__file__]


def events_of(directory: Path) -> dict[str, list[tuple[EventKind, bytes]]]:
    return {one.id: [(event.kind, event.digest) for event in one.events] for one in Ledger(directory).episodes()}


def said_in(directory: Path) -> dict[str, list[str]]:
    """Return what the user said in each episode, by its record."""
    return {
        one.id: [str(event.data["answer"]) for event in one.events if event.kind is EventKind.MODEL]
        for one in Ledger(directory).episodes()
    }


@pytest.mark.parametrize("kind", ["sglang", "openai"])
async def test_killed_after_every_third_event(kind: str, tool_policy: LabProcess, tmp_path: Path) -> None:
    """Nothing that is on disk is cut or said again; nothing of the user is trained; a replay needs no server."""
    folder, kills, tasks = tmp_path / "run", 0, size(1, len(TASKS))  # a process takes seconds to start
    before: dict[str, list[tuple[EventKind, bytes]]] = {}
    with Tap(tool_policy.url) as tap:
        while True:
            arguments = [tap.url, kind, str(folder), "--kill-after", "3", "--tasks", str(tasks)]
            process = await asyncio.create_subprocess_exec(*PROGRAM, *arguments)
            if await asyncio.wait_for(process.wait(), 300) == 0:
                break
            assert process.returncode == -signal.SIGKILL
            kills += 1
            assert kills < 60
            now = events_of(folder)
            for id, events in before.items():
                assert now[id][: len(events)] == events, "recorded events were cut"
            before = now
        run = await converse(tap.url, kind, folder, tasks)  # all episodes have ended: they are read
        address = tap.url
    assert kills >= 5
    assert [episode.end_reason for episode in run] == [EndReason.ANSWERED] * tasks
    for record in Ledger(folder).episodes():
        kinds = [event.kind for event in record.events]
        assert EventKind.ROLLBACK not in kinds
        assert kinds.count(EventKind.MODEL) == ROUNDS, "the user was asked again"
    for episode in run:
        assert {one.agent for one in episode.trajectories} == {"policy"}
        assert [one.main for one in episode.trajectories] == [True]
    certificate = verify(folder)
    assert certificate.proved, certificate.text()
    assert certificate.other_models == {"user": ROUNDS * tasks}
    sampled = sum(len(turn.sampled) for episode in run for turn in episode.tree)
    assert certificate.tokens.sampled == certificate.tokens.trained == sampled

    # The proxy is gone: neither server can be reached.
    results = await replay(build, folder, models={"user": user_on(address, kind)}, **SETTINGS)
    assert [result.verdict for result in results] == [ReplayVerdict.IDENTICAL] * tasks, results
    assert all(len(said) == ROUNDS for said in said_in(folder).values())


async def test_judge_of_another_provider(tool_policy: LabProcess, tmp_path: Path) -> None:
    async def judged(episode: Any, models: Any) -> float:
        verdict = await Agent(model=models["judge"], callback_handler=None).invoke_async(
            f"Compute 1 + {episode.sample}."
        )
        return float(len(str(verdict)))

    def alone(task: Task, model: Any) -> Any:
        return agent_for(model)

    models = {"judge": user_on(tool_policy.url, "openai")}
    async with SGLangClient(tool_policy.url) as client:
        run = await rollout(
            alone,
            TASKS,
            client=client,
            directory=tmp_path,
            models=models,
            reward=judged,
            samples_per_task=2,
            **SETTINGS,
        )
    assert len(run) == 4 and all(episode.reward for episode in run)
    assert verify(tmp_path).other_models == {"judge": 4}
    # Scored again without a server: every question is answered by the record.
    again = await score_run(judged, tmp_path, models={"judge": user_on("http://127.0.0.1:9", "openai")})
    assert [one.now.value for one in again] == [one.before.value for one in again]
    assert verify(tmp_path).proved


async def test_user_that_is_away(tool_policy: LabProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage of the user's server: the episode is neither scored nor trained, and continues later."""
    from strands_sglang.engine.retry import Backoff, RetryPolicy
    from strands_sglang.runs.recording import other_models

    monkeypatch.setattr(other_models, "RETRIES", RetryPolicy(2, Backoff(0.0, 0.0)))
    async with SGLangClient(tool_policy.url) as client:
        options: dict[str, Any] = {"client": client, "directory": tmp_path, **SETTINGS}
        away = {"user": user_on("http://127.0.0.1:9", "openai")}
        run = await rollout(build, TASKS, models=away, reward=lambda episode: 1.0, **options)
        assert {(one.end_reason, one.reward) for one in run} == {(EndReason.OTHER_MODEL_ERROR, None)}
        assert all("3 times in a row, last: APIConnectionError" in str(one.failure) for one in run)
        back = {"user": user_on(tool_policy.url, "openai")}
        run = await rollout(build, TASKS, models=back, reward=lambda episode: 1.0, **options)
    assert {(one.end_reason, one.reward) for one in run} == {(EndReason.ANSWERED, 1.0)}
    assert all(one.metrics.replayed_turns >= 1 for one in run)
    assert verify(tmp_path).proved


async def judged_by_user(episode: Any, models: Any) -> float:
    verdict = await Agent(model=models["user"], callback_handler=None).invoke_async("Compute 1 + 1.")
    return float(len(str(verdict)) > 0)


async def test_samples_of_slime(tool_policy: LabProcess, tmp_path: Path) -> None:
    """A conversation is one sample: the user's words are in it and not trained."""
    models = {"user": user_on(tool_policy.url, "openai")}
    async with SGLangClient(tool_policy.url) as client:
        options: dict[str, Any] = {"client": client, "tokenizer": TOKENIZER, "limits": SETTINGS["limits"]}
        generate = slime_rollout(build, reward=judged_by_user, models=models, directory=tmp_path, **options)
        args = SimpleNamespace(hf_checkpoint="none", rollout_top_p=1.0, rollout_max_context_len=None)
        sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 900}
        given = [Sample(index=number, prompt=str(task.prompt), label="0") for number, task in enumerate(TASKS)]
        made = await asyncio.gather(*(generate(args, one, dict(sampling)) for one in given))
    (folder,) = tmp_path.iterdir()
    said = said_in(folder)
    assert [one.status for one in made] == [Status.COMPLETED] * len(TASKS) and {one.reward for one in made} == {1.0}
    assert all(len(answers) == ROUNDS + 1 for answers in said.values())
    trained = sum(sum(one.loss_mask) for one in made)
    seal(folder)
    certificate = verify(folder)
    assert certificate.proved and certificate.tokens.trained == certificate.tokens.sampled == trained
    for one in made:
        validate_sample(one)
        assert one.response.count("<|im_start|>user\nCompute") == ROUNDS - 1


def test_batch_of_trl(tool_policy: LabProcess, tmp_path: Path) -> None:
    prompts = [str(task.prompt) for task in TASKS]
    trainer = Trainer(
        processing_class=load_tokenizer(TOKENIZER),
        train_dataset=[{"prompt": prompt} for prompt in prompts],
        args=arguments(max_completion_length=900),
    )
    func = trl_rollout(
        build,
        reward=judged_by_user,
        base_url=tool_policy.url,
        models={"user": user_on(tool_policy.url, "sglang")},
        limits=SETTINGS["limits"],
        sync="none",
        drift_rows=0,
        directory=tmp_path,
        options=RunOptions(preflight=False),
    )
    try:
        batch = func([*prompts, *prompts], trainer)
    finally:
        func.close()
    assert batch["strands_reward"] == [1.0] * 4
    certificate = verify(tmp_path / "step-000000")
    assert certificate.proved and certificate.other_models == {"user": 4 * (ROUNDS + 1)}
    assert certificate.tokens.trained == certificate.tokens.sampled == sum(map(sum, batch["env_mask"]))
