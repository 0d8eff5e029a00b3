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
from support.provider.agents import acting, outline, sampled, scripted_model
from support.scripted_engine import ScriptedEngine, thought, tool_call


async def test_of_two_replies_the_one_in_the_conversation_is_trained() -> None:
    agent, engine, tree = acting(["good", "bad", "next"])

    async def first_of_two(context: Any, following: Any) -> AsyncGenerator[Any, None]:
        first = [event async for event in following(context)]
        if len(engine.calls) == 1:
            _ = [event async for event in following(context)]
        for event in first:
            yield event

    agent.add_middleware(InvokeModelStage, first_of_two)
    await agent.invoke_async("q")
    await agent.invoke_async("go on")
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
    agent, _, _ = acting([thought("t", tool_call("lookup", word="x")), "end"], "qwen3", on_template_rewrite="refuse")
    await agent.invoke_async("q", limits={"turns": 1})
    agent.messages.append({"role": "assistant", "content": [{"text": "by hand"}]})
    with pytest.raises(BridgeRefusedError, match="no probe covers"):
        await agent.invoke_async("go on")


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
