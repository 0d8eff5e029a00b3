"""`SGLangModel`: many agents, loops and threads on one model, with and without streaming."""

from __future__ import annotations

import asyncio
import copy
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from strands import Agent
from strands.types.exceptions import StructuredOutputException

from strands_sglang import SGLangModel
from strands_sglang.engine import FinishReason
from strands_sglang.errors import ConfigurationError
from strands_sglang.tokens import TurnPurpose
from support.families import tokenizer
from support.provider.agents import agent_on, calculator, official, outline, said, scripted_model
from support.scripted import Received, ScriptedServer, Wire, encoded, scripted, serve_rest
from support.scripted_engine import Reply, ScriptedEngine, assert_exact, thought, tool_call

SUM = tool_call("calculator", expression="1+1")


def two_steps(prompt: str) -> Reply:
    """Answer a question with a call, and a result with text; yield to other tasks first."""

    async def later() -> None:
        await asyncio.sleep(0)

    last = prompt.rsplit("<|im_start|>user", 1)[1]
    return Reply("It is done." if "<tool_response>" in last else SUM, before=later)


@pytest.mark.parametrize("scoped", [True, False])
async def test_many_agents_at_once_on_one_model(scoped: bool) -> None:
    """All get the same question and the same answer: each still has its own branch."""
    model, engine = scripted_model(two_steps, "qwen2.5")

    async def run(number: int) -> tuple[Agent, Any]:
        agent = agent_on(model)
        if not scoped:
            await agent.invoke_async("go")
            await agent.invoke_async("again")
            return agent, model.current_episode
        with model.episode(f"task-{number}") as episode:
            await agent.invoke_async("go")
            await agent.invoke_async("again")
        return agent, episode

    played = await asyncio.gather(*(run(number) for number in range(20)))
    episodes = {episode.id: episode for _, episode in played}
    assert len(episodes) == (20 if scoped else 1)
    branches = [one.turn_ids for episode in episodes.values() for one in episode.trajectories()]
    assert [len(ids) for ids in branches] == [4] * 20
    for agent, episode in played:
        kept: list[Any] = [message["metadata"] for message in agent.messages if "metadata" in message]
        places = [metadata["metrics"]["sglang"] for metadata in kept]
        assert {place["tree"] for place in places} == {episode.id}
        assert len({place["branch"] for place in places}) == 1
        assert tuple(place["turn"] for place in places) in [one.turn_ids for one in episode.trajectories()]
        assert [place["parent"] for place in places] == [None, *(place["turn"] for place in places[:-1])]
    assert_exact(engine, *episodes.values())


async def test_episodes_inside_episodes_and_other_models() -> None:
    model, engine = scripted_model(lambda prompt: "yes", "qwen2.5")
    other, other_engine = scripted_model(lambda prompt: "no", "qwen2.5")
    with model.episode("outer") as outer:
        await agent_on(model).invoke_async("a")
        with model.episode("inner") as inner, other.episode("theirs") as theirs:
            assert model.current_episode is inner and other.current_episode is theirs
            await asyncio.gather(agent_on(model).invoke_async("b"), agent_on(other).invoke_async("b"))
        assert model.current_episode is outer
        await agent_on(model).invoke_async("c")
        # Another model's episode is none of ours.
        with other.episode():
            assert model.current_episode is outer
    await agent_on(model).invoke_async("d")

    assert [len(one.tree) for one in (outer, inner, model.current_episode, theirs)] == [2, 1, 1, 1]
    assert_exact(engine, outer, inner, model.current_episode)
    assert_exact(other_engine, theirs)


async def test_an_episode_reaches_tasks_tools_and_threads_started_in_it() -> None:
    model, engine = scripted_model(["sync", "task", "thread"], "qwen2.5")
    with model.episode() as episode:
        agent_on(model)("from a thread of the SDK")
        await asyncio.create_task(agent_on(model).invoke_async("from a task"))
        await asyncio.to_thread(agent_on(model), "from a thread of our own")
    assert len(episode.tree) == 3 and len(model.current_episode.tree) == 0
    assert_exact(engine, episode)


async def test_an_episode_is_closed_after_an_error() -> None:
    model, _ = scripted_model([], "qwen2.5")
    own = model.current_episode
    with pytest.raises(RuntimeError), model.episode():
        raise RuntimeError
    assert model.current_episode is own


