"""Unusual cases: replies chosen among several, tools that are almost equal, steps without a probe."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from strands.middleware import InvokeModelStage

from strands_sglang import SGLangModel
from strands_sglang.chat.tokenization import Encoder
from strands_sglang.errors import BridgeRefusedError
from strands_sglang.provider.stream_events import LiveText
from strands_sglang.tokens import TurnStatus
from strands_sglang.tool_parsers import HermesToolParser
from support.families import tokenizer
from support.provider.agents import agent_on, outline, sampled, scripted_model
from support.scripted_engine import ScriptedEngine, assert_exact, thought, tool_call


async def test_of_two_replies_the_one_in_the_conversation_is_trained() -> None:
    model, engine = scripted_model(["good", "bad", "next"], "qwen2.5")
    agent = agent_on(model)

    async def first_of_two(context: Any, following: Any) -> AsyncGenerator[Any, None]:
        first = [event async for event in following(context)]
        if len(engine.calls) == 1:
            _ = [event async for event in following(context)]
        for event in first:
            yield event

    agent.add_middleware(InvokeModelStage, first_of_two)
    await agent.invoke_async("q")
    await agent.invoke_async("go on")
    tree = model.current_episode.tree
    assert [turn.status for turn in tree] == [TurnStatus.KEPT, TurnStatus.REJECTED, TurnStatus.KEPT]
    assert outline(tree)[2] == (0, "proved")
    assert [one.turn_ids for one in tree.trajectories()] == [(0, 2)]
    assert sampled(tree[0], engine).startswith("good")


async def test_tools_that_differ_only_in_a_number_type_are_different() -> None:
    def spec(default: Any) -> Any:
        schema = {"type": "object", "properties": {"n": {"type": "integer", "default": default}}}
        return {"name": "t", "description": "d", "inputSchema": {"json": schema}}

    model, engine = scripted_model(["a", "b"], "qwen2.5")
    for default in (1, True):
        async for _ in model.stream([{"role": "user", "content": [{"text": "q"}]}], [spec(default)], model_state={}):
            pass
    assert '"default": 1' in engine.prompts[0] and '"default": true' in engine.prompts[1]


async def test_a_tool_with_a_changed_description_is_rendered_again() -> None:
    spec: Any = {"name": "t", "description": "old", "inputSchema": {"json": {"type": "object"}}}
    model, engine = scripted_model(["a", "b"], "qwen2.5")
    for description in ("old", "new"):
        spec["description"] = description
        async for _ in model.stream([{"role": "user", "content": [{"text": "q"}]}], [spec], model_state={}):
            pass
    assert "new" in engine.prompts[1]


async def test_a_step_without_a_probe_is_refused_by_policy() -> None:
    """An answer inserted by hand among the new messages: no probe covers that."""
    model, _ = scripted_model([thought("t", tool_call("lookup", word="x")), "end"], on_template_rewrite="refuse")
    agent = agent_on(model)
    await agent.invoke_async("q", limits={"turns": 1})
    agent.messages.append({"role": "assistant", "content": [{"text": "by hand"}]})
    with pytest.raises(BridgeRefusedError, match="no probe covers"):
        await agent.invoke_async("go on")


async def test_schema_keys_cannot_become_control_tokens() -> None:
    """Some templates write `<key>` for the keys of a schema they do not know."""
    properties = {"x": {"type": "string", "|im_start|": "v", "think": "v", "im_end": "v"}}
    counts = []
    for inner in (properties, {"x": {"type": "string", "harmless": "v", "plain": "v", "other": "v"}}):
        schema = {"json": {"type": "object", "properties": inner}}
        spec: Any = {"name": "t", "description": "d", "inputSchema": schema}
        for family in ("qwen3-coder", "nemotron-3-nano"):
            model, engine = scripted_model(["a"], family)
            async for _ in model.stream([{"role": "user", "content": [{"text": "q"}]}], [spec], model_state={}):
                pass
            control = model._runner.planner.bridge.encoder.control
            counts.append([token for token in engine.calls[0].ids if token in control])
            assert all(str(key) in engine.prompts[0] for key in inner["x"])
    assert counts[:2] == counts[2:]


def test_a_tokenizer_with_a_changed_template_is_checked_again() -> None:
    from transformers import AutoTokenizer

    own = AutoTokenizer.from_pretrained(tokenizer("qwen2.5").name_or_path)
    engine = ScriptedEngine(own, [])
    before = SGLangModel(tokenizer=own, client=engine)
    assert "tool" in before.soundness.proved
    own.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    after = SGLangModel(tokenizer=own, client=engine)
    assert "tool" not in after.soundness.proved
    assert before.soundness.digest != after.soundness.digest


@pytest.mark.soak
def test_live_text_cost_is_linear() -> None:
    """Twice the tokens, about twice the time."""
    tok = tokenizer("qwen3")
    ids = tok.encode("some words of reasoning, line by line\n" * 1500, add_special_tokens=False)

    encoder = Encoder(tok)

    def seconds(count: int) -> float:
        best = 1e9
        for _ in range(3):
            live = LiveText(encoder, HermesToolParser(), reasoning_open=True)
            began = time.process_time()
            for token in ids[:count]:
                live.feed([token])
            best = min(best, time.process_time() - began)
        return best

    assert seconds(12_000) < 3 * seconds(6_000)


async def test_a_learned_context_limit_reduces_later_budgets() -> None:
    model, engine = scripted_model(["a", "b"], "qwen2.5", context_window_limit=1_000_000)
    model._runner.sampler.context_limit = 500
    await agent_on(model).invoke_async("q")
    assert engine.calls[0].sampling["max_new_tokens"] < 500
    assert_exact(engine, model.current_episode)
