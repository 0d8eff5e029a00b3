"""Other models in an episode: recorded before anybody sees them, replayed by content, never trained."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from strands import tool
from strands.agent.conversation_manager import SlidingWindowConversationManager
from strands.types.exceptions import ContextWindowOverflowException, ModelThrottledException

from strands_sglang import SGLangModel
from strands_sglang.engine.retry import Backoff, RetryPolicy
from strands_sglang.errors import ConfigurationError, OtherModelError
from strands_sglang.ledger.event import EventKind
from strands_sglang.proof import verify
from strands_sglang.runs import EndReason, Limits, Task, replay
from strands_sglang.runs.offline.replay import ReplayVerdict
from strands_sglang.runs.offline.score_run import score_run
from strands_sglang.runs.recording import other_models
from support.families import tokenizer
from support.rollout.agent_kinds import plain
from support.rollout.other_models import Answer, Speaker, last_text, quiet, spoken, taking_turns
from support.rollout.scripts import (
    RAN,
    PromptEngine,
    asked,
    assert_proved,
    assert_same,
    crashed,
    record_of,
    run,
    steps,
    summaries,
)
from support.scripted_engine import ScriptedEngine, tool_call

TASK = Task("go", id="t")


@pytest.fixture(autouse=True)
def short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_models, "RETRIES", RetryPolicy(2, Backoff(0.0, 0.0)))


def build(task: Task, model: SGLangModel, models: Any) -> Any:
    """The policy and a simulated user take turns."""
    agent, user = plain(model, name="policy"), quiet(models["user"], name="user", system_prompt="You are a customer.")
    return taking_turns(agent, user, str(task.prompt))


def build_with_landlord(task: Task, model: SGLangModel, models: Any) -> Any:
    """The same agent, whose user is asked something else."""
    agent, user = plain(model, name="policy"), quiet(models["user"], system_prompt="You are a landlord.")
    return taking_turns(agent, user, str(task.prompt))


def answers_from(number: int) -> Answer:
    """Return the answers of a model that was asked so often before."""
    return lambda messages, before: f"answer {number + before} to {last_text(messages)}"


def echo(prompt: str, before: int) -> str:
    return f"reply to {asked(prompt)!r:.300}"


def models_of(folder: Path, kind: EventKind = EventKind.MODEL) -> list[dict[str, Any]]:
    return [event.data for event in record_of(folder).events if event.kind is kind]


async def test_conversation_with_user_is_recorded_and_not_trained(tmp_path: Path) -> None:
    user = Speaker()
    episodes = await run(build, [TASK], PromptEngine(echo), tmp_path, models={"user": user})

    episode = episodes[0]
    assert episode.end_reason is EndReason.ANSWERED, episode.failure
    assert len(user.asked) == episode.metrics.other_model_calls == 3 == episode.metrics.turns
    assert [(one.agent, one.main) for one in episode.trajectories] == [("policy", True)]
    assert "answer 0 to" in str(episode.messages) and "answer 2" not in str(episode.messages)
    first, *_ = said = models_of(tmp_path)
    assert [one["name"] for one in said] == ["user"] * 3
    assert first["asked"] == [{"text": "They said \"reply to 'go'\"."}]
    assert first["attempts"] == 1 and len(first["request_digest"]) == 32
    # The pieces of the text are joined; all else is as it was received.
    texts = [one["contentBlockDelta"]["delta"]["text"] for one in first["answer"] if "contentBlockDelta" in one]
    assert texts == ["answer 0 to They said \"reply to 'go'\"."]
    assert first["answer"][-1] == spoken("")[-1]
    kinds = [event.kind for event in record_of(tmp_path).events if event.kind in (EventKind.CALL, EventKind.MODEL)]
    assert kinds == [EventKind.CALL, EventKind.MODEL] * 3
    assert_proved(tmp_path)


async def test_crash_after_any_event_asks_nothing_again(tmp_path: Path) -> None:
    whole = await run(build, [TASK], PromptEngine(echo), tmp_path / "whole", models={"user": Speaker()})
    events = record_of(tmp_path / "whole").events
    for kept in range(1, len(events)):
        folder = crashed(tmp_path / "whole", tmp_path / "crash", kept)
        known = sum(event.kind is EventKind.MODEL for event in events[:kept])
        user = Speaker(answers_from(known))
        engine = PromptEngine(echo).follows(events[:kept])
        resumed = await run(build, [TASK], engine, folder, models={"user": user})
        assert summaries(resumed) == summaries(whole), kept
        assert len(user.asked) == 3 - known
        assert resumed[0].metrics.other_model_calls == 3
        assert not [event for event in record_of(folder).events if event.kind is EventKind.ROLLBACK], kept
        assert_proved(folder)
        assert_same(folder, resumed)


async def test_replay_needs_neither_engine_nor_models(tmp_path: Path) -> None:
    engine = PromptEngine(echo)
    await run(build, [TASK, Task("other", id="u")], engine, tmp_path, models={"user": Speaker()})
    for models in (None, {"user": lambda: Speaker(lambda *_: RuntimeError("not asked"))}):
        results = await replay(build, tmp_path, tokenizer=engine.tokenizer, models=models)
        assert [result.verdict for result in results] == [ReplayVerdict.IDENTICAL] * 2, results


async def test_replay_of_changed_user_diverges(tmp_path: Path) -> None:
    engine = PromptEngine(echo)
    await run(build, [TASK], engine, tmp_path, models={"user": Speaker()})

    (result,) = await replay(build_with_landlord, tmp_path, tokenizer=engine.tokenizer)
    assert (
        result.verdict is ReplayVerdict.DIVERGED and "'user' is asked something that is not recorded" in result.message
    )


async def test_replay_of_crashed_episode(tmp_path: Path) -> None:
    engine = PromptEngine(echo)
    await run(build, [TASK], engine, tmp_path / "whole", models={"user": Speaker()})
    for kept in range(2, len(record_of(tmp_path / "whole").events)):
        folder = crashed(tmp_path / "whole", tmp_path / "crash", kept)
        (result,) = await replay(build, folder, tokenizer=engine.tokenizer)
        assert result.verdict is ReplayVerdict.IDENTICAL, (kept, result)


async def test_second_sglang_model_keeps_its_own_turns(tmp_path: Path) -> None:
    """It is no turn of the episode, and no turn of its own object that lives on."""
    second = ScriptedEngine(tokenizer("qwen2.5"), lambda prompt: f"heard {len(prompt)}")
    user = SGLangModel(tokenizer=second.tokenizer, client=second)
    episodes = await run(build, [TASK, Task("u", id="u")], PromptEngine(echo), tmp_path, models={"user": user})
    assert [episode.end_reason for episode in episodes] == [EndReason.ANSWERED] * 2
    assert len(second.calls) == 6 and len(user.current_episode.tree) == 0
    assert all(len(episode.trajectories) == 1 for episode in episodes)
    # The user's second question continues its first conversation: ids that were sent are not rendered again.
    prompts = [call.ids for call in second.calls]
    assert sum(any(one != other and other[: len(one)] == one for one in prompts) for other in prompts) == 4
    assert_proved(tmp_path)


async def test_model_inside_tool(tmp_path: Path) -> None:
    """Two parallel calls of a tool that ask the same: each gets its own answer again."""

    def ask_build(task: Task, model: SGLangModel, models: Any) -> Any:
        @tool
        async def ask(number: int) -> str:
            """Ask.

            Args:
                number: Which.
            """
            await asyncio.sleep(0.01 * number)
            said = str(await quiet(models["helper"]).invoke_async("What now?")).strip()
            reply = str(await quiet(model, name=f"sub {number}").invoke_async(f"{number}: {said}"))
            return f"step {number}: {said} {reply}"

        return plain(model, tools=[ask])

    def script(prompt: str, before: int) -> str:
        if "<tool_response>" in prompt:
            return "the end"
        if asked(prompt) == "go":
            return tool_call("ask", number=2) + tool_call("ask", number=1)
        return echo(prompt, before)

    whole = await run(ask_build, [TASK], PromptEngine(script), tmp_path / "whole", models={"helper": Speaker()})
    assert whole[0].end_reason is EndReason.ANSWERED, whole[0].failure
    events = record_of(tmp_path / "whole").events
    assert all(len(one["within"]) == 1 for one in models_of(tmp_path / "whole"))
    for kept in range(1, len(events)):
        folder = crashed(tmp_path / "whole", tmp_path / "crash", kept)
        known = sum(event.kind is EventKind.MODEL for event in events[:kept])
        helper = Speaker(answers_from(known))
        engine = PromptEngine(script).follows(events[:kept])
        resumed = await run(ask_build, [TASK], engine, folder, models={"helper": helper})
        assert summaries(resumed, ordered=False) == summaries(whole, ordered=False), kept
        assert len(helper.asked) == 2 - known
    (result,) = await replay(ask_build, tmp_path / "whole", tokenizer=engine.tokenizer)
    assert result.verdict is ReplayVerdict.IDENTICAL, result


async def test_tools_of_user_are_recorded(tmp_path: Path) -> None:
    @tool
    async def wallet() -> str:
        """Look into the wallet."""
        RAN("wallet")
        return "12 euros"

    def use() -> list[Any]:
        call = {"toolUse": {"name": "wallet", "toolUseId": "w1"}}
        return [
            {"messageStart": {"role": "assistant"}},
            {"contentBlockStart": {"start": call}},
            {"contentBlockDelta": {"delta": {"toolUse": {"input": "{"}}}},
            {"contentBlockDelta": {"delta": {"toolUse": {"input": "}"}}}},
            {"contentBlockStop": {}},
            {"messageStop": {"stopReason": "tool_use"}},
        ]

    def with_wallet(task: Task, model: SGLangModel, models: Any) -> Any:
        agent, user = plain(model), quiet(models["user"], tools=[wallet])

        async def talk() -> Any:
            return await agent.invoke_async(str(await user.invoke_async("Begin.")))

        return talk, agent

    def answer(messages: list[Any], before: int) -> Any:
        return use() if "toolResult" not in str(messages) else "I have 12 euros."

    RAN.taken()
    whole = await run(with_wallet, [TASK], PromptEngine(echo), tmp_path / "whole", models={"user": Speaker(answer)})
    assert whole[0].end_reason is EndReason.ANSWERED, whole[0].failure
    assert RAN.taken() == {"wallet": 1, "asked": 2}
    folder = crashed(tmp_path / "whole", tmp_path / "crash", len(record_of(tmp_path / "whole").events) - 1)
    await run(with_wallet, [TASK], PromptEngine(echo), folder, models={"user": Speaker(answer)})
    assert not RAN.taken()
    assert [event.data["name"] for event in record_of(folder).tools] == ["wallet"]


class Grade(BaseModel):
    points: int


async def test_structured_output(tmp_path: Path) -> None:
    def graded(task: Task, model: SGLangModel, models: Any) -> Any:
        async def talk() -> str:
            async for event in models["judge"].structured_output(Grade, [{"role": "user", "content": [{"text": "?"}]}]):
                found = event
            assert isinstance(found["output"], Grade)
            return str(await plain(model).invoke_async(str(found["output"].points)))

        return talk

    judge = Speaker(lambda messages, before: '{"points": 7}')
    whole = await run(graded, [TASK], PromptEngine(echo), tmp_path / "whole", models={"judge": judge})
    assert whole[0].text.strip() == "reply to '7'"
    assert models_of(tmp_path / "whole")[0]["answer"][-1] == {"output": {"points": 7}}
    folder = crashed(tmp_path / "whole", tmp_path / "crash", 3)
    resumed = await run(graded, [TASK], PromptEngine(echo), folder, models={"judge": judge})
    assert summaries(resumed) == summaries(whole) and len(judge.asked) == 1


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (ModelThrottledException("too many requests"), 3),
        (ConnectionResetError("reset"), 3),
        (type("ServerError", (Exception,), {"status_code": 500})("down"), 3),
        (type("AuthenticationError", (Exception,), {"status_code": 401})("no key"), 1),
        (KeyError("a bug"), 1),
    ],
    ids=lambda one: type(one).__name__,
)
async def test_failure_is_an_end_reason_of_its_own(error: Exception, attempts: int, tmp_path: Path) -> None:
    """Nothing is scored or trained, even if the agent's code handles the error; the next call continues."""

    def stubborn(task: Task, model: SGLangModel, models: Any) -> Any:
        talk = build(task, model, models)

        async def handled() -> Any:
            try:
                return await talk()
            except BaseException:
                return "never mind"

        return handled

    scored = []
    failing = Speaker(lambda messages, before: error if before else "hello")

    def reward(episode: Any) -> float:
        scored.append(1)
        return 1.0

    episodes = await run(stubborn, [TASK], PromptEngine(echo), tmp_path, models={"user": failing}, reward=reward)
    episode = episodes[0]
    assert (episode.end_reason, episode.reward, scored) == (EndReason.OTHER_MODEL_ERROR, None, [])
    assert episode.failure is not None and episode.failure.kind == "OtherModelError"
    assert "'user'" in episode.failure.message and str(error) in episode.failure.message
    (recorded,) = models_of(tmp_path, EventKind.MODEL_ERROR)
    assert recorded["attempts"] == attempts == len(failing.asked) - 1
    assert verify(tmp_path).tokens.trained == 0

    (result,) = await replay(stubborn, tmp_path, tokenizer=PromptEngine(echo).tokenizer)
    assert result.verdict is ReplayVerdict.IDENTICAL, result

    engine = PromptEngine(echo).follows(record_of(tmp_path).events)
    again = Speaker(lambda messages, before: f"again {before}")
    resumed = await run(stubborn, [TASK], engine, tmp_path, models={"user": again}, reward=reward)
    assert (resumed[0].end_reason, resumed[0].reward, len(again.asked)) == (EndReason.ANSWERED, 1.0, 2)
    assert resumed[0].metrics.replayed_turns == 2
    assert_proved(tmp_path)
    (result,) = await replay(stubborn, tmp_path, tokenizer=engine.tokenizer)
    assert result.verdict is ReplayVerdict.IDENTICAL, result