async def test_reset_starts_a_new_episode_and_keeps_the_old_tree() -> None:
    model, engine = scripted_model(["one", "two"], "qwen2.5")
    agent = agent_on(model)
    await agent.invoke_async("first")
    tree = model.token_manager.tree
    before = tree.to_dict()
    model.reset()
    assert (model.token_manager.token_ids, model.token_manager.loss_mask, model.token_manager.segments) == ([], [], [])
    await agent.invoke_async("second")

    assert tree.to_dict() == before
    assert outline(model.current_episode.tree) == [(None, "root")]
    assert engine.calls[1].ids == official(agent, engine, 3)
    assert_exact(engine, model.current_episode, trees=[tree])


def test_sync_calls_one_after_the_other_on_the_wire() -> None:
    ids = tokenizer("qwen2.5").encode("fine<|im_end|>")
    with scripted(lambda request: encoded(request, ids)) as server:
        model = SGLangModel(tokenizer=tokenizer("qwen2.5"), base_url=server.url)
        agent = agent_on(model)
        for prompt in ("a", "b", "c"):
            agent(prompt)
        bodies = [request.json() for request in server.generates()]
    assert [turn.parent for turn in model.current_episode.tree] == [None, 0, 1]
    assert bodies[2]["input_ids"][: len(bodies[1]["input_ids"])] == bodies[1]["input_ids"]
    assert {request.headers["x-smg-routing-key"] for request in server.generates()} == {model.current_episode.id}


def test_many_threads_on_one_model() -> None:
    model, engine = scripted_model(two_steps, "qwen2.5")
    together = threading.Barrier(8)

    def work(_: int) -> list[str]:
        agent = agent_on(model)
        together.wait()
        agent("go")
        agent("again")
        return said(agent)

    with ThreadPoolExecutor(8) as pool:
        talks = list(pool.map(work, range(8)))
    assert talks == [talks[0]] * 8
    assert [len(one.turn_ids) for one in model.current_episode.trajectories()] == [4] * 8
    assert_exact(engine, model.current_episode)


class City(BaseModel):
    name: str
    people: int


async def test_structured_output_is_a_side_turn() -> None:
    model, engine = scripted_model(["Paris is big.", '{"name": "Paris", "people": 2}', "Rome, too."], "qwen2.5")
    agent = agent_on(model, tools=[])
    await agent.invoke_async("a city?")
    with pytest.warns(DeprecationWarning):
        city = await agent.structured_output_async(City, "as data")
    await agent.invoke_async("another?")

    assert city == City(name="Paris", people=2)
    tree = model.current_episode.tree
    assert [turn.parent for turn in tree] == [None, 0, 0]
    assert [turn.purpose for turn in tree] == [TurnPurpose.EPISODE, TurnPurpose.SIDE, TurnPurpose.EPISODE]
    assert orjson.loads(engine.calls[1].sampling["json_schema"])["title"] == "City"
    assert engine.calls[2].ids == official(agent, engine, 3)
    assert [one.turn_ids for one in tree.trajectories()] == [(0, 2)]
    assert_exact(engine, model.current_episode)


async def test_truncated_structured_output_raises() -> None:
    model, _ = scripted_model([Reply('{"name": "Par', ended=False, finish=FinishReason.LENGTH)], "qwen2.5")
    with pytest.raises(StructuredOutputException, match="max_new_tokens may be too small"):
        async for _ in model.structured_output(City, [{"role": "user", "content": [{"text": "a city?"}]}]):
            pass


@pytest.mark.parametrize("called", [True, False])
async def test_structured_output_inside_the_loop_by_call_or_by_grammar(called: bool) -> None:
    replies = [tool_call("City", name="Paris", people=2)] if called else ["Paris.", '{"name": "Paris", "people": 2}']
    model, engine = scripted_model(replies, "qwen2.5")
    result = await agent_on(model).invoke_async("a city?", structured_output_model=City)
    assert result.structured_output == City(name="Paris", people=2)
    tree = model.current_episode.tree
    assert outline(tree) == [(None, "root")] + [(0, "proved")] * (not called)
    assert_exact(engine, model.current_episode)
    if not called:
        # What a grammar allowed is not what the policy chose.
        assert [turn.purpose for turn in tree] == [TurnPurpose.EPISODE, TurnPurpose.CONSTRAINED]
        assert [trajectory.turn_ids for trajectory in tree.trajectories()] == [(0,)]


