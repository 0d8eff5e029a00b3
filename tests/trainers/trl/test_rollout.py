"""TRL gets one completion per prompt, in order, however the episodes end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.errors import ConfigurationError, EngineError, EngineUnreachableError, RequestRejectedError
from strands_sglang.runs import EndReason, Limits, MaxStaleness, Task
from strands_sglang.trainers.trl import TrlRollout, trl_rollout
from strands_sglang.trainers.trl.batch import MaskReason, batch_of
from strands_sglang.trainers.trl.engine_thread import EngineThread
from strands_sglang.trainers.trl.rollout import check_served_model, check_trainer, sampling_of
from strands_sglang.trainers.worker_pool import bound_limits
from support.families import tokenizer
from support.gateway.processes import build_process, multiplies
from support.rollout.agent_kinds import build, plain
from support.rollout.other_models import Speaker, build_with_user, echo, quiet
from support.rollout.scripts import FAMILY, PromptEngine, Script, asked, assert_proved, steps
from support.scripted_engine import Answer
from support.scripted_fleet import Engine
from support.trainers.trl_doubles import Accelerator, Trainer, Weights, arguments

pytestmark = pytest.mark.usefixtures("no_known_servers")
ROWS = [{"prompt": f"Question {number}", "answer": number} for number in range(6)]


def score(episode: Any) -> float:
    return float(episode.task.answer)


Rollouts = Callable[..., TrlRollout]


@pytest.fixture
def rollouts() -> Iterator[Rollouts]:
    """Return a function that makes rollouts on a scripted engine; they are closed behind the test."""
    made: list[TrlRollout] = []

    def make(script: Script, **settings: Any) -> TrlRollout:
        plain_ones: dict[str, Any] = {"reward": score, "client": PromptEngine(script), "sync": "none", "drift_rows": 0}
        made.append(trl_rollout(settings.pop("build", build), **{**plain_ones, **settings}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def trainer(**given: Any) -> Trainer:
    return Trainer(**{"processing_class": tokenizer(FAMILY), "train_dataset": ROWS, **given})


def prompts(*numbers: int) -> list[str]:
    return [f"Question {number}" for number in numbers]


def test_one_completion_per_prompt_in_order(rollouts: Rollouts, tmp_path: Path) -> None:
    func = rollouts(steps(2), directory=tmp_path)
    requested = prompts(3, 3, 1, 1, 3, 0, 0, 1)
    batch = func(requested, trainer())
    assert batch["strands_reward"] == [3.0, 3.0, 1.0, 1.0, 3.0, 0.0, 0.0, 1.0]
    assert [one.task.prompt for one in batch["episode"]] == requested
    assert len({one.id for one in batch["episode"]}) == len(requested)
    family_tokenizer = tokenizer(FAMILY)
    for prompt, ids, completion, mask, logprobs in zip(
        requested, *(batch[key] for key in ("prompt_ids", "completion_ids", "env_mask", "logprobs")), strict=True
    ):
        assert prompt in family_tokenizer.decode(ids) and len(completion) == len(mask) == len(logprobs)
        assert family_tokenizer.decode(completion).count("<tool_response>") == 2
        trained = family_tokenizer.decode([id for id, one in zip(completion, mask, strict=True) if one])
        assert "<tool_response>" not in trained and trained.count("<tool_call>") == 2 and "the end" in trained
        assert all(logprob < 0 for logprob, one in zip(logprobs, mask, strict=True) if one)
    assert_proved(tmp_path / "step-000000")


def test_an_agent_may_be_a_process() -> None:
    func = trl_rollout(build_process, reward=score, client=PromptEngine(multiplies), sync="none", drift_rows=0)
    batch = func(prompts(0, 1), trainer())
    assert [one.text for one in batch["episode"]] == ["the end"] * 2
    assert [one.metrics.tool_calls for one in batch["episode"]] == [1, 1]
    assert all(any(mask) for mask in batch["env_mask"])


def test_every_call_has_a_new_directory(rollouts: Rollouts, tmp_path: Path) -> None:
    func, train = rollouts(steps(0), directory=tmp_path), trainer(eval_dataset=ROWS)
    for step in (0, 0, 1):
        train.state.global_step = step
        func(prompts(0, 0), train)
    train.model.training = False
    func(prompts(0), train)
    train.accelerator = Accelerator(2, 1)
    func(prompts(0), train)
    names = ["step-000000", "step-000000.1", "step-000001", "step-000001-eval", "step-000001-eval-rank1"]
    assert sorted(one.name for one in tmp_path.iterdir()) == names
    for name in names:
        assert_proved(tmp_path / name)


def test_a_prompt_that_comes_again_gets_another_seed(rollouts: Rollouts) -> None:
    def seeds(step: int, process: int = 0, **settings: Any) -> list[int]:
        func = rollouts(steps(0), client=(engine := PromptEngine(steps(0))), **{"seed": 7, **settings})
        func(
            prompts(0, 0),
            trainer(state=SimpleNamespace(global_step=step), accelerator=Accelerator(process + 1, process)),
        )
        return sorted(call.sampling["sampling_seed"] for call in engine.calls)

    found = [seeds(0), seeds(1), seeds(0, process=1), seeds(0, seed=8)]
    assert len({one for some in found for one in some}) == 8 and seeds(0) == found[0]
    for wrong in ({"seed": "7"}, {"seed": 7, "sampling_params": {"sampling_seed": 1}}):
        with pytest.raises(ConfigurationError, match="seed"):
            rollouts(steps(0), **wrong)


def test_completion_length_covers_all_turns(rollouts: Rollouts) -> None:
    func = rollouts(steps(50), limits=Limits(max_turns=40))
    for longest in (5, 60, 100):
        batch = func(prompts(0), trainer(args=arguments(max_completion_length=longest)))
        assert len(batch["completion_ids"][0]) <= longest and any(batch["env_mask"][0])
        assert batch["episode"][0].end_reason in (EndReason.TOKEN_LIMIT, EndReason.TURN_TRUNCATED)
    assert len(batch["completion_ids"][0]) > 60


def test_failed_episode_is_a_masked_row(caplog: pytest.LogCaptureFixture) -> None:
    def script(prompt: str, before: int) -> Answer:
        if asked(prompt) == "Question 1":
            return RequestRejectedError("no")
        return steps(1)(prompt, before)

    def sometimes(task: Task, model: SGLangModel) -> Any:
        if task.answer == 2:
            raise RuntimeError("no agent today")
        return plain(model)

    func = trl_rollout(sometimes, reward=score, client=PromptEngine(script), sync="none", drift_rows=0)
    batch = func(prompts(0, 1, 2, 3), trainer())
    assert func.last is not None
    assert [one.masked for one in func.last.completions] == [None, MaskReason.FAILED, MaskReason.FAILED, None]
    assert batch["strands_reward"] == [0.0, None, None, 3.0]
    assert [any(mask) for mask in batch["env_mask"]] == [True, False, False, True]
    assert all(len(ids) >= 1 for ids in (*batch["completion_ids"], *batch["prompt_ids"]))
    assert func.last.metrics["rollout/masked"] == 0.5 and len(func.last.rows) == 2
    assert "masked=<{'failed': 2}>, of=<4>" in caplog.text
    func.close()


def test_reward_error_leaves_no_reward(rollouts: Rollouts) -> None:
    def broken(episode: Any) -> float:
        raise ZeroDivisionError

    func = rollouts(steps(0), reward=broken)
    batch = func(prompts(0, 1), trainer())
    assert batch["strands_reward"] == [None, None] and all(any(mask) for mask in batch["env_mask"])


def test_other_models(rollouts: Rollouts, tmp_path: Path) -> None:
    """A simulated user is in the completions and not trained; a judge gives the reward."""

    async def judged(episode: Any, models: Any) -> float:
        return float(str(await quiet(models["judge"]).invoke_async(episode.text)))

    models = {"user": Speaker(), "judge": Speaker(lambda messages, before: "0.5")}
    func = rollouts(echo, build=build_with_user, models=models, reward=judged, directory=tmp_path)
    batch = func(prompts(0, 1), trainer())
    assert batch["strands_reward"] == [0.5, 0.5]
    for completion, mask in zip(batch["completion_ids"], batch["env_mask"], strict=True):
        whole = tokenizer(FAMILY).decode(completion)
        trained = tokenizer(FAMILY).decode([id for id, one in zip(completion, mask, strict=True) if one])
        assert whole.count("<|im_start|>user") == 2 and trained.count("policy") == 3
        assert "<|im_start|>" not in trained and "answer" not in trained
    assert_proved(tmp_path / "step-000000")


async def test_call_inside_a_running_loop(rollouts: Rollouts) -> None:
    func = rollouts(steps(1))
    assert asyncio.get_running_loop()
    assert len(func(prompts(0, 0), trainer())["prompt_ids"]) == 2


def test_sampling_parameters_reach_the_engine(rollouts: Rollouts) -> None:
    engine = PromptEngine(steps(0))
    func = rollouts(steps(0), client=engine, sampling_params={"stop_token_ids": [7]})
    func(prompts(0), trainer(args=arguments(temperature=0.5, top_k=9)))
    sampling = engine.calls[0].sampling
    assert (sampling["temperature"], sampling["top_k"], sampling["stop_token_ids"]) == (0.5, 9, [7])
    with pytest.raises(ConfigurationError, match="temperature=2"):
        rollouts(steps(0), sampling_params={"temperature": 2})(prompts(0), trainer())


def test_tokenizer_of_a_processor_is_used(rollouts: Rollouts) -> None:
    func = rollouts(steps(0))
    batch = func(prompts(0), trainer(processing_class=SimpleNamespace(tokenizer=tokenizer(FAMILY))))
    assert any(batch["env_mask"][0])


def test_no_prompts_no_episodes(rollouts: Rollouts) -> None:
    batch = rollouts(steps(0))([], trainer())
    assert {"prompt_ids", "completion_ids", "logprobs"} <= set(batch) and not batch["prompt_ids"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"base_url": "http://127.0.0.1:9"}, "exactly one of client and base_url"),
        ({"client": None}, "exactly one of client and base_url"),
        ({"samples_per_task": 4}, "samples_per_task cannot be given"),
        ({"sync": "disk"}, "must be an SGLangClient to update weights, got a PromptEngine"),
    ],
)
def test_invalid_arguments_are_refused(rollouts: Rollouts, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        rollouts(steps(0), **settings)


@pytest.fixture
def weights() -> Weights:
    return Weights(ids=tokenizer(FAMILY).encode("the end<|im_end|>"))


def test_every_step_uses_its_own_weights(weights: Weights, tmp_path: Path) -> None:
    with weights.server() as server:
        func, train = trl_rollout(build, reward=score, base_url=server.url, drift_rows=0, directory=tmp_path), trainer()
        for step in range(3):
            train.state.global_step = step
            func(prompts(0, 0, 1, 1), train)
            assert func.last is not None and func.last.version == str(step)
            assert {row.version_names for row in func.last.rows} == {(str(step),)} and len(func.last.rows) == 4
            assert func.last.metrics["sync/seconds"] > 0
        func(prompts(2), train)
        assert func.last is not None and "sync/seconds" not in func.last.metrics and len(weights.updates) == 3
        folder = Path(weights.updates[-1]["model_path"])
        assert folder.is_dir()
        func.close()
        assert not folder.exists()


def test_batch_of_only_old_weights_raises(weights: Weights) -> None:
    weights.samples_from = "old"
    with weights.server() as server:
        func = trl_rollout(build, reward=score, base_url=server.url, drift_rows=0)
        with pytest.raises(EngineError, match=r"sampled by the weights '0', got \['old'\]"):
            func(prompts(0, 1), trainer())
        func.close()


@pytest.mark.parametrize(("limit", "action"), [(2, "drop"), (1, "drop"), (1, "mask"), (1, "retry")])
def test_tokens_of_the_last_updates_may_be_trained(weights: Weights, tmp_path: Path, limit: int, action: str) -> None:
    """A worker that still has the weights of two updates before."""
    with weights.server() as server:
        rule = MaxStaleness(limit, action, retries=1)
        func = trl_rollout(
            build, reward=score, base_url=server.url, drift_rows=0, directory=tmp_path, max_staleness=rule
        )
        train = trainer()
        for step in range(3):
            train.state.global_step = step
            func(prompts(0, 1), train)
            assert func.last is not None and len(func.last.rows) == 2
        weights.samples_from = "0"
        if limit == 2:
            batch = func(prompts(0, 0, 1), train)
            assert func.last is not None and len(func.last.rows) == 3 and not func.last.metrics["rollout/stale_groups"]
        else:
            with pytest.raises(EngineError, match=r"sampled by the weights '2', got "):
                func(prompts(0, 0, 1), train)
            assert func.last is not None
            assert [one.masked for one in func.last.completions] == [MaskReason.STALE] * 3
            assert len({one.episode.sample // 2 for one in func.last.completions}) == 1
            batch = batch_of(func.last.completions, pad=0, longest=None)
        assert [any(mask) for mask in batch["env_mask"]] == [limit == 2] * 3
        weights.samples_from = "default"  # a worker that restarted with the weights it was started with
        with pytest.raises(EngineError, match=r"sampled by the weights '2', got "):
            func(prompts(0), train)
        weights.samples_from = "never heard of"  # another process gave the engine these: older than all
        with pytest.raises(EngineError, match="another process updates this engine"):
            func(prompts(0), train)
        func.close()


def test_given_client_is_not_closed(weights: Weights) -> None:
    with weights.server() as server:
        client = SGLangClient(server.url)
        func = trl_rollout(build, reward=score, client=client, drift_rows=0)
        func(prompts(0), trainer())
        func.close()

        async def still() -> None:
            async with client:
                assert (await client.control.model_info()).weight_version == "0"

        asyncio.run(still())


def test_kept_sets_are_logged(rollouts: Rollouts, caplog: pytest.LogCaptureFixture) -> None:
    for top_p, expected in ((1.0, 0), (0.9, 1)):
        caplog.clear()
        func = rollouts(steps(1))
        for _ in range(2):
            func(prompts(0), trainer(args=arguments(top_p=top_p)))
        found = [record for record in caplog.records if "sampling has kept sets" in record.getMessage()]
        assert len(found) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"temperature": 1.0}),
        ({"temperature": 0.7, "top_p": 0.9}, {"temperature": 0.7, "top_p": 0.9}),
        ({"top_k": 20, "min_p": 0.1}, {"temperature": 1.0, "top_k": 20, "min_p": 0.1}),
        ({"top_k": -1, "top_p": None}, {"temperature": 1.0}),
        ({"repetition_penalty": 1.1}, {"temperature": 1.0, "repetition_penalty": 1.1}),
    ],
)
def test_sampling_parameters_of_the_trainer(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert sampling_of(arguments(**given), {}) == expected


def test_other_parameters_are_kept() -> None:
    more = {"stop": ["\n"], "temperature": 1.0, "top_k": -1}
    assert sampling_of(arguments(), more) == {"stop": ["\n"], "temperature": 1.0, "top_k": -1}
    assert more == {"stop": ["\n"], "temperature": 1.0, "top_k": -1}


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"])
def test_parameter_given_twice_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"got {name}=0.5 and"):
        sampling_of(arguments(), {name: 0.5})


@pytest.mark.parametrize(
    ("limits", "longest", "response"),
    [
        (Limits(), 256, 256),
        (Limits(max_response_tokens=100), 256, 100),
        (Limits(max_response_tokens=500), 256, 256),
        (Limits(), None, None),
    ],
)
def test_smaller_limit_applies(limits: Limits, longest: int | None, response: int | None) -> None:
    assert bound_limits(limits, max_response_tokens=longest).max_response_tokens == response


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tools": [print]}, "must have no tools"),
        ({"environment_factories": {None: object}}, "environment_factory"),
        ({"args": arguments(generation_kwargs={"stop": "x"})}, "generation_kwargs must be empty"),
    ],
)
def test_invalid_trainers_are_refused(changed: dict[str, Any], words: str) -> None:
    check_trainer(Trainer())
    with pytest.raises(ConfigurationError, match=words):
        check_trainer(Trainer(**changed))


def trainer_of(name: str | None) -> Trainer:
    trainer = Trainer()
    trainer.model.config = SimpleNamespace(_name_or_path=name)  # type: ignore[attr-defined]
    return trainer


@pytest.mark.parametrize(
    ("served", "trained", "fits"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B", True),
        ("/models/qwen3-8b/", "Qwen/Qwen3-8B", True),
        ("/hub/models--Qwen--Qwen3-8B/snapshots/0123abc", "/models/Qwen3-8B", True),
        ("/dev/shm/weights/weights-17", "Qwen/Qwen3-8B", True),  # an earlier training's
        ("Qwen/Qwen3-8B", None, True),  # unknown
        ("Qwen/Qwen3-4B", "Qwen/Qwen3-8B", False),
        ("/lab/canonical", "/lab/noncanonical", False),
    ],
)
def test_served_model_must_be_the_trained_one(served: str, trained: str | None, fits: bool) -> None:
    with Engine(tokenizer("smollm2"), model_path=served).server() as server:
        engine = EngineThread(SGLangClient(server.url), owned=True)
        try:
            if fits:
                check_served_model(engine, trainer_of(trained))
            else:
                with pytest.raises(ConfigurationError, match=f"the trainer's model {trained}, got {served}"):
                    check_served_model(engine, trainer_of(trained))
        finally:
            engine.close()


def test_wrong_server_gets_no_weights(tmp_path: Path) -> None:
    served = Engine(tokenizer("smollm2"), model_path="somebody/elses")
    trainer = trainer_of("our/model")
    prompts: list[Any] = [[{"role": "user", "content": "hello"}]]
    with served.server() as server:
        func = trl_rollout(lambda task, model: None, base_url=server.url, directory=tmp_path)
        with pytest.raises(ConfigurationError, match=r"RunOptions\(preflight=False\) to use this server"):
            func(prompts, trainer)
        func.close()
    assert not trainer.model.saved and not {"/update_weights_from_disk", "/generate"} & set(served.asked)


def test_wrong_address_raises_before_the_first_update() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        client = SGLangClient(f"http://127.0.0.1:{held.getsockname()[1]}", first_contact=0.3)
        func = trl_rollout(lambda task, model: None, client=client)
        with pytest.raises(EngineUnreachableError, match="is base_url right"):  # and not after ten minutes
            func([[{"role": "user", "content": "hello"}]], trainer_of("our/model"))
        func.close()
