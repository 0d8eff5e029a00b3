"""`slime_rollout` without slime: with a mirror of `Sample`, a stand-in for the abort flag, and a scripted engine."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager

from runs.test_pause import InterruptingEngine
from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.engine import Generation
from strands_sglang.engine.protocol import SpecInfo
from strands_sglang.engine.retry import Backoff, RetryPolicy
from strands_sglang.errors import ConfigurationError, EngineUnavailableError
from strands_sglang.ledger.figures import Figures, is_evaluation
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.seal import seal
from strands_sglang.ledger.summary import run_rows
from strands_sglang.proof import verify
from strands_sglang.proof.finding import Verdict
from strands_sglang.runs import Episode, Limits, MaxStaleness, Task
from strands_sglang.runs.recording import other_models
from strands_sglang.trainers.slime import grpo_by_group, slime_rollout
from strands_sglang.trainers.slime.samples import METADATA_KEY, SampleGroup
from support.families import tokenizer
from support.gateway.processes import build_process, multiplies
from support.rollout.agent_kinds import build_helper, helper_script
from support.rollout.other_models import Speaker, build_with_user, echo
from support.rollout.scripts import PromptEngine, Script, steps
from support.scripted_engine import Answer, EngineCall, Reply, tool_call
from support.scripted_fleet import Engine
from support.trainers.slime_mirror import Sample, State, Status
from support.trainers.slime_validation import validate_batch, validate_sample

SAMPLING = {"temperature": 0.7, "top_p": 1.0, "top_k": -1, "max_new_tokens": 400, "stop": None, "no_stop_trim": True}
WAITING = threading.Event()


@tool
async def step(number: int) -> str:
    """Take a step."""
    return f"step {number}"


@tool
async def long(number: int) -> str:
    """Take a step that takes long."""
    WAITING.set()
    await asyncio.sleep(60)
    return f"step {number}"


@tool
def blocking(number: int) -> str:
    """Take a step in a thread that cannot be cancelled."""
    WAITING.set()
    time.sleep(3)
    return f"step {number}"


def build(task: Task, model: SGLangModel) -> Any:
    tools = [step, long, blocking]
    return Agent(model=model, tools=tools, callback_handler=None, conversation_manager=NullConversationManager())


def score(episode: Episode) -> float:
    return 1.0 if episode.text == "the end" else -1.0


def arguments(**more: Any) -> SimpleNamespace:
    return SimpleNamespace(hf_checkpoint="none", rollout_top_p=1.0, rollout_max_context_len=None, **more)


def sample(index: int = 7, **more: Any) -> Any:
    prompt = [{"role": "system", "content": "unused"}, {"role": "user", "content": "go"}]
    return Sample(group_index=3, index=index, prompt=prompt, label="42", metadata={"level": 5}, **more)


def generator(engine: Any, **settings: Any) -> Any:
    inner = getattr(engine, "inner", engine)
    given = {"reward": score, "client": engine, "tokenizer": inner.tokenizer, **settings}
    return slime_rollout(given.pop("build", build), **given)


def interrupting(script: Script, after: dict[int, int], state: State) -> InterruptingEngine:
    """Return an engine that raises slime's flag during some requests, after so many tokens."""
    engine = InterruptingEngine(PromptEngine(script), after.get)
    engine.pause = state.raised
    return engine


def checked(one: Any) -> Any:
    validate_sample(one)
    return one


async def test_slime_rollout() -> None:
    engine, one, sampling = PromptEngine(steps(2)), sample(), dict(SAMPLING)
    seen: list[Task] = []

    def watching(task: Task, model: SGLangModel) -> Any:
        seen.append(task)
        return build(task, model)

    generate = generator(engine, build=watching)
    names = list(inspect.signature(generate).parameters)
    assert names == ["args", "sample", "sampling_params", "evaluation"] and inspect.iscoroutinefunction(generate)
    done = checked(await generate(arguments(), one, sampling))
    assert done is one and sampling == SAMPLING
    assert (done.status, done.reward, done.remove_sample) == (Status.COMPLETED, 1.0, False)
    assert done.response.count("</tool_call>") == 2 and "the end" in done.response
    assert sum(done.loss_mask) == sum(len(engine.encode(text)) for text in ("the end<|im_end|>",)) + 2 * (
        len(engine.encode(tool_call("step", number=1))) + 1
    )
    assert done.tokens[: -done.response_length] == engine.calls[0].ids
    assert {call.sampling["temperature"] for call in engine.calls} == {0.7}
    assert {call.asked["routing_key"] for call in engine.calls} == {done.session_id}
    assert (seen[0].prompt, seen[0].answer, seen[0].data["level"]) == ("go", "42", 5)
    assert done.metadata["level"] == 5 and done.metadata[METADATA_KEY]["turns"] == 3