async def test_truncated_answer_ends_episode_as_the_models(tmp_path: Path) -> None:
    user = Speaker(lambda messages, before: spoken("I would like to", "max_tokens"))
    episodes = await run(build, [TASK], PromptEngine(echo), tmp_path, models={"user": user})
    assert episodes[0].end_reason is EndReason.OTHER_MODEL_ERROR
    assert episodes[0].failure is not None and "truncated" in episodes[0].failure.message
    assert models_of(tmp_path, EventKind.MODEL_ERROR)[0]["error"] == "MaxTokensReachedException"


async def test_policys_truncation_stays_the_policys(tmp_path: Path) -> None:
    def long(prompt: str, before: int) -> str:
        return "word " * 50

    episodes = await run(
        build, [TASK], PromptEngine(long), tmp_path, models={"user": Speaker()}, limits=Limits(max_new_tokens=8)
    )
    assert episodes[0].end_reason is EndReason.TURN_TRUNCATED


async def test_truncated_answer_to_code_is_an_answer(tmp_path: Path) -> None:
    """A judge that may say one token is no failure."""

    def one_token(task: Task, model: SGLangModel, models: Any) -> Any:
        async def talk() -> str:
            question: Any = [{"role": "user", "content": [{"text": "yes or no?"}]}]
            said = [event async for event in models["judge"].stream(question)]
            text = "".join(one["contentBlockDelta"]["delta"]["text"] for one in said if "contentBlockDelta" in one)
            return str(await plain(model).invoke_async(text))

        return talk

    judge = Speaker(lambda messages, before: spoken("yes", "max_tokens"))
    episodes = await run(one_token, [TASK], PromptEngine(echo), tmp_path, models={"judge": judge})
    assert (episodes[0].end_reason, episodes[0].text.strip()) == (EndReason.ANSWERED, "reply to 'yes'")


