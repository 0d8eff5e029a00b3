"""The alarm warns of calls in a format that the model's parser does not read, and names the right parser."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from strands_sglang import tool_parsers
from strands_sglang.provider import audit as alarm
from strands_sglang.provider.audit import ParserAlarm
from strands_sglang.tool_parsers import ToolParser, get_tool_parser, register_tool_parser
from support.families import tokenizer
from support.provider.agents import acting, agent_on, scripted_model
from support.scripted_engine import Reply, tool_call

HERMES = tool_call("calculator", expression="1+1")
CODER = "<tool_call>\n<function=calculator>\n<parameter=expression>\n1+1\n</parameter>\n</function>\n</tool_call>"
LLAMA = '{"name": "calculator", "parameters": {"expression": "1+1"}}'
PYTHONIC = '[calculator(expression="1+1")]'
MISTRAL = '[TOOL_CALLS]calculator[ARGS]{"expression": "1+1"}'
SCHEMAS = {"calculator": {"type": "object", "properties": {"expression": {"type": "string"}}}}


@pytest.mark.parametrize(
    ("own", "text", "would"),
    [
        *(("hermes", CODER, "qwen3_coder"), ("hermes", LLAMA, "llama3_json"), ("hermes", PYTHONIC, "pythonic")),
        *(("hermes", MISTRAL, "mistral"), ("qwen3_coder", HERMES, "hermes"), ("glm", HERMES, "hermes")),
        ("llama3_json", f"Let me see.\n{HERMES}", "hermes"),
    ],
)
def test_it_names_the_parser_that_finds_the_calls(own: str, text: str, would: str) -> None:
    parser = get_tool_parser(own)
    parsed = parser.parse(text, schemas=SCHEMAS)
    assert not parsed.calls
    assert ParserAlarm(parser).check(text, parsed, SCHEMAS, 10) == would


@pytest.mark.parametrize("text", ["", "an answer", "{}", "[1, 2]", "<tool_call>", "see [this](link)", "{'a': 1}"])
def test_other_text_does_not_count_as_a_call(text: str) -> None:
    parser = get_tool_parser("hermes")
    assert ParserAlarm(parser).check(text, parser.parse(text), SCHEMAS, 10) is None


def test_calls_in_reasoning_or_of_unknown_tools_do_not_count() -> None:
    parser = get_tool_parser("hermes")
    for text, schemas in ((f"<think>{CODER}</think>done", SCHEMAS), (CODER, {"other": {}}), (CODER, {})):
        assert ParserAlarm(parser).check(text, parser.parse(text), schemas, 10) is None


async def test_it_warns_once_after_enough_turns(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "strands_sglang.provider.audit")
    model, _ = scripted_model(lambda _: LLAMA, alarm_after=3)
    for number in range(6):
        with model.episode():
            await agent_on(model).invoke_async("1+1?")
        assert len(caplog.records) == (number >= 2)
    assert "turns=<3>, parser=<hermes>, would_parse=<llama3_json>" in caplog.text
    assert "tool_parser='llama3_json'" in caplog.text


async def test_it_can_be_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "strands_sglang.provider.audit")
    model, _ = scripted_model(lambda _: LLAMA, alarm_after=None)
    for _ in range(12):
        with model.episode():
            await agent_on(model).invoke_async("1+1?")
    assert caplog.records == []


async def test_calls_that_the_models_parser_rejects_count_too(caplog: pytest.LogCaptureFixture) -> None:
    """The right brackets around another format: every call fails because of the parser."""
    caplog.set_level(logging.WARNING, "strands_sglang.provider.audit")
    model, _ = scripted_model([CODER] * 2 + ["done"], alarm_after=2)
    await agent_on(model).invoke_async("1+1?")
    assert "would_parse=<qwen3_coder>" in caplog.text


async def test_markers_sampled_as_letters_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "strands_sglang.provider.audit")
    pieces = ("<", "tool_call>", HERMES.removeprefix("<tool_call>").removesuffix("</tool_call>"), "</", "tool_call>")
    ids = [token for piece in pieces for token in tokenizer("qwen3").encode(piece, add_special_tokens=False)]

    agent, _, _ = acting(lambda _: Reply(ids=ids), "qwen3", alarm_after=1)
    await agent.invoke_async("1+1?")
    assert agent.messages[-1]["content"] == [{"text": HERMES}]
    assert "not sampled as the tokenizer's tokens" in caplog.text


async def test_turns_with_parsed_calls_reset_the_alarm(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "strands_sglang.provider.audit")
    model, _ = scripted_model([LLAMA, HERMES, "2"] * 5, alarm_after=2)
    for _ in range(10):
        with model.episode():
            await agent_on(model).invoke_async("1+1?")
    assert "look like tool calls" not in caplog.text


async def test_schema_failures_reset_the_alarm(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "strands_sglang.provider.audit")
    wrong = tool_call("calculator", expression=5)
    model, _ = scripted_model([wrong, wrong, "2"], alarm_after=1, arguments_checked_by="schema")
    await agent_on(model).invoke_async("1+1?")
    assert "look like tool calls" not in caplog.text


async def test_a_parser_that_raises_does_not_affect_other_models() -> None:
    class Raising(ToolParser):
        name = "raising"
        call_markers = ("an",)

        def parse(self, text: str, **_: Any) -> Any:
            raise RuntimeError(text)

    register_tool_parser(Raising)
    try:
        model, _ = scripted_model(["an answer"])
        assert model.tool_parser.name == "hermes"
        result = await agent_on(model).invoke_async("1+1?")
        assert str(result).strip() == "an answer"
    finally:
        del tool_parsers._known["raising"]


def test_a_template_that_writes_no_tools_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Logged once per process, and only if the model has called no tool: one that calls its tools knows them."""
    alarm._warn_unknown_tools.cache_clear()
    parser = get_tool_parser("hermes")

    def told(watching: ParserAlarm, *texts: str) -> int:
        for text in texts:
            watching.check(text, parser.parse(text, schemas=SCHEMAS), SCHEMAS, 10)
        return sum("does not write tools into the prompt" in record.getMessage() for record in caplog.records)

    answers = ["an answer"] * 15
    assert told(ParserAlarm(parser), *answers) == 0
    assert told(ParserAlarm(parser, tools_shown=False), HERMES, *answers) == 0
    assert told(ParserAlarm(parser, tools_shown=False), *answers[:5]) == 0
    assert told(ParserAlarm(parser, tools_shown=False), *answers) == 1
    assert told(ParserAlarm(parser, tools_shown=False), *answers) == 1