async def test_an_agent_may_be_a_process() -> None:
    engine = PromptEngine(multiplies)
    done = checked(await generator(engine, build=build_process)(arguments(), sample(), dict(SAMPLING)))
    assert (done.status, done.reward, done.metadata[METADATA_KEY]["turns"]) == (Status.COMPLETED, 1.0, 2)
    assert done.response.count("</tool_call>") == 1 and "42" in done.response
    assert done.tokens[: -done.response_length] == engine.calls[0].ids


async def test_budget_covers_all_turns() -> None:
    whole = await generator(PromptEngine(steps(6)))(arguments(), sample(), dict(SAMPLING))
    for budget in (whole.response_length, whole.response_length - 1, 60, 25, 3, 1):
        engine = PromptEngine(steps(6))
        done = checked(await generator(engine)(arguments(), sample(), {**SAMPLING, "max_new_tokens": budget}))
        assert done.response_length <= budget
        assert (done.status is Status.TRUNCATED) == (budget < whole.response_length)
        assert done.tokens == whole.tokens[: len(done.tokens)]
    context = len(whole.tokens) - 20
    args = arguments()
    args.rollout_max_context_len = context
    done = checked(await generator(PromptEngine(steps(6)))(args, sample(), dict(SAMPLING)))
    assert done.status is Status.TRUNCATED and len(done.tokens) <= context


@pytest.mark.parametrize("what", ["engine", "second call", "build", "agent", "reward", "prompt"])
async def test_failed_episode_is_a_valid_sample_that_is_not_trained(what: str) -> None:
    def script(prompt: str, before: int) -> Answer:
        if what == "engine" or (what == "second call" and "step 1" in prompt):
            return EngineUnavailableError("gone", attempts=3)
        return steps(2)(prompt, before)

    def broken(*given: Any) -> Any:
        raise ValueError("broken")

    class Broken(Agent):
        async def invoke_async(self, *given: Any, **more: Any) -> Any:
            raise ValueError("broken")

    settings: dict[str, Any] = {}
    if what == "build":
        settings["build"] = broken
    if what == "agent":
        settings["build"] = lambda task, model: Broken(model=model, callback_handler=None)
    if what == "reward":
        settings["reward"] = broken
    one = sample()
    if what == "prompt":
        one.metadata = {"bad": object()}
    done = checked(await generator(PromptEngine(script), **settings)(arguments(), one, dict(SAMPLING)))
    if what == "prompt":  # a prompt that is not JSON data becomes its repr
        assert done.status is Status.COMPLETED
        return
    assert done.remove_sample and done.reward == 0.0 and not any(done.loss_mask)
    assert done.status is (Status.COMPLETED if what == "reward" else Status.FAILED)
    assert done.metadata[METADATA_KEY]["removed"]


async def test_tool_error_is_a_tool_result() -> None:
    engine = PromptEngine(lambda prompt, before: "the end" if "Error" in prompt else tool_call("step", number="x"))
    done = checked(await generator(engine)(arguments(), sample(), dict(SAMPLING)))
    assert done.status is Status.COMPLETED and done.reward == 1.0


@pytest.mark.parametrize("name", ["long", "blocking"])
@pytest.mark.timing
async def test_abort_does_not_wait_for_a_tool(state: State, name: str) -> None:
    def script(prompt: str, before: int) -> Answer:
        return tool_call(name, number=1) if "step 1" not in prompt else "the end"

    WAITING.clear()
    engine = PromptEngine(script)
    generate = generator(engine)
    work = asyncio.ensure_future(generate(arguments(), sample(), dict(SAMPLING)))
    while not WAITING.is_set():
        await asyncio.sleep(0.005)
    state.aborted = True
    began = time.monotonic()
    done = checked(await work)
    assert time.monotonic() - began < 1.5
    assert done.status is Status.ABORTED and len(engine.calls) == 1
    assert "</tool_call>" in done.response and not any(done.loss_mask)