async def test_structured_output_alone_needs_no_tool_parser() -> None:
    """A template without tool calls: the schema is enforced in the turn that the SDK asks for next."""
    template = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    template += "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    replies = ["Paris.", '{"name": "Paris", "people": 2}', "no calls"]
    model, engine = scripted_model(replies, "qwen2.5", chat_template=template)
    result = await agent_on(model, tools=[]).invoke_async("a city?", structured_output_model=City)
    assert result.structured_output == City(name="Paris", people=2)
    assert outline(model.current_episode.tree) == [(None, "root"), (0, "proved")]
    assert_exact(engine, model.current_episode)
    with pytest.raises(ConfigurationError, match="cannot determine the format of tool calls"):
        await agent_on(model).invoke_async("1+1?")  # with a tool of its own


async def test_a_turn_that_ends_exactly_at_its_budget_is_complete() -> None:
    """The engine reports `length` for a turn whose end-of-turn token is also the last token of its budget."""
    model, engine = scripted_model([Reply(SUM, finish=FinishReason.LENGTH), "two"], "qwen2.5")
    result = await agent_on(model).invoke_async("1+1?")
    assert result.stop_reason == "end_turn"
    tree = model.current_episode.tree
    assert outline(tree) == [(None, "root"), (0, "proved")]
    assert not tree[1].closing and tree[0].finish_reason == "length"
    assert_exact(engine, model.current_episode)


async def test_long_texts_are_encoded_off_the_loop() -> None:
    model, engine = scripted_model(["ok"], "qwen2.5")
    threads = []
    bridge = model._runner.planner.bridge
    encode = bridge.encode

    def noted(prompt: Any) -> Any:
        threads.append(threading.current_thread())
        return encode(prompt)

    bridge.encode = noted  # type: ignore[method-assign]
    await agent_on(model).invoke_async("word " * 20_000)
    bridge.encode = encode  # type: ignore[method-assign]
    assert threads and threads[0] is not threading.current_thread()
    assert_exact(engine, model.current_episode)


