"""An agent loop in families with tools: calls in their own tokens are run, answered and continued exactly.

In CI one family for each format of calls.
"""

from __future__ import annotations

import pytest
from strands import tool

from strands_sglang import SGLangModel
from strands_sglang.tokens import Join
from support.examples import long_families
from support.families import tokenizer
from support.provider.agents import agent_on, said
from support.scripted_engine import Reply, ScriptedEngine, assert_exact
from support.tool_parsers.generated import Call
from support.tool_parsers.written import WITH_TOOLS, bridge_of, most_of, parser_of, written

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}}
BREAKS = {
    **dict.fromkeys(("llama3_json", "mistral", "harmony"), "}"),
    **dict.fromkeys(("deepseek_v3", "deepseek_v31"), "<｜tool▁call▁end｜>"),
    "kimi_k2": "<|tool_call_end|>",
}
"""Where a malformed call is truncated; in other formats, at the last marker."""


def turn_of(family: str, *calls: Call) -> list[int]:
    """Return the tokens of a turn with these calls, in a spelling that the parser reads completely."""
    parser = parser_of(family)
    for turn in written(family, list(calls)):
        parsed = parser.parse(turn.text, reasoning_open=turn.reasoning_open, schemas={"echo": SCHEMA})
        if len(parsed.calls) == len(calls):
            return turn.ids
    raise AssertionError(f"{family} does not write {calls}")


def broken(family: str) -> list[int]:
    """Return the tokens of a turn that ends although its call lacks its end."""
    encoder, parser = bridge_of(family).encoder, parser_of(family)
    ids = turn_of(family, Call("echo", {"text": "x", "n": 1}, SCHEMA))
    ended = ids[-1] in encoder.control.special
    text = encoder.decode(ids[:-1] if ended else ids).rstrip()
    lacks = BREAKS.get(parser.name) or next(word for word in sorted(parser.markers, key=len) if text.endswith(word))
    cut = encoder.encode(text[: text.rindex(lacks)])
    return [*cut, *(ids[-1:] if ended else [])]


def thought(family: str) -> list[int]:
    """Return the reasoning that a turn must start with if the prompt opened it; otherwise nothing."""
    encoder, (opening, closing) = bridge_of(family).encoder, parser_of(family).reasoning_markers
    prompt = bridge_of(family).template.render([{"role": "user", "content": "x"}]).text
    return list(encoder.encode(f"hm{closing}")) if prompt.rstrip().endswith(opening) else []


@pytest.mark.parametrize("family", long_families(WITH_TOOLS, "deepseek-v3", "deepseek-v3.2", "minimax-m2"))
async def test_calls_run_and_a_malformed_one_is_answered(family: str) -> None:
    ran: list[tuple[str, int]] = []

    @tool
    async def echo(text: str = "", n: int = 0) -> str:
        """Say it again.

        Args:
            text: What.
            n: How often.
        """
        ran.append((text, n))
        return f"{n} times {text}"

    first = Call("echo", {"text": " 12 <b>", "n": 3}, SCHEMA)
    several = [Call("echo", {"text": str(number), "n": number}, SCHEMA) for number in range(min(3, most_of(family)))]
    encoder = bridge_of(family).encoder
    final = encoder.encode("<|channel|>final<|message|>done<|return|>" if "<|call|>" in encoder.control.ids else "done")
    turns = [turn_of(family, first), turn_of(family, *several), broken(family), list(final)]
    engine = ScriptedEngine(tokenizer(family), [Reply(ids=[*thought(family), *ids]) for ids in turns])
    model = SGLangModel(tokenizer=engine.tokenizer, client=engine, on_hidden_tools="allow")  # DeepSeek's hide them
    agent = agent_on(model, tools=[echo])
    result = await agent.invoke_async("go")
    assert str(result).strip() == "done" and result.stop_reason == "end_turn"
    assert sorted(ran) == sorted([(" 12 <b>", 3), *((call.arguments["text"], call.arguments["n"]) for call in several)])
    told = [line for line in said(agent) if line.startswith("error: ")]
    assert len(told) == 1 and "was not executed, because it is malformed" in told[0]
    assert "3 times  12 <b>" in engine.prompts[1].replace("\\u003c", "<").replace("\\u003e", ">")
    assert "because it is malformed" in engine.prompts[3]
    assert [turn.parent for turn in model.current_episode.tree] == [None, 0, 1, 2]
    assert all(turn.join in (Join.PROVED, Join.KEPT) for turn in list(model.current_episode.tree)[1:])
    assert_exact(engine, model.current_episode)