async def test_abort_before_the_first_turn(state: State) -> None:
    engine = PromptEngine(steps(1))
    generate = generator(engine)
    state.aborted = True
    one = checked(await generate(arguments(), sample(), dict(SAMPLING)))
    assert one.status is Status.ABORTED and not engine.calls
    state.aborted = False
    done = checked(await generate(arguments(), one, dict(SAMPLING)))
    assert done.status is Status.COMPLETED and done.reward == 1.0 and not done.remove_sample


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("branches", ["main", "all"])
async def test_resumed_sample_is_the_same_episode(state: State, tmp_path: Path, masked: bool, branches: str) -> None:
    whole = await generator(PromptEngine(steps(3)))(arguments(), sample(), dict(SAMPLING))
    engine = interrupting(steps(3), {1: 4, 2: 3, 3: 2, 5: 5}, state)
    generate = generator(engine, directory=tmp_path, branches=branches)
    args = arguments(mask_offpolicy_in_partial_rollout=masked)
    one, times, kept = sample(), 0, 0
    while True:
        # A buffer may be anywhere.
        one = pickle.loads(pickle.dumps(await generate(args, one, dict(SAMPLING))))
        assert isinstance(one, SampleGroup) == (branches == "all")
        checked(one)
        if one.status is not Status.ABORTED:
            break
        times += 1
        assert one.response_length > kept, "what was sampled is not shown"
        kept = one.response_length
        one.loss_mask = [0] * one.response_length  # as slime does
        one.metadata["start_rollout_id"] = 1
        state.aborted, engine.version = False, engine.version + 1
    done = one[0] if branches == "all" else one
    assert times == 4 and engine.late == 0
    assert (done.tokens, done.rollout_log_probs) == (whole.tokens, whole.rollout_log_probs)
    assert (done.status, done.reward, done.remove_sample) == (Status.COMPLETED, 1.0, False)
    assert "record" not in done.metadata[METADATA_KEY]
    assert list(dict.fromkeys(done.weight_versions)) == [f"v{n}" for n in range(5)]
    if masked:
        assert 0 < sum(done.loss_mask) == engine.tokens["v4"] < sum(whole.loss_mask)
        assert all(old >= new for old, new in zip(whole.loss_mask, done.loss_mask, strict=True))
    else:
        assert done.loss_mask == whole.loss_mask
    folder = next(tmp_path.iterdir())
    seal(folder)
    certificate = verify(folder)
    assert certificate.verdict is Verdict.PROVED, certificate.text()


async def test_other_models(state: State) -> None:
    """A simulated user is not trained, and not asked again when the sample goes through slime's buffer."""
    user = Speaker()
    engine = interrupting(echo, {1: 2, 3: 3}, state)
    generate = generator(engine, build=build_with_user, models={"user": user}, reward=lambda episode: 1.0)
    one, times = sample(), 0
    while (
        one := pickle.loads(pickle.dumps(await generate(arguments(), one, dict(SAMPLING))))
    ).status is Status.ABORTED:
        times, state.aborted = times + 1, False
    checked(one)
    assert (times, one.status, one.reward, len(user.asked)) == (2, Status.COMPLETED, 1.0, 3)
    assert "answer 0 to" in one.response and "answer 1 to" in one.response
    kept = zip(one.tokens[-one.response_length :], one.loss_mask, strict=True)
    trained = engine.inner.decode([token for token, is_trained in kept if is_trained])
    assert trained.count("policy") == 3 and "answer" not in trained


async def test_user_that_fails_is_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_models, "RETRIES", RetryPolicy(0, Backoff(0.0, 0.0)))
    user = Speaker(lambda messages, before: ConnectionError("down"))
    generate = generator(PromptEngine(echo), build=build_with_user, models={"user": user})
    done = checked(await generate(arguments(), sample(), dict(SAMPLING)))
    assert (done.status, done.remove_sample) == (Status.FAILED, True) and not any(done.loss_mask)