async def test_overflow_is_handled_by_the_agent_that_asks(tmp_path: Path) -> None:
    """Its conversation manager sends less, as with any model; so it does in a resumed episode."""

    def windowed(task: Task, model: SGLangModel, models: Any) -> Any:
        user = quiet(models["user"])
        user.conversation_manager = SlidingWindowConversationManager(window_size=100)

        async def talk() -> str:
            for number in range(3):
                text = str(await user.invoke_async(f"question {number}"))
            return str(await plain(model).invoke_async(text))

        return talk

    def small(messages: list[Any], before: int) -> Any:
        return ContextWindowOverflowException("too long") if len(messages) > 3 else f"answer {len(messages)}"

    whole = await run(windowed, [TASK], PromptEngine(echo), tmp_path / "whole", models={"user": Speaker(small)})
    assert whole[0].end_reason is EndReason.ANSWERED, whole[0].failure
    assert [one["error"] for one in models_of(tmp_path / "whole", EventKind.MODEL_ERROR)] == [
        "ContextWindowOverflowException"
    ]
    kept = len(record_of(tmp_path / "whole").events) - 1
    user = Speaker(small)
    folder = crashed(tmp_path / "whole", tmp_path / "crash", kept)
    resumed = await run(windowed, [TASK], PromptEngine(echo), folder, models={"user": user})
    assert summaries(resumed) == summaries(whole) and not user.asked
    always = Speaker(lambda messages, before: ContextWindowOverflowException("too long"))
    episodes = await run(build, [TASK], PromptEngine(echo), tmp_path / "never", models={"user": always})
    assert episodes[0].end_reason is EndReason.OTHER_MODEL_ERROR


