"""What the model reads after a stand-in and after the real conversation, and that no word of a stand-in reaches it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from strands import tool

from attack.awkward import AWKWARD, chatml
from provider.test_families import SCHEMA, thought, turn_of
from strands_sglang import SGLangModel
from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.conversation_shape import ConversationShape, Step
from strands_sglang.chat.messages import template_messages, template_tools
from strands_sglang.chat.soundness import RuntimeSoundness, StandIn, StepResult
from strands_sglang.chat.template import ChatTemplate
from strands_sglang.tokens import Join
from support.families import tokenizer
from support.provider.agents import agent_on, calculator
from support.scripted_engine import Reply, ScriptedEngine, tool_call
from support.tool_parsers.generated import Call

PROBE_WORD = "xQz"


def model_on(name: str, replies: list[str]) -> tuple[SGLangModel, ScriptedEngine]:
    """`name` of an awkward template, or a template."""
    tok = tokenizer("qwen2.5")
    engine = ScriptedEngine(tok, replies)
    return SGLangModel(tokenizer=tok, client=engine, chat_template=AWKWARD.get(name, name), audit_share=0), engine


def official(agent: Any, name: str, family: str = "qwen2.5") -> str:
    """Return the rendering of an agent's conversation without its last reply."""
    specs = agent.tool_registry.get_all_tool_specs()
    return str(
        tokenizer(family).apply_chat_template(
            template_messages(agent.messages[:-1]),
            tools=template_tools(specs),
            chat_template=AWKWARD.get(name, name),
            add_generation_prompt=True,
            tokenize=False,
        )
    )


CALLS = [tool_call("calculator", expression=f"{number}+{number}") for number in range(4)]


@pytest.mark.parametrize("name", ["results are numbered", "all arguments are repeated"])
async def test_kept_step_shows_the_real_conversation(name: str) -> None:
    model, engine = model_on(name, [*CALLS, "Done."])
    agent = agent_on(model)
    await agent.invoke_async("Go")
    assert Join.KEPT in [turn.join for turn in model.current_episode.tree]
    assert engine.prompts[-1] == official(agent, name)


async def test_template_that_repeats_an_argument_is_proved_with_the_real_calls() -> None:
    name = "an argument of the call with the id of a result is repeated"
    model, engine = model_on(name, [*CALLS, "Done."])
    agent = agent_on(model)
    await agent.invoke_async("Go")
    assert engine.prompts[-1] == official(agent, name) and "0+0" in official(agent, name)


async def test_stand_in_whose_words_show_is_not_used() -> None:
    """Even if all evidence were wrong."""
    name = "all arguments are repeated"
    model, engine = model_on(name, [*CALLS, "Done."])
    model.planner.appender.soundness = soundness = RuntimeSoundness("blind")
    soundness.stand_in = lambda *_: StandIn.WITH_PREAMBLE  # type: ignore[method-assign]
    soundness.result = lambda *_, **__: StepResult()  # type: ignore[method-assign]
    agent = agent_on(model)
    await agent.invoke_async("Go")
    assert engine.prompts[-1] == official(agent, name) and PROBE_WORD not in engine.prompts[-1]


async def test_data_with_a_word_of_a_stand_in_is_data() -> None:
    model, engine = model_on("plain", ["One xQzAnchorqZx.", *CALLS[:1], "Two."])
    agent = agent_on(model)
    for question in ("xQzAnchorqZx?", "xQzAnchorqZx xQzAnchor1qZx xQzReplyqZx"):
        await agent.invoke_async(question)
    assert [turn.join for turn in model.current_episode.tree] == [Join.ROOT, Join.PROVED, Join.PROVED]
    assert engine.prompts[-1] == official(agent, "plain")


@tool
def read_file(path: str = "", lines: int = 0) -> str:
    """Read a file.

    Args:
        path: Which.
        lines: How many.
    """
    return "hello"


def marked(condition: str) -> str:
    """Return a template that marks a result if something is true of the last call before it."""
    return chatml(
        result="{%- set last = namespace(call={'name': '', 'arguments': {}}) %}"
        "{%- for o in messages[:loop.index0] if o.tool_calls %}{% set last.call = o.tool_calls[-1].function %}"
        "{%- endfor %}"
        "{%- set name, arguments = last.call.name, last.call.arguments %}"
        "{%- if " + condition + " %}{{ '[!] ' }}{% endif %}{{ m.content }}"
    )