async def test_all_branches_are_samples_of_one_rollout() -> None:
    engine = PromptEngine(helper_script)
    generate = generator(engine, build=build_helper, branches="all")
    fans = [await generate(arguments(), sample(number), dict(SAMPLING)) for number in (1, 2)]
    assert [len(fan) for fan in fans] == [len(fans[0])] * 2 and len(fans[0]) > 1
    flat = [one for fan in fans for one in fan]
    validate_batch(flat, arguments())
    assert [len({one.rollout_id for one in fan}) for fan in fans] == [1, 1]
    assert fans[0][0].rollout_id != fans[1][0].rollout_id
    raw, advantages = grpo_by_group(arguments(advantage_estimator="grpo", rewards_normalization=True), flat)
    assert len(raw) == len(advantages) == len(flat)
    again = copy.deepcopy(fans[0])
    assert isinstance(again, SampleGroup) and again.status is Status.COMPLETED
    evaluated = await generate(arguments(), sample(3), dict(SAMPLING), evaluation=True)
    assert isinstance(evaluated, Sample)


async def test_evaluation_shares_its_parameters() -> None:
    shared, engine = dict(SAMPLING), PromptEngine(steps(1))
    generate = generator(engine)
    given = [Sample(index=n, prompt="go", label="42") for n in (0, 0, 1)]
    done = await asyncio.gather(*(generate(arguments(), one, shared, evaluation=True) for one in given))
    assert shared == SAMPLING and len({one.session_id for one in done}) == 3
    assert [one.reward for one in done] == [1.0] * 3


async def test_without_a_reward_function_slime_scores() -> None:
    done = await generator(PromptEngine(steps(1)), reward=None)(arguments(), sample(), dict(SAMPLING))
    assert done.reward is None and not done.remove_sample


async def test_invalid_arguments_are_refused() -> None:
    generate = generator(PromptEngine(steps(1)))
    with pytest.raises(ConfigurationError, match="--apply-chat-template"):
        await generate(arguments(apply_chat_template=True), sample(), dict(SAMPLING))
    without = arguments()
    without.hf_checkpoint = "/no/such/folder"  # of another name, the hub would be asked
    with pytest.raises(ConfigurationError, match="--hf-checkpoint a folder"):
        await slime_rollout(build, client=PromptEngine(steps(1)))(without, sample(), dict(SAMPLING))
    with pytest.raises(ConfigurationError, match="'main' or 'all'"):
        slime_rollout(build, branches="some")
    with pytest.raises(ConfigurationError, match="sampling parameters"):
        slime_rollout(build, sampling_params={"temperature": 0})


async def test_top_p_sampling_has_its_kept_sets() -> None:
    args = arguments()
    args.rollout_top_p = 0.8
    done = await generator(PromptEngine(steps(2)))(args, sample(), {**SAMPLING, "top_p": 0.8})
    assert done.status is Status.COMPLETED and not done.remove_sample
    offsets = done.rollout_top_p_token_offsets
    assert len(offsets) == done.response_length + 1 and offsets[-1] == len(done.rollout_top_p_token_ids)
    sizes = np.diff(offsets)
    assert ((sizes > 0) == np.array(done.loss_mask, bool)).all(), "tokens of tools have empty sets"
    without = await generator(PromptEngine(steps(2)), kept_sets=False)(args, sample(), {**SAMPLING, "top_p": 0.8})
    assert without.remove_sample, "a sample without its sets is not trained"
    assert (await generator(PromptEngine(steps(2)))(args, sample(), dict(SAMPLING), evaluation=True)).status is (
        Status.COMPLETED
    )


def test_every_event_loop_has_its_own_worker() -> None:
    """Fully asynchronous rollouts have a thread with a loop, in addition to the one that evaluates."""
    generate, found = generator(PromptEngine(steps(2))), list[Any]()

    def work(number: int) -> None:
        async def several() -> None:
            found.extend(
                await asyncio.gather(
                    *(generate(arguments(), sample(10 * number + n), dict(SAMPLING)) for n in range(4))
                )
            )

        asyncio.run(several())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 12 and {one.status for one in found} == {Status.COMPLETED}