async def test_answer_of_a_resumed_process_survives_its_divergence(tmp_path: Path) -> None:
    """The resumed agent asks something new, diverges, crashes, and is resumed: it is not asked a third time."""
    await run(build, [TASK], PromptEngine(echo), tmp_path / "whole", models={"user": Speaker()})
    folder = crashed(tmp_path / "whole", tmp_path / "crash", len(record_of(tmp_path / "whole").events) - 1)

    options: dict[str, Any] = {"allow_changed": ["agent"]}
    other = Speaker(lambda messages, before: f"other {before}")
    whole = await run(build_with_landlord, [TASK], PromptEngine(echo), folder, models={"user": other}, **options)
    assert len(other.asked) == 3 and whole[0].metrics.replayed_turns == 1
    events = record_of(folder).events
    assert EventKind.ROLLBACK in [event.kind for event in events]
    third = crashed(folder, tmp_path / "third", len(events) - 1)
    last = Speaker(lambda messages, before: RuntimeError("asked again"))
    resumed = await run(build_with_landlord, [TASK], PromptEngine(echo), third, models={"user": last}, **options)
    assert summaries(resumed) == summaries(whole) and not last.asked


# --- rewards ----------------------------------------------------------------------------------------------------------


async def judged(episode: Any, models: Any) -> float:
    verdict = await quiet(models["judge"]).invoke_async(f"Points for {episode.text!r}?")
    return float(str(verdict))