@pytest.mark.parametrize(
    "asked",
    [
        *("name == 'read_file'", "name in {'read_file': 1}", "arguments.path", "'path' in arguments"),
        *("arguments.get('path')", "arguments | length > 1", "not arguments", "arguments == {}"),
        *("(arguments | list | first) == 'path'", "'b.py' in arguments.values()", "'b.py' in (arguments | tojson)"),
        *("(arguments.values() | list | first) == 'b.py'", "(arguments | dictsort | first | last) == 'b.py'"),
        *("'b.py' in (arguments | string)", "arguments.items() | list | length > 1"),
        *("(arguments.values() | list | last) is number", "arguments.values() | reject('string') | list"),
        "arguments.keys() == {'path': 1}.keys()",
    ],
)
async def test_calls_are_part_of_the_evidence(asked: str) -> None:
    """The first agent's calls leave a stand-in that is right for calls like these only."""
    calls = [[tool_call("calculator", expression=str(number)) for number in (1, 2)]]
    calls += [[tool_call("read_file", **given) for given in ({"path": "b.py"}, {}, {"path": "b.py", "lines": 1})]]
    for replies in calls:
        model, engine = model_on(source := marked(asked), [*replies, "Done."])
        agent = agent_on(model, tools=[calculator, read_file])
        await agent.invoke_async("Go")
        assert [turn.join for turn in model.current_episode.tree][1:] == [Join.PROVED] * len(replies)
        assert engine.prompts[-1] == official(agent, source)


@pytest.mark.parametrize(
    "family",
    ["qwen2.5", "qwen3", "gpt-oss", *(pytest.param(name, marks=pytest.mark.soak) for name in ("glm-4.5", "kimi-k2"))],
)
async def test_a_turn_renders_only_what_is_new(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also at steps that are not proved, as those of Qwen3 without reasoning; with no tools, and once."""

    @tool
    def echo(text: str = "", n: int = 0) -> str:
        """Say it again.

        Args:
            text: What.
            n: How often.
        """
        return f"{n} times {text}"

    turns = [turn_of(family, Call("echo", {"text": "x" * number, "n": number}, SCHEMA)) for number in range(6)]
    engine = ScriptedEngine(tokenizer(family), [*(Reply(ids=[*thought(family), *ids]) for ids in turns), Reply()])
    model = SGLangModel(tokenizer=engine.tokenizer, client=engine, audit_share=0)
    render, rendered = ChatTemplate._render, list[tuple[int, int, bool]]()

    def counting(self: ChatTemplate, messages: Any, tools: Any, *others: Any) -> str:
        rendered.append((len(engine.calls), len(messages), tools is not None))
        return render(self, messages, tools, *others)

    monkeypatch.setattr(ChatTemplate, "_render", counting)
    agent = agent_on(model, tools=[echo])
    await agent.invoke_async("go")
    late = [one for one in rendered if one[0] > 2]  # after the first calls, and after the first results before calls
    assert [number for number, _, _ in late] == [3, 4, 5, 6], late
    assert all(messages <= 5 and not tools for _, messages, tools in late), late


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return a counter of the continuations after a stand-in and after the real conversation."""
    found = Counter[str]()
    for name in ("extend", "extend_with_history"):
        method = getattr(Bridge, name)

        def counting(*given: Any, name: str = name, method: Any = method, **named: Any) -> Any:
            found[name] += 1
            return method(*given, **named)

        monkeypatch.setattr(Bridge, name, counting)
    return found


async def test_a_step_that_is_not_proved_uses_a_stand_in_that_gave_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until an audit withdraws a result: what it may depend on is unknown then."""
    tok, found = tokenizer("qwen3"), counted(monkeypatch)
    source = tok.chat_template + "{# a template that no other test has used #}"
    for number in range(4):
        engine = ScriptedEngine(tok, [*CALLS, "Done."])  # without reasoning, which the template writes at each turn
        model = SGLangModel(tokenizer=tok, client=engine, chat_template=source, audit_share=0)
        if number == 2:
            shape = ConversationShape((("calculator", "call00000"),), no_reasoning=True)
            model.planner.appender.soundness.withdraw(Step.TOOL, shape, "a test")
        agent = agent_on(model)
        found.clear()
        await agent.invoke_async("Go")
        assert [turn.join for turn in model.current_episode.tree] == [Join.ROOT, *[Join.KEPT] * len(CALLS)]
        whole = official(agent, source, "qwen3")
        for prompt in engine.prompts[1:]:
            assert prompt[prompt.rindex("<tool_response>") :] in whole
        assert (found["extend_with_history"] == 0) == (number == 1), (number, found)