async def test_changed_record_is_refused(state: State) -> None:
    engine = interrupting(steps(2), {1: 2}, state)
    generate = generator(engine)
    one = await generate(arguments(), sample(), dict(SAMPLING))
    assert one.status is Status.ABORTED
    state.aborted = False
    one.metadata[METADATA_KEY]["record"] = one.metadata[METADATA_KEY]["record"].to_bytes()[:-9] + b"something"
    done = checked(await generate(arguments(), one, dict(SAMPLING)))
    assert done.status is Status.FAILED and done.remove_sample


async def test_speculative_decoding_is_counted_over_all_turns_and_resumes(state: State) -> None:
    class Speculating(InterruptingEngine):
        async def generate(self, input_ids: Any, sampling_params: Any = None, **asked: Any) -> Any:
            return replace(await super().generate(input_ids, sampling_params, **asked), spec=SpecInfo(3, 5, 2))

    engine = Speculating(PromptEngine(steps(2)), {1: 4}.get)
    engine.pause = state.raised
    generate = generator(engine)
    one = await generate(arguments(), sample(), dict(SAMPLING))
    assert one.status is Status.ABORTED
    state.aborted = False
    spec = checked(await generate(arguments(), one, dict(SAMPLING))).spec_info
    assert (spec.spec_accept_token_num, spec.spec_draft_token_num, spec.spec_verify_ct) == (12, 20, 8)
    assert engine.requests == 4 and spec.completion_token_num == sum(one.loss_mask)


async def test_user_limits() -> None:
    generate = generator(PromptEngine(steps(5)), limits=Limits(max_tool_calls=2))
    done = checked(await generate(arguments(), sample(), dict(SAMPLING)))
    assert done.status is Status.TRUNCATED and done.metadata[METADATA_KEY]["end_reason"] == "tool_limit"


async def test_abort_waits_for_a_late_response(state: State) -> None:
    """The engine received an abort and responds a little later with a complete turn, which is kept."""
    gate = asyncio.Event()

    async def wait() -> None:
        await gate.wait()

    engine = PromptEngine(lambda prompt, before: Reply("the end", before=wait))
    generate = generator(engine)
    work = asyncio.ensure_future(generate(arguments(), sample(), dict(SAMPLING)))
    while not engine.calls:
        await asyncio.sleep(0.005)
    state.aborted = True
    await asyncio.sleep(0.1)
    assert not work.done()
    gate.set()
    done = checked(await work)
    assert done.status in (Status.ABORTED, Status.COMPLETED) and "the end" in done.response
    state.aborted = False
    if done.status is Status.ABORTED:
        done = await generate(arguments(), done, dict(SAMPLING))
    assert done.status is Status.COMPLETED and len(engine.calls) == 1


async def test_episode_is_paused_even_if_the_flag_is_cleared(state: State) -> None:
    """The flag was set once, so the episode is paused."""
    engine = InterruptingEngine(PromptEngine(steps(2)), {1: 4}.get)

    class Once(threading.Event):
        def is_set(self) -> bool:
            was = super().is_set()
            self.clear()
            return was

    engine.pause = state.raised = Once()
    generate = generator(engine)
    one = checked(await asyncio.wait_for(generate(arguments(), sample(), dict(SAMPLING)), 10))
    assert one.status is Status.ABORTED
    done = checked(await generate(arguments(), one, dict(SAMPLING)))
    assert done.status is Status.COMPLETED and done.reward == 1.0


async def test_abort_does_not_wait_for_scoring(state: State) -> None:
    scoring = asyncio.Event()

    async def judge(episode: Episode) -> float:
        scoring.set()
        await asyncio.sleep(0 if len(scored) else 60)
        return 0.25

    scored: list[int] = []
    engine = PromptEngine(steps(1))
    generate = generator(engine, reward=judge)
    work = asyncio.ensure_future(generate(arguments(), sample(), dict(SAMPLING)))
    await scoring.wait()
    state.aborted = True
    one = checked(await asyncio.wait_for(work, 2))
    assert one.status is Status.ABORTED and "the end" in one.response
    state.aborted = False
    scored.append(1)
    done = checked(await generate(arguments(), one, dict(SAMPLING)))
    assert (done.status, done.reward) == (Status.COMPLETED, 0.25) and len(engine.calls) == 2