def build_alone(task: Task, model: SGLangModel) -> Any:
    return plain(model)


async def test_judge_is_recorded_before_the_reward(tmp_path: Path) -> None:
    judge = Speaker(lambda messages, before: f"0.{before + 1}")
    episodes = await run(build_alone, [TASK], PromptEngine(steps(1)), tmp_path, models={"judge": judge}, reward=judged)
    assert (episodes[0].reward, episodes[0].metrics.other_model_calls) == (0.1, 1)
    kinds = [event.kind for event in record_of(tmp_path).events]
    assert kinds[-3:] == [EventKind.MODEL, EventKind.REWARD, EventKind.END]
    assert_proved(tmp_path)
    # Scored again by the same question: the judge is not asked.
    (again,) = await score_run(judged, tmp_path, models={"judge": judge})
    assert (again.now.value, len(judge.asked)) == (0.1, 1)

    def other(task: Any, episode: Any, models: Any) -> float:
        return float(str(quiet(models["judge"])(f"Really, {episode.text!r}?")))

    (again,) = await score_run(other, tmp_path, models={"judge": judge})
    assert (again.now.value, len(judge.asked)) == (0.2, 2)
    (again,) = await score_run(other, tmp_path, models={"judge": judge})
    assert (again.now.value, len(judge.asked)) == (0.2, 2)
    kinds = [event.kind for event in record_of(tmp_path).events]
    assert kinds[-5:] == [EventKind.END, EventKind.REWARD, EventKind.MODEL, EventKind.REWARD, EventKind.REWARD]
    assert_proved(tmp_path)