async def test_the_message_contains_usage_and_place() -> None:
    model, engine = scripted_model([SUM, "two"], "qwen2.5")
    agent = agent_on(model)
    result = await agent.invoke_async("1+1?")

    metadata: Any = agent.messages[-1]["metadata"]
    turn = model.current_episode.tree[1]
    assert metadata["usage"] == {
        "inputTokens": len(engine.calls[1].ids),
        "outputTokens": len(turn.sampled),
        "totalTokens": turn.end,
        "cacheReadInputTokens": len(engine.calls[1].ids) // 2,
    }
    place = {"tree": model.current_episode.id, "branch": 0, "turn": 1, "parent": 0}
    assert metadata["metrics"]["sglang"] == place
    assert metadata["metrics"]["latencyMs"] == turn.detail["latency_ms"]
    assert (turn.detail["rid"], turn.detail["cached_tokens"]) == ("rid-2", len(engine.calls[1].ids) // 2)
    assert result.metrics.accumulated_usage["outputTokens"] == sum(
        len(one.sampled) for one in model.current_episode.tree
    )


async def test_counting_tokens_never_encodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is called before every turn: recorded turns count exactly, the rest by length."""
    model, _ = scripted_model([SUM, "two"], "qwen2.5")
    agent = agent_on(model)
    await agent.invoke_async("1+1?")
    monkeypatch.setattr(model._runner.planner.bridge, "encode", lambda *_: pytest.fail("encoded"))
    tree = model.current_episode.tree
    assert await model.count_tokens(agent.messages[:2]) == tree[0].end
    assert tree[0].end < await model.count_tokens(agent.messages) < tree[1].end + 50
    assert await model.count_tokens([{"role": "user", "content": [{"text": "x" * 400}]}]) > 50


async def test_tool_choice_is_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    model, _ = scripted_model(["no"], "qwen2.5")
    messages: list[Any] = [{"role": "user", "content": [{"text": "go"}]}]
    choice: Any = {"any": {}}
    async for _ in model.stream(messages, tool_choice=choice):
        pass
    assert "cannot force a tool call" in caplog.text


async def test_text_that_looks_like_a_call_is_not_a_call() -> None:
    """A draft in the reasoning is not a call, nor is text that only has the letters of one."""
    model, engine = scripted_model([thought(f"draft: {SUM}", "done")])
    agent = agent_on(model)
    await agent.invoke_async("go")
    assert said(agent) == ["user: go", "thought", "assistant: done"]
    assert_exact(engine, model.current_episode)


async def test_a_call_sampled_as_letters_is_text() -> None:
    """For example if a tool's result quotes calls and the model repeats them: the markers are not tokens there."""
    pieces = (SUM[:1], SUM[1:], "<|im_end|>")
    ids = [token for piece in pieces for token in tokenizer("qwen3").encode(piece, add_special_tokens=False)]
    model, engine = scripted_model([Reply(ids=ids)])
    agent = agent_on(model)
    await agent.invoke_async("go")
    assert said(agent) == ["user: go", f"assistant: {SUM}"]
    assert_exact(engine, model.current_episode)


async def test_the_tokenizer_lives_as_long_as_the_model() -> None:
    own = copy.deepcopy(tokenizer("qwen2.5"))
    model = SGLangModel(tokenizer=own, client=ScriptedEngine(tokenizer("qwen2.5"), ["yes"]))
    alive = weakref.ref(own)
    del own
    gc.collect()
    assert alive() is not None
    await agent_on(model).invoke_async("go")
    del model
    gc.collect()
    assert alive() is None


async def test_sampling_parameters_deadline_and_more_reach_the_engine() -> None:
    sampling = {"temperature": 0.7, "stop_token_ids": [5], "max_new_tokens": 50}
    model, engine = scripted_model(
        ["yes"], "qwen2.5", params=sampling, deadline=9.0, extra={"lora_path": "x"}, on_abort="return"
    )
    await agent_on(model).invoke_async("go")
    assert engine.calls[0].sampling == sampling
    asked = engine.calls[0].asked
    assert (asked["deadline"], asked["extra"], asked["on_abort"].value) == (9.0, {"lora_path": "x"}, "return")
    assert asked["routed_experts_start"] is None


async def test_an_overflow_error_reports_the_context_length() -> None:
    ids = tokenizer("qwen2.5").encode("yes<|im_end|>")
    words = (
        "Requested token count exceeds the model's maximum context length of 600 tokens. "
        "You requested a total of 4200 tokens: 104 tokens from the input messages and 4096 tokens for the completion."
    )

    async def handle(wire: Wire) -> None:
        if await serve_rest(wire):
            return
        request: Received = await wire.read_body()
        body = request.json()
        if len(body["input_ids"]) + body["sampling_params"]["max_new_tokens"] > 600:
            await wire.reply(orjson.dumps({"error": {"message": words}}), 400)
        else:
            await wire.reply(encoded(request, ids))

    with ScriptedServer(handle) as server:
        model = SGLangModel(tokenizer=tokenizer("qwen2.5"), base_url=server.url)
        await agent_on(model, tools=[]).invoke_async("go")
        await agent_on(model, tools=[]).invoke_async("go")
        assert len(server.generates()) == 3
    assert model.context_window_limit == 600


PIECES = ["<think>", "</think>", "<tool_call>", SUM, "\n", " ", "Hello", "日本", "𓀀", "<tool", "<|im_start|>"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), max_size=7).map("".join),
    st.lists(st.integers(1, 5), max_size=20),
    st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
    st.booleans(),
)
async def test_streaming_records_the_same_tokens_and_gives_the_same_message(
    text: str, splits: list[int], finish: FinishReason, ended: bool
) -> None:
    told = []
    for streaming in (False, True):
        model, engine = scripted_model(
            [Reply(text, finish=finish, ended=ended, splits=splits)], "qwen3", streaming=streaming
        )
        agent = Agent(model=model, tools=[calculator], callback_handler=None)
        with model.episode("same") as episode:
            try:
                await agent.invoke_async("go", limits={"turns": 1})
            except Exception as error:
                assert type(error).__name__ == "MaxTokensReachedException"
        assert_exact(engine, episode)
        turns = episode.tree.to_dict()["turns"]
        for turn in turns:
            del turn["detail"]
        told.append((turns, [{"role": one["role"], "content": one["content"]} for one in agent.messages]))
    assert told[0] == told[1]