async def test_invalid_row_is_a_failed_sample() -> None:
    generate = generator(PromptEngine(steps(1)))
    bad = sample()
    bad.prompt = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "gone"}]
    with pytest.raises(ConfigurationError, match="end with a user message"):
        await generate(arguments(), bad, dict(SAMPLING))
    assert (await generate(arguments(), sample(), dict(SAMPLING))).status is Status.COMPLETED
    done = checked(await generate(arguments(), bad, dict(SAMPLING)))
    assert done.status is Status.FAILED and done.remove_sample


async def test_samples_without_numbers(state: State) -> None:
    WAITING.clear()
    engine = PromptEngine(lambda prompt, before: tool_call("long", number=1))
    generate = generator(engine)
    both = [asyncio.ensure_future(generate(arguments(), sample(), dict(SAMPLING))) for _ in range(2)]
    while len(engine.calls) < 2:
        await asyncio.sleep(0.005)
    state.aborted = True
    done = await asyncio.wait_for(asyncio.gather(*both), 5)
    assert [one.status for one in done] == [Status.ABORTED] * 2


async def test_failed_sample_is_run_again(state: State, tmp_path: Path) -> None:
    """Fully asynchronous rollouts do this with a group that has an aborted member; the ledger holds both episodes."""
    broken = [True]

    def script(prompt: str, before: int) -> Answer:
        if broken[0] and "step 1" in prompt:
            return EngineUnavailableError("gone", attempts=3)
        return steps(2)(prompt, before)

    engine = interrupting(script, {0: 2}, state)
    generate = generator(engine, directory=tmp_path)
    one = await generate(arguments(), sample(), dict(SAMPLING))
    state.aborted = False
    one = await generate(arguments(), one, dict(SAMPLING))
    assert one.status is Status.FAILED
    broken[0] = False
    for _ in range(2):
        one = await generate(arguments(), one, dict(SAMPLING))
        assert one.status is Status.COMPLETED
        one.status = Status.FAILED
    folder = next(tmp_path.iterdir())
    seal(folder)
    certificate = verify(folder)
    assert certificate.verdict is not Verdict.BROKEN, certificate.text()


async def test_samples_of_a_group_are_samples_of_one_task(tmp_path: Path) -> None:
    generate = generator(PromptEngine(steps(1)), directory=tmp_path)
    for index in (7, 8, 7, 8):  # slime has discarded the group, and runs it again
        await generate(arguments(), sample(index), dict(SAMPLING))
    rows = run_rows(next(tmp_path.iterdir()))
    assert [row["id"] for row in rows] == ["g3/7", "g3/8", "g3.1/7", "g3.1/8"]
    assert Figures.of("run", rows).to_dict()["groups"] == 2


async def test_tasks_of_an_evaluation_are_named_by_what_they_ask(tmp_path: Path) -> None:
    """Two runs may evaluate in another order; the same question is the same task in both."""
    names = []
    for folder, order in (("a", (0, 1, 2)), ("b", (2, 1, 0))):
        generate = generator(PromptEngine(steps(1)), directory=tmp_path / folder)
        for index in (*order, *order):  # two evaluations
            one = sample(index)
            one.label = f"answer {index // 2}"  # samples 0 and 1 are of one question
            await generate(arguments(), one, dict(SAMPLING), evaluation=True)
        rows = run_rows(next((tmp_path / folder).iterdir()))
        names.append({row["id"] for row in rows})
        assert len({row["task_id"] for row in rows}) == 4 and all(is_evaluation(row) for row in rows)
        assert Figures.of("run", rows).to_dict()["groups"] == 2, "a question asked twice in one evaluation"
    assert names[0] == names[1] and len(names[0]) == 6


@pytest.mark.timing
async def test_no_attempt_starts_after_an_abort(state: State) -> None:
    """The engine is unreachable and the client retries until slime aborts."""
    tried: list[float] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tried.append(time.monotonic())
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = SGLangClient(f"http://127.0.0.1:{port}", retry_delay=0.05, max_retries=10_000, first_contact=None)
    engine = PromptEngine(steps(1))
    generate = slime_rollout(build, reward=score, client=client, tokenizer=engine.tokenizer)
    work = asyncio.ensure_future(generate(arguments(), sample(), dict(SAMPLING)))
    while len(tried) < 3:
        await asyncio.sleep(0.01)
    state.aborted = True
    raised = time.monotonic()
    one = checked(await asyncio.wait_for(work, 5))
    server.close()
    await client.close()
    assert one.status is Status.ABORTED
    late = [when for when in tried if when > raised + 0.02]  # the monitor polls the flag
    assert not late