async def test_crash_while_scoring(tmp_path: Path) -> None:
    judge = Speaker(lambda messages, before: "0.5")
    await run(build_alone, [TASK], PromptEngine(steps(1)), tmp_path / "whole", models={"judge": judge}, reward=judged)
    events = record_of(tmp_path / "whole").events
    folder = crashed(tmp_path / "whole", tmp_path / "crash", len(events) - 2)
    engine = PromptEngine(steps(1)).follows(events)
    resumed = await run(build_alone, [TASK], engine, folder, models={"judge": judge}, reward=judged)
    assert (resumed[0].reward, len(judge.asked)) == (0.5, 1)


async def test_judge_that_fails(tmp_path: Path) -> None:
    """The episode keeps its end and has no reward; it can be scored later."""
    judge = Speaker(lambda messages, before: ConnectionError("down") if before < 3 else "1.0")
    options = {"models": {"judge": judge}, "reward": judged}
    episodes = await run(build_alone, [TASK], PromptEngine(steps(1)), tmp_path, **options)
    assert episodes[0].end_reason is EndReason.ANSWERED and episodes[0].reward is None
    assert "OtherModelError: the model 'judge' failed 3 times" in str(episodes[0].reward_detail.error)
    assert len(judge.asked) == 3
    (again,) = await score_run(judged, tmp_path, models={"judge": judge}, unscored_only=True)
    assert again.now.value == 1.0
    assert_proved(tmp_path)


async def test_judge_without_directory() -> None:
    judge = Speaker(lambda messages, before: "0.5")
    episodes = await run(build_alone, [TASK], PromptEngine(steps(1)), models={"judge": judge}, reward=judged)
    assert episodes[0].reward == 0.5


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (Speaker(), "dict of models by name"),
        ({"user": "gpt"}, "must be a Strands model, or a function"),
        ({"user": Speaker}, "must be a Strands model, or a function"),
        ({"user": type("Stateful", (Speaker,), {"stateful": True})()}, "must not be stateful"),
        ({"user": lambda: "gpt"}, "must make a Strands model"),
    ],
)
async def test_invalid_models(models: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        await run(build, [TASK], PromptEngine(echo), models=models)


async def test_models_that_nobody_takes() -> None:
    with pytest.raises(ConfigurationError, match="neither build nor reward uses it"):
        await run(build_alone, [TASK], PromptEngine(echo), models={"user": Speaker()})


async def test_unknown_name(tmp_path: Path) -> None:
    episodes = await run(build, [TASK], PromptEngine(echo), tmp_path, models={"usr": Speaker()})
    assert episodes[0].end_reason is EndReason.AGENT_ERROR
    assert episodes[0].failure is not None and "no model 'user' was given" in episodes[0].failure.message


async def test_other_settings_are_another_experiment(tmp_path: Path) -> None:
    engine = PromptEngine(echo)
    await run(build, [TASK], engine, tmp_path, models={"user": Speaker(temperature=1.0, api_key="sk-1")})
    await run(build, [TASK], engine, tmp_path, models={"user": Speaker(temperature=1.0, api_key="sk-2")})
    with pytest.raises(ConfigurationError, match=r"models.user.temperature 1.0, got 0.5"):
        await run(build, [TASK], engine, tmp_path, models={"user": Speaker(temperature=0.5)})
    assert "sk-1" not in (tmp_path / "run.json").read_text()


async def test_digest_in_place_of_the_question(tmp_path: Path) -> None:
    await run(build, [TASK], PromptEngine(echo), tmp_path, models={"user": Speaker()}, tool_arguments="digest")
    assert models_of(tmp_path)[0]["asked"] is None


def test_error_names_the_model() -> None:
    error = OtherModelError("gone", model="user")
    assert (str(error), error.model) == ("gone", "user")