async def test_unsuitable_engine_is_refused_at_the_first_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_sglang.engine.retry._histories", {})
    served = Engine(tokenizer("smollm2"))
    with served.server() as server:
        async with SGLangClient(server.url) as client:
            common: dict[str, Any] = {"reward": score, "client": client, "tokenizer": tokenizer("qwen3")}
            generate = slime_rollout(build, **common)
            samples = [generate(arguments(), sample(index), dict(SAMPLING)) for index in range(4)]
            refused = await asyncio.gather(*samples, return_exceptions=True)
            assert all(isinstance(one, ConfigurationError) and "must be the server's" in str(one) for one in refused)
            assert "/generate" not in served.asked and served.asked.count("/model_info") == 1
            generate = slime_rollout(build, **common, preflight=False)
            checked(await generate(arguments(), sample(), dict(SAMPLING)))
            assert "/generate" in served.asked and served.asked.count("/model_info") == 1
    gone = SGLangClient(f"http://127.0.0.1:{server.port}/gone", first_contact=0.2)
    generate = slime_rollout(build, **{**common, "client": gone})
    with pytest.raises(ConfigurationError, match="is base_url right"):
        await generate(arguments(), sample(), dict(SAMPLING))
    await gone.close()


class UpdatedEngine(PromptEngine):
    """An engine whose weights are updated after some of its calls."""

    def __init__(self, updates: set[int]) -> None:
        super().__init__(steps(2))
        self.updates, self.version = updates, 5

    def _generation(self, call: EngineCall, reply: Reply) -> Generation:
        made = super()._generation(call, Reply(reply.text, version=str(self.version)))
        self.version += 2 * (len(self.calls) in self.updates)
        return made


@pytest.mark.parametrize("action", ["drop", "retry", "mask"])
async def test_sample_with_tokens_that_are_too_old(tmp_path: Path, action: str) -> None:
    def generate(engine: UpdatedEngine) -> Any:
        rule = MaxStaleness(1, action, current=lambda: str(engine.version))
        return generator(engine, max_staleness=rule, directory=tmp_path)

    engine = UpdatedEngine({2})
    one = checked(await generate(engine)(arguments(), sample(), dict(SAMPLING)))
    (directory,) = tmp_path.iterdir()
    decisions = [record.staleness.data for record in Ledger(directory).episodes() if record.staleness is not None]
    assert decisions[0]["ages"] == [["5", 2], ["7", 0]]
    about = one.metadata[METADATA_KEY]
    if action == "drop":
        assert (one.remove_sample, one.reward, about["removed"]) == (True, 0.0, "stale") and not any(one.loss_mask)
        assert [one["decision"] for one in decisions] == ["dropped"] and one.status is Status.FAILED
    elif action == "retry":
        assert not one.remove_sample and set(one.weight_versions) == {"7"} and about["episode"].endswith("~1/7")
        assert sorted(one["decision"] for one in decisions) == ["kept", "retried"] and len(engine.calls) == 6
    else:
        assert not one.remove_sample and one.reward == 1.0
        last = len(engine.encode("the end<|im_end|>"))
        assert one.loss_mask == [0] * (one.response_length - last) + [1] * last
    # An evaluation is never too old.
    again = checked(await generate(UpdatedEngine({2}))(arguments(), sample(8), dict(SAMPLING), evaluation=True))
    assert not again.remove_sample and again.reward == 1.0


async def test_sample_without_a_fresh_token(tmp_path: Path) -> None:
    engine = UpdatedEngine({3})
    rule = MaxStaleness(1, "mask", current=lambda: str(engine.version))
    one = checked(await generator(engine, max_staleness=rule)(arguments(), sample(), dict(SAMPLING)))
    assert one.remove_sample and one.metadata[METADATA_KEY]["removed"] == "stale"
